#include "engine/model/config.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <system_error>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/architectures.hpp"
#include "engine/model/config_section.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/tensor_names.hpp"

namespace longhaul::engine {
namespace {

using namespace detail;  // NOLINT(google-build-using-namespace): the limits and readers of config.json

constexpr std::size_t max_eos_ids = 1024;
constexpr std::int64_t max_config_bytes = std::int64_t{1} << 24;

const Architecture& check_architecture(const Section& top, ModelConfig& config) {
    config.model_type = top.text_or("model_type", "");
    const Architecture* const found = find_architecture(config.model_type);
    if (found == nullptr) {
        const bool heads_only = top.find("medusa_heads") != nullptr && top.find("num_hidden_layers") == nullptr;
        top.refuse(
            "model_type", supported_model_types(),
            heads_only
                ? "this folder holds draft heads, not a model; they are the draft-model of draft = tokenswift or medusa"
                : "");
    }
    if (const Json* named = top.find("architectures")) {
        const bool single = named->is_array() && named->size() == 1;
        // Published layers of EAGLE-3 append that to the name.
        const bool layer = top.find("draft_vocab_size") != nullptr && single && named->front().is_string() &&
                           named->front().get<std::string>() == std::string(found->class_name) + "Eagle3";
        const bool known = single && (named->front() == found->class_name ||
                                      (!found->other_class_name.empty() && named->front() == found->other_class_name));
        if (!layer && !known) {
            throw InputError(top.file, "architectures", "[\"" + std::string(found->class_name) + "\"]",
                             describe(single ? named->front() : *named));
        }
    }
    check_quantization(top, config);
    return *found;
}

void check_activation(const Architecture& of, const Section& body) {
    const auto& [key, value, alias] = of.activation;
    if (key.empty()) return;
    const std::string found = body.text_or(key, value);
    if (found != value && found != alias) body.refuse(key, describe(Json(std::string(value))));
}

void read_sizes(const Section& top, const Architecture& of, ModelConfig& config) {
    const DefaultSizes& defaults = of.sizes;
    const auto size = [&](std::string_view key, std::int64_t fallback, std::int64_t high) {
        return fallback > 0 ? top.size_or(key, fallback, high) : top.size(key, high);
    };
    const auto name = [&](std::string_view own, std::string_view usual) {
        return top.find(own) == nullptr && top.find(usual) != nullptr ? usual : own;
    };
    config.vocab_size = size("vocab_size", defaults.vocab, max_vocab_size);
    const FolderFormat& keys = of.folder;
    const std::string_view hidden_key = name(keys.hidden_key, "hidden_size");
    const std::string_view heads_key = name(keys.heads_key, "num_attention_heads");
    config.hidden_size = size(hidden_key, defaults.hidden, max_hidden_size);
    const std::int64_t usual_intermediate =
        keys.intermediate_per_hidden > 0 ? keys.intermediate_per_hidden * config.hidden_size : defaults.intermediate;
    config.intermediate_size = size(keys.intermediate_key, usual_intermediate, max_intermediate_size);
    config.num_layers = size(name(keys.layers_key, "num_hidden_layers"), defaults.layers, max_layers);
    config.num_heads = size(heads_key, defaults.heads, max_heads);
    config.num_kv_heads =
        top.size_or("num_key_value_heads", defaults.kv_heads > 0 ? defaults.kv_heads : config.num_heads, max_heads);
    config.max_positions = size(name(keys.positions_key, "max_position_embeddings"), defaults.positions, max_context);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-6, 1.0);
    if (config.num_heads % config.num_kv_heads != 0) {
        top.refuse("num_key_value_heads", "a divisor of num_attention_heads = " + std::to_string(config.num_heads));
    }
    const bool quotient = top.find("head_dim") == nullptr && defaults.head_dim == 0;
    if (quotient && config.hidden_size % config.num_heads != 0) {
        top.refuse(hidden_key, "a multiple of " + std::string(heads_key) + " = " + std::to_string(config.num_heads));
    }
    config.head_dim =
        top.size_or("head_dim", quotient ? config.hidden_size / config.num_heads : defaults.head_dim, max_head_dim);
    if (config.head_dim % 2 != 0 || config.head_dim > max_head_dim) {  // it may also be hidden_size / num_heads
        const std::string expected = "an even number up to " + std::to_string(max_head_dim);
        throw InputError(top.file, top.field("head_dim"), expected, std::to_string(config.head_dim));
    }
}

void read_dtype(const Section& top, ModelConfig& config) {
    const std::string_view key = top.find("dtype") != nullptr ? "dtype" : "torch_dtype";
    config.dtype = top.text_or(key, "");
    const std::string_view known[] = {"", "bfloat16", "float16", "float32"};
    if (std::find(std::begin(known), std::end(known), config.dtype) == std::end(known)) {
        top.refuse(key, R"("bfloat16", "float16" or "float32")");
    }
}

/// Raises max_positions to the context length that the scaling was made for. Many models scale frequencies but keep
/// max_position_embeddings at the trained length (Qwen2.5's instructions for yarn, Vicuna's linear); llama3 models
/// always give the long one.
void stretch_context(ModelConfig& config) {
    const RopeConfig rope = config.rope();
    auto context = static_cast<double>(config.max_positions);
    if (rope.scaling == RopeScaling::linear) context *= rope.factor;
    if (rope.scaling == RopeScaling::yarn) {
        context = std::max(context, static_cast<double>(rope.original_max_positions) * rope.factor);
    }
    context = std::clamp(std::floor(context), static_cast<double>(config.max_positions), double{max_context});
    config.max_positions = static_cast<std::int64_t>(context);
}

/// Reads one id or a list of ids, each within the vocabulary; sorted, without duplicates.
std::vector<std::int32_t> read_ids(const Section& section, std::string_view key, std::int64_t vocab_size) {
    std::vector<std::int32_t> ids;
    const Json* value = section.find(key);
    if (value == nullptr) return ids;
    const Json list = value->is_array() ? *value : Json::array({*value});
    if (list.size() > max_eos_ids) section.refuse(key, "at most " + std::to_string(max_eos_ids) + " ids");
    for (const Json& id : list) {
        const Json item = {{key, id}};  // reuses the check and message of get_int
        const auto number = get_int(item, key, 0, vocab_size - 1, section.file, section.within);
        ids.push_back(static_cast<std::int32_t>(number));
    }
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

/// Those of generation_config.json, if it has any. `body`: the text model, if it is not `top`; its ids count where the
/// top has none.
std::vector<std::int32_t> read_eos_ids(const Section& top, const Section& body, const std::filesystem::path& folder,
                                       std::int64_t vocab_size) {
    constexpr std::string_view key = "eos_token_id";
    const std::filesystem::path path = folder / "generation_config.json";
    if (std::error_code ignored; std::filesystem::exists(path, ignored)) {
        const Json json = read_json(path, max_config_bytes);
        const Section generation{json, path.string()};
        if (generation.find(key) != nullptr) return read_ids(generation, key, vocab_size);
    }
    return read_ids(top.find(key) != nullptr ? top : body, key, vocab_size);
}

/// The language model's fields of a model of several modalities.
Section text_section(const Architecture& of, const Section& top) {
    const std::string_view key = of.folder.text_section;
    if (key.empty()) return top;
    const Json* inner = top.find(key);
    if (inner == nullptr && of.folder.text_may_be_at_top) return top;
    if (inner == nullptr || !inner->is_object()) top.refuse(key, "an object");
    return {*inner, top.file, std::string(key)};
}

/// A folder with images: the class's flag counts, but transformers writes true there if nobody said otherwise, and does
/// not tie a head that is in the files.
void read_tied_embeddings(const Section& top, const Section& body, const std::filesystem::path& folder,
                          ModelConfig& config) {
    constexpr std::string_view key = "tie_word_embeddings";
    if (top.find(key) == nullptr) return;
    config.tied_embeddings = top.flag(key);
    if (!config.tied_embeddings || body.flag_or(key, true)) return;
    try {
        config.tied_embeddings = !SafetensorsFolder::open(folder).contains(tensor_names(config).head + ".weight");
    } catch (const InputError&) {  // reported when the weights are loaded
    }
}

/// How the files hold experts that config.json lets be `published`: as that, apart, as quantized folders have them, or
/// row by row, as transformers 5 saves stacks that were published column by column.
ExpertStack stack_in(const SafetensorsFolder& files, const ModelConfig& config, std::int64_t layer,
                     ExpertStack published) {
    const TensorNames& names = tensor_names(config);
    const std::string experts = names.mlp_prefix(config.layer(layer), layer) + names.experts;
    const auto apart = files.tensors().lower_bound(experts + "0.");
    if (apart != files.tensors().end() && apart->first.starts_with(experts + "0.")) return ExpertStack::none;
    const auto up = files.tensors().find(experts + names.stacked_up);
    if (published != ExpertStack::columns || up == files.tensors().end()) return published;
    const std::int64_t width = 2 * config.expert_intermediate_size;
    const bool by_rows = up->second.shape.size() == 3 && up->second.shape[1] == width &&
                         up->second.shape[2] == config.hidden_size && width != config.hidden_size;
    return by_rows ? ExpertStack::rows : published;
}

void find_stacks(const std::filesystem::path& folder, ModelConfig& config) {
    const auto first = std::find_if(config.layers.begin(), config.layers.end(),
                                    [](const LayerConfig& layer) { return layer.experts.count > 0; });
    if (first == config.layers.end()) return;
    try {
        const ExpertStack found =
            stack_in(SafetensorsFolder::open(folder), config, first - config.layers.begin(), first->experts.stack);
        for (LayerConfig& layer : config.layers) {
            if (layer.experts.count > 0) layer.experts.stack = found;
        }
    } catch (const InputError&) {  // reported when the weights are loaded
    }
}

}  // namespace

/// The group that a layer belongs to; the end if it is none of them.
template <typename Groups>
static auto group_of(const ModelConfig& config, const LayerConfig& layer, Groups& groups) {
    return std::find_if(groups.begin(), groups.end(), [&](const ModelConfig::LayerGroup& group) {
        return group.linear == layer.linear && group.window == layer.attention_window &&
               group.heads == config.heads(layer);
    });
}

std::vector<ModelConfig::LayerGroup> ModelConfig::layer_groups() const {
    std::vector<LayerGroup> groups;
    const auto turn_of = [](const LayerConfig& layer) { return layer.linear ? 2 : layer.attention_window > 0 ? 1 : 0; };
    for (const int turn : {0, 1, 2}) {
        for (const LayerConfig& layer : layers) {
            if (turn_of(layer) != turn) continue;
            const auto found = group_of(*this, layer, groups);
            if (found == groups.end()) {
                groups.push_back({layer.attention_window, layer.linear, layer.rope, heads(layer)});
            } else if (found->rope.scaling == RopeScaling::none) {
                found->rope = layer.rope;
            }
        }
    }
    return groups;
}

std::vector<std::int64_t> ModelConfig::groups_of_layers() const {
    const std::vector<LayerGroup> groups = layer_groups();
    std::vector<std::int64_t> indices;
    for (std::int64_t at = 0; at < num_layers; ++at)
        indices.push_back(group_of(*this, layer(at), groups) - groups.begin());
    return indices;
}

std::vector<RopeConfig> ModelConfig::ropes() const {
    std::vector<RopeConfig> ropes;
    for (const LayerConfig& layer : layers) {
        if (std::find(ropes.begin(), ropes.end(), layer.rope) == ropes.end()) ropes.push_back(layer.rope);
    }
    return ropes;
}

RopeConfig ModelConfig::rope() const {
    const std::vector<LayerGroup> groups = layer_groups();
    const auto rotated = std::find_if(groups.begin(), groups.end(),
                                      [](const LayerGroup& group) { return group.rope.scaling != RopeScaling::none; });
    return (rotated == groups.end() ? groups.front() : *rotated).rope;
}

std::vector<std::int64_t> ModelConfig::ropes_of_layers() const {
    const std::vector<RopeConfig> all = ropes();
    std::vector<std::int64_t> indices;
    for (std::int64_t at = 0; at < num_layers; ++at)
        indices.push_back(std::find(all.begin(), all.end(), layer(at).rope) - all.begin());
    return indices;
}

std::vector<LayerPlace> ModelConfig::places_of_layers() const {
    std::vector<std::int64_t> counts(layer_groups().size());
    std::vector<LayerPlace> places;
    for (const std::int64_t group : groups_of_layers()) {
        const auto g = static_cast<std::size_t>(group);
        if (!layer(std::ssize(places)).shares_kv) ++counts[g];
        places.push_back({g, counts[g] - 1});
    }
    return places;
}

std::int64_t ModelConfig::num_kv_layers() const {
    std::int64_t count = 0;
    for (std::int64_t at = 0; at < num_layers; ++at) count += layer(at).shares_kv ? 0 : 1;
    return count;
}

std::int64_t ModelConfig::widest_head() const {
    std::int64_t widest = 0;
    for (const LayerConfig& layer : layers) widest = std::max(widest, heads(layer).dim);
    return widest;
}

std::int64_t ModelConfig::longest_short_text() const {
    std::int64_t longest = std::numeric_limits<std::int64_t>::max();
    for (const RopeConfig& rope : ropes()) {
        if (rope.scaling == RopeScaling::longrope) longest = std::min(longest, rope.original_max_positions);
    }
    return longest;
}

ModelConfig ModelConfig::load(const std::filesystem::path& folder) {
    return load(folder, read_json(folder / "config.json", max_config_bytes));
}

ModelConfig ModelConfig::load(const std::filesystem::path& folder, const Json& json) {
    const Section top{json, (folder / "config.json").string()};
    ModelConfig config;
    const Architecture& of = check_architecture(top, config);
    const Section body = text_section(of, top);
    if (!body.within.empty()) check_quantization(body, config);
    constexpr std::string_view quantization = "quantization_config";
    if (top.find(quantization) == nullptr && body.find(quantization) == nullptr) check_quantization_files(folder);
    check_activation(of, body);
    read_sizes(body, of, config);
    read_dtype(top, config);
    of.read_layers(body, config);
    if (of.folder.ties_at_top) read_tied_embeddings(top, body, folder, config);
    if (of.folder.may_split_experts) find_stacks(folder, config);
    if (!of.folder.positions_are_scaled) stretch_context(config);
    // A window that is not shorter than the context is none. Layers of other heads stay a group of their own.
    const auto has_own_heads = [](const LayerConfig& layer) { return layer.head_dim > 0; };
    const bool one_kind = std::none_of(config.layers.begin(), config.layers.end(), has_own_heads);
    for (LayerConfig& layer : config.layers) {
        if (one_kind && layer.attention_window >= config.max_positions) layer.attention_window = 0;
    }
    config.eos_ids = read_eos_ids(top, body, folder, config.vocab_size);
    return config;
}

}  // namespace longhaul::engine
