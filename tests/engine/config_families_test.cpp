// What config.json says of each family's layers, and what the readers refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <utility>
#include <vector>

#include "engine/model/model_plan.hpp"
#include "engine/model/rope.hpp"
#include "engine/model/split.hpp"
#include "tests/engine/config_folder.hpp"

namespace longhaul::engine {
namespace {

using testing::load_family;

TEST(ConfigFamilies, Qwen3HasNormsOnEveryHead) {
    const ModelConfig config = load_family("qwen3", "Qwen3ForCausalLM", "{}");
    EXPECT_TRUE(config.layer(1).head_norm);
    EXPECT_FALSE(config.layer(1).qkv_bias);
    EXPECT_EQ(config.head_dim, 128) << "the class's default, not hidden_size / num_attention_heads";
    EXPECT_EQ(config.layer_groups().size(), 1U);
}

TEST(ConfigFamilies, WindowsOfQwenBeginAtALayer) {
    const std::string windows = R"({"use_sliding_window": true, "sliding_window": 100, "max_window_layers": 1})";
    const ModelConfig config = load_family("qwen2", "Qwen2ForCausalLM", windows);
    EXPECT_EQ(config.layer(0).attention_window, 0);
    EXPECT_EQ(config.layer(1).attention_window, 100);
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{0, 1}));
    const std::string unused = R"({"use_sliding_window": false, "sliding_window": 100, "max_window_layers": 1})";
    EXPECT_EQ(load_family("qwen2", "Qwen2ForCausalLM", unused).layer(1).attention_window, 0);
}

TEST(ConfigFamilies, MistralsWindowIsInAllLayers) {
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

TEST(ConfigFamilies, Gemma3HasTwoKindsOfLayers) {
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
    EXPECT_EQ(config.layer(0).query_norm_scale, 0.5);
    EXPECT_EQ(config.embedding_scale, 8.0);
    EXPECT_TRUE(config.tied_embeddings);
    EXPECT_TRUE(config.files.norm_adds_one);
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::both);
}

/// The folders with images have the language model's fields in text_config, and leave most of them to the class.
TEST(ConfigFamilies, Gemma3WithImages) {
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

/// As published: 31B, but for its number of layers, and 26B-A4B.
TEST(ConfigFamilies, Gemma4HasTwoKindsOfHeads) {
    Json published = Json::parse(R"({"hidden_act": "DELETE", "vocab_size": "DELETE", "eos_token_id": [1, 106],
        "vision_config": {}, "text_config": {"model_type": "gemma4_text", "hidden_size": 5376, "intermediate_size": 21504,
            "num_hidden_layers": 8, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
            "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true, "sliding_window": 1024,
            "max_position_embeddings": 262144, "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 0,
            "use_bidirectional_attention": "vision", "rope_parameters": {
                "full_attention": {"partial_rotary_factor": 0.25, "rope_theta": 1000000.0, "rope_type": "proportional"},
                "sliding_attention": {"rope_theta": 10000.0, "rope_type": "default"}}}})");
    const auto read = [&] { return load_family("gemma4", "Gemma4ForConditionalGeneration", published.dump()); };
    const ModelConfig dense = read();
    EXPECT_EQ(dense.groups_of_layers(), (std::vector<std::int64_t>{1, 1, 1, 1, 1, 0, 1, 0}));
    EXPECT_EQ(dense.layer_groups()[0].heads, (HeadShape{512, 512, 4}));
    EXPECT_EQ(dense.layer_groups()[1].heads, (HeadShape{256, 256, 16}));
    EXPECT_EQ(dense.layer_groups()[1].window, 1024);
    EXPECT_EQ(dense.layer(0).query_norm_scale, 16.0);
    EXPECT_TRUE(dense.layer(5).keys_are_values && dense.layer(5).value_norm && !dense.layer(0).keys_are_values);
    EXPECT_EQ(dense.logit_cap, 30.0);
    EXPECT_TRUE(dense.tied_embeddings && !dense.files.norm_adds_one && !dense.has_experts());
    const RopeTable wide(dense, dense.layer(5).rope);
    EXPECT_EQ(wide.num_pairs(), 256);
    EXPECT_GT(wide.inverse_frequencies()[63], 0.0F);
    EXPECT_EQ(wide.inverse_frequencies()[64], 0.0F);

    published["text_config"].update({{"enable_moe_block", true},
                                     {"num_experts", 128},
                                     {"top_k_experts", 8},
                                     {"moe_intermediate_size", 704},
                                     {"intermediate_size", 2112},
                                     {"sliding_window", 262144}});
    const ModelConfig experts = read();
    EXPECT_EQ(experts.layer(0).experts.count, 128);
    EXPECT_EQ(experts.shared_intermediate_size, 2112);
    EXPECT_EQ(experts.layer_groups().size(), 2U) << "of other heads, although no window is shorter than the context";

    // As transformers 5 writes it.
    Json& text = published["text_config"];
    text["per_layer_config"] = {{"5", {{"head_dim", 512}, {"num_key_value_heads", 4}}},
                                {"7", {{"head_dim", 512}, {"num_key_value_heads", 4}}}};
    text.erase("global_head_dim");
    EXPECT_EQ(read().layer_groups()[0].heads, (HeadShape{512, 512, 4}));
}

