// config.json as published, in both its forms, and malformed: one row per case. Its families: config_families_test.cpp.
#include <gtest/gtest.h>

#include "engine/model/model_plan.hpp"
#include "tests/engine/config_folder.hpp"

namespace longhaul::engine {
namespace {

using testing::load;
using testing::ModelFolder;
using testing::patched;
using testing::plain_llama;

/// facebook/opt-125m, with smaller sizes.
const char* const plain_opt = R"({
    "_remove_final_layer_norm": false, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "bos_token_id": 2, "do_layer_norm_before": true, "eos_token_id": 2, "ffn_dim": 256, "hidden_size": 64,
    "layerdrop": 0.0, "max_position_embeddings": 128, "model_type": "opt", "num_attention_heads": 8,
    "num_hidden_layers": 2, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "use_cache": true,
    "vocab_size": 1000, "word_embed_proj_dim": 64})";
TEST(Config, PlainLlama) {
    const ModelConfig config = load("{}");
    EXPECT_EQ(config.model_type, "llama");
    EXPECT_EQ(config.vocab_size, 1000);
    EXPECT_EQ(config.hidden_size, 64);
    EXPECT_EQ(config.intermediate_size, 172);
    EXPECT_EQ(config.num_layers, 2);
    EXPECT_EQ(config.num_heads, 8);
    EXPECT_EQ(config.num_kv_heads, 4);
    EXPECT_EQ(config.head_dim, 8);
    EXPECT_EQ(config.max_positions, 2048);
    EXPECT_EQ(config.norm_eps, 1e-5);
    EXPECT_FALSE(config.tied_embeddings);
    EXPECT_EQ(config.layers.size(), 1U);
    const LayerConfig& kind = config.layer(1);
    EXPECT_FALSE(kind.qkv_bias || kind.output_bias || kind.mlp_bias);
    EXPECT_TRUE(kind.norm == NormKind::rms && kind.activation == Activation::silu && kind.gated);
    EXPECT_TRUE(config.has_final_norm() && kind.attention_window == 0);
    EXPECT_EQ(config.rope().scaling, RopeScaling::standard);
    EXPECT_EQ(config.rope().theta, 10000.0);
    EXPECT_EQ(config.dtype, "bfloat16");
    EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{2});
    const std::int64_t layer = 64 * (64 + 2 * 32) + 64 * 64 + 3 * 64 * 172 + 2 * 64;
    EXPECT_EQ(num_parameters(config), 2 * 1000 * 64 + 2 * layer + 64);
}

TEST(Config, DefaultsOfHuggingFace) {
    const ModelConfig config = load(R"({"num_key_value_heads": "DELETE", "rope_theta": "DELETE", "hidden_act": "DELETE",
        "rms_norm_eps": "DELETE", "torch_dtype": "DELETE", "eos_token_id": null, "bos_token_id": "DELETE",
        "architectures": null, "rope_scaling": {}})");
    EXPECT_EQ(config.num_kv_heads, 8);
    EXPECT_EQ(config.rope().theta, 10000.0);
    EXPECT_EQ(config.norm_eps, 1e-6);
    EXPECT_EQ(config.dtype, "");
    EXPECT_TRUE(config.eos_ids.empty());
}

TEST(Config, Qwen2HasBiasesOnQueryKeyAndValue) {
    const ModelConfig config = load(R"({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
        "use_sliding_window": false, "sliding_window": 131072, "max_window_layers": 21, "tie_word_embeddings": true,
        "layer_types": ["full_attention", "full_attention"]})");
    EXPECT_TRUE(config.layer(0).qkv_bias);
    EXPECT_FALSE(config.layer(0).output_bias);
    EXPECT_TRUE(config.tied_embeddings);
    const std::int64_t layer = 64 * (64 + 2 * 32) + (64 + 2 * 32) + 64 * 64 + 3 * 64 * 172 + 2 * 64;
    EXPECT_EQ(num_parameters(config), 1000 * 64 + 2 * layer + 64);
    // A sliding window that starts above the last layer has no effect.
    EXPECT_EQ(load(R"({"use_sliding_window": true, "sliding_window": 1024, "max_window_layers": 2})").num_layers, 2);
}

