// config.json as published, in both its forms, and malformed: one row per case.
#include "engine/model/config.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

/// A Llama config in the older form; the rows below change one thing in it.
const char* const plain_llama = R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1, "pretraining_tp": 1})";

/// facebook/opt-125m, with smaller sizes.
const char* const plain_opt = R"({
    "_remove_final_layer_norm": false, "activation_function": "relu", "architectures": ["OPTForCausalLM"],
    "bos_token_id": 2, "do_layer_norm_before": true, "eos_token_id": 2, "ffn_dim": 256, "hidden_size": 64,
    "layerdrop": 0.0, "max_position_embeddings": 128, "model_type": "opt", "num_attention_heads": 8,
    "num_hidden_layers": 2, "pad_token_id": 1, "prefix": "</s>", "torch_dtype": "float16", "use_cache": true,
    "vocab_size": 1000, "word_embed_proj_dim": 64})";

class ModelFolder {
  public:
    ModelFolder() {
        static int count = 0;
        const std::string name = "longhaul-config-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
        path_ = std::filesystem::temp_directory_path() / name;
        std::filesystem::create_directories(path_);
    }
    ~ModelFolder() { std::filesystem::remove_all(path_); }
    ModelFolder(const ModelFolder&) = delete;
    ModelFolder& operator=(const ModelFolder&) = delete;

    void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
    [[nodiscard]] ModelConfig load() const { return ModelConfig::load(path_); }

    /// The error of loading, without the folder's name.
    [[nodiscard]] std::string complaint() const {
        try {
            (void)load();
        } catch (const InputError& error) {
            const std::string line = error.what();
            const std::string prefix = path_.string() + "/";
            return line.substr(0, prefix.size()) == prefix ? line.substr(prefix.size()) : line;
        }
        return "(none)";
    }

  private:
    std::filesystem::path path_;
};

/// `base` with the members of `patch` set; a member whose value is "DELETE" is removed.
std::string patched(const std::string& base, const std::string& patch) {
    Json json = try_parse_json(base);
    const Json changes = try_parse_json(patch);
    for (const auto& [key, value] : changes.items()) {
        if (value == "DELETE") {
            json.erase(key);
        } else {
            json[key] = value;
        }
    }
    return json_text(json);
}

ModelConfig load(const std::string& patch, const std::string& generation = {}) {
    const ModelFolder folder;
    folder.write("config.json", patched(plain_llama, patch));
    if (!generation.empty()) folder.write("generation_config.json", generation);
    return folder.load();
}

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
    EXPECT_EQ(config.bos_id, 1);
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
    EXPECT_EQ(config.bos_id, -1);
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
    EXPECT_EQ(config.bos_id, 2);
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

/// A config of another family: its model_type and class, over the Llama's sizes.
ModelConfig load_family(const std::string& model_type, const std::string& class_name, const std::string& change) {
    const Json names = {{"model_type", model_type}, {"architectures", {class_name}}};
    Json changed = Json::parse(change);
    changed.update(names);
    return load(changed.dump());
}

TEST(Config, Qwen3HasNormsOnEveryHead) {
    const ModelConfig config = load_family("qwen3", "Qwen3ForCausalLM", "{}");
    EXPECT_TRUE(config.layer(1).head_norm);
    EXPECT_FALSE(config.layer(1).qkv_bias);
    EXPECT_EQ(config.head_dim, 128) << "the class's default, not hidden_size / num_attention_heads";
    EXPECT_EQ(config.layer_groups().size(), 1U);
}

TEST(Config, WindowsOfQwenBeginAtALayer) {
    const std::string windows = R"({"use_sliding_window": true, "sliding_window": 100, "max_window_layers": 1})";
    const ModelConfig config = load_family("qwen2", "Qwen2ForCausalLM", windows);
    EXPECT_EQ(config.layer(0).attention_window, 0);
    EXPECT_EQ(config.layer(1).attention_window, 100);
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{0, 1}));
    const std::string unused = R"({"use_sliding_window": false, "sliding_window": 100, "max_window_layers": 1})";
    EXPECT_EQ(load_family("qwen2", "Qwen2ForCausalLM", unused).layer(1).attention_window, 0);
}