/// As published: E2B, but for its number of layers.
TEST(ConfigFamilies, Gemma4LayersHaveEmbeddingsAndShareKeys) {
    const ModelConfig config = load_family("gemma4", "Gemma4ForConditionalGeneration",
                                           R"({"hidden_act": "DELETE", "vocab_size": "DELETE", "eos_token_id": [1, 106],
        "vision_config": {}, "audio_config": {}, "text_config": {"model_type": "gemma4_text", "hidden_size": 1536,
            "intermediate_size": 6144, "num_hidden_layers": 7, "num_attention_heads": 8, "num_key_value_heads": 1,
            "head_dim": 256, "global_head_dim": 512, "sliding_window": 512, "max_position_embeddings": 131072,
            "final_logit_softcapping": 30.0, "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144,
            "num_kv_shared_layers": 3, "use_double_wide_mlp": true,
            "layer_types": ["sliding_attention", "full_attention", "sliding_attention", "sliding_attention",
                            "sliding_attention", "sliding_attention", "full_attention"]}})");
    EXPECT_EQ(config.layer_embedding_size, 256);
    EXPECT_EQ(config.layer_embeddings_width(), 7 * 256);
    EXPECT_EQ(config.num_kv_layers(), 4);
    EXPECT_TRUE(config.layer(4).shares_kv && !config.layer(3).shares_kv);
    EXPECT_EQ(config.mlp_width(config.layer(4)), 2 * 6144);
    EXPECT_EQ(config.mlp_width(config.layer(3)), 6144);
    std::vector<std::pair<std::size_t, std::int64_t>> places;
    for (const LayerPlace& place : config.places_of_layers()) places.emplace_back(place.group, place.index);
    EXPECT_EQ(places, (std::vector<std::pair<std::size_t, std::int64_t>>{
                          {1, 0}, {0, 0}, {1, 1}, {1, 2}, {1, 2}, {1, 2}, {0, 0}}));
}

/// As published: the text model says neither whether its tables are tied nor what kind of RoPE it has.
TEST(ConfigFamilies, MistralSmallWithImages) {
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

TEST(ConfigFamilies, Phi3RotatesAPartOfAHead) {
    const ModelConfig config = load_family("phi3", "Phi3ForCausalLM", R"({"partial_rotary_factor": 0.75,
        "original_max_position_embeddings": 1024, "sliding_window": 262144, "rope_scaling": {"type": "longrope",
        "short_factor": [1, 1.5, 2], "long_factor": [1, 2, 4]}})");
    EXPECT_TRUE(config.files.qkv == QkvTensors::fused && config.files.fused_gate_up);
    EXPECT_EQ(config.rope().rotary_dims, 6);
    EXPECT_EQ(config.rope().factor, 2.0);
    EXPECT_EQ(config.rope().long_factors, (std::vector<double>{1, 2, 4}));
    EXPECT_EQ(config.layer(0).attention_window, 0) << "longer than the context";
}

TEST(ConfigFamilies, SmolLm3HasLayersWithoutRotation) {
    const ModelConfig config =
        load_family("smollm3", "SmolLM3ForCausalLM", R"({"num_hidden_layers": 5, "num_key_value_heads": "DELETE"})");
    EXPECT_EQ(config.ropes_of_layers(), (std::vector<std::int64_t>{0, 0, 0, 1, 0}));
    EXPECT_EQ(config.ropes().back().scaling, RopeScaling::none);
    EXPECT_EQ(config.layer_groups().size(), 1U) << "their keys and values are together";
    EXPECT_EQ(config.num_kv_heads, 4) << "the class's default";
    EXPECT_TRUE(config.tied_embeddings) << "the class's default";
    const ModelConfig first = load_family("smollm3", "SmolLM3ForCausalLM", R"({"no_rope_layers": [0, 1, 1],
        "use_sliding_window": true, "sliding_window": 30, "rope_theta": "DELETE"})");
    EXPECT_EQ(first.layer(0).attention_window, 30) << "the layers without rotation have the windows";
    EXPECT_EQ(first.layer(1).attention_window, 0);
    EXPECT_EQ(first.rope().theta, 2e6) << "of the layers that are rotated";
}

