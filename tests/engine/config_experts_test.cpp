// What config.json says of families with a mixture of experts.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "engine/model/model_plan.hpp"
#include "tests/engine/config_folder.hpp"

namespace longhaul::engine {
namespace {

using testing::load_family;

TEST(ConfigExperts, Qwen3MoeNamesTheLayersWithoutExperts) {
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

TEST(ConfigExperts, MixtralHasExpertsInAllLayers) {
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

TEST(ConfigExperts, LatentAttentionHasOneKvHead) {
    const ModelConfig v3 = load_family("deepseek_v3", "DeepseekV3ForCausalLM", R"({"num_hidden_layers": 4,
        "max_position_embeddings": 163840, "rope_scaling": {"type": "yarn", "factor": 40,
        "original_max_position_embeddings": 4096, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
        "mscale_all_dim": 1.0}})");
    EXPECT_EQ(v3.num_kv_heads, 1);
    EXPECT_EQ(v3.head_dim, 512 + 64);
    EXPECT_EQ(v3.latent.query_rank, 1536);
    EXPECT_EQ(v3.heads(v3.layer(0)).value_dim, 128);
    EXPECT_EQ(v3.rope().rotary_dims, 64);
    EXPECT_EQ(v3.max_positions, 163840);
    EXPECT_NEAR(v3.rope().score_scale / std::sqrt(576.0), 0.1352337788608801, 1e-12) << "as transformers scales";
    EXPECT_EQ(v3.layer(2).experts.count, 0);
    EXPECT_EQ(v3.layer(3).experts.num_groups, 8);
    EXPECT_EQ(v3.layer(3).experts.best_groups, 4);
    EXPECT_EQ(v3.layer(3).experts.scale, 2.5);
    const ModelConfig lite = load_family("deepseek_v2", "DeepseekV2ForCausalLM", R"({"q_lora_rank": null,
        "n_group": 1, "topk_group": 1, "moe_intermediate_size": 1408, "first_k_dense_replace": 1})");
    EXPECT_EQ(lite.latent.query_rank, 0);
    EXPECT_EQ(lite.layer(1).experts.score, RouterScore::softmax);
    EXPECT_FALSE(lite.layer(1).experts.normalized);
    EXPECT_EQ(lite.shared_intermediate_size, 2 * 1408);
    EXPECT_EQ(load_family("kimi_k2", "DeepseekV3ForCausalLM", R"({"n_group": 1, "topk_group": 1})").head_dim, 576);
    const ModelConfig flash = load_family("glm4_moe_lite", "Glm4MoeLiteForCausalLM", "{}");
    EXPECT_EQ(flash.latent.query_dim(), 256);
    EXPECT_EQ(flash.heads(flash.layer(0)).value_dim, 256);
    EXPECT_EQ(flash.layer(0).experts.count, 0);
    EXPECT_EQ(flash.layer(1).experts.per_token, 4);
}

TEST(ConfigExperts, Glm4MoeHasASharedExpert) {
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

TEST(ConfigExperts, Qwen3NextHasGatedSharedExperts) {
    const ModelConfig config = load_family("qwen3_next", "Qwen3NextForCausalLM", R"({"num_hidden_layers": 8,
        "mlp_only_layers": [0], "decoder_sparse_step": 2, "shared_expert_intermediate_size": 24})");
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{1, 1, 1, 0, 1, 1, 1, 0}));
    EXPECT_TRUE(config.linear.fused && config.files.norm_adds_one);
    EXPECT_EQ(config.layer(0).experts.count, 0);
    const LayerConfig& layer = config.layer(7);
    EXPECT_TRUE(layer.output_gate && layer.head_norm && layer.experts.shared_gate && layer.experts.normalized);
    EXPECT_FALSE(layer.experts.stacked());
    EXPECT_EQ(layer.experts.count, 512) << "the class's defaults";
    EXPECT_EQ(layer.experts.per_token, 10);
    EXPECT_EQ(config.expert_intermediate_size, 512);
    EXPECT_EQ(config.shared_intermediate_size, 24);
    EXPECT_EQ(config.head_dim, 256);
    EXPECT_EQ(config.rope().rotary_dims, 64);
}