TEST(Config, MistralsWindowIsInAllLayers) {
    const auto window = [](const std::string& change) {
        return load_family("mistral", "MistralForCausalLM", change).layer(1).attention_window;
    };
    EXPECT_EQ(window(R"({"sliding_window": 1024})"), 1024);
    EXPECT_EQ(window(R"({"sliding_window": null})"), 0);
    EXPECT_EQ(window(R"({"sliding_window": 2048})"), 0) << "as long as the context";
    EXPECT_EQ(window(R"({"max_position_embeddings": 8192})"), 4096) << "the class's default";
    EXPECT_EQ(window(R"({"sliding_window": 2048, "rope_scaling": {"rope_type": "yarn", "factor": 4.0}})"), 2048)
        << "shorter than the stretched context";
}

TEST(Config, Gemma3HasTwoKindsOfLayers) {
    const ModelConfig config = load_family("gemma3_text", "Gemma3ForCausalLM", R"({"num_hidden_layers": 7,
        "hidden_act": "DELETE", "sliding_window": 512, "rope_theta": 1000000.0, "rope_local_base_freq": 20000.0,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0}, "head_dim": 16, "query_pre_attn_scalar": 64})");
    EXPECT_EQ(config.layer(4).attention_window, 512);
    EXPECT_EQ(config.layer(5).attention_window, 0);
    EXPECT_EQ(config.layer(6).attention_window, 512);
    EXPECT_EQ(config.layer(0).rope.theta, 20000.0);
    EXPECT_EQ(config.layer(0).rope.scaling, RopeScaling::standard);
    EXPECT_EQ(config.layer(5).rope.theta, 1000000.0);
    EXPECT_EQ(config.rope().factor, 8.0);
    EXPECT_EQ(config.max_positions, 2048) << "the scaled length already";
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{1, 1, 1, 1, 1, 0, 1}));
    EXPECT_EQ(config.layer(0).query_scale, 0.5);
    EXPECT_EQ(config.embedding_scale, 8.0);
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_TRUE(config.norm_adds_one);
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::both);
}

/// The folders with images have the language model's fields in text_config, and leave most of them to the class.
TEST(Config, Gemma3WithImages) {
    const ModelConfig config = load_family("gemma3", "Gemma3ForConditionalGeneration", R"({"hidden_act": "DELETE",
        "vocab_size": "DELETE", "eos_token_id": [1, 106], "vision_config": {"hidden_size": 1152},
        "text_config": {"model_type": "gemma3_text", "hidden_size": 2560, "intermediate_size": 10240,
            "num_hidden_layers": 34, "sliding_window": 1024, "rope_scaling": {"rope_type": "linear", "factor": 8.0}}})");
    EXPECT_EQ(config.hidden_size, 2560);
    EXPECT_EQ(config.vocab_size, 262208);
    EXPECT_EQ(config.num_heads, 8);
    EXPECT_EQ(config.num_kv_heads, 4);
    EXPECT_EQ(config.head_dim, 256);
    EXPECT_EQ(config.max_positions, 131072);
    EXPECT_EQ(config.rope().theta, 1e6);
    EXPECT_EQ(config.layer(0).rope.theta, 1e4);
    EXPECT_EQ(config.layer(0).attention_window, 1024);
    EXPECT_EQ(config.eos_ids, (std::vector<std::int32_t>{1, 106}));
}

/// As published: the text model says neither whether its tables are tied nor what kind of RoPE it has.
TEST(Config, MistralSmallWithImages) {
    const ModelConfig config = load_family("mistral3", "Mistral3ForConditionalGeneration", R"({"hidden_act": "DELETE",
        "vocab_size": "DELETE", "eos_token_id": 2, "vision_config": {"hidden_size": 1024}, "spatial_merge_size": 2,
        "text_config": {"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "head_dim": 128,
            "num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 131072,
            "max_position_embeddings": 131072, "rope_theta": 1000000000.0, "rms_norm_eps": 1e-05,
            "sliding_window": null}})");
    EXPECT_EQ(config.num_layers, 40);
    EXPECT_EQ(config.head_dim, 128);
    EXPECT_EQ(config.norm_eps, 1e-5);
    EXPECT_EQ(config.rope().theta, 1e9);
    EXPECT_EQ(config.layer(0).attention_window, 0);
    EXPECT_FALSE(config.tied_embeddings);
    EXPECT_EQ(config.eos_ids, std::vector<std::int32_t>{2});
    const ModelConfig modern = load_family("mistral3", "Mistral3ForConditionalGeneration", R"({"eos_token_id": "DELETE",
        "tie_word_embeddings": true, "text_config": {"hidden_size": 64, "intermediate_size": 172, "eos_token_id": 5,
            "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 96, "max_position_embeddings": 2048,
            "tie_word_embeddings": false}})");
    EXPECT_TRUE(modern.tied_embeddings) << "as its class has it";
    EXPECT_EQ(modern.eos_ids, std::vector<std::int32_t>{5});
}