/// As published, but for its sizes.
TEST(ConfigFamilies, QueriesOfMinistral3Grow) {
    const std::string text = R"({"model_type": "ministral3", "hidden_size": 64, "intermediate_size": 172,
        "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 96,
        "max_position_embeddings": 1024, "rope_parameters": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 16.0,
        "llama_4_scaling_beta": 0.1, "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 64,
        "rope_theta": 1000000.0, "rope_type": "yarn", "type": "yarn"}})";
    const ModelConfig config =
        load_family("mistral3", "Mistral3ForConditionalGeneration", R"({"text_config": )" + text + "}");
    EXPECT_EQ(config.rope().query_growth, 0.1);
    EXPECT_EQ(config.rope().original_max_positions, 64);
    EXPECT_EQ(config.max_positions, 1024);
    EXPECT_EQ(config.layer_groups().front().window, 0);
    const RopeTable table(config);
    EXPECT_EQ(table.attention_factor(), 1.0F);
    EXPECT_EQ(table.query_factor(63), 1.0F);
    EXPECT_NEAR(table.query_factor(64), 1 + 0.1 * std::log(2.0), 1e-7);
    EXPECT_EQ(table.query_factor(64), table.query_factor(127));
    EXPECT_NEAR(table.query_factor(1023), 1 + 0.1 * std::log(16.0), 1e-7);
}

TEST(ConfigFamilies, SeedOssHasBiasesOnItsQueriesAlone) {
    const LayerConfig layer = load_family("seed_oss", "SeedOssForCausalLM", R"({"attention_bias": "DELETE"})").layer(0);
    EXPECT_TRUE(layer.qkv_bias);
    EXPECT_FALSE(layer.output_bias || layer.mlp_bias);
    EXPECT_TRUE(load_family("seed_oss", "SeedOssForCausalLM", R"({"attention_out_bias": true})").layer(0).output_bias);
}

/// GLM-4-9B-0414, but for its sizes.
TEST(ConfigFamilies, Glm4RotatesPairsSideBySide) {
    const auto load_glm = [](const std::string& change) { return load_family("glm4", "Glm4ForCausalLM", change); };
    const ModelConfig config = load_glm(R"({"attention_bias": true, "head_dim": 128, "partial_rotary_factor": 0.5,
        "rms_norm_eps": 1e-05, "num_key_value_heads": "DELETE"})");
    EXPECT_EQ(config.num_kv_heads, 2) << "the class's default";
    EXPECT_TRUE(config.files.fused_gate_up);
    EXPECT_EQ(config.files.qkv, QkvTensors::separate);
    EXPECT_EQ(config.layer(1).norm_place, NormPlace::both);
    EXPECT_TRUE(config.layer(1).qkv_bias);
    EXPECT_FALSE(config.layer(1).output_bias || config.layer(1).head_norm);
    EXPECT_TRUE(config.rope().interleaved);
    EXPECT_EQ(config.rope().rotary_dims, 64);
    const ModelConfig defaults = load_glm(R"({"rms_norm_eps": "DELETE"})");
    EXPECT_EQ(defaults.head_dim, 128);
    EXPECT_EQ(defaults.rope().rotary_dims, 64);
    EXPECT_EQ(defaults.norm_eps, 1.5625e-7);
    EXPECT_TRUE(defaults.layer(1).qkv_bias);
    EXPECT_EQ(load_glm(R"({"partial_rotary_factor": 1.0})").rope().rotary_dims, 0);
}

/// GLM-4-9b-chat-hf, but for its sizes.
TEST(ConfigFamilies, GlmHasNoNormsOnOutputs) {
    const ModelConfig config = load_family("glm", "GlmForCausalLM", R"({"head_dim": 16, "attention_bias": true,
        "partial_rotary_factor": 0.5, "rms_norm_eps": 1.5625e-07, "eos_token_id": [3, 4]})");
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::before);
    EXPECT_TRUE(config.layer(0).qkv_bias && config.layer(0).rope.interleaved && config.files.fused_gate_up);
    EXPECT_EQ(config.rope().rotary_dims, 8);
}