TEST(ConfigExperts, Qwen35ExpertsAreStackedUnlessTheFilesHaveEachApart) {
    const ModelConfig config = load_family("qwen3_5_moe_text", "Qwen3_5MoeForCausalLM",
                                           R"({"num_hidden_layers": 4, "intermediate_size": "DELETE"})");
    for (std::int64_t at = 0; at < 4; ++at) {
        const ExpertConfig& experts = config.layer(at).experts;
        EXPECT_TRUE(experts.stack == ExpertStack::rows && experts.shared_gate && experts.normalized);
        EXPECT_EQ(experts.count, 256);
        EXPECT_EQ(experts.per_token, 8);
    }
    EXPECT_FALSE(config.linear.fused);
    const std::filesystem::path folders = LONGHAUL_TEST_DATA "/parity";
    EXPECT_TRUE(ModelConfig::load(folders / "qwen3.5-moe").layer(0).experts.stacked());
    EXPECT_FALSE(ModelConfig::load(folders / "qwen3.5-moe-fp8").layer(0).experts.stacked());
}

TEST(ConfigExperts, Qwen2MoeHasBiasesAndWindowsInEveryOtherLayer) {
    const ModelConfig config = load_family("qwen2_moe", "Qwen2MoeForCausalLM", R"({"num_hidden_layers": 5,
        "use_sliding_window": true, "sliding_window": 16, "max_window_layers": 3, "max_position_embeddings": 64})");
    std::vector<std::int64_t> windows;
    for (std::int64_t at = 0; at < 5; ++at) windows.push_back(config.layer(at).attention_window);
    EXPECT_EQ(windows, (std::vector<std::int64_t>{16, 0, 16, 0, 0}));
    EXPECT_TRUE(config.layer(0).qkv_bias && config.layer(0).experts.shared_gate);
    EXPECT_FALSE(config.layer(0).experts.normalized || config.layer(0).output_bias);
    EXPECT_EQ(config.layer(4).experts.count, 60);
    EXPECT_EQ(config.shared_intermediate_size, 5632);
    const ModelConfig plain = load_family("qwen2_moe", "Qwen2MoeForCausalLM", R"({"qkv_bias": false})");
    EXPECT_FALSE(plain.layer(0).qkv_bias);
    EXPECT_EQ(plain.layer(0).attention_window, 0);
}

/// As published, but for its sizes.
TEST(ConfigExperts, MiniMaxM2RotatesAPartOfAHead) {
    const ModelConfig config = load_family("minimax_m2", "MiniMaxM2ForCausalLM", R"({"head_dim": 128, "rotary_dim": 64,
        "num_local_experts": 16, "num_experts_per_tok": 4, "scoring_func": "sigmoid", "use_qk_norm": true,
        "qk_norm_type": "per_layer", "use_routing_bias": true, "shared_intermediate_size": 0, "rope_theta": 5000000,
        "num_mtp_modules": 3, "use_mtp": true, "attn_type_list": [1, 1], "num_key_value_heads": "DELETE",
        "quantization_config": {"activation_scheme": "dynamic", "fmt": "float8_e4m3fn", "quant_method": "fp8",
        "weight_block_size": [128, 128], "modules_to_not_convert": ["gate", "e_score_correction_bias", "lm_head"]}})");
    EXPECT_EQ(config.rope().rotary_dims, 64);
    EXPECT_EQ(config.num_kv_heads, 8) << "the class's default";
    EXPECT_EQ(config.expert_intermediate_size, 172);
    EXPECT_EQ(config.shared_intermediate_size, 0);
    const LayerConfig& layer = config.layer(1);
    EXPECT_TRUE(layer.whole_norm);
    EXPECT_EQ(layer.norm_place, NormPlace::before);
    EXPECT_EQ(layer.experts.score, RouterScore::sigmoid);
    EXPECT_TRUE(layer.experts.normalized);
    EXPECT_EQ(layer.experts.count, 16);
    const ModelConfig modern = load_family("minimax_m2", "MiniMaxM2ForCausalLM", R"({"rope_theta": "DELETE",
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000, "partial_rotary_factor": 0.25}})");
    EXPECT_EQ(modern.rope().rotary_dims, 32);
    EXPECT_EQ(modern.rope().theta, 1000.0);
}