TEST(Config, Phi3RotatesAPartOfAHead) {
    const ModelConfig config = load_family("phi3", "Phi3ForCausalLM", R"({"partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 1024, "sliding_window": 262144, "rope_scaling": {"type": "longrope",
        "short_factor": [1, 1.5, 2], "long_factor": [1, 2, 4]}})");
    EXPECT_TRUE(config.fused_projections);
    EXPECT_EQ(config.rope().rotary_dims, 6);
    EXPECT_EQ(config.rope().factor, 2.0);
    EXPECT_EQ(config.rope().long_factors, (std::vector<double>{1, 2, 4}));
    EXPECT_EQ(config.layer(0).attention_window, 0) << "longer than the context";
}

TEST(Config, Qwen3MoeNamesTheLayersWithoutExperts) {
    const auto load_moe = [](const std::string& change) {
        return load_family("qwen3_moe", "Qwen3MoeForCausalLM", change);
    };
    const ModelConfig published = load_moe(R"({"num_experts": 16, "num_experts_per_tok": 4, "norm_topk_prob": true,
        "moe_intermediate_size": 48, "decoder_sparse_step": 1, "mlp_only_layers": [], "head_dim": 16})");
    EXPECT_TRUE(published.has_experts());
    EXPECT_EQ(published.expert_intermediate_size, 48);
    EXPECT_EQ(published.layer(0).experts.count, 16);
    EXPECT_EQ(published.layer(1).experts.per_token, 4);
    EXPECT_TRUE(published.layer(1).experts.normalized);
    EXPECT_TRUE(published.layer(1).head_norm);
    EXPECT_EQ(published.head_dim, 16);

    const ModelConfig mixed = load_moe(R"({"num_local_experts": 4, "num_experts_per_tok": 1, "num_hidden_layers": 5,
        "decoder_sparse_step": 2, "mlp_only_layers": [3]})");
    std::vector<std::int64_t> counts;
    for (std::int64_t at = 0; at < 5; ++at) counts.push_back(mixed.layer(at).experts.count);
    EXPECT_EQ(counts, (std::vector<std::int64_t>{0, 4, 0, 0, 0}));
    EXPECT_FALSE(mixed.layer(1).experts.normalized);
    EXPECT_EQ(mixed.expert_intermediate_size, 768) << "the class's default";

    const ModelConfig windows = load_moe(R"({"use_sliding_window": true, "sliding_window": 99})");
    EXPECT_EQ(windows.layer(0).attention_window, 99) << "in all layers, unlike Qwen3's";
    EXPECT_EQ(load_moe(R"({"sliding_window": 99})").layer(1).attention_window, 0);
}

TEST(Config, MixtralHasExpertsInAllLayers) {
    const ModelConfig config = load_family("mixtral", "MixtralForCausalLM", R"({"num_local_experts": 6})");
    for (const std::int64_t at : {0, 1}) {
        EXPECT_EQ(config.layer(at).experts.count, 6);
        EXPECT_EQ(config.layer(at).experts.per_token, 2) << "the class's default";
        EXPECT_TRUE(config.layer(at).experts.normalized);
        EXPECT_EQ(config.layer(at).attention_window, 0);
    }
    EXPECT_EQ(config.expert_intermediate_size, config.intermediate_size);
    const ModelConfig defaults =
        load_family("mixtral", "MixtralForCausalLM", R"({"rope_theta": "DELETE", "rms_norm_eps": "DELETE"})");
    EXPECT_EQ(defaults.rope().theta, 1e6);
    EXPECT_EQ(defaults.norm_eps, 1e-5);
    EXPECT_EQ(num_parameters(config) - num_active_parameters(config), 2 * 4 * 3 * 64 * 172)
        << "four of six experts in two layers";
}