/// EXAONE-4.0-32B, but for its sizes; then 1.2B.
TEST(ConfigFamilies, Exaone4RotatesLayersWithAWindowAlone) {
    const auto load_exaone = [](const std::string& change) {
        return load_family("exaone4", "Exaone4ForCausalLM", change);
    };
    const ModelConfig config = load_exaone(R"({"num_hidden_layers": 4, "sliding_window": 100,
        "sliding_window_pattern": "LLLG", "layer_types": ["sliding_attention", "sliding_attention",
        "sliding_attention", "full_attention"], "rope_theta": 1000000, "rope_scaling": {"rope_type": "llama3",
        "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}})");
    for (const std::int64_t at : {0, 3}) {
        const LayerConfig& layer = config.layer(at);
        EXPECT_EQ(layer.attention_window, at == 3 ? 0 : 100);
        EXPECT_EQ(layer.rope.scaling, at == 3 ? RopeScaling::none : RopeScaling::llama3);
        EXPECT_EQ(layer.norm_place, NormPlace::output);
        EXPECT_TRUE(layer.head_norm);
        EXPECT_FALSE(layer.qkv_bias || layer.output_bias);
    }
    EXPECT_EQ(config.rope().theta, 1e6);
    const ModelConfig pattern = load_exaone(R"({"num_hidden_layers": 4, "sliding_window": 100,
        "sliding_window_pattern": 2, "rms_norm_eps": "DELETE"})");
    EXPECT_EQ(pattern.groups_of_layers(), (std::vector<std::int64_t>{1, 0, 1, 0}));
    EXPECT_EQ(pattern.norm_eps, 1e-5);
    const ModelConfig small = load_exaone(R"({"sliding_window": null, "sliding_window_pattern": null,
        "layer_types": ["full_attention", "full_attention"]})");
    EXPECT_EQ(small.ropes().size(), 1U);
    EXPECT_EQ(small.rope().scaling, RopeScaling::standard) << "without windows all layers are rotated";
}

TEST(ConfigFamilies, Ernie45RotatesPairsSideBySide) {
    const ModelConfig config = load_family("ernie4_5", "Ernie4_5ForCausalLM", R"({"rope_theta": "DELETE",
        "num_key_value_heads": "DELETE", "use_bias": false})");
    EXPECT_TRUE(config.layer(0).rope.interleaved);
    EXPECT_FALSE(config.layer(0).qkv_bias || config.layer(0).mlp_bias);
    EXPECT_EQ(config.rope().theta, 5e5);
    EXPECT_EQ(config.head_dim, 128) << "the class's default";
    EXPECT_EQ(config.num_kv_heads, 2) << "the class's default";
    EXPECT_TRUE(config.tied_embeddings) << "the class's default";
    const LayerConfig biased = load_family("ernie4_5", "Ernie4_5_ForCausalLM", R"({"use_bias": true})").layer(0);
    EXPECT_TRUE(biased.qkv_bias && biased.output_bias && biased.mlp_bias);
}

/// As published, but for their sizes: the text is at the top, or (as transformers 5 writes it) in a section.
TEST(ConfigFamilies, PositionsOfQwenVlAreThoseOfAText) {
    const std::string rope =
        R"("rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "rope_theta": 1000000.0)";
    for (const auto& [type, name] : {std::pair{"qwen2_vl", "Qwen2VLForConditionalGeneration"},
                                     std::pair{"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"}}) {
        const ModelConfig config = load_family(type, name, "{" + rope + R"(, "use_sliding_window": false,
            "max_window_layers": 28, "sliding_window": 32768, "tie_word_embeddings": true, "vision_config": {}})");
        EXPECT_EQ(config.rope().scaling, RopeScaling::standard);
        EXPECT_EQ(config.rope().theta, 1e6);
        EXPECT_TRUE(config.layer(0).qkv_bias && config.tied_embeddings);
        EXPECT_EQ(config.layer(0).attention_window, 0);
    }
    const std::string sizes = R"("hidden_size": 64, "intermediate_size": 172, "num_hidden_layers": 2,
        "num_attention_heads": 8, "vocab_size": 96, "max_position_embeddings": 1024, )";
    const ModelConfig inner =
        load_family("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", R"({"text_config": {)" + sizes + rope + "}}");
    EXPECT_EQ(inner.num_kv_heads, 8) << "the class's default";
    EXPECT_EQ(inner.rope().theta, 1e6);
    const ModelConfig third = load_family("qwen3_vl", "Qwen3VLForConditionalGeneration",
                                          R"({"text_config": {)" + sizes + R"("rope_theta": 5000000, "rope_scaling":
        {"mrope_interleaved": true, "mrope_section": [24, 20, 20], "rope_type": "default"}}, "tie_word_embeddings": true})");
    EXPECT_TRUE(third.layer(0).head_norm && third.tied_embeddings);
    EXPECT_EQ(third.head_dim, 128) << "the class's default";
    EXPECT_EQ(third.rope().scaling, RopeScaling::standard);
    const ModelConfig defaults = load_family("qwen2_vl", "Qwen2VLForConditionalGeneration",
                                             R"({"rope_theta": "DELETE", "rms_norm_eps": "DELETE"})");
    EXPECT_EQ(defaults.rope().theta, 1e6);
    EXPECT_EQ(defaults.norm_eps, 1e-5);
}