/// As published, but for its sizes.
TEST(ConfigExperts, GptOssHasSinksAndAWindowInEveryOtherLayer) {
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
        EXPECT_TRUE(layer.sinks && layer.qkv_bias && layer.output_bias && layer.experts.bias);
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

/// Granite 4.0 Micro, but for its sizes; then with experts, which no published folder without Mamba-2 has.
TEST(ConfigExperts, Granite4HasASharedMlp) {
    const auto load_granite = [](const std::string& change) {
        return load_family("granitemoehybrid", "GraniteMoeHybridForCausalLM", change);
    };
    const std::string layers = R"({"layer_types": ["attention", "attention"], "shared_intermediate_size": 48,)";
    const ModelConfig micro = load_granite(layers + R"("num_local_experts": 0, "num_experts_per_tok": 0,
        "embedding_multiplier": 12, "attention_multiplier": 0.015625, "residual_multiplier": 0.22, "logits_scaling": 10,
        "position_embedding_type": "rope", "rope_theta": 10000000, "mamba_n_heads": 128, "init_method": "mup"})");
    EXPECT_EQ(micro.intermediate_size, 48);
    EXPECT_FALSE(micro.has_experts());
    EXPECT_EQ(micro.rope().scaling, RopeScaling::standard);
    EXPECT_EQ(micro.layer(0).block_scale, 0.22);
    EXPECT_NEAR(micro.rope().score_scale / std::sqrt(8.0), 0.015625, 1e-12);
    const ModelConfig experts = load_granite(layers + R"("num_local_experts": 4})");
    EXPECT_EQ(experts.layer(1).experts.count, 4);
    EXPECT_EQ(experts.layer(1).experts.stack, ExpertStack::rows);
    EXPECT_EQ(experts.expert_intermediate_size, 172);
    EXPECT_EQ(experts.shared_intermediate_size, 48);
    EXPECT_EQ(experts.rope().scaling, RopeScaling::none) << "the class's default";
    EXPECT_NEAR(experts.rope().score_scale, std::sqrt(8.0), 1e-12);
}

/// Granite 4.0 H Tiny, but for its sizes.
TEST(ConfigExperts, Granite4HHasMamba) {
    const auto load_granite = [](const std::string& change) {
        return load_family("granitemoehybrid", "GraniteMoeHybridForCausalLM",
                           R"({"layer_types": ["mamba", "attention"], "mamba_n_heads": 8, )" + change + "}");
    };
    const ModelConfig config = load_granite(R"("mamba_d_head": 16, "mamba_d_state": 32, "mamba_n_groups": 1,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_conv_bias": true, "mamba_proj_bias": false,
        "mamba_chunk_size": 256, "position_embedding_type": "nope", "attention_bias": true, "num_local_experts": 4,
        "time_step_limit": [0.0, {"__float__": "Infinity"}])");
    EXPECT_TRUE(config.layer(0).linear);
    EXPECT_FALSE(config.layer(1).linear);
    EXPECT_EQ(config.linear.rule, kernels::StateRule::sum);
    EXPECT_EQ(config.linear.num_key_heads, 8) << "so that 8 ranks can share the heads";
    EXPECT_EQ(config.linear.num_value_heads, 8);
    EXPECT_EQ(config.linear.key_dim, 32);
    EXPECT_EQ(config.linear.value_dim, 16);
    EXPECT_TRUE(config.linear.filter_bias);
    EXPECT_FALSE(config.layer(0).qkv_bias || config.layer(0).output_bias);
    EXPECT_TRUE(config.layer(1).qkv_bias);
    EXPECT_EQ(config.layer(0).experts.count, 4);
    const ModelConfig defaults = load_granite(R"("mamba_d_head": "auto")");
    EXPECT_EQ(defaults.linear.value_dim, 16);
    EXPECT_EQ(defaults.linear.key_dim, 256) << "the class's default";
    EXPECT_TRUE(defaults.linear.filter_bias) << "the class's default";
}

