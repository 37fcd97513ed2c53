// Fields of config.json that the readers of each family's layers refuse.
#include <gtest/gtest.h>

#include "tests/engine/config_folder.hpp"

namespace longhaul::engine {
namespace {

using testing::ModelFolder;
using testing::plain_llama;

struct BadFamily {
    const char* model_type;
    const char* class_name;
    const char* change;
    const char* complaint;
};

const BadFamily bad_families[] = {
    {"mistral", "MistralForCausalLM", R"({"sliding_window": 0})",
     "sliding_window: expected an integer from 1 to 16777216, got 0"},
    {"mistral", "MistralForCausalLM",
     R"({"sliding_window": null, "layer_types": ["sliding_attention", "full_attention"]})",
     "sliding_window: expected a number of positions, for the layers that layer_types calls sliding_attention, got "
     "nothing"},
    {"qwen3", "Qwen3ForCausalLM", R"({"layer_types": "sliding_attention"})",
     R"(layer_types: expected an array of num_hidden_layers = 2, got "sliding_attention")"},
    {"gemma3_text", "Gemma3ForCausalLM", R"({"sliding_window_pattern": 0})",
     "sliding_window_pattern: expected an integer from 1 to 4096, got 0"},
    {"gemma3_text", "Gemma3ForCausalLM", R"({"final_logit_softcapping": 30.0})",
     "final_logit_softcapping: expected null: soft-caps, as in Gemma 2, are not in this version, got 30.0"},
    {"gemma3_text", "Gemma3ForCausalLM", R"({"hidden_activation": "gelu"})",
     R"(hidden_activation: expected "gelu_pytorch_tanh", got "gelu")"},
    {"gemma3_text", "Gemma3ForCausalLM", R"({"query_pre_attn_scalar": 0})",
     "query_pre_attn_scalar: expected a number above 0.0, at most 1000000.0, got 0"},
    {"gemma3", "Gemma3ForConditionalGeneration", R"({"vision_config": {}})",
     "text_config: expected an object, got nothing"},
    {"gemma3", "Gemma3ForConditionalGeneration", R"({"text_config": {"num_hidden_layers": -1}})",
     "text_config.num_hidden_layers: expected an integer from 1 to 4096, got -1"},
    {"gemma4_text", "Gemma4ForCausalLM", "{}",
     "hidden_size_per_layer_input: expected 0: embeddings per layer, as in E2B and E4B, are not in this version, got "
     "nothing"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "num_kv_shared_layers": 1})",
     "num_kv_shared_layers: expected 0: layers that share keys and values, as in E2B and E4B, are not in this version, "
     "got 1"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "use_bidirectional_attention": "all"})",
     R"(use_bidirectional_attention: expected null or "vision", got "all")"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "num_key_value_heads": 4,
        "attention_k_eq_v": true, "num_global_key_value_heads": 3})",
     "num_global_key_value_heads: expected a divisor of num_key_value_heads = 4, got 3"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "global_head_dim": 7})",
     "global_head_dim: expected an even number, got 7"},
    {"gemma4_text", "Gemma4ForCausalLM",
     R"({"hidden_size_per_layer_input": 0, "per_layer_config": {"0": {"head_dim": 16}}})",
     "per_layer_config: expected full_attention layers alone, got an object of 1"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "enable_moe_block": true,
        "num_experts": 4, "top_k_experts": 5, "moe_intermediate_size": 8})",
     "top_k_experts: expected at most num_experts = 4, got 5"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "rope_parameters": {
        "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.001}}})",
     "rope_parameters.full_attention.partial_rotary_factor: expected a share that gives two or more of 512 dimensions, "
     "got 0.001"},
    {"gemma4_text", "Gemma4ForCausalLM", R"({"hidden_size_per_layer_input": 0, "rope_parameters": {
        "full_attention": {"rope_type": "yarn"}}})",
     R"(rope_parameters.full_attention.rope_type: expected "default" or "proportional", got "yarn")"},
    {"mistral3", "Mistral3ForConditionalGeneration", R"({"text_config": {"model_type": "ministral3",
        "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 8,
        "vocab_size": 96, "max_position_embeddings": 2048}})",
     "text_config.rope_parameters.llama_4_scaling_beta: expected a number, as in the published folders, got nothing"},
    {"mistral3", "Mistral3ForConditionalGeneration", R"({"text_config": {"model_type": "mistral4",
        "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 8,
        "vocab_size": 96, "max_position_embeddings": 2048}})",
     R"(text_config.model_type: expected "mistral" or "ministral3", got "mistral4")"},
    {"ministral3", "Ministral3ForCausalLM", R"({"rope_parameters": {"rope_type": "yarn", "factor": 16,
        "original_max_position_embeddings": 64, "llama_4_scaling_beta": -1}})",
     "rope_parameters.llama_4_scaling_beta: expected a number from 0 to 100, got -1"},
    {"granite", "GraniteForCausalLM", R"({"residual_multiplier": 0})",
     "residual_multiplier: expected a number above 0.0, at most 1000000.0, got 0"},
    {"minimax_m2", "MiniMaxM2ForCausalLM", R"({"use_qk_norm": false})", "use_qk_norm: expected true, got false"},
    {"minimax_m2", "MiniMaxM2ForCausalLM", R"({"rotary_dim": 63})",
     "rotary_dim: expected an even number of dimensions, got 63"},
    {"minimax_m2", "MiniMaxM2ForCausalLM", R"({"shared_intermediate_size": 8})",
     "shared_intermediate_size: expected 0, got 8"},
    {"olmo2", "Olmo2ForCausalLM", R"({"partial_rotary_factor": 0.5})",
     "partial_rotary_factor: expected 1: all of a head rotated, got 0.5"},
    {"smollm3", "SmolLM3ForCausalLM", R"({"no_rope_layers": [1]})",
     "no_rope_layers: expected an array of at least num_hidden_layers = 2, got an array of 1"},
    {"smollm3", "SmolLM3ForCausalLM", R"({"no_rope_layers": [1, 2]})",
     "no_rope_layers: expected 0 or 1 for each layer, got 2"},
    {"phi3", "Phi3ForCausalLM", R"({"original_max_position_embeddings": 1, "rope_scaling": {"type": "yarn",
        "short_factor": [1, 1, 1, 1], "long_factor": [1, 1, 1, 1]}})",
     "rope_scaling.original_max_position_embeddings: expected at least 2 positions, got 1"},
    {"phi3", "Phi3ForCausalLM", R"({"partial_rotary_factor": 0.45})",
     "partial_rotary_factor: expected a share of head_dim = 8 that gives an even number of dimensions, got 0.45"},
    {"mixtral", "MixtralForCausalLM", R"({"num_local_experts": 4, "num_experts_per_tok": 5})",
     "num_experts_per_tok: expected at most num_local_experts = 4, got 5"},
    {"mixtral", "MixtralForCausalLM", R"({"num_local_experts": 1025})",
     "num_local_experts: expected an integer from 1 to 1024, got 1025"},
    {"mixtral", "MixtralForCausalLM", R"({"num_local_experts": 1024, "num_hidden_layers": 129})",
     "num_local_experts: expected at most 131072 experts in all layers, got 1024"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"n_group": 3})",
     "n_group: expected a divisor of n_routed_experts = 128, with two experts or more in a group, got 3"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"n_group": 128})",
     "n_group: expected a divisor of n_routed_experts = 128, with two experts or more in a group, got 128"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"n_group": 32})",
     "topk_group: expected at most n_group = 32, and groups with num_experts_per_tok = 8 experts or more, got nothing"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"linear_num_value_heads": 24, "full_attention_interval": 2})",
     "linear_num_value_heads: expected a multiple of linear_num_key_heads = 16, got 24"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"linear_key_head_dim": 24, "full_attention_interval": 2})",
     "linear_key_head_dim: expected a multiple of 16, got 24"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"linear_conv_kernel_dim": 1, "full_attention_interval": 2})",
     "linear_conv_kernel_dim: expected an integer from 2 to 16, got 1"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"layer_types": ["linear_attention", "linear_attention"]})",
     "layer_types: expected a layer of full_attention, got none"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"layer_types": ["linear_attention", "sliding_attention"]})",
     R"(layer_types: expected "full_attention" or "linear_attention", got "sliding_attention")"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"layer_types": ["full_attention"]})",
     "layer_types: expected an array of num_hidden_layers = 2, got an array of 1"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"attention_bias": true})", "attention_bias: expected false, got true"},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", R"({"attn_output_gate": false})",
     "attn_output_gate: expected true, got false"},
    {"qwen3_next", "Qwen3NextForCausalLM", R"({"num_experts": 4, "full_attention_interval": 2})",
     "num_experts_per_tok: expected at most num_experts = 4, got nothing"},
    {"qwen3_next", "Qwen3NextForCausalLM", R"({"shared_expert_intermediate_size": 0, "full_attention_interval": 2})",
     "shared_expert_intermediate_size: expected an integer from 1 to 1048576, got 0"},
    {"qwen3_next", "Qwen3NextForCausalLM", R"({"mlp_only_layers": [0, 1], "full_attention_interval": 2})",
     "mlp_only_layers and decoder_sparse_step: expected a layer that they leave its experts, got none"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", R"({"mlp_only_layers": [0], "full_attention_interval": 2})",
     "mlp_only_layers: expected an empty array, got an array of 1"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", R"({"decoder_sparse_step": 2, "full_attention_interval": 2})",
     "decoder_sparse_step: expected 1, got 2"},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", R"({"norm_topk_prob": false, "full_attention_interval": 2})",
     "norm_topk_prob: expected true, got false"},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "{}", "text_config: expected an object, got nothing"},
    {"qwen2_moe", "Qwen2MoeForCausalLM", R"({"use_sliding_window": true, "sliding_window": 0})",
     "sliding_window: expected an integer from 1 to 16777216, got 0"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"topk_group": 9})",
     "topk_group: expected at most n_group = 8, and groups with num_experts_per_tok = 8 experts or more, got 9"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"kv_lora_rank": 520})",
     "kv_lora_rank: expected a multiple of 16, got 520"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"kv_lora_rank": 1024})",
     "kv_lora_rank: expected with qk_rope_head_dim at most 1024, got 1024"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"qk_rope_head_dim": 48})",
     "qk_rope_head_dim: expected a divisor of kv_lora_rank and of twice qk_nope_head_dim, got 48"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"attention_bias": true})", "attention_bias: expected false, got true"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"moe_layer_freq": 2})", "moe_layer_freq: expected 1, got 2"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"topk_method": "greedy"})",
     R"(topk_method: expected "noaux_tc", got "greedy")"},
    {"deepseek_v3", "DeepseekV3ForCausalLM", R"({"scoring_func": "softmax"})",
     R"(scoring_func: expected "sigmoid", got "softmax")"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", R"({"scoring_func": "sigmoid"})",
     R"(scoring_func: expected "softmax", got "sigmoid")"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", R"({"topk_method": "noaux_tc"})",
     R"(topk_method: expected "greedy" or "group_limited_greedy", got "noaux_tc")"},
    {"deepseek_v2", "DeepseekV2ForCausalLM", R"({"norm_topk_prob": true})", "norm_topk_prob: expected false, got true"},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", R"({"mlp_layer_types": ["sparse", "dense"]})",
     R"(mlp_layer_types: expected "dense" for the first layers, and "sparse", got an array of 2)"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"first_k_dense_replace": -1})",
     "first_k_dense_replace: expected an integer from 0 to 4096, got -1"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"n_shared_experts": 1000})",
     "n_shared_experts: expected an integer from 0 to 744, got 1000"},
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"head_dim": 6})",
     "partial_rotary_factor: expected a share of head_dim = 6 that gives an even number of dimensions, got nothing"},
    {"gpt_oss", "GptOssForCausalLM", R"({"swiglu_limit": 8.0})", "swiglu_limit: expected 7.0, got 8.0"},
    {"gpt_oss", "GptOssForCausalLM", R"({"swiglu_alpha": 1.7})", "swiglu_alpha: expected 1.702, got 1.7"},
    {"gpt_oss", "GptOssForCausalLM", "{}",
     "rope_scaling: expected the parameters of yarn, as in the published folders, got nothing"},
    {"mixtral", "MixtralForCausalLM", R"({"quantization_config": {"quant_method": "mxfp4"}})",
     R"(quantization_config.quant_method: expected "gptq", "awq", "auto-round", "compressed-tensors", "modelopt", "fp8", )"
     R"("fbgemm_fp8", or with gpt-oss "mxfp4", got "mxfp4"; use the model's unquantized folder)"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", R"({"num_experts": 4})",
     "num_experts_per_tok: expected at most num_experts = 4, got nothing"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", R"({"mlp_only_layers": [0, 2]})",
     "mlp_only_layers: expected an array of layers, numbers from 0 to 1, got 2"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", R"({"mlp_only_layers": 1})",
     "mlp_only_layers: expected an array of layers, numbers from 0 to 1, got 1"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", R"({"mlp_only_layers": [1], "decoder_sparse_step": 2})",
     "mlp_only_layers and decoder_sparse_step: expected a layer that they leave its experts, got none"},
    {"qwen3_moe", "Qwen3MoeForCausalLM", R"({"moe_intermediate_size": 0})",
     "moe_intermediate_size: expected an integer from 1 to 1048576, got 0"},
};

TEST(ConfigFamilies, FamiliesRefuseWhatDoesNotFit) {
    for (const BadFamily& bad : bad_families) {
        const ModelFolder folder;
        Json json = Json::parse(plain_llama);
        json.update(Json::parse(bad.change));
        json["model_type"] = bad.model_type;
        json["architectures"] = {bad.class_name};
        folder.write("config.json", json.dump());
        EXPECT_EQ(folder.complaint(), std::string("config.json: ") + bad.complaint);
    }
}

}  // namespace
}  // namespace longhaul::engine