TEST(ConfigFamilies, Olmo2NormsOutputs) {
    const ModelConfig config = load_family("olmo2", "Olmo2ForCausalLM", R"({"rms_norm_eps": "DELETE"})");
    EXPECT_EQ(config.layer(1).norm_place, NormPlace::output);
    EXPECT_TRUE(config.layer(1).whole_norm && config.has_final_norm());
    EXPECT_FALSE(config.layer(1).head_norm || config.layer(1).qkv_bias);
    EXPECT_EQ(config.norm_eps, 1e-5) << "the class's default";
}

/// As published, but for its sizes.
TEST(ConfigFamilies, Olmo3ScalesRopeInFullLayersAlone) {
    const ModelConfig config = load_family("olmo3", "Olmo3ForCausalLM", R"({"num_hidden_layers": 5,
        "sliding_window": 100, "rope_theta": 500000, "rope_scaling": {"attention_factor": 1.2079441541679836,
        "beta_fast": 32.0, "beta_slow": 1.0, "factor": 8.0, "original_max_position_embeddings": 256,
        "rope_type": "yarn"}})");
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{1, 1, 1, 0, 1}));
    EXPECT_EQ(config.layer(2).attention_window, 100);
    EXPECT_EQ(config.rope().scaling, RopeScaling::yarn);
    EXPECT_EQ(config.rope().attention_factor, 1.2079441541679836);
    EXPECT_EQ(config.layer(2).rope.scaling, RopeScaling::standard);
    for (const std::int64_t at : {2, 3}) EXPECT_EQ(config.layer(at).rope.theta, 500000.0);
    const ModelConfig modern = load_family("olmo3", "Olmo3ForCausalLM", R"({"rope_theta": "DELETE",
        "layer_types": ["full_attention", "sliding_attention"], "rope_parameters":
        {"full_attention": {"rope_theta": 1000, "rope_type": "linear", "factor": 2.0},
         "sliding_attention": {"rope_theta": 2000, "rope_type": "default"}}})");
    EXPECT_EQ(modern.layer(0).rope.theta, 1000.0);
    EXPECT_EQ(modern.layer(0).rope.scaling, RopeScaling::linear);
    EXPECT_EQ(modern.layer(1).rope.theta, 2000.0);
    EXPECT_EQ(modern.layer(1).attention_window, 0) << "the class's default, as long as the context";
}

TEST(ConfigFamilies, Qwen35HasLinearAttentionInThreeOfFourLayers) {
    const ModelConfig config = load_family("qwen3_5_text", "Qwen3_5ForCausalLM", R"({"num_hidden_layers": 5,
        "rope_theta": "DELETE", "rope_parameters": {"rope_type": "default", "rope_theta": 10000000,
        "partial_rotary_factor": 0.25, "mrope_section": [11, 11, 10], "mrope_interleaved": true}})");
    EXPECT_EQ(config.groups_of_layers(), (std::vector<std::int64_t>{1, 1, 1, 0, 1})) << "attention comes first";
    EXPECT_TRUE(config.layer_groups()[1].linear);
    EXPECT_EQ(config.linear.num_key_heads, 16) << "the class's defaults";
    EXPECT_EQ(config.linear.num_value_heads, 32);
    EXPECT_EQ(config.linear.taps, 4);
    EXPECT_TRUE(config.layer(3).output_gate && config.layer(3).head_norm);
    EXPECT_FALSE(config.layer(0).output_gate || config.layer(0).head_norm);
    EXPECT_EQ(config.rope().rotary_dims, 64);
    EXPECT_TRUE(config.files.norm_adds_one);
    EXPECT_EQ(Split::obstacle(config, 8), "");
    const ModelConfig named = load_family("qwen3_5_text", "Qwen3_5ForCausalLM", R"({"num_hidden_layers": 3,
        "layer_types": ["full_attention", "linear_attention", "full_attention"], "linear_num_key_heads": 2})");
    EXPECT_EQ(named.groups_of_layers(), (std::vector<std::int64_t>{0, 1, 0}));
    EXPECT_EQ(Split::obstacle(named, 4), "2 key heads of linear attention do not divide by it");
}