/// Nemotron Nano 9B v2, but for its sizes: its files count attention, Mamba-2 and MLPs.
TEST(ConfigExperts, NemotronHCountsBlocks) {
    const ModelConfig config = load_family("nemotron_h", "NemotronHForCausalLM", R"({"num_hidden_layers": 7,
        "hybrid_override_pattern": "M-MM*-M", "layer_norm_epsilon": 0.001, "mlp_hidden_act": "relu2",
        "mamba_num_heads": 24, "mamba_head_dim": 16, "n_groups": 4, "ssm_state_size": 32, "conv_kernel": 3,
        "use_conv_bias": true, "time_step_min": 0.001, "time_step_limit": [0.0, {"__float__": "Infinity"}],
        "expand": 2, "residual_in_fp32": false, "sliding_window": null, "head_dim": 16})");
    EXPECT_EQ(config.num_layers, 5);
    EXPECT_EQ(config.num_blocks(), 7);
    std::vector<std::int64_t> blocks;
    std::vector<bool> mlps, linear;
    for (const LayerConfig& layer : config.layers) {
        blocks.push_back(layer.block);
        mlps.push_back(layer.has_mlp);
        linear.push_back(layer.linear);
        EXPECT_TRUE(layer.activation == Activation::relu_squared && !layer.gated);
        EXPECT_EQ(layer.rope.scaling, RopeScaling::none);
    }
    EXPECT_EQ(blocks, (std::vector<std::int64_t>{0, 2, 3, 4, 6}));
    EXPECT_EQ(mlps, (std::vector<bool>{true, false, false, true, false}));
    EXPECT_EQ(linear, (std::vector<bool>{true, true, true, false, true}));
    EXPECT_EQ(config.norm_eps, 0.001);
    EXPECT_FALSE(config.tied_embeddings);
    EXPECT_EQ(config.linear.num_groups, 4);
    EXPECT_EQ(config.linear.num_key_heads, 8) << "so that 8 ranks can share the heads";
    EXPECT_EQ(config.linear.num_value_heads, 24);
    EXPECT_EQ(config.linear.taps, 3);
}

/// Nemotron 3 Nano and Super, but for their sizes; as transformers 5 writes them.
TEST(ConfigExperts, Nemotron3HasExpertsWithoutGates) {
    const std::string change = R"("num_hidden_layers": "DELETE", "intermediate_size": "DELETE", "n_routed_experts": 16,
        "layers_block_type": ["linear_attention", "moe", "full_attention", "moe", "mamba", "mlp"],
        "num_experts_per_tok": 6, "n_shared_experts": 1, "moe_intermediate_size": 48, "n_group": 1, "topk_group": 1,
        "moe_shared_expert_intermediate_size": 56, "norm_topk_prob": true, "routed_scaling_factor": 2.5,
        "num_nextn_predict_layers": 1, "mtp_layers_block_type": ["full_attention", "moe"])";
    const ModelConfig nano = load_family("nemotron_h", "NemotronHForCausalLM", "{" + change + "}");
    EXPECT_EQ(nano.num_layers, 3);
    EXPECT_EQ(nano.layer(2).experts.count, 0);
    EXPECT_TRUE(nano.layer(2).has_mlp);
    EXPECT_EQ(nano.intermediate_size, 21504) << "the class's default";
    const ExpertConfig& experts = nano.layer(1).experts;
    EXPECT_EQ(experts.count, 16);
    EXPECT_EQ(experts.per_token, 6);
    EXPECT_EQ(experts.score, RouterScore::sigmoid);
    EXPECT_TRUE(experts.corrected && experts.normalized);
    EXPECT_EQ(experts.scale, 2.5);
    EXPECT_EQ(nano.shared_intermediate_size, 56);
    EXPECT_EQ(nano.expert_hidden_size(experts), 64);
    const ModelConfig super =
        load_family("nemotron_h", "NemotronHForCausalLM", "{" + change + R"(, "moe_latent_size": 32})");
    EXPECT_EQ(super.expert_hidden_size(super.layer(1).experts), 32);
    EXPECT_EQ(num_parameters(nano) - num_parameters(super), 2 * (16 * 2 * 48 * (64 - 32) - 2 * 32 * 64));
}

