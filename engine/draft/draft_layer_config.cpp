#include "engine/draft/draft_layer_config.hpp"

#include <algorithm>
#include <numeric>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/safetensors.hpp"

namespace longhaul::engine {
namespace {

constexpr const char* trained_for = "a draft layer belongs to the model it was trained on";
constexpr const char* kind_field = "draft_layer";
constexpr const char* speculators_field = "speculators_model_type";
constexpr std::int64_t max_info_rank = 1 << 16;
constexpr std::int64_t max_window = 1 << 24;

/// The layer must be of the kind that the method drafts with.
void check_kind(const Json& json, const DraftLayerConfig& config, const DraftMethod& method) {
    const std::string wanted = method.chains_states ? "\"" + method.name + "\"" : "none, as in a layer of EAGLE";
    const Json* kind = find_member(json, kind_field, config.file);
    const bool fits = kind == nullptr ? !method.chains_states : *kind == Json(method.name);
    if (!fits)
        throw InputError(config.file, kind_field, wanted, kind == nullptr ? "nothing" : describe(*kind),
                         "give a folder that was trained for draft = " + method.name);
}

/// The tokens that have token info: those of the tensor `hot_tokens`, or all.
std::vector<std::int32_t> info_tokens_of(const SafetensorsFolder& tensors, std::int64_t vocab_size) {
    const auto found = tensors.tensors().find("hot_tokens");
    if (found == tensors.tensors().end()) {
        std::vector<std::int32_t> all(static_cast<std::size_t>(vocab_size));
        std::iota(all.begin(), all.end(), 0);
        return all;
    }
    const std::string& file = found->second.file;
    const std::vector<std::int64_t> hot = integers_of(found->second, "hot_tokens");
    std::vector<std::int32_t> tokens;
    if (hot.empty()) throw InputError(file, "hot_tokens", "at least one token", "none", trained_for);
    for (const std::int64_t token : hot) {
        const std::int64_t least = tokens.empty() ? 0 : tokens.back() + 1;
        if (token < least || token >= vocab_size)
            throw InputError(file, "hot_tokens", "ascending tokens below " + std::to_string(vocab_size) + ", each once",
                             std::to_string(token), trained_for);
        tokens.push_back(static_cast<std::int32_t>(token));
    }
    return tokens;
}

/// Layers whose inputs a layer of EAGLE-3 reads: those that its config.json names, else an early, a middle and a late
/// one. There are two conventions for the names: if the first is 1, they are layers whose outputs are read, for the
/// default begins with 2 (as SGLang tells them apart, pull request 25454). The library speculators has but one.
std::vector<std::int64_t> tap_layers_of(const DraftLayerFields& fields, const ModelConfig& target,
                                        const std::string& file) {
    const Json& json = fields.json;
    constexpr const char* field = "eagle_aux_hidden_state_layer_ids";
    const Json* named = find_member(json, field, file);
    if (const Json* inner = find_member(json, "eagle_config", file); named == nullptr && inner != nullptr)
        named = find_member(*inner, field, file);
    if (target.num_blocks() != target.num_layers)
        throw InputError(file, field, "a target whose files count layers of attention with an MLP", target.model_type,
                         "not in this version");
    const std::string expected = "layers from 0 to " + std::to_string(target.num_layers - 1);
    if (named == nullptr || *named == Json::array()) {
        if (target.num_layers < 7)
            throw InputError(file, field, expected, "nothing", "the default, 2, n / 2 and n - 3, needs 7 layers");
        return {2, target.num_layers / 2, target.num_layers - 3};
    }
    std::vector<std::int64_t> layers;
    if (named->is_array()) {
        for (const Json& one : *named)
            layers.push_back(one.is_number_unsigned() ? one.get<std::int64_t>() : target.num_layers);
    }
    if (!layers.empty() && layers.front() == 1 && !fields.of_speculators) {
        for (std::int64_t& layer : layers) ++layer;
    }
    const auto beyond = [&](std::int64_t layer) { return layer < 0 || layer >= target.num_layers; };
    if (layers.empty() || layers.size() > 16 || std::any_of(layers.begin(), layers.end(), beyond))
        throw InputError(file, field, expected, describe(*named), trained_for);
    return layers;
}

/// The target's token of each row of the output head of EAGLE-3: row i is token i + d2t[i].
std::vector<std::int32_t> head_tokens_of(const SafetensorsFolder& tensors, std::int64_t num_rows,
                                         const ModelConfig& target, const std::string& file) {
    std::vector<std::int32_t> tokens(static_cast<std::size_t>(num_rows));
    std::iota(tokens.begin(), tokens.end(), 0);
    const auto found = tensors.tensors().find("d2t");
    if (found == tensors.tensors().end()) {
        if (num_rows == target.vocab_size) return tokens;
        throw InputError(file, "draft_vocab_size", std::to_string(target.vocab_size) + ", or a tensor d2t",
                         std::to_string(num_rows), "without d2t nothing says which tokens these are");
    }
    const std::vector<std::int64_t> offsets = integers_of(found->second, "d2t");
    const auto refuse = [&](const std::string& expected, std::int64_t got) {
        throw InputError(found->second.file, "d2t", expected, std::to_string(got), trained_for);
    };
    if (std::ssize(offsets) != num_rows)
        refuse(std::to_string(num_rows) + " offsets, as draft_vocab_size says", std::ssize(offsets));
    std::vector<bool> taken(static_cast<std::size_t>(target.vocab_size), false);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i);
        if (offsets[i] < -row || offsets[i] >= target.vocab_size - row)
            refuse("offsets to tokens below " + std::to_string(target.vocab_size), offsets[i]);
        tokens[i] = static_cast<std::int32_t>(row + offsets[i]);
        if (taken[tokens[i]]) refuse("each token once", tokens[i]);
        taken[tokens[i]] = true;
    }
    return tokens;
}