/// The factors of Granite 3.3 8B.
TEST(ConfigFamilies, GraniteHasFactors) {
    const ModelConfig config = load_family("granite", "GraniteForCausalLM", R"({"embedding_multiplier": 12.0,
        "attention_multiplier": 0.0078125, "residual_multiplier": 0.22, "logits_scaling": 16.0, "head_dim": 128,
        "attention_bias": true, "rope_scaling": {"rope_type": "linear", "factor": 2.0}})");
    EXPECT_EQ(config.embedding_scale, 12.0);
    EXPECT_FALSE(config.rounds_embedding_scale);
    EXPECT_EQ(config.logits_scale, 0.0625);
    EXPECT_EQ(config.layer(1).block_scale, 0.22);
    EXPECT_NEAR(config.rope().score_scale / std::sqrt(128.0), 0.0078125, 1e-12);
    EXPECT_TRUE(config.layer(1).qkv_bias && config.layer(1).output_bias);
    EXPECT_EQ(config.max_positions, 4096) << "stretched as Llama's";
    EXPECT_NEAR(load_family("granite", "GraniteForCausalLM", "{}").rope().score_scale, std::sqrt(8.0), 1e-12)
        << "the class's default is 1, not 1 / sqrt(head_dim)";
}

/// As published, and as transformers 5 writes it.
TEST(ConfigFamilies, ExaoneIsLlamaUnderOtherNames) {
    const ModelConfig published = load_family("exaone", "ExaoneForCausalLM", R"({"num_hidden_layers": "DELETE",
        "num_layers": 3, "hidden_act": "DELETE", "activation_function": "silu", "rms_norm_eps": "DELETE",
        "layer_norm_epsilon": 0.001})");
    EXPECT_EQ(published.num_layers, 3);
    EXPECT_EQ(published.norm_eps, 0.001);
    const ModelConfig saved = load_family("exaone", "LlamaForCausalLM", R"({"rms_norm_eps": 0.002})");
    EXPECT_EQ(saved.num_layers, 2);
    EXPECT_EQ(saved.norm_eps, 0.002);
}

TEST(ConfigFamilies, CwmHasWindowsInThreeOfFourLayers) {
    const ModelConfig config = load_family("cwm", "CwmForCausalLM", R"({"num_hidden_layers": 5, "sliding_window": 100,
        "rope_scaling": {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64}})");
    for (std::int64_t at = 0; at < 5; ++at) EXPECT_EQ(config.layer(at).attention_window, at % 4 == 0 ? 0 : 100);
}

/// GPT-2 names its sizes otherwise; then Cerebras-GPT.
TEST(ConfigFamilies, Gpt2HasLearnedPositionsAndMatricesByColumns) {
    const std::string others = R"("hidden_size": "DELETE", "intermediate_size": "DELETE", "num_hidden_layers": "DELETE",
        "num_attention_heads": "DELETE", "num_key_value_heads": "DELETE", "max_position_embeddings": "DELETE",
        "n_embd": 64, "n_layer": 2, "n_head": 8, "n_positions": 256)";
    const ModelConfig config = load_family("gpt2", "GPT2LMHeadModel", "{" + others + R"(, "n_inner": null,
        "n_ctx": 256, "activation_function": "gelu_new", "tie_word_embeddings": "DELETE"})");
    EXPECT_EQ(config.hidden_size, 64);
    EXPECT_EQ(config.intermediate_size, 256) << "four times that";
    EXPECT_EQ(config.num_layers, 2);
    EXPECT_EQ(config.head_dim, 8);
    EXPECT_EQ(config.position_rows(), 256);
    EXPECT_TRUE(config.learned_positions && config.tied_embeddings && config.files.by_columns);
    EXPECT_EQ(config.layer(1).activation, Activation::gelu);
    EXPECT_TRUE(config.layer(1).qkv_bias && config.layer(1).output_bias && config.layer(1).mlp_bias);
    const ModelConfig cerebras = load_family("gpt2", "GPT2LMHeadModel", "{" + others + R"(, "n_inner": 100,
        "activation_function": "gelu", "tie_word_embeddings": false})");
    EXPECT_EQ(cerebras.intermediate_size, 100);
    EXPECT_EQ(cerebras.layer(0).activation, Activation::gelu_exact);
    EXPECT_FALSE(cerebras.tied_embeddings);
}