TEST(Config, Glm4MoeHasAnMlpBesideItsExperts) {
    const auto load_glm = [](const std::string& change) {
        return load_family("glm4_moe", "Glm4MoeForCausalLM", change);
    };
    const ModelConfig air = load_glm(R"({"n_routed_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 48,
        "n_shared_experts": 2, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "attention_bias": true, "use_qk_norm": false, "partial_rotary_factor": 0.5,
        "num_nextn_predict_layers": 1, "head_dim": 16, "num_hidden_layers": 3})");
    EXPECT_EQ(air.layer(0).experts.count, 0);
    for (const std::int64_t at : {1, 2}) {
        const ExpertConfig& experts = air.layer(at).experts;
        EXPECT_EQ(experts.count, 16);
        EXPECT_EQ(experts.score, RouterScore::sigmoid);
        EXPECT_EQ(experts.scale, 2.5);
        EXPECT_TRUE(experts.normalized);
    }
    EXPECT_EQ(air.expert_intermediate_size, 48);
    EXPECT_EQ(air.shared_intermediate_size, 96);
    EXPECT_TRUE(air.layer(0).qkv_bias);
    EXPECT_FALSE(air.layer(0).output_bias || air.layer(0).head_norm);
    EXPECT_EQ(air.rope().rotary_dims, 8);
    EXPECT_EQ(num_parameters(air) - num_active_parameters(air), 2 * 12 * 3 * 64 * 48);
    const ModelConfig defaults = load_glm(R"({"use_qk_norm": true, "head_dim": 16})");
    EXPECT_EQ(defaults.rope().rotary_dims, 8);
    EXPECT_TRUE(defaults.layer(1).head_norm);
    EXPECT_EQ(defaults.layer(1).experts.count, 128);
    EXPECT_EQ(defaults.shared_intermediate_size, 1408);
    const ModelConfig dense = load_glm(R"({"first_k_dense_replace": 2, "n_shared_experts": 0})");
    EXPECT_FALSE(dense.has_experts());
}

/// As published, but for its sizes.
TEST(Config, GptOssHasSinksAndAWindowInEveryOtherLayer) {
    const auto load_gpt_oss = [](const std::string& change) {
        return load_family("gpt_oss", "GptOssForCausalLM", change);
    };
    const std::string rope = R"("rope_theta": 150000, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0,
        "factor": 32.0, "original_max_position_embeddings": 64, "rope_type": "yarn", "truncate": false})";
    const ModelConfig config = load_gpt_oss("{" + rope + R"(, "num_local_experts": 8, "num_experts_per_tok": 4,
        "experts_per_token": 4, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 128,
        "swiglu_limit": 7.0, "attention_bias": true, "initial_context_length": 64, "quantization_config":
        {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn"]}})");
    for (const std::int64_t at : {0, 1}) {
        const LayerConfig& layer = config.layer(at);
        EXPECT_TRUE(layer.sinks && layer.qkv_bias && layer.output_bias && layer.experts.bias && layer.experts.stacked);
        EXPECT_EQ(layer.activation, Activation::swiglu_oai);
        EXPECT_EQ(layer.attention_window, at == 0 ? 128 : 0);
        EXPECT_EQ(layer.rope.scaling, RopeScaling::yarn);
        EXPECT_FALSE(layer.rope.truncate);
        EXPECT_EQ(layer.experts.per_token, 4);
    }
    EXPECT_EQ(config.max_positions, 2048);
    EXPECT_EQ(num_parameters(config) - num_active_parameters(config), 2 * 4 * (3 * 64 * 172 + 2 * 172 + 64))
        << "four of eight experts in two layers, each with its biases";
    const ModelConfig defaults = load_gpt_oss("{" + rope + R"(, "num_hidden_layers": 3})");
    EXPECT_EQ(defaults.layer(0).experts.count, 128);
    EXPECT_EQ(defaults.layer(2).attention_window, 128);
    EXPECT_EQ(defaults.layer(1).attention_window, 0);
}

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
    {"mistral3", "Mistral3ForConditionalGeneration", R"({"text_config": {"model_type": "ministral3",
        "hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 8,
        "vocab_size": 96, "max_position_embeddings": 2048}})",
     R"(text_config.model_type: expected "mistral", got "ministral3")"},
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
    {"glm4_moe", "Glm4MoeForCausalLM", R"({"n_group": 8})",
     "n_group: expected 1: experts are not chosen by groups, got 8"},
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
     R"(quantization_config.quant_method: expected "fp8", "fbgemm_fp8", "compressed-tensors", with gpt-oss "mxfp4", or )"
     R"(no quantization, got "mxfp4"; use the model's unquantized folder, or one of FP8)"},
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