ModelConfig load_opt(const std::string& patch) {
    const ModelFolder folder;
    folder.write("config.json", patched(plain_opt, patch));
    return folder.load();
}

TEST(Config, Opt) {
    const ModelConfig config = load_opt("{}");
    EXPECT_EQ(config.model_type, "opt");
    EXPECT_EQ(config.intermediate_size, 256);
    EXPECT_EQ(config.num_kv_heads, 8);
    EXPECT_EQ(config.head_dim, 8);
    EXPECT_EQ(config.max_positions, 128);
    EXPECT_EQ(config.position_rows(), 130);
    EXPECT_EQ(config.norm_eps, 1e-5);
    EXPECT_TRUE(config.learned_positions && config.tied_embeddings);
    const LayerConfig& kind = config.layer(1);
    EXPECT_TRUE(kind.norm == NormKind::layer && kind.norm_place == NormPlace::before);
    EXPECT_TRUE(kind.activation == Activation::relu && !kind.gated);
    EXPECT_TRUE(kind.qkv_bias && kind.output_bias && kind.mlp_bias);
    EXPECT_EQ(config.rope().scaling, RopeScaling::none);
    EXPECT_EQ(config.embedding_width(), 64);
    EXPECT_EQ(config.dtype, "float16");
    EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{2});
    const std::int64_t layer = 4 * (64 * 64 + 64) + 2 * 64 * 256 + 256 + 64 + 4 * 64;
    EXPECT_EQ(num_parameters(config), 1000 * 64 + 130 * 64 + 2 * layer + 2 * 64);
    EXPECT_FALSE(load_opt(R"({"enable_bias": false})").layer(0).mlp_bias);
    EXPECT_FALSE(load_opt(R"({"tie_word_embeddings": false})").tied_embeddings);
    // Like the 350M model: norms after the residual sums, no final norm, and narrower embeddings.
    const ModelConfig medium = load_opt(R"({"do_layer_norm_before": false, "word_embed_proj_dim": 32})");
    EXPECT_EQ(medium.layer(0).norm_place, NormPlace::after);
    EXPECT_FALSE(medium.has_final_norm());
    EXPECT_EQ(medium.embedding_width(), 32);
    EXPECT_EQ(num_parameters(medium), 1000 * 32 + 130 * 64 + 2 * 32 * 64 + 2 * layer);
}

struct BadConfig {
    const char* patch;
    const char* complaint;  // after "config.json: "
};

const BadConfig bad_opts[] = {
    {R"({"architectures": ["OPTModel"]})", R"(architectures: expected ["OPTForCausalLM"], got "OPTModel")"},
    {R"({"activation_function": "gelu"})", R"(activation_function: expected "relu", got "gelu")"},
    {R"({"ffn_dim": "DELETE"})", "ffn_dim: expected an integer from 1 to 1048576, got nothing"},
    {R"({"word_embed_proj_dim": 0})", "word_embed_proj_dim: expected an integer from 1 to 131072, got 0"},
    {R"({"max_position_embeddings": -1})", "max_position_embeddings: expected an integer from 1 to 16777216, got -1"},
    {R"({"do_layer_norm_before": "yes"})", R"(do_layer_norm_before: expected true or false, got "yes")"},
    {R"({"layer_norm_elementwise_affine": false})", "layer_norm_elementwise_affine: expected true, got false"},
    {R"({"_remove_final_layer_norm": true})", "_remove_final_layer_norm: expected false, got true"},
    {R"({"num_attention_heads": 7})", "hidden_size: expected a multiple of num_attention_heads = 7, got 64"},
};

TEST(Config, BadOptsAreRefusedNamingTheField) {
    for (const BadConfig& row : bad_opts) {
        const ModelFolder folder;
        folder.write("config.json", patched(plain_opt, row.patch));
        EXPECT_EQ(folder.complaint(), std::string("config.json: ") + row.complaint) << row.patch;
    }
}

