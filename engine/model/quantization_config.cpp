// The section quantization_config of config.json: which weights are read. How they are stored, the tensors themselves
// say (stored_matrix.hpp); activations are never quantized.
#include <algorithm>
#include <cctype>
#include <filesystem>
#include <initializer_list>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>

#include "engine/model/architectures.hpp"
#include "engine/model/config_section.hpp"

namespace longhaul::engine::detail {
namespace {

constexpr const char* unquantized = "use the model's unquantized folder";

/// compressed-tensors: rotations at run time change what the weights mean; those of the weights alone are done.
void check_transforms(const Section& quantization) {
    constexpr std::string_view key = "transform_config";
    const Json* transforms = quantization.find(key);
    if (transforms == nullptr) return;
    const std::string text = json_text(*transforms);
    for (const char* online : {"\"input\"", "\"output\"", "\"q_attn\"", "\"k_cache\""}) {
        if (text.find(online) != std::string::npos)
            throw InputError(quantization.file, quantization.field(key), "no transforms at run time",
                             std::string("one at ") + online, unquantized);
    }
}

/// Blocks of scales (compressed-tensors): of the size that stored_matrix.hpp reads.
void check_blocks(const Section& quantization, std::string_view key) {
    const Json* block = quantization.find(key);
    if (block != nullptr && *block != Json::array({128, 128}))
        throw InputError(quantization.file, quantization.field(key), "[128, 128]", printable(json_text(*block)),
                         unquantized);
}

/// Integers that stored_matrix.hpp reads from words of 32 bits.
void check_bits(const Section& quantization, std::string_view key) {
    const std::int64_t bits = get_int_or(quantization.json, key, 4, 1, 64, quantization.file, quantization.within);
    if (bits != 4 && bits != 8) quantization.refuse(key, "4 or 8", unquantized);
}

/// The layout of the words, under any of the names that packers gave it.
void check_layout(const Section& quantization, std::initializer_list<std::string_view> keys,
                  std::string_view expected) {
    for (const std::string_view key : keys) {
        std::string layout = quantization.text_or(key, expected);
        std::transform(layout.begin(), layout.end(), layout.begin(),
                       [](unsigned char letter) { return static_cast<char>(std::tolower(letter)); });
        if (layout != expected) quantization.refuse(key, describe(Json(std::string(expected))), unquantized);
    }
}

void check_gptq(const Section& quantization) {
    check_bits(quantization, "bits");
    check_layout(quantization, {"checkpoint_format", "format"}, "gptq");
}

void check_awq(const Section& quantization) {
    if (get_int_or(quantization.json, "bits", 4, 1, 64, quantization.file, quantization.within) != 4)
        quantization.refuse("bits", "4, as AWQ has", unquantized);
    check_layout(quantization, {"version", "format", "checkpoint_format"}, "gemm");
}

void check_auto_round(const Section& quantization) {
    const std::string packing = quantization.text_or("packing_format", "auto_round:auto_gptq");
    const std::string name = packing.substr(packing.find(':') + 1);
    if (name == "auto_gptq" || name == "gptq") return check_bits(quantization, "bits");
    if (name == "auto_awq" || name == "awq") return check_awq(quantization);
    quantization.refuse("packing_format", R"("auto_round:auto_gptq" or "auto_round:auto_awq")", unquantized);
}

void check_fp8(const Section& quantization) {
    constexpr std::string_view key = "fmt";
    if (quantization.text_or(key, "") != "float8_e4m3fn")  // as MiniMax writes it
        check_layout(quantization, {key}, "e4m3");
    check_blocks(quantization, "weight_block_size");
}

void check_modelopt(const Section& quantization) {
    const std::string algorithm = quantization.text_or("quant_algo", "");
    const std::string_view known[] = {"FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4", "MIXED_PRECISION"};
    if (std::find(std::begin(known), std::end(known), algorithm) == std::end(known))
        quantization.refuse("quant_algo",
                            R"("FP8", "FP8_PER_CHANNEL_PER_TOKEN", "NVFP4", "W4A16_NVFP4" or "MIXED_PRECISION")",
                            unquantized);
}

void check_format(const Section& of) {
    const std::string format = of.text_or("format", "");
    const std::string_view formats[] = {"",
                                        "float-quantized",
                                        "int-quantized",
                                        "naive-quantized",
                                        "pack-quantized",
                                        "nvfp4-pack-quantized",
                                        "mxfp4-pack-quantized"};
    if (std::find(std::begin(formats), std::end(formats), format) == std::end(formats))
        of.refuse(
            "format",
            R"("float-quantized", "int-quantized", "naive-quantized", "pack-quantized", "nvfp4-pack-quantized" or )"
            R"("mxfp4-pack-quantized")",
            unquantized);
}

void check_compressed_tensors(const Section& quantization) {
    if (quantization.text_or("format", "") != "mixed-precision") check_format(quantization);
    check_transforms(quantization);
    const Json* groups = quantization.find("config_groups");
    if (groups == nullptr || !groups->is_object()) return;
    for (const auto& [name, group] : groups->items()) {
        if (!group.is_object() || !group.contains("weights") || !group["weights"].is_object()) continue;
        const std::string within = quantization.field("config_groups." + name);
        check_format({group, quantization.file, within});
        const Section weights{group["weights"], quantization.file, within + ".weights"};
        check_blocks(weights, "block_structure");
        check_bits(weights, "num_bits");
    }
}

}  // namespace

void check_quantization(const Section& top, ModelConfig& config) {
    constexpr std::string_view key = "quantization_config";
    const Json* found = top.find(key);
    if (found == nullptr) return;
    if (!found->is_object()) top.refuse(key, "an object");
    const Section section{*found, top.file, top.field(key)};
    const std::string method = section.text_or("quant_method", "");
    config.quantization = method;
    if (method == "mxfp4" && architecture_of(config).folder.may_be_mxfp4) return;
    if (method == "fp8" || method == "fbgemm_fp8") return check_fp8(section);
    if (method == "compressed-tensors") return check_compressed_tensors(section);
    if (method == "gptq") return check_gptq(section);
    if (method == "awq") return check_awq(section);
    if (method == "auto-round" || method == "auto_round") return check_auto_round(section);
    if (method == "modelopt" || (method.empty() && section.find("quant_algo") != nullptr))
        return check_modelopt(section);
    section.refuse("quant_method",
                   R"("gptq", "awq", "auto-round", "compressed-tensors", "modelopt", "fp8", "fbgemm_fp8", or with )"
                   R"(gpt-oss "mxfp4")",
                   unquantized);
}

void check_quantization_files(const std::filesystem::path& folder) {
    const auto open = [&](const char* name) -> std::optional<Json> {
        std::error_code ignored;
        if (!std::filesystem::exists(folder / name, ignored)) return std::nullopt;
        return read_json(folder / name, std::int64_t{1} << 24);
    };
    constexpr const char *gptq = "quantize_config.json", *modelopt = "hf_quant_config.json", *inner = "quantization";
    if (const auto json = open(gptq); json && json->is_object()) {
        const Section section{*json, (folder / gptq).string()};
        if (section.text_or("quant_method", "gptq") == "gptq") check_gptq(section);
    }
    const auto json = open(modelopt);
    if (!json || !json->is_object() || !json->contains(inner) || !(*json)[inner].is_object()) return;
    const Section section{(*json)[inner], (folder / modelopt).string(), inner};
    if (section.find("quant_algo") != nullptr) check_modelopt(section);
}

}  // namespace longhaul::engine::detail
