// config.json as the readers of its parts see it: an object of the file, and the limits on sizes. Private to the
// readers of model configurations (architectures.cpp, config.cpp, layer_config*.cpp, rope_config.cpp,
// quantization_config.cpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/config.hpp"

namespace longhaul::engine::detail {

// Upper limits on sizes, each well above any published model. Together they ensure that the size in bytes of a model or
// cache fits in 63 bits: layers * heads * head_dim * positions * 4 < 2^61.
inline constexpr std::int64_t max_vocab_size = std::int64_t{1} << 24;
inline constexpr std::int64_t max_hidden_size = std::int64_t{1} << 17;
inline constexpr std::int64_t max_intermediate_size = std::int64_t{1} << 20;
inline constexpr std::int64_t max_layers = std::int64_t{1} << 12;
inline constexpr std::int64_t max_experts = std::int64_t{1} << 10;      // of a layer
inline constexpr std::int64_t max_all_experts = std::int64_t{1} << 17;  // of all layers
inline constexpr std::int64_t max_heads = std::int64_t{1} << 11;
inline constexpr std::int64_t max_head_dim = std::int64_t{1} << 10;
inline constexpr std::int64_t max_context = std::int64_t{1} << 24;  // beyond this a position is not exact in float

/// An object of a JSON file with what error messages need: the file and the object's path in it.
struct Section {
    const Json& json;
    std::string file;
    std::string within = {};

