#include "engine/draft/draft_layer_config.hpp"

#include <numeric>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/safetensors.hpp"

namespace longhaul::engine {
namespace {

constexpr const char* trained_for = "a draft layer belongs to the model it was trained on";
constexpr const char* kind_field = "draft_layer";
constexpr std::int64_t max_info_rank = 1 << 16;

/// The layer must be of the kind that the method drafts with.
void check_kind(const Json& json, const DraftLayerConfig& config, const DraftMethod& method) {
    const std::string wanted = method.chains_states ? "\"" + method.name + "\"" : "none, as in a layer of EAGLE";
    const Json* kind = find_member(json, kind_field, config.file);
    const bool fits = kind == nullptr ? !method.chains_states : *kind == Json(method.name);
    if (!fits)
        throw InputError(config.file, kind_field, wanted, kind == nullptr ? "nothing" : describe(*kind),
                         "give a folder that was trained for draft = " + method.name);
    if (find_member(json, "draft_vocab_size", config.file) != nullptr)
        throw InputError(config.file, "draft_vocab_size", "a layer of EAGLE 1 or 2, which has none",
                         describe(json["draft_vocab_size"]), "layers of EAGLE-3 are not in this version");
}

/// The tokens that have token info: those of the tensor `hot_tokens`, or all.
std::vector<std::int32_t> info_tokens_of(const std::filesystem::path& folder, std::int64_t vocab_size) {
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    const auto found = tensors.tensors().find("hot_tokens");
    if (found == tensors.tensors().end()) {
        std::vector<std::int32_t> all(static_cast<std::size_t>(vocab_size));
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    const std::string& file = found->second.file;
    const std::vector<std::int64_t> hot = integers_of(found->second, "hot_tokens");
    std::vector<std::int32_t> tokens;
    for (const std::int64_t token : hot) {
        const std::int64_t least = tokens.empty() ? 0 : tokens.back() + 1;
        if (token < least || token >= vocab_size)
            throw InputError(file, "hot_tokens", "ascending tokens below " + std::to_string(vocab_size) + ", each once",
                             std::to_string(token), trained_for);
        tokens.push_back(static_cast<std::int32_t>(token));
    }
    return tokens;
}

}  // namespace

DraftLayerConfig DraftLayerConfig::load(const std::filesystem::path& folder, const ModelConfig& target,
                                        const DraftMethod& method) {
    DraftLayerConfig config;
    config.file = (folder / "config.json").string();
    config.chains_states = method.chains_states;
    const Json json = read_json(config.file);
    const auto refuse = [&](const char* field, std::int64_t expected, std::int64_t got, const std::string& fix) {
        if (expected != got) throw InputError(config.file, field, std::to_string(expected), std::to_string(got), fix);
    };
    config.layer = ModelConfig::load(folder);
    if (config.layer.learned_positions || target.learned_positions)
        throw InputError(config.file, "model_type", "a layer and a target of Llama's family",
                         target.learned_positions ? "a target of OPT" : "a layer of OPT",
                         "draft = " + method.name + " drafts for Llama and Qwen2");
    refuse("num_hidden_layers", 1, config.layer.num_layers,
           "draft = " + method.name + " takes a draft layer, not a language model");
    check_kind(json, config, method);
    config.fusion_bias = get_bool_or(json, "bias", true, config.file);
    refuse("hidden_size", target.hidden_size, config.layer.hidden_size, trained_for);
    refuse("vocab_size", target.vocab_size, config.layer.vocab_size, trained_for);
    LayerConfig& kind = config.layer.layers.front();
    kind.qkv_bias = get_bool_or(json, "qkv_bias", kind.qkv_bias, config.file);
    // Its positions are limited by memory alone, whatever its max_position_embeddings.
    config.layer.max_positions = target.max_positions;
    if (config.chains_states)
        config.token_info_rank = get_int_or(json, "token_info_rank", 0, 0, max_info_rank, config.file);
    if (config.token_info_rank > 0) config.info_tokens = info_tokens_of(folder, target.vocab_size);
    return config;
}

std::int64_t DraftLayerConfig::num_parameters() const {
    const std::int64_t hidden = layer.hidden_size;
    const std::int64_t attention = (2 * layer.num_heads + 2 * layer.num_kv_heads) * layer.head_dim * hidden;
    const std::int64_t mlp = (layer.layers.front().num_up() + 1) * layer.intermediate_size * hidden;
    const std::int64_t info = token_info_rank * (hidden + std::ssize(info_tokens));
    return 2 * hidden * hidden + attention + mlp + info;
}

std::string method_of_draft_layer(const std::filesystem::path& folder) {
    try {
        if (!SafetensorsFolder::open(folder).contains("fc.weight")) return "";
        const std::string file = (folder / "config.json").string();
        const Json json = read_json(file);
        for (const DraftMethod& method : draft_methods()) {
            if (method.chains_states && json.value(kind_field, "") == method.name) return method.name;
        }
        return "eagle";
    } catch (const std::exception&) {
        return "";
    }
}

}  // namespace longhaul::engine