/// Pythia, but for its sizes; then as transformers 5 writes GPT-NeoX-20B, whose activation is the other GELU.
TEST(ConfigFamilies, GptNeoxHasAnMlpBesideAttentionWithANormOfItsOwn) {
    const ModelConfig pythia = load_family("gpt_neox", "GPTNeoXForCausalLM", R"({"num_key_value_heads": "DELETE",
        "hidden_act": "gelu", "rotary_pct": 0.5, "rotary_emb_base": 5000, "rope_theta": "DELETE",
        "layer_norm_eps": 0.001, "use_parallel_residual": true})");
    const LayerConfig& layer = pythia.layer(0);
    EXPECT_TRUE(layer.parallel && !layer.gated && layer.qkv_bias && layer.output_bias && layer.mlp_bias);
    EXPECT_EQ(layer.activation, Activation::gelu_exact);
    EXPECT_EQ(layer.norm, NormKind::layer);
    EXPECT_EQ(pythia.norm_eps, 0.001);
    EXPECT_EQ(pythia.rope().theta, 5000.0);
    EXPECT_EQ(pythia.rope().rotary_dims, 4);
    EXPECT_EQ(pythia.num_kv_heads, 8);
    EXPECT_EQ(pythia.files.qkv, QkvTensors::fused_by_head);
    EXPECT_FALSE(pythia.tied_embeddings || pythia.head_bias);
    const ModelConfig neox = load_family("gpt_neox", "GPTNeoXForCausalLM", R"({"num_key_value_heads": "DELETE",
        "hidden_act": "gelu_fast", "use_parallel_residual": false, "attention_bias": false,
        "rope_parameters": {"rope_type": "default", "rope_theta": 20000, "partial_rotary_factor": 0.25}})");
    EXPECT_TRUE(!neox.layer(0).parallel && !neox.layer(0).qkv_bias && neox.layer(0).mlp_bias);
    EXPECT_EQ(neox.layer(0).activation, Activation::gelu);
    EXPECT_EQ(neox.rope().theta, 20000.0);
    EXPECT_EQ(neox.rope().rotary_dims, 2);
}

TEST(ConfigFamilies, PhiHasABiasOnItsLogits) {
    const ModelConfig config = load_family("phi", "PhiForCausalLM", R"({"hidden_act": "gelu_new",
        "partial_rotary_factor": 0.25})");
    EXPECT_TRUE(config.head_bias && config.layer(0).parallel && config.layer(0).mlp_bias);
    EXPECT_EQ(config.layer(0).activation, Activation::gelu);
    EXPECT_EQ(config.rope().rotary_dims, 2);
    EXPECT_EQ(load_family("phi", "PhiForCausalLM", R"({"hidden_act": "gelu_new"})").rope().rotary_dims, 4)
        << "the class's default";
}

TEST(ConfigFamilies, Starcoder2HasAWindowEverywhere) {
    const ModelConfig config = load_family("starcoder2", "Starcoder2ForCausalLM", R"({"norm_epsilon": 0.001,
        "hidden_act": "gelu_pytorch_tanh", "sliding_window": 100, "tie_word_embeddings": "DELETE"})");
    EXPECT_EQ(config.norm_eps, 0.001);
    EXPECT_TRUE(config.tied_embeddings) << "the class's default";
    EXPECT_TRUE(config.layer(0).qkv_bias && config.layer(0).output_bias && config.layer(0).mlp_bias);
    EXPECT_EQ(config.layer(0).attention_window, 100);
    EXPECT_EQ(config.layer(1).attention_window, 100);
}

