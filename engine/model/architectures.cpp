#include "engine/model/architectures.hpp"

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::engine::detail {
namespace {

constexpr DefaultSizes gemma1_sizes{256000, 3072, 24576, 28, 16, 16, 256, 8192};
constexpr DefaultSizes gemma2_sizes{256000, 2304, 9216, 26, 8, 4, 256, 8192};
constexpr DefaultSizes gemma3_sizes{262208, 2304, 9216, 26, 8, 4, 256, 131072};
constexpr DefaultSizes gemma4_sizes{262144, 2304, 9216, 30, 8, 4, 256, 131072};
constexpr DefaultSizes minimax_sizes{.kv_heads = 8, .head_dim = 128, .rotated_share = 1.0};
constexpr DefaultSizes qwen3_5_sizes{.kv_heads = 4, .head_dim = 256, .rotated_share = 0.25};
constexpr DefaultSizes qwen3_next_sizes{.intermediate = 5632, .kv_heads = 2, .head_dim = 256, .rotated_share = 0.25};
/// No layer has an MLP of intermediate_size, which the published folders do not name.
constexpr DefaultSizes qwen3_5_moe_sizes{.intermediate = 512, .kv_heads = 2, .head_dim = 256, .rotated_share = 0.25};

constexpr DefaultSizes ernie_sizes{.kv_heads = 2, .head_dim = 128};
constexpr DefaultSizes qwen2_vl_sizes{.kv_heads = 8};
constexpr DefaultSizes qwen3_vl_moe_sizes{.intermediate = 5632, .kv_heads = 16};
/// The number of layers is that of the list of their kinds.
constexpr DefaultSizes nemotron_sizes{131072, 4096, 21504, 1, 32, 8, 128, 4096};
/// No layer has an MLP of intermediate_size.
constexpr DefaultSizes solar_open_sizes{.intermediate = 1280, .kv_heads = 8, .head_dim = 128, .rotated_share = 1.0};

constexpr ActivationKey silu{"hidden_act", "silu", "swish"};
constexpr ActivationKey gelu{"hidden_activation", "gelu_pytorch_tanh", "gelu_pytorch_tanh"};
constexpr ActivationKey read_with_layers{};
constexpr ActivationKey gemma1_gelu{"hidden_act", "gelu_pytorch_tanh", "gelu"};
constexpr ActivationKey relu{"activation_function", "relu", "relu"};
constexpr ActivationKey nemotron_relu{"mlp_hidden_act", "relu2", "relu2"};
constexpr ActivationKey relu_squared{"hidden_act", "relu2", "relu2"};

constexpr FolderFormat images{.text_section = "text_config", .ties_at_top = true};
constexpr FolderFormat qwen2_vl{
    .text_section = "text_config", .ties_at_top = true, .may_be_mrope = true, .text_may_be_at_top = true};
constexpr FolderFormat moe_text{.may_split_experts = true};
constexpr FolderFormat moe_images{.text_section = "text_config", .ties_at_top = true, .may_split_experts = true};
constexpr FolderFormat gemma{.positions_are_scaled = true};
constexpr FolderFormat gemma_images{.text_section = "text_config", .positions_are_scaled = true};
constexpr FolderFormat mxfp4{.may_be_mxfp4 = true};
constexpr FolderFormat exaone{.layers_key = "num_layers"};
constexpr FolderFormat gpt2{.hidden_key = "n_embd",
                            .layers_key = "n_layer",
                            .heads_key = "n_head",
                            .positions_key = "n_positions",
                            .intermediate_key = "n_inner",
                            .intermediate_per_hidden = 4};
constexpr FolderFormat gpt_neox{.theta_key = "rotary_emb_base", .rotated_share_key = "rotary_pct"};
constexpr FolderFormat minimax{.rotary_dims_key = "rotary_dim"};

constexpr Architecture architectures[] = {
    {"llama", "LlamaForCausalLM", silu, read_llama_layers},
    {"qwen2", "Qwen2ForCausalLM", silu, read_qwen2_layers},
    {"qwen3", "Qwen3ForCausalLM", silu, read_qwen3_layers, {.head_dim = 128}},
    {"qwen3_moe", "Qwen3MoeForCausalLM", silu, read_qwen3_moe_layers, {.intermediate = 6144, .kv_heads = 4}},
    {"qwen2_vl", "Qwen2VLForConditionalGeneration", silu, read_qwen2_vl_layers, qwen2_vl_sizes, qwen2_vl},
    {"qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration", silu, read_qwen2_vl_layers, qwen2_vl_sizes, qwen2_vl},
    {"qwen3_vl", "Qwen3VLForConditionalGeneration", silu, read_qwen3_vl_layers, {.head_dim = 128}, images},
    {"qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", silu, read_qwen3_vl_moe_layers, qwen3_vl_moe_sizes,
     moe_images},
    {"qwen3_5_text", "Qwen3_5ForCausalLM", silu, read_qwen3_5_layers, qwen3_5_sizes},
    {"qwen3_5", "Qwen3_5ForConditionalGeneration", silu, read_qwen3_5_layers, qwen3_5_sizes, images},
    {"qwen2_moe", "Qwen2MoeForCausalLM", silu, read_qwen2_moe_layers, {.intermediate = 5632, .kv_heads = 16}},
    {"qwen3_next", "Qwen3NextForCausalLM", silu, read_qwen3_next_layers, qwen3_next_sizes},
    {"qwen3_5_moe_text", "Qwen3_5MoeForCausalLM", silu, read_qwen3_5_moe_layers, qwen3_5_moe_sizes, moe_text},
    {"qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", silu, read_qwen3_5_moe_layers, qwen3_5_moe_sizes, moe_images},
    {"cwm", "CwmForCausalLM", silu, read_cwm_layers, {.kv_heads = 8, .head_dim = 128}},
    {"mistral", "MistralForCausalLM", silu, read_mistral_layers, {.kv_heads = 8}},
    {"mistral3", "Mistral3ForConditionalGeneration", silu, read_mistral3_layers, {.kv_heads = 8}, images},
    {"ministral3", "Ministral3ForCausalLM", silu, read_ministral3_layers, {.kv_heads = 8, .head_dim = 128}},
    {"mixtral", "MixtralForCausalLM", silu, read_mixtral_layers, {.kv_heads = 8}},
    {"glm", "GlmForCausalLM", silu, read_glm_layers, {.kv_heads = 2, .head_dim = 128, .rotated_share = 0.5}},
    {"glm4", "Glm4ForCausalLM", silu, read_glm4_layers, {.kv_heads = 2, .head_dim = 128, .rotated_share = 0.5}},
    {"glm4_moe", "Glm4MoeForCausalLM", silu, read_glm4_moe_layers, {.kv_heads = 8, .rotated_share = 0.5}},
    {"deepseek_v2", "DeepseekV2ForCausalLM", silu, read_deepseek_v2_layers, {.head_dim = 64}},
    {"deepseek_v3", "DeepseekV3ForCausalLM", silu, read_deepseek_v3_layers, {.head_dim = 64}},
    {"kimi_k2", "DeepseekV3ForCausalLM", silu, read_deepseek_v3_layers, {.head_dim = 64}},
    {"kimi_k25",
     "KimiK25ForConditionalGeneration",
     silu,
     read_kimi_k25_layers,
     {.head_dim = 64},
     images,
     "Kimi_K25ForConditionalGeneration"},
    {"glm4_moe_lite", "Glm4MoeLiteForCausalLM", silu, read_glm4_moe_lite_layers, {.head_dim = 64}},
    {"smollm3", "SmolLM3ForCausalLM", silu, read_smollm3_layers, {.kv_heads = 4}},
    {"seed_oss", "SeedOssForCausalLM", silu, read_seed_oss_layers, {.kv_heads = 8, .head_dim = 128}},
    {"olmo2", "Olmo2ForCausalLM", silu, read_olmo2_layers},
    {"olmo3", "Olmo3ForCausalLM", silu, read_olmo3_layers},
    {"olmoe", "OlmoeForCausalLM", silu, read_olmoe_layers},
    {"exaone", "ExaoneForCausalLM", read_with_layers, read_exaone_layers, {.kv_heads = 8}, exaone, "LlamaForCausalLM"},
    {"exaone4", "Exaone4ForCausalLM", silu, read_exaone4_layers},
    {"exaone_moe", "ExaoneMoeForCausalLM", silu, read_exaone_moe_layers, {}, {}, "ExaoneMoEForCausalLM"},
    {"ernie4_5", "Ernie4_5ForCausalLM", silu, read_ernie4_5_layers, ernie_sizes, {}, "Ernie4_5_ForCausalLM"},
    {"ernie4_5_moe", "Ernie4_5_MoeForCausalLM", silu, read_ernie4_5_moe_layers, {.intermediate = 12288, .kv_heads = 4}},
    {"dots1", "Dots1ForCausalLM", silu, read_dots1_layers},
    {"solar_open", "SolarOpenForCausalLM", silu, read_solar_open_layers, solar_open_sizes},
    {"hy_v3", "HYV3ForCausalLM", silu, read_hy_v3_layers, {.kv_heads = 8, .head_dim = 128}},
    {"minimax_m2", "MiniMaxM2ForCausalLM", silu, read_minimax_m2_layers, minimax_sizes, minimax},
    {"granite", "GraniteForCausalLM", silu, read_granite_layers},
    {"granitemoe", "GraniteMoeForCausalLM", silu, read_granitemoe_layers},
    {"granitemoehybrid", "GraniteMoeHybridForCausalLM", silu, read_granitemoehybrid_layers, {.intermediate = 11008}},
    {"arcee", "ArceeForCausalLM", relu_squared, read_arcee_layers},
    {"afmoe", "AfmoeForCausalLM", silu, read_afmoe_layers, {.intermediate = 6144, .head_dim = 128}},
    {"youtu", "YoutuForCausalLM", silu, read_youtu_layers, {.intermediate = 6144, .head_dim = 64}},
    {"cohere", "CohereForCausalLM", silu, read_cohere_layers},
    {"cohere2", "Cohere2ForCausalLM", silu, read_cohere2_layers},
    {"nemotron_h", "NemotronHForCausalLM", nemotron_relu, read_nemotron_h_layers, nemotron_sizes},
    {"gpt_oss", "GptOssForCausalLM", silu, read_gpt_oss_layers, {.kv_heads = 8, .head_dim = 64}, mxfp4},
    {"gemma3_text", "Gemma3ForCausalLM", gelu, read_gemma3_layers, gemma3_sizes, gemma},
    {"gemma3", "Gemma3ForConditionalGeneration", gelu, read_gemma3_layers, gemma3_sizes, gemma_images},
    {"gemma4_text", "Gemma4ForCausalLM", gelu, read_gemma4_layers, gemma4_sizes, gemma},
    {"gemma4", "Gemma4ForConditionalGeneration", gelu, read_gemma4_layers, gemma4_sizes, gemma_images},
    {"gemma", "GemmaForCausalLM", gemma1_gelu, read_gemma_layers, gemma1_sizes},
    {"gemma2", "Gemma2ForCausalLM", gelu, read_gemma2_layers, gemma2_sizes},
    {"gpt2", "GPT2LMHeadModel", read_with_layers, read_gpt2_layers, {}, gpt2},
    {"gpt_neox", "GPTNeoXForCausalLM", read_with_layers, read_gpt_neox_layers, {.rotated_share = 0.25}, gpt_neox},
    {"phi", "PhiForCausalLM", read_with_layers, read_phi_layers, {.rotated_share = 0.5}},
    {"starcoder2", "Starcoder2ForCausalLM", read_with_layers, read_starcoder2_layers, {.kv_heads = 2}},
    {"stablelm", "StableLmForCausalLM", silu, read_stablelm_layers, {.kv_heads = 32, .rotated_share = 0.25}},
    {"nemotron", "NemotronForCausalLM", relu_squared, read_nemotron_layers, {.rotated_share = 0.5}},
    {"phi3", "Phi3ForCausalLM", silu, read_phi3_layers, {.rotated_share = 1.0}, {.yarn_is_longrope = true}},
    {"opt", "OPTForCausalLM", relu, read_opt_layers, {}, {.intermediate_key = "ffn_dim"}},
};

}  // namespace

const Architecture* find_architecture(std::string_view model_type) {
    const auto* const found = std::find_if(std::begin(architectures), std::end(architectures),
                                           [&](const Architecture& one) { return one.model_type == model_type; });
    return found == std::end(architectures) ? nullptr : found;
}

const Architecture& architecture_of(const ModelConfig& model) {
    return *find_architecture(model.model_type);
}

std::string supported_model_types() {
    std::string names;
    for (const Architecture& one : architectures) {
        if (!names.empty()) names += &one == std::end(architectures) - 1 ? " or " : ", ";
        names += describe(Json(std::string(one.model_type)));
    }
    return names;
}

}  // namespace longhaul::engine::detail