TEST(Config, BothFormsOfRope) {
    const ModelConfig older = load(R"({"rope_theta": 500000.0, "max_position_embeddings": 131072, "rope_scaling":
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192}})");
    const ModelConfig newer = load(R"({"rope_theta": "DELETE", "rope_scaling": "DELETE", "torch_dtype": "DELETE",
        "dtype": "bfloat16", "max_position_embeddings": 131072, "rope_parameters":
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
         "original_max_position_embeddings": 8192, "rope_theta": 500000.0}})");
    for (const ModelConfig& config : {older, newer}) {
        EXPECT_EQ(config.rope().scaling, RopeScaling::llama3);
        EXPECT_EQ(config.rope().theta, 500000.0);
        EXPECT_EQ(config.rope().factor, 8.0);
        EXPECT_EQ(config.rope().low_freq_factor, 1.0);
        EXPECT_EQ(config.rope().high_freq_factor, 4.0);
        EXPECT_EQ(config.rope().original_max_positions, 8192);
        EXPECT_EQ(config.max_positions, 131072);
        EXPECT_EQ(config.dtype, "bfloat16");
    }
}

TEST(Config, ContextReachesAsFarAsTheScalingWasMadeFor) {
    const ModelConfig linear = load(R"({"rope_scaling": {"type": "linear", "factor": 4.0}})");
    EXPECT_EQ(linear.rope().scaling, RopeScaling::linear);
    EXPECT_EQ(linear.max_positions, 8192);
    // As Qwen2.5's instructions say: max_position_embeddings stays at the trained length.
    const ModelConfig yarn = load(R"({"rope_scaling": {"type": "yarn", "factor": 4.0, "truncate": false,
        "original_max_position_embeddings": 2048, "attention_factor": 1.25, "beta_fast": 16, "beta_slow": null}})");
    EXPECT_EQ(yarn.rope().scaling, RopeScaling::yarn);
    EXPECT_EQ(yarn.max_positions, 8192);
    EXPECT_EQ(yarn.rope().original_max_positions, 2048);
    EXPECT_EQ(yarn.rope().attention_factor, 1.25);
    EXPECT_EQ(yarn.rope().beta_fast, 16.0);
    EXPECT_EQ(yarn.rope().beta_slow, 1.0);
    EXPECT_FALSE(yarn.rope().truncate);
    // max_position_embeddings already is the long length: it is not stretched again. Without a factor, the factor is
    // the ratio of the two lengths.
    const ModelConfig named = load(R"({"max_position_embeddings": 8192, "rope_scaling": {"rope_type": "yarn",
        "factor": null, "original_max_position_embeddings": 2048}})");
    EXPECT_EQ(named.max_positions, 8192);
    EXPECT_EQ(named.rope().factor, 4.0);
    EXPECT_EQ(named.rope().attention_factor, 0.0);
}
TEST(Config, EndOfTextComesFromTheGenerationConfigFirst) {
    EXPECT_EQ(load("{}", R"({"eos_token_id": [9, 7, 9]})").eos_ids, (std::vector<std::int32_t>{7, 9}));
    EXPECT_EQ(load("{}", R"({"eos_token_id": 5})").eos_ids, std::vector<std::int32_t>{5});
    EXPECT_EQ(load("{}", R"({"eos_token_id": null})").eos_ids, std::vector<std::int32_t>{2});
    EXPECT_EQ(load(R"({"eos_token_id": [3, 4]})", R"({"do_sample": true})").eos_ids, (std::vector<std::int32_t>{3, 4}));
}

TEST(Config, WeightsOf8BitsAreRead) {
    EXPECT_NO_THROW(load(R"({"quantization_config": {"quant_method": "fp8", "fmt": "e4m3",
        "activation_scheme": "dynamic", "weight_block_size": [128, 128]}})"));
    EXPECT_NO_THROW(load(R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "float-quantized",
        "config_groups": {"group_0": {"weights": {"num_bits": 8, "type": "float", "block_structure": null}}},
        "transform_config": {"config_groups": {"R1": {"apply": [{"location": "weight_input"}]}}}}})"));
    EXPECT_NO_THROW(load(R"({"quantization_config": {"quant_method": "fbgemm_fp8"}})"));
}