TEST(Config, FamiliesRefuseWhatDoesNotFit) {
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

TEST(Config, HeadDimMayDifferFromTheQuotient) {
    const ModelConfig config = load(R"({"head_dim": 32})");
    EXPECT_EQ(config.head_dim, 32);
    EXPECT_EQ(load(R"({"head_dim": null})").head_dim, 8);
}

const BadConfig bad_configs[] = {
    // Architecture.
    {R"({"model_type": "mamba"})",
     R"(model_type: expected "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mistral3", "mixtral", "glm4_moe", "gpt_oss", "gemma3_text", "gemma3", "phi3" or "opt", got "mamba")"},
    {R"({"model_type": "DELETE"})",
     R"(model_type: expected "llama", "qwen2", "qwen3", "qwen3_moe", "mistral", "mistral3", "mixtral", "glm4_moe", "gpt_oss", "gemma3_text", "gemma3", "phi3" or "opt", got nothing)"},
    {R"({"model_type": 7})", "model_type: expected a string, got 7"},
    {R"({"architectures": ["LlamaModel"]})", R"(architectures: expected ["LlamaForCausalLM"], got "LlamaModel")"},
    {R"({"architectures": "LlamaForCausalLM"})",
     R"(architectures: expected ["LlamaForCausalLM"], got "LlamaForCausalLM")"},
    {R"({"architectures": []})", R"(architectures: expected ["LlamaForCausalLM"], got an array of 0)"},
    {R"({"quantization_config": {"quant_method": "awq"}})",
     R"(quantization_config.quant_method: expected "fp8", "fbgemm_fp8", "compressed-tensors", with gpt-oss "mxfp4", or )"
     R"(no quantization, got "awq"; use the model's unquantized folder, or one of FP8)"},
    {R"({"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}})",
     R"(quantization_config.format: expected "float-quantized", "int-quantized" or "naive-quantized", got )"
     R"("pack-quantized"; use the model's unquantized folder)"},
    {R"({"quantization_config": {"quant_method": "fp8", "weight_block_size": [64, 128]}})",
     "quantization_config.weight_block_size: expected [128, 128], got [64,128]; use the model's unquantized folder"},
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
    {R"({"bos_token_id": 128000})", "bos_token_id: expected an integer from 0 to 999, got 128000"},
    // Rope.
    {R"({"rope_theta": 1})", "rope_theta: expected a number above 1.0, at most 1e+30, got 1"},
    {R"({"rope_theta": -10000.0})", "rope_theta: expected a number above 1.0, at most 1e+30, got -10000.0"},
    {R"({"rope_scaling": "linear"})", R"(rope_scaling: expected an object, got "linear")"},
    {R"({"rope_scaling": {"type": "dynamic", "factor": 2.0}})",
     R"(rope_scaling.type: expected "default", "linear", "llama3", "yarn" or "longrope", got "dynamic")"},
    {R"({"rope_parameters": {"rope_type": "longrope"}})",
     "rope_parameters.short_factor: expected an array of 4 numbers above 0, one a rotated pair, got nothing"},
    {R"({"rope_scaling": {"type": "longrope", "short_factor": [1, 1, 1, 1], "long_factor": [1, 2, 3]}})",
     "rope_scaling.long_factor: expected an array of 4 numbers above 0, one a rotated pair, got an array of 3"},
    {R"({"rope_scaling": {"type": "su", "short_factor": [1, 1, 0, 1], "long_factor": [1, 2, 3, 4]}})",
     "rope_scaling.short_factor: expected an array of 4 numbers above 0, one a rotated pair, got 0"},
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