/// Trinity Mini, but for its sizes.
TEST(ConfigExperts, TrinityGatesAttention) {
    const ModelConfig config = load_family("afmoe", "AfmoeForCausalLM", R"({"num_hidden_layers": 4, "head_dim": 16,
        "num_dense_layers": 2, "num_experts": 16, "num_experts_per_tok": 8, "num_shared_experts": 1, "n_group": 1,
        "moe_intermediate_size": 48, "route_scale": 2.826, "route_norm": true, "score_func": "sigmoid",
        "mup_enabled": true, "global_attn_every_n_layers": 4, "sliding_window": 100, "rope_scaling": null})");
    EXPECT_EQ(config.embedding_scale, 8.0);
    const LayerConfig &local = config.layer(2), &global = config.layer(3);
    EXPECT_TRUE(local.output_gate && local.head_norm);
    EXPECT_EQ(local.norm_place, NormPlace::both);
    EXPECT_EQ(local.attention_window, 100);
    EXPECT_EQ(local.rope.scaling, RopeScaling::standard);
    EXPECT_EQ(global.attention_window, 0);
    EXPECT_EQ(global.rope.scaling, RopeScaling::none);
    EXPECT_EQ(config.layer(1).experts.count, 0);
    EXPECT_EQ(global.experts.count, 16);
    EXPECT_EQ(global.experts.per_token, 8);
    EXPECT_EQ(global.experts.scale, 2.826);
    EXPECT_TRUE(global.experts.corrected && global.experts.normalized);
    EXPECT_EQ(config.expert_intermediate_size, 48);
    EXPECT_EQ(config.shared_intermediate_size, 48);
}

/// AFM-4.5B and Youtu-LLM 2B, but for their sizes.
TEST(ConfigExperts, SomeAreLlamaOrDeepSeekInPart) {
    const ModelConfig afm = load_family("arcee", "ArceeForCausalLM", R"({"hidden_act": "relu2"})");
    EXPECT_EQ(afm.layer(0).activation, Activation::relu_squared);
    EXPECT_FALSE(afm.layer(0).gated || afm.layer(0).mlp_bias);
    const ModelConfig youtu = load_family("youtu", "YoutuForCausalLM", R"({"kv_lora_rank": 64, "q_lora_rank": null,
        "qk_nope_head_dim": 32, "qk_rope_head_dim": 16, "v_head_dim": 32})");
    EXPECT_TRUE(youtu.has_latent_attention() && youtu.tied_embeddings);
    EXPECT_EQ(youtu.latent.query_rank, 0);
    EXPECT_FALSE(youtu.has_experts());
}

TEST(ConfigExperts, GraniteMoeHasGranitesFactors) {
    const ModelConfig config = load_family("granitemoe", "GraniteMoeForCausalLM", R"({"num_local_experts": 40,
        "num_experts_per_tok": 8, "embedding_multiplier": 12.0, "logits_scaling": 6.0, "residual_multiplier": 0.22})");
    EXPECT_EQ(config.embedding_scale, 12.0);
    EXPECT_EQ(config.layer(1).block_scale, 0.22);
    EXPECT_EQ(config.layer(1).experts.count, 40);
    EXPECT_EQ(config.layer(1).experts.per_token, 8);
    EXPECT_TRUE(config.layer(1).experts.normalized);
    EXPECT_EQ(config.expert_intermediate_size, 172);
}