TEST(Config, WeightsOf4BitsAreRead) {
    for (const char* quantization :
         {R"({"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": true, "sym": false})",
          R"({"quant_method": "gptq", "bits": 8, "checkpoint_format": "gptq", "format": "GPTQ"})",
          R"({"quant_method": "awq", "bits": 4, "group_size": 128, "version": "GEMM", "zero_point": true})",
          R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_gptq"})",
          R"({"quant_method": "auto-round", "bits": 4, "packing_format": "auto_round:auto_awq"})",
          R"({"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8"})",
          R"({"quant_method": "compressed-tensors", "format": "nvfp4-pack-quantized"})",
          R"({"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": {
              "a": {"format": "pack-quantized", "weights": {"num_bits": 4, "group_size": 128, "actorder": "group"}},
              "b": {"format": "float-quantized", "weights": {"num_bits": 8}},
              "c": {"format": "dense", "weights": null}}})",
          R"({"quant_method": "auto_round", "bits": 4})", R"({"quant_algo": "FP8", "producer": {"name": "modelopt"}})"})
        EXPECT_NO_THROW(load(R"({"quantization_config": )" + std::string(quantization) + "}")) << quantization;
}

/// Older folders say it in files of their own.
TEST(Config, QuantizationInOtherFiles) {
    const ModelFolder folder;
    folder.write("config.json", plain_llama);
    folder.write("quantize_config.json", R"({"bits": 4, "group_size": 128, "checkpoint_format": "gptq_v2"})");
    EXPECT_EQ(folder.complaint(),
              R"(quantize_config.json: checkpoint_format: expected "gptq", got "gptq_v2"; use the model's unquantized )"
              R"(folder)");
    folder.write("quantize_config.json", R"({"bits": 4, "group_size": 128, "desc_act": false})");
    folder.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "W4A8_AWQ"}})");
    EXPECT_TRUE(folder.complaint().starts_with("hf_quant_config.json: quantization.quant_algo: expected "))
        << folder.complaint();
    folder.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": null}})");
    EXPECT_EQ(folder.complaint(), "(none)");
}

TEST(Config, HeadDimMayDifferFromTheQuotient) {
    const ModelConfig config = load(R"({"head_dim": 32})");
    EXPECT_EQ(config.head_dim, 32);
    EXPECT_EQ(load(R"({"head_dim": null})").head_dim, 8);
}