TEST(ConfigFamilies, StableLmAndMinitron) {
    const ModelConfig stable = load_family("stablelm", "StableLmForCausalLM", R"({"use_qkv_bias": true,
        "hidden_act": "silu"})");
    EXPECT_TRUE(stable.layer(0).gated && stable.layer(0).qkv_bias && !stable.layer(0).output_bias);
    EXPECT_EQ(stable.layer(0).norm, NormKind::layer);
    EXPECT_EQ(stable.rope().rotary_dims, 2) << "the class's default";
    const ModelConfig minitron = load_family("nemotron", "NemotronForCausalLM", R"({"hidden_act": "relu2",
        "norm_eps": 0.001})");
    EXPECT_TRUE(minitron.files.norm_adds_one && !minitron.layer(0).gated && !minitron.layer(0).mlp_bias);
    EXPECT_EQ(minitron.layer(0).activation, Activation::relu_squared);
    EXPECT_EQ(minitron.norm_eps, 0.001);
    EXPECT_EQ(minitron.rope().rotary_dims, 4) << "the class's default";
}

/// Gemma 2 27B, but for its sizes; then with its caps turned off.
TEST(ConfigFamilies, Gemma2HasSoftCaps) {
    const ModelConfig config = load_family("gemma2", "Gemma2ForCausalLM", R"({"head_dim": 16,
        "query_pre_attn_scalar": 4, "sliding_window": 100, "attn_logit_softcapping": 40.0})");
    EXPECT_EQ(config.score_cap, 40.0);
    EXPECT_EQ(config.logit_cap, 30.0) << "the class's default";
    EXPECT_EQ(config.rope().score_scale, 2.0);
    EXPECT_EQ(config.layer(0).attention_window, 100);
    EXPECT_EQ(config.layer(1).attention_window, 0);
    EXPECT_EQ(config.layer(0).norm_place, NormPlace::both);
    EXPECT_TRUE(config.files.norm_adds_one && config.tied_embeddings && !config.layer(0).head_norm);
    const ModelConfig off = load_family("gemma2", "Gemma2ForCausalLM", R"({"attn_logit_softcapping": null,
        "final_logit_softcapping": null})");
    EXPECT_EQ(off.score_cap, 0.0);
    EXPECT_EQ(off.logit_cap, 0.0);
    const ModelConfig first = load_family("gemma", "GemmaForCausalLM", R"({"hidden_act": "gelu"})");
    EXPECT_EQ(first.layer(0).activation, Activation::gelu) << "a name of the first folders";
    EXPECT_EQ(first.layer(0).norm_place, NormPlace::before);
    EXPECT_EQ(first.score_cap, 0.0);
}

/// Command R7B, but for its sizes; then Aya Expanse 8B.
TEST(ConfigFamilies, CommandHasAnMlpBesideAttention) {
    const ModelConfig config = load_family("cohere2", "Cohere2ForCausalLM", R"({"num_hidden_layers": 4,
        "sliding_window": 100, "sliding_window_pattern": 4, "layer_norm_eps": 0.001, "logit_scale": 0.25,
        "rope_theta": 50000, "use_gated_activation": true, "use_parallel_block": true, "rotary_pct": 1.0,
        "order_of_interleaved_layers": "local_attn_first", "position_embedding_type": "rope_gptj"})");
    EXPECT_EQ(config.logits_scale, 0.25);
    EXPECT_EQ(config.norm_eps, 0.001);
    EXPECT_TRUE(config.tied_embeddings) << "the class's default";
    const LayerConfig &local = config.layer(2), &global = config.layer(3);
    EXPECT_TRUE(local.parallel && local.rope.interleaved && !local.qkv_bias);
    EXPECT_EQ(local.norm, NormKind::layer_without_bias);
    EXPECT_EQ(local.attention_window, 100);
    EXPECT_EQ(global.attention_window, 0);
    EXPECT_EQ(global.rope.scaling, RopeScaling::none);
    const ModelConfig aya = load_family("cohere", "CohereForCausalLM", R"({"use_qk_norm": false,
        "rope_theta": "DELETE"})");
    EXPECT_EQ(aya.max_positions, 2048);
    EXPECT_EQ(load_family("cohere", "CohereForCausalLM", R"({"model_max_length": 131072})").max_positions, 131072)
        << "Command R";
    EXPECT_EQ(aya.layer_groups().size(), 1U);
    EXPECT_EQ(aya.rope().theta, 5e5) << "the class's default";
    EXPECT_EQ(aya.logits_scale, 0.0625) << "the class's default";
}

}  // namespace
}  // namespace longhaul::engine