TEST(ConfigExperts, OlmoeNormsAllHeadsTogether) {
    const ModelConfig config = load_family("olmoe", "OlmoeForCausalLM", R"({"clip_qkv": null})");
    EXPECT_TRUE(config.layer(0).whole_norm);
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::before);
    EXPECT_EQ(config.layer(0).experts.count, 64);
    EXPECT_EQ(config.layer(0).experts.per_token, 8);
    EXPECT_FALSE(config.layer(0).experts.normalized);
}

/// As published, but for its sizes.
TEST(ConfigExperts, KExaoneNormsBeforeBlocks) {
    const ModelConfig config = load_family("exaone_moe", "ExaoneMoeForCausalLM", R"({"num_hidden_layers": 4,
        "sliding_window": 100, "sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention",
        "sliding_attention", "sliding_attention", "full_attention"], "num_experts": 8, "num_experts_per_tok": 4,
        "num_shared_experts": 2, "moe_intermediate_size": 48, "routed_scaling_factor": 2.5, "n_group": 1,
        "topk_group": 1, "scoring_func": "sigmoid", "num_nextn_predict_layers": 1,
        "mlp_layer_types": ["dense", "dense", "sparse", "sparse"]})");
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::before);
    EXPECT_EQ(config.layer(0).attention_window, 100);
    EXPECT_EQ(config.layer(3).rope.scaling, RopeScaling::none);
    EXPECT_EQ(config.layer(1).experts.count, 0) << "as mlp_layer_types says";
    const ExpertConfig& experts = config.layer(2).experts;
    EXPECT_EQ(experts.count, 8);
    EXPECT_TRUE(experts.corrected && experts.normalized);
    EXPECT_EQ(experts.scale, 2.5);
    EXPECT_EQ(config.shared_intermediate_size, 96);
    const ModelConfig published =
        load_family("exaone_moe", "ExaoneMoEForCausalLM", R"({"is_moe_layer": [false, true]})");
    EXPECT_EQ(published.layer(1).experts.count, 64) << "the class's default, after one layer without";
}

/// ERNIE-4.5-21B-A3B, but for its sizes; then every other layer of a range.
TEST(ConfigExperts, ErnieMoeCorrectsItsSoftmax) {
    const auto load_ernie = [](const std::string& change) {
        return load_family("ernie4_5_moe", "Ernie4_5_MoeForCausalLM", change);
    };
    const ModelConfig config = load_ernie(R"({"num_hidden_layers": 3, "moe_num_experts": 16, "moe_k": 6,
        "moe_num_shared_experts": 2, "moe_intermediate_size": 48, "moe_layer_start_index": 1,
        "moe_layer_end_index": 27, "moe_layer_interval": 1, "use_bias": false, "tie_word_embeddings": true})");
    EXPECT_EQ(config.layer(0).experts.count, 0);
    for (const std::int64_t at : {1, 2}) {
        const ExpertConfig& experts = config.layer(at).experts;
        EXPECT_EQ(experts.count, 16);
        EXPECT_EQ(experts.per_token, 6);
        EXPECT_EQ(experts.score, RouterScore::softmax);
        EXPECT_TRUE(experts.corrected && experts.normalized);
    }
    EXPECT_EQ(config.expert_intermediate_size, 48);
    EXPECT_EQ(config.shared_intermediate_size, 96);
    EXPECT_EQ(config.head_dim, 8) << "the class has no default";
    const ModelConfig some = load_ernie(R"({"num_hidden_layers": 8, "moe_layer_start_index": 2,
        "moe_layer_end_index": 5, "moe_layer_interval": 2})");
    std::vector<std::int64_t> sparse;
    for (std::int64_t at = 0; at < 8; ++at) {
        if (some.layer(at).experts.count > 0) sparse.push_back(at);
    }
    EXPECT_EQ(sparse, (std::vector<std::int64_t>{3, 5}));
    EXPECT_FALSE(load_ernie(R"({"moe_layer_start_index": 2})").has_experts()) << "two layers";
}