const BadConfig bad_configs[] = {
    // Architecture.
    {R"({"model_type": "mamba"})",
     R"(model_type: expected "llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5_text", "qwen3_5", "qwen2_moe", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe", "cwm", "mistral", "mistral3", "ministral3", "mixtral", "glm", "glm4", "glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite", "smollm3", "seed_oss", "olmo2", "olmo3", "olmoe", "exaone", "exaone4", "exaone_moe", "ernie4_5", "ernie4_5_moe", "dots1", "solar_open", "hy_v3", "minimax_m2", "granite", "granitemoe", "granitemoehybrid", "arcee", "afmoe", "youtu", "cohere", "cohere2", "nemotron_h", "gpt_oss", "gemma3_text", "gemma3", "gemma4_text", "gemma4", "gemma", "gemma2", "gpt2", "gpt_neox", "phi", "starcoder2", "stablelm", "nemotron", "phi3" or "opt", got "mamba")"},
    {R"({"model_type": "DELETE"})",
     R"(model_type: expected "llama", "qwen2", "qwen3", "qwen3_moe", "qwen2_vl", "qwen2_5_vl", "qwen3_vl", "qwen3_vl_moe", "qwen3_5_text", "qwen3_5", "qwen2_moe", "qwen3_next", "qwen3_5_moe_text", "qwen3_5_moe", "cwm", "mistral", "mistral3", "ministral3", "mixtral", "glm", "glm4", "glm4_moe", "deepseek_v2", "deepseek_v3", "kimi_k2", "kimi_k25", "glm4_moe_lite", "smollm3", "seed_oss", "olmo2", "olmo3", "olmoe", "exaone", "exaone4", "exaone_moe", "ernie4_5", "ernie4_5_moe", "dots1", "solar_open", "hy_v3", "minimax_m2", "granite", "granitemoe", "granitemoehybrid", "arcee", "afmoe", "youtu", "cohere", "cohere2", "nemotron_h", "gpt_oss", "gemma3_text", "gemma3", "gemma4_text", "gemma4", "gemma", "gemma2", "gpt2", "gpt_neox", "phi", "starcoder2", "stablelm", "nemotron", "phi3" or "opt", got nothing)"},
    {R"({"model_type": 7})", "model_type: expected a string, got 7"},
    {R"({"architectures": ["LlamaModel"]})", R"(architectures: expected ["LlamaForCausalLM"], got "LlamaModel")"},
    {R"({"architectures": "LlamaForCausalLM"})",
     R"(architectures: expected ["LlamaForCausalLM"], got "LlamaForCausalLM")"},
    {R"({"architectures": []})", R"(architectures: expected ["LlamaForCausalLM"], got an array of 0)"},
    {R"({"quantization_config": {"quant_method": "bitsandbytes"}})",
     R"(quantization_config.quant_method: expected "gptq", "awq", "auto-round", "compressed-tensors", "modelopt", "fp8", )"
     R"("fbgemm_fp8", or with gpt-oss "mxfp4", got "bitsandbytes"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "marlin-24"}})",
     R"(quantization_config.format: expected "float-quantized", "int-quantized", "naive-quantized", "pack-quantized", )"
     R"("nvfp4-pack-quantized" or "mxfp4-pack-quantized", got "marlin-24"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups":
        {"group_0": {"weights": {"num_bits": 3}}}}})",
     "quantization_config.config_groups.group_0.weights.num_bits: expected 4 or 8, got 3; use the model's unquantized "
     "folder"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups":
        {"group_0": {"format": "marlin-24", "weights": {"num_bits": 4}}}}})",
     R"(quantization_config.config_groups.group_0.format: expected "float-quantized", "int-quantized", )"
     R"("naive-quantized", "pack-quantized", "nvfp4-pack-quantized" or "mxfp4-pack-quantized", got "marlin-24"; use )"
     R"(the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "gptq", "bits": 3}})",
     "quantization_config.bits: expected 4 or 8, got 3; use the model's unquantized folder"},
    {R"({"quantization_config": {"quant_method": "gptq", "bits": 4, "checkpoint_format": "gptq_v2"}})",
     R"(quantization_config.checkpoint_format: expected "gptq", got "gptq_v2"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "awq", "bits": 8}})",
     "quantization_config.bits: expected 4, as AWQ has, got 8; use the model's unquantized folder"},
    {R"({"quantization_config": {"quant_method": "awq", "version": "gemv"}})",
     R"(quantization_config.version: expected "gemm", got "gemv"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "auto-round", "packing_format": "auto_round:llm_compressor"}})",
     R"(quantization_config.packing_format: expected "auto_round:auto_gptq" or "auto_round:auto_awq", got )"
     R"("auto_round:llm_compressor"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4_AWQ"}})",
     R"(quantization_config.quant_algo: expected "FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4" or )"
     R"("MIXED_PRECISION", got "NVFP4_AWQ"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}})",
     "quantization_config.weight_block_size: expected [128, 128], got [64,128]; use the model's unquantized folder"},
    {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size":
        "0123456789012345678901234567890123456789012345678901234567890"}})",
     "quantization_config.weight_block_size: expected [128, 128], got "
     "\"01234567890123456789012345678901234567890123456789012345678...; use the model's unquantized folder"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights":
        {"block_structure": [1, 128]}}}}})",
     "quantization_config.config_groups.group_0.weights.block_structure: expected [128, 128], got [1,128]; use the "
     "model's unquantized folder"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "transform_config": {"config_groups": {"R4":
        {"apply": [{"location": "input", "targets": ["down_proj"]}]}}}}})",
     R"(quantization_config.transform_config: expected no transforms at run time, got one at "input"; use the )"
     R"(model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "fp8", "fmt": "e5m2"}})",
     R"(quantization_config.fmt: expected "e4m3", got "e5m2"; use the model's unquantized folder)"},
    {R"({"quantization_config": 8})", "quantization_config: expected an object, got 8"},
    {R"({"hidden_act": "gelu"})", R"(hidden_act: expected "silu", got "gelu")"},
    {R"({"torch_dtype": "float8"})", R"(torch_dtype: expected "bfloat16", "float16" or "float32", got "float8")"},
    {R"({"dtype": "int8"})", R"(dtype: expected "bfloat16", "float16" or "float32", got "int8")"},
    {R"({"layer_types": ["full_attention"]})",
     "layer_types: expected an array of num_hidden_layers = 2, got an array of 1"},
    {R"({"layer_types": ["full_attention", "chunked_attention"]})",
     R"(layer_types: expected "full_attention" or "sliding_attention", got "chunked_attention")"},
    {R"({"layer_types": ["full_attention", "sliding_attention"]})",
     R"(layer_types: expected "full_attention" throughout, got "sliding_attention")"},
    {R"({"tie_word_embeddings": "yes"})", R"(tie_word_embeddings: expected true or false, got "yes")"},
    // Sizes.
    {R"({"num_attention_heads": 0})", "num_attention_heads: expected an integer from 1 to 2048, got 0"},
    {R"({"num_key_value_heads": 0})", "num_key_value_heads: expected an integer from 1 to 2048, got 0"},
    {R"({"num_key_value_heads": 3})", "num_key_value_heads: expected a divisor of num_attention_heads = 8, got 3"},
    {R"({"num_key_value_heads": 16})", "num_key_value_heads: expected a divisor of num_attention_heads = 8, got 16"},
    {R"({"hidden_size": -64})", "hidden_size: expected an integer from 1 to 131072, got -64"},
    {R"({"hidden_size": "64"})", R"(hidden_size: expected an integer from 1 to 131072, got "64")"},
    {R"({"hidden_size": 64.0})", "hidden_size: expected an integer from 1 to 131072, got 64.0"},
    {R"({"hidden_size": 1e18})", "hidden_size: expected an integer from 1 to 131072, got 1e+18"},
    {R"({"hidden_size": 1000000000000000000})",
     "hidden_size: expected an integer from 1 to 131072, got 1000000000000000000"},
    {R"({"hidden_size": 18446744073709551615})",
     "hidden_size: expected an integer from 1 to 131072, got 18446744073709551615"},
    {R"({"hidden_size": "DELETE"})", "hidden_size: expected an integer from 1 to 131072, got nothing"},
    {R"({"hidden_size": null})", "hidden_size: expected an integer from 1 to 131072, got null"},
    {R"({"hidden_size": 65})", "hidden_size: expected a multiple of num_attention_heads = 8, got 65"},
    {R"({"vocab_size": 0})", "vocab_size: expected an integer from 1 to 16777216, got 0"},
    {R"({"num_hidden_layers": 5000})", "num_hidden_layers: expected an integer from 1 to 4096, got 5000"},
    {R"({"intermediate_size": [172]})", "intermediate_size: expected an integer from 1 to 1048576, got an array of 1"},
    {R"({"max_position_embeddings": true})",
     "max_position_embeddings: expected an integer from 1 to 16777216, got true"},
    {R"({"head_dim": 7})", "head_dim: expected an even number up to 1024, got 7"},
    {R"({"hidden_size": 72})", "head_dim: expected an even number up to 1024, got 9"},
    {R"({"hidden_size": 131072})", "head_dim: expected an even number up to 1024, got 16384"},
    {R"({"rms_norm_eps": 0})", "rms_norm_eps: expected a number above 0.0, at most 1.0, got 0"},
    {R"({"rms_norm_eps": "1e-5"})", R"(rms_norm_eps: expected a number, got "1e-5")"},
    // Token ids.
    {R"({"eos_token_id": 1000})", "eos_token_id: expected an integer from 0 to 999, got 1000"},
    {R"({"eos_token_id": [2, -1]})", "eos_token_id: expected an integer from 0 to 999, got -1"},
    {R"({"eos_token_id": "</s>"})", R"(eos_token_id: expected an integer from 0 to 999, got "</s>")"},
    // Rope.
    {R"({"rope_theta": 1})", "rope_theta: expected a number above 1.0, at most 1e+30, got 1"},
    {R"({"rope_theta": -10000.0})", "rope_theta: expected a number above 1.0, at most 1e+30, got -10000.0"},
    {R"({"rope_scaling": "linear"})", R"(rope_scaling: expected an object, got "linear")"},
    {R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})",
     R"(rope_scaling.type: expected "default", "linear", "llama3", "yarn" or "longrope", got "dynamic")"},
    {R"({"rope_parameters": {"rope_type": "longrope"}})",
     "rope_parameters.short_factor: expected an array of 4 numbers above 0, one per rotated pair, got nothing"},
    {R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3]}})",
     "rope_scaling.long_factor: expected an array of 4 numbers above 0, one per rotated pair, got an array of 3"},
    {R"({"rope_scaling": {"type": "su", "short_factor": [1, 1, 0, 1], "long_factor": [1, 2, 3, 4]}})",
     "rope_scaling.short_factor: expected an array of 4 numbers above 0, one per rotated pair, got 0"},
    {R"({"rope_scaling": {"type": "linear"}})", "rope_scaling.factor: expected a number, got nothing"},
    {R"({"rope_scaling": {"type": "linear", "factor": 0}})",
     "rope_scaling.factor: expected a number above 0.0, at most 1000000.0, got 0"},
    {R"({"rope_scaling": {"type": "linear", "factor": "2"}})", R"(rope_scaling.factor: expected a number, got "2")"},
    {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "high_freq_factor": 4}})",
     "rope_scaling.low_freq_factor: expected a number, got nothing"},
    {R"({"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}})",
     "rope_scaling.high_freq_factor: expected a number above 4.0, at most 1000000.0, got 4"},
    {R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "original_max_position_embeddings": 0}})",
     "rope_scaling.original_max_position_embeddings: expected an integer from 1 to 16777216, got 0"},
    {R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "beta_fast": 1, "beta_slow": 32}})",
     "rope_scaling.beta_fast: expected at least beta_slow = 32.0, got 1"},
    {R"({"rope_scaling": {"rope_type": "yarn", "factor": 8, "attention_factor": -1}})",
     "rope_scaling.attention_factor: expected a number above 0.0, at most 1000000.0, got -1"},
    {R"({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}})",
     "rope_parameters.partial_rotary_factor: expected 1: all of a head rotated, got 0.5"},
};