void read_eagle3(const DraftLayerFields& fields, const SafetensorsFolder& tensors, const ModelConfig& target,
                 DraftLayerConfig& config) {
    const Json& json = fields.json;
    Eagle3Config& eagle3 = config.eagle3;
    eagle3.norm_before_residual = get_bool_or(json, "norm_before_residual", false, config.file);
    eagle3.norm_before_fusion = get_bool_or(json, "norm_before_fc", false, config.file);
    eagle3.norms_taps = get_bool_or(json, "fc_norm", false, config.file);
    eagle3.norms_output = get_bool_or(json, "norm_output", false, config.file);
    if (eagle3.norm_before_fusion && eagle3.norms_taps)
        throw InputError(config.file, "fc_norm", "false beside norm_before_fc", "true", "");
    if (config.layer.has_latent_attention())
        throw InputError(config.file, "model_type", "a layer without latent attention",
                         describe(Json(config.layer.model_type)), "this form is not in this version");
    eagle3.tap_layers = tap_layers_of(fields, target, config.file);
    const std::int64_t num_rows =
        get_int_or(json, "draft_vocab_size", target.vocab_size, 1, target.vocab_size, config.file);
    eagle3.tokens = head_tokens_of(tensors, num_rows, target, config.file);
    config.layer.vocab_size = num_rows;
    config.fusion_bias = tensors.contains("fc.bias");
}

/// A layer as the target's last that has keys and values. All sizes are the target's.
ModelConfig layer_of(const ModelConfig& target) {
    const auto last = std::find_if(target.layers.rbegin(), target.layers.rend(),
                                   [](const LayerConfig& layer) { return !layer.linear; });
    ModelConfig layer = target;
    layer.layers = {*last};
    layer.linear = {};
    layer.num_layers = 1;
    return layer;
}

/// The target's layer for multi-token prediction.
DraftLayerConfig own_layer_of(const std::filesystem::path& folder, const ModelConfig& target) {
    DraftLayerConfig config;
    config.file = (folder / "config.json").string();
    config.mtp = mtp_names(target);
    constexpr const char* instead = "draft = self drafts without one";
    if (!config.is_targets_own())
        throw InputError(config.file, "model_type", "a model with a layer for multi-token prediction with draft = mtp",
                         describe(Json(target.model_type)), instead);
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    if (!tensors.contains(config.mtp.fusion + ".weight"))
        throw InputError(folder.string(), config.mtp.fusion + ".weight",
                         "a layer for multi-token prediction with draft = mtp", "none", instead);
    config.layer = layer_of(target);
    config.fusion_bias = false;
    ExpertConfig& experts = config.layer.layers.front().experts;  // may be stored otherwise than the target's
    if (target.model_type.starts_with("qwen3_5_moe"))
        experts.stack =
            tensors.contains(config.mtp.layer() + "mlp.experts.gate_up_proj") ? ExpertStack::rows : ExpertStack::none;
    return config;
}

}  // namespace