/// dots.llm1, Solar Open and Hy3, but for their sizes.
TEST(ConfigExperts, OthersHaveTheRouterOfDeepSeekV3) {
    const ModelConfig dots = load_family("dots1", "Dots1ForCausalLM", R"({"n_routed_experts": 16,
        "num_experts_per_tok": 6, "n_shared_experts": 2, "first_k_dense_replace": 1, "norm_topk_prob": true,
        "routed_scaling_factor": 2.5, "scoring_func": "noaux_tc", "moe_intermediate_size": 48, "sliding_window": null,
        "max_window_layers": 62})");
    EXPECT_TRUE(dots.layer(0).head_norm);
    EXPECT_EQ(dots.layer(0).experts.count, 0);
    EXPECT_EQ(dots.layer(1).experts.scale, 2.5);
    EXPECT_TRUE(dots.layer(1).experts.corrected && dots.layer(1).experts.normalized);
    EXPECT_EQ(dots.shared_intermediate_size, 96);
    const ModelConfig solar = load_family("solar_open", "SolarOpenForCausalLM", R"({"intermediate_size": "DELETE",
        "rope_theta": "DELETE", "partial_rotary_factor": 1.0, "num_key_value_heads": "DELETE"})");
    EXPECT_FALSE(solar.layer(0).head_norm || solar.layer(0).qkv_bias);
    EXPECT_EQ(solar.layer(0).experts.count, 128);
    EXPECT_EQ(solar.expert_intermediate_size, 1280);
    EXPECT_EQ(solar.head_dim, 128);
    EXPECT_EQ(solar.rope().theta, 1e6);
    const ModelConfig hy3 = load_family("hy_v3", "HYV3ForCausalLM", R"({"rope_theta": "DELETE", "num_experts": 16,
        "router_scaling_factor": 2.0, "num_shared_experts": 1, "moe_intermediate_size": 48})");
    EXPECT_TRUE(hy3.layer(0).head_norm);
    EXPECT_EQ(hy3.layer(0).experts.count, 0);
    EXPECT_EQ(hy3.layer(1).experts.count, 16);
    EXPECT_EQ(hy3.layer(1).experts.scale, 2.0);
    EXPECT_EQ(hy3.rope().theta, 11158840.0);
}

TEST(ConfigExperts, Qwen3VlStacksExpertsByColumnsAsPublished) {
    const std::filesystem::path folders = LONGHAUL_TEST_DATA "/parity";
    const ExpertConfig experts = ModelConfig::load(folders / "qwen3-vl-moe").layer(1).experts;
    EXPECT_EQ(experts.stack, ExpertStack::columns);
    EXPECT_EQ(experts.count, 5);
    EXPECT_TRUE(experts.normalized);
    const ModelConfig defaults =
        load_family("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration",
                    R"({"text_config": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 16,
                    "vocab_size": 96, "max_position_embeddings": 1024, "use_sliding_window": true}})");
    EXPECT_EQ(defaults.layer(0).experts.count, 60);
    EXPECT_EQ(defaults.layer(0).experts.per_token, 4);
    EXPECT_EQ(defaults.layer(0).attention_window, 0) << "the class has none";
    EXPECT_EQ(defaults.rope().theta, 5e5);
    EXPECT_EQ(ModelConfig::load(folders / "qwen3-vl-moe-modern").layer(0).experts.stack, ExpertStack::rows)
        << "as transformers 5 saves them";
}

}  // namespace
}  // namespace longhaul::engine