TEST(Config, BadConfigsAreRefusedNamingTheField) {
    for (const BadConfig& row : bad_configs) {
        const ModelFolder folder;
        folder.write("config.json", patched(plain_llama, row.patch));
        EXPECT_EQ(folder.complaint(), std::string("config.json: ") + row.complaint) << row.patch;
    }
}

TEST(Config, BadFiles) {
    const ModelFolder folder;
    EXPECT_EQ(folder.complaint(), "config.json: expected a readable file, got No such file or directory");
    folder.write("config.json", R"({"hidden_size": 1e400})");
    EXPECT_EQ(folder.complaint(),
              "config.json: hidden_size@20: expected a number within the range of double, got '1e400'");
    folder.write("config.json", "[]");
    EXPECT_EQ(folder.complaint(), "config.json: expected an object, got an array of 0");
    folder.write("config.json", R"({"hidden_size": 64, "hidden_size": 128})");
    EXPECT_EQ(folder.complaint(), "config.json: hidden_size: expected every key once, got this key twice");
    folder.write("config.json", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n");
    EXPECT_EQ(folder.complaint(),
              "config.json: expected JSON, got a Git-LFS pointer; fetch the file itself: git lfs pull");
    folder.write("config.json", plain_llama);
    folder.write("generation_config.json", R"({"eos_token_id": 4096})");
    EXPECT_EQ(folder.complaint(), "generation_config.json: eos_token_id: expected an integer from 0 to 999, got 4096");
    folder.write("generation_config.json", "{");
    EXPECT_EQ(folder.complaint(), "generation_config.json: @1: expected string literal, got end of input");
}

}  // namespace
}  // namespace longhaul::engine