DraftLayerConfig DraftLayerConfig::load(const std::filesystem::path& folder, const ModelConfig& target,
                                        const DraftMethod& method) {
    if (method.own_layer) return own_layer_of(folder, target);
    DraftLayerConfig config;
    config.file = (folder / "config.json").string();
    config.chains_states = method.chains_states;
    const DraftLayerFields fields = draft_layer_fields(folder);
    const Json& json = fields.json;
    const auto refuse = [&](const char* field, std::int64_t expected, std::int64_t got, const std::string& fix) {
        if (expected != got) throw InputError(config.file, field, std::to_string(expected), std::to_string(got), fix);
    };
    config.layer = ModelConfig::load(folder, json);
    if (config.layer.learned_positions || target.learned_positions)
        throw InputError(
            config.file, "model_type", "a layer and a target of Llama's family",
            target.learned_positions ? "a target with learned positions" : "a layer with learned positions",
            "draft = " + method.name + " drafts for models with rotary positions");
    if (config.layer.layers.front().block >= 0 || config.layer.layers.front().parallel)
        throw InputError(config.file, "model_type", "a layer of attention with an MLP behind it",
                         config.layer.model_type, "layers of this family are not in this version");
    refuse("num_hidden_layers", 1, config.layer.num_layers,
           "draft = " + method.name + " takes a draft layer, not a language model");
    if (config.layer.layer_embedding_size > 0)
        throw InputError(config.file, "hidden_size_per_layer_input", "0 in a draft layer",
                         std::to_string(config.layer.layer_embedding_size), "this form is not in this version");
    check_kind(json, config, method);
    if (config.layer.layers.front().norm != NormKind::rms ||
        (config.has_own_head() && config.layer.files.norm_adds_one))
        throw InputError(config.file, "model_type", "a layer with RMS norms as Llama has them", config.layer.model_type,
                         "layers of this family are not in this version");
    config.fusion_bias = get_bool_or(json, "bias", true, config.file);
    refuse("hidden_size", target.hidden_size, config.layer.hidden_size, trained_for);
    refuse("vocab_size", target.vocab_size, config.layer.vocab_size, trained_for);
    LayerConfig& kind = config.layer.layers.front();
    kind.qkv_bias = get_bool_or(json, "qkv_bias", kind.qkv_bias, config.file);
    if (fields.attention_window > 0) kind.attention_window = fields.attention_window;
    // Its positions are limited by memory alone, whatever its max_position_embeddings.
    config.layer.max_positions = target.max_positions;
    if (config.chains_states)
        config.token_info_rank = get_int_or(json, "token_info_rank", 0, 0, max_info_rank, config.file);
    const SafetensorsFolder tensors = SafetensorsFolder::open(folder);
    if (config.token_info_rank > 0) config.info_tokens = info_tokens_of(tensors, target.vocab_size);
    config.eagle3.prefix = eagle3_prefix(tensors);
    if (config.has_own_head()) {
        if (config.chains_states)
            throw InputError(config.file, kind_field, "none in a folder of EAGLE-3's tensors",
                             describe(json[kind_field]), "a chain of states has no layer of this form");
        read_eagle3(fields, tensors, target, config);
    }
    return config;
}

/// Of the embedding and the head of a model with this layer.
static std::int64_t num_in_tables(const ModelConfig& layer) {
    return layer.vocab_size * layer.embedding_width() * (layer.tied_embeddings ? 1 : 2);
}

std::int64_t DraftLayerConfig::num_stored_parameters() const {
    if (!is_targets_own()) return num_parameters();
    return 2 * layer.hidden_size * layer.hidden_size + engine::num_parameters(layer) - num_in_tables(layer);
}