    [[nodiscard]] std::string field(std::string_view key) const {
        return within.empty() ? std::string(key) : within + "." + std::string(key);
    }
    [[nodiscard]] const Json* find(std::string_view key) const { return find_member(json, key, file, within); }
    [[nodiscard]] std::int64_t size(std::string_view key, std::int64_t high) const {
        return get_int(json, key, 1, high, file, within);
    }
    [[nodiscard]] std::int64_t size_or(std::string_view key, std::int64_t fallback, std::int64_t high) const {
        return get_int_or(json, key, fallback, 1, high, file, within);
    }
    [[nodiscard]] bool flag(std::string_view key) const { return flag_or(key, false); }
    [[nodiscard]] bool flag_or(std::string_view key, bool fallback) const {
        return get_bool_or(json, key, fallback, file, within);
    }
    [[nodiscard]] std::string text_or(std::string_view key, std::string_view fallback) const {
        return get_string_or(json, key, fallback, file, within);
    }
    /// A number in (above, high]. Throws InputError otherwise.
    [[nodiscard]] double positive_or(std::string_view key, double fallback, double high, double above = 0.0) const {
        const double value = get_double_or(json, key, fallback, file, within);
        if (value > above && value <= high) return value;
        const std::string expected = "a number above " + describe(Json(above)) + ", at most " + describe(Json(high));
        refuse(key, expected);
    }
    /// Throws an InputError that shows the value at `key`.
    [[noreturn]] void refuse(std::string_view key, std::string_view expected, std::string_view fix = {}) const {
        const Json* value = find(key);
        throw InputError(file, field(key), expected, value == nullptr ? "nothing" : describe(*value), fix);
    }
};

/// Reads the RoPE parameters of the section `rope`, and `rope_theta` from it or from `top`. `max_positions` as in
/// config.json.
RopeConfig read_rope(const Section& rope, const Section& top, const ModelConfig& model, double default_theta);

/// The same for heads of `head_dim` dimensions; the type is "proportional" or "default".
RopeConfig read_proportional_rope(const Section& rope, std::int64_t head_dim, double default_theta);

/// The section with the RoPE parameters: rope_parameters in transformers 5, before that rope_scaling beside rope_theta.
/// If both are present, Hugging Face uses the older name; an empty section counts as absent.
Section rope_section(const Section& top);

/// Sets config.quantization. Throws InputError if the files hold weights in a form that stored_matrix.hpp does not
/// read.
void check_quantization(const Section& top, ModelConfig& config);
/// The same for the files that older folders of GPTQ and ModelOpt have instead of a section of config.json.
void check_quantization_files(const std::filesystem::path& folder);

/// Fills in the layers, and what else differs between families. Throws InputError naming the field.
void read_llama_layers(const Section& top, ModelConfig& config);
void read_qwen2_vl_layers(const Section& top, ModelConfig& config);
void read_qwen3_vl_layers(const Section& top, ModelConfig& config);
void read_qwen2_layers(const Section& top, ModelConfig& config);
void read_qwen3_layers(const Section& top, ModelConfig& config);
void read_qwen3_moe_layers(const Section& top, ModelConfig& config);
void read_qwen3_5_layers(const Section& top, ModelConfig& config);
void read_qwen2_moe_layers(const Section& top, ModelConfig& config);
void read_qwen3_next_layers(const Section& top, ModelConfig& config);
void read_qwen3_5_moe_layers(const Section& top, ModelConfig& config);
void read_mistral_layers(const Section& top, ModelConfig& config);
void read_mistral3_layers(const Section& top, ModelConfig& config);
void read_ministral3_layers(const Section& top, ModelConfig& config);
void read_mixtral_layers(const Section& top, ModelConfig& config);
void read_glm4_moe_layers(const Section& top, ModelConfig& config);
void read_glm4_layers(const Section& top, ModelConfig& config);
void read_deepseek_v2_layers(const Section& top, ModelConfig& config);
void read_deepseek_v3_layers(const Section& top, ModelConfig& config);
void read_glm4_moe_lite_layers(const Section& top, ModelConfig& config);
void read_olmo2_layers(const Section& top, ModelConfig& config);
void read_olmo3_layers(const Section& top, ModelConfig& config);
void read_minimax_m2_layers(const Section& top, ModelConfig& config);
void read_gpt_oss_layers(const Section& top, ModelConfig& config);
void read_gemma3_layers(const Section& top, ModelConfig& config);
void read_gemma4_layers(const Section& top, ModelConfig& config);
void read_granite_layers(const Section& top, ModelConfig& config);
void read_smollm3_layers(const Section& top, ModelConfig& config);
void read_seed_oss_layers(const Section& top, ModelConfig& config);
void read_olmoe_layers(const Section& top, ModelConfig& config);
void read_granitemoe_layers(const Section& top, ModelConfig& config);
void read_granitemoehybrid_layers(const Section& top, ModelConfig& config);
void read_nemotron_h_layers(const Section& top, ModelConfig& config);
void read_cohere_layers(const Section& top, ModelConfig& config);
void read_cohere2_layers(const Section& top, ModelConfig& config);
void read_arcee_layers(const Section& top, ModelConfig& config);
void read_afmoe_layers(const Section& top, ModelConfig& config);
void read_youtu_layers(const Section& top, ModelConfig& config);
void read_dots1_layers(const Section& top, ModelConfig& config);
void read_solar_open_layers(const Section& top, ModelConfig& config);
void read_exaone_moe_layers(const Section& top, ModelConfig& config);
void read_hy_v3_layers(const Section& top, ModelConfig& config);
void read_ernie4_5_moe_layers(const Section& top, ModelConfig& config);
void read_qwen3_vl_moe_layers(const Section& top, ModelConfig& config);
void read_ernie4_5_layers(const Section& top, ModelConfig& config);
void read_exaone_layers(const Section& top, ModelConfig& config);
void read_cwm_layers(const Section& top, ModelConfig& config);
void read_kimi_k25_layers(const Section& top, ModelConfig& config);
void read_exaone4_layers(const Section& top, ModelConfig& config);
void read_glm_layers(const Section& top, ModelConfig& config);
void read_gpt2_layers(const Section& top, ModelConfig& config);
void read_gpt_neox_layers(const Section& top, ModelConfig& config);
void read_phi_layers(const Section& top, ModelConfig& config);
void read_starcoder2_layers(const Section& top, ModelConfig& config);
void read_stablelm_layers(const Section& top, ModelConfig& config);
void read_nemotron_layers(const Section& top, ModelConfig& config);
void read_gemma_layers(const Section& top, ModelConfig& config);
void read_gemma2_layers(const Section& top, ModelConfig& config);
void read_phi3_layers(const Section& top, ModelConfig& config);
void read_opt_layers(const Section& top, ModelConfig& config);

}  // namespace longhaul::engine::detail