std::int64_t DraftLayerConfig::num_parameters() const {
    const std::int64_t hidden = layer.hidden_size;
    if (is_targets_own()) return 2 * hidden * hidden + num_active_parameters(layer) - num_in_tables(layer);
    const std::int64_t inputs = has_own_head() ? 2 : 1;  // of q, k and v, in widths
    const std::int64_t fused = has_own_head() ? std::ssize(eagle3.tap_layers) : 2;
    const std::int64_t attention =
        ((1 + inputs) * layer.num_heads + 2 * inputs * layer.num_kv_heads) * layer.head_dim * hidden;
    const LayerConfig& kind = layer.layers.front();
    const std::int64_t mlp_width = kind.experts.count > 0 ? kind.experts.per_token * layer.expert_intermediate_size +
                                                                layer.shared_intermediate_size
                                                          : layer.intermediate_size;
    const std::int64_t mlp = (kind.num_up() + 1) * mlp_width * hidden;
    const std::int64_t info = token_info_rank * (hidden + std::ssize(info_tokens));
    return fused * hidden * hidden + attention + mlp + info;
}

std::int64_t DraftLayerConfig::num_head_parameters(const ModelConfig& target) const {
    return has_own_head() ? layer.vocab_size * layer.hidden_size : target.vocab_size * target.embedding_width();
}

/// Of the library speculators: what EAGLE-3 needs, from the objects that hold it.
static DraftLayerFields speculators_fields(const Json& json, const std::string& file) {
    const Json& kind = json[speculators_field];
    if (kind != "eagle3")
        throw InputError(file, speculators_field, "\"eagle3\"", describe(kind), "others are not in this version");
    if (get_bool_or(json, "embed_requires_grad", false, file))
        throw InputError(file, "embed_requires_grad", "false", "true",
                         "a layer with an embedding of its own is not in this version");
    constexpr const char* section = "transformer_layer_config";
    const Json* inner = find_member(json, section, file);
    const Json none = Json::object();
    const std::string type = get_string_or(inner != nullptr ? *inner : none, "model_type", "", file, section);
    // What these classes of transformers fill in: the library writes what differs from it.
    DraftLayerFields fields{.json = {{"hidden_size", 4096}, {"num_attention_heads", 32}}, .of_speculators = true};
    if (type == "llama")
        fields.json.update({{"vocab_size", 32000}, {"intermediate_size", 11008}, {"max_position_embeddings", 2048}});
    else if (type == "qwen3")
        fields.json.update({{"vocab_size", 151936}, {"intermediate_size", 22016}, {"max_position_embeddings", 32768}});
    else
        throw InputError(file, std::string(section) + ".model_type", "\"llama\" or \"qwen3\"", describe(Json(type)),
                         "");
    fields.json.update(*inner);
    fields.json.erase("architectures");  // those of the target
    if (const Json* types = find_member(fields.json, "layer_types", file, section);
        type == "llama" && types != nullptr && *types == Json::array({"sliding_attention"})) {  // unlike any model
        fields.attention_window = get_int(fields.json, "sliding_window", 1, max_window, file, section);
        fields.json.erase("layer_types");
    }
    for (const char* key : {"draft_vocab_size", "eagle_aux_hidden_state_layer_ids", "norm_before_residual",
                            "norm_before_fc", "fc_norm", "norm_output"}) {
        if (const Json* value = find_member(json, key, file)) fields.json[key] = *value;
    }
    return fields;
}

DraftLayerFields draft_layer_fields(const std::filesystem::path& folder) {
    const std::string file = (folder / "config.json").string();
    Json json = read_json(file);
    if (find_member(json, speculators_field, file) != nullptr) return speculators_fields(json, file);
    return {.json = std::move(json)};
}

std::string eagle3_prefix(const SafetensorsFolder& tensors) {
    if (tensors.contains("midlayer.self_attn.q_proj.weight")) return "midlayer.";
    return tensors.contains("layers.0.hidden_norm.weight") ? "layers.0." : "";
}

std::string method_of_draft_layer(const std::filesystem::path& folder) {
    try {
        const Json json = draft_layer_fields(folder).json;
        if (json.value("num_hidden_layers", 0) != 1 || !SafetensorsFolder::open(folder).contains("fc.weight"))
            return "";
        for (const DraftMethod& method : draft_methods()) {
            if (method.chains_states && json.value(kind_field, "") == method.name) return method.name;
        }
        return "eagle";
    } catch (const std::exception&) {
        return "";
    }
}

}  // namespace longhaul::engine
