#include "engine/model/config.hpp"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <system_error>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

// Upper limits on sizes, each well above any published model. Together they ensure that the size in bytes of a model or
// cache fits in 63 bits: layers * heads * head_dim * positions * 4 < 2^61.
constexpr std::int64_t max_vocab_size = std::int64_t{1} << 24;
constexpr std::int64_t max_hidden_size = std::int64_t{1} << 17;
constexpr std::int64_t max_intermediate_size = std::int64_t{1} << 20;
constexpr std::int64_t max_layers = std::int64_t{1} << 12;
constexpr std::int64_t max_heads = std::int64_t{1} << 11;
constexpr std::int64_t max_head_dim = std::int64_t{1} << 10;
constexpr std::int64_t max_context = std::int64_t{1} << 24;  // beyond this a position is not exact in float
constexpr std::size_t max_eos_ids = 1024;
constexpr std::int64_t max_config_bytes = std::int64_t{1} << 24;

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

/// Supported architectures and what their config.json must contain.
struct Architecture {
    std::string_view model_type, class_name, activation_key, activation, other_activation;
    bool always_qkv_bias = false;  ///< whatever config.json says of biases
};
constexpr Architecture architectures[] = {
    {"llama", "LlamaForCausalLM", "hidden_act", "silu", "swish"},
    {"qwen2", "Qwen2ForCausalLM", "hidden_act", "silu", "swish", true},
    {"opt", "OPTForCausalLM", "activation_function", "relu", "relu"},
};

const Architecture* find_architecture(std::string_view model_type) {
    const auto* const found = std::find_if(std::begin(architectures), std::end(architectures),
                                           [&](const Architecture& one) { return one.model_type == model_type; });
    return found == std::end(architectures) ? nullptr : found;
}

/// "\"llama\", \"qwen2\" or \"opt\""
std::string supported_model_types() {
    std::string names;
    for (const Architecture& one : architectures) {
        if (!names.empty()) names += &one == std::end(architectures) - 1 ? " or " : ", ";
        names += describe(Json(std::string(one.model_type)));
    }
    return names;
}

void check_architecture(const Section& top, ModelConfig& config) {
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
        if (!layer && (!single || named->front() != found->class_name)) {
            throw InputError(top.file, "architectures", "[\"" + std::string(found->class_name) + "\"]",
                             describe(single ? named->front() : *named));
        }
    }
    if (top.find("quantization_config") != nullptr) {
        top.refuse("quantization_config", "a checkpoint of bf16, fp16 or fp32 weights",
                   "use the model's unquantized folder");
    }
    const std::string activation = top.text_or(found->activation_key, found->activation);
    if (activation != found->activation && activation != found->other_activation) {
        top.refuse(found->activation_key, describe(Json(std::string(found->activation))));
    }
}

void read_sizes(const Section& top, ModelConfig& config) {
    config.vocab_size = top.size("vocab_size", max_vocab_size);
    config.hidden_size = top.size("hidden_size", max_hidden_size);
    config.intermediate_size =
        top.size(config.model_type == "opt" ? "ffn_dim" : "intermediate_size", max_intermediate_size);
    config.num_layers = top.size("num_hidden_layers", max_layers);
    config.num_heads = top.size("num_attention_heads", max_heads);
    config.num_kv_heads = top.size_or("num_key_value_heads", config.num_heads, max_heads);
    config.max_positions = top.size("max_position_embeddings", max_context);
    config.norm_eps = top.positive_or("rms_norm_eps", 1e-6, 1.0);
    if (config.num_heads % config.num_kv_heads != 0) {
        top.refuse("num_key_value_heads", "a divisor of num_attention_heads = " + std::to_string(config.num_heads));
    }
    if (top.find("head_dim") == nullptr && config.hidden_size % config.num_heads != 0) {
        top.refuse("hidden_size", "a multiple of num_attention_heads = " + std::to_string(config.num_heads));
    }
    config.head_dim = top.size_or("head_dim", config.hidden_size / config.num_heads, max_head_dim);
    if (config.head_dim % 2 != 0 || config.head_dim > max_head_dim) {  // it may also be hidden_size / num_heads
        const std::string expected = "an even number up to " + std::to_string(max_head_dim);
        throw InputError(top.file, "head_dim", expected, std::to_string(config.head_dim));
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

/// OPT: LayerNorm, MLP without gate, learned positions. The 350M model is post-norm and has narrower embeddings.
void read_opt_options(const Section& top, ModelConfig& config) {
    config.learned_positions = true;
    config.norm_eps = 1e-5;
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    const bool bias = top.flag_or("enable_bias", true);
    const bool norm_before = top.flag_or("do_layer_norm_before", true);
    config.layers = {{.norm = NormKind::layer,
                      .norm_place = norm_before ? NormPlace::before : NormPlace::after,
                      .activation = Activation::relu,
                      .gated = false,
                      .qkv_bias = bias,
                      .output_bias = bias,
                      .mlp_bias = bias,
                      .rope = {.scaling = RopeScaling::none}}};
    config.embedding_size = top.size_or("word_embed_proj_dim", config.hidden_size, max_hidden_size);
    if (!top.flag_or("layer_norm_elementwise_affine", true)) top.refuse("layer_norm_elementwise_affine", "true");
    if (top.flag("_remove_final_layer_norm")) top.refuse("_remove_final_layer_norm", "false");
}

void read_llama_options(const Section& top, ModelConfig& config) {
    config.tied_embeddings = top.flag("tie_word_embeddings");
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = find_architecture(config.model_type)->always_qkv_bias;
    if (!layer.qkv_bias) {
        layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
        layer.mlp_bias = top.flag("mlp_bias");
    }
    // A config can contain a window without using it (Qwen2.5 does): it applies to layers from max_window_layers on.
    if (top.flag("use_sliding_window") && top.find("sliding_window") != nullptr &&
        get_int_or(top.json, "max_window_layers", 0, 0, max_layers, top.file) < config.num_layers) {
        top.refuse("use_sliding_window", "false, or max_window_layers = num_hidden_layers: full attention");
    }
    if (const Json* types = top.find("layer_types")) {
        const auto full = [](const Json& type) { return type == "full_attention"; };
        if (!types->is_array()) top.refuse("layer_types", "an array");
        const auto other = std::find_if_not(types->begin(), types->end(), full);
        if (other != types->end()) {
            throw InputError(top.file, "layer_types", R"("full_attention" throughout)", describe(*other));
        }
    }
}

RopeScaling scaling_of(const Section& rope) {
    const std::string_view key = rope.find("rope_type") != nullptr ? "rope_type" : "type";
    const std::string type = rope.text_or(key, "default");
    if (type == "default") return RopeScaling::standard;
    if (type == "linear") return RopeScaling::linear;
    if (type == "llama3") return RopeScaling::llama3;
    if (type == "yarn") return RopeScaling::yarn;
    rope.refuse(key, R"("default", "linear", "llama3" or "yarn")");
}

void read_llama3(const Section& rope, RopeConfig& config) {
    if (rope.find("low_freq_factor") == nullptr) rope.refuse("low_freq_factor", "a number");
    if (rope.find("high_freq_factor") == nullptr) rope.refuse("high_freq_factor", "a number");
    config.low_freq_factor = rope.positive_or("low_freq_factor", 1.0, 1e6);
    config.high_freq_factor = rope.positive_or("high_freq_factor", 4.0, 1e6, config.low_freq_factor);
}

/// A YaRN parameter for which Hugging Face treats 0 and null as absent.
double yarn_number(const Section& rope, std::string_view key, double fallback) {
    const double value = get_double_or(rope.json, key, 0.0, rope.file, rope.within);
    return value == 0.0 ? fallback : rope.positive_or(key, fallback, 1e6);
}

void read_yarn(const Section& rope, const ModelConfig& model, RopeConfig& config) {
    config.beta_fast = yarn_number(rope, "beta_fast", 32.0);
    config.beta_slow = yarn_number(rope, "beta_slow", 1.0);
    if (config.beta_fast < config.beta_slow) {
        rope.refuse("beta_fast", "at least beta_slow = " + describe(Json(config.beta_slow)));
    }
    config.mscale = yarn_number(rope, "mscale", 0.0);
    config.mscale_all_dim = yarn_number(rope, "mscale_all_dim", 0.0);
    config.truncate = get_bool_or(rope.json, "truncate", true, rope.file, rope.within);
    if (rope.find("attention_factor") != nullptr)
        config.attention_factor = rope.positive_or("attention_factor", 1.0, 1e6);
    if (rope.find("factor") == nullptr) {
        config.factor = static_cast<double>(model.max_positions) / static_cast<double>(config.original_max_positions);
    }
}

/// The section with the RoPE parameters: rope_parameters in transformers 5, before that rope_scaling beside rope_theta.
/// If both are present, Hugging Face uses the older name; an empty section counts as absent.
Section rope_section(const Section& top, const Json& empty) {
    for (const char* name : {"rope_scaling", "rope_parameters"}) {
        const Json* found = top.find(name);
        if (found != nullptr && !found->is_object()) top.refuse(name, "an object");
        if (found != nullptr && !found->empty()) return {*found, top.file, name};
    }
    return {empty, top.file, "rope_parameters"};
}

void read_rope(const Section& top, ModelConfig& model) {
    static const Json empty = Json::object();
    const Section rope = rope_section(top, empty);
    RopeConfig& config = model.layers.front().rope;
    // Must be above 1: the frequencies are powers of theta, and YaRN divides by its logarithm.
    config.theta = rope.find("rope_theta") != nullptr ? rope.positive_or("rope_theta", 1e4, 1e30, 1.0)
                                                      : top.positive_or("rope_theta", 1e4, 1e30, 1.0);
    for (const Section* section : {&rope, &top}) {
        if (get_double_or(section->json, "partial_rotary_factor", 1.0, section->file, section->within) != 1.0) {
            section->refuse("partial_rotary_factor", "1: all of a head rotated");
        }
    }
    config.scaling = scaling_of(rope);
    if (config.scaling == RopeScaling::standard) return;
    if (config.scaling != RopeScaling::yarn && rope.find("factor") == nullptr) rope.refuse("factor", "a number");
    config.factor = rope.positive_or("factor", 1.0, 1e6);
    config.original_max_positions = rope.size_or("original_max_position_embeddings", model.max_positions, max_context);
    if (top.find("original_max_position_embeddings") !=
        nullptr) {  // takes precedence over the one inside, as in Hugging Face
        config.original_max_positions = top.size("original_max_position_embeddings", max_context);
    }
    if (config.scaling == RopeScaling::llama3) read_llama3(rope, config);
    if (config.scaling == RopeScaling::yarn) read_yarn(rope, model, config);
}

/// Raises max_positions to the context length that the scaling was made for. Many models scale frequencies but keep
/// max_position_embeddings at the trained length (Qwen2.5's instructions for yarn, Vicuna's linear); llama3 models
/// always give the long one.
void stretch_context(ModelConfig& config) {
    double context = static_cast<double>(config.max_positions);
    if (config.rope().scaling == RopeScaling::linear) context *= config.rope().factor;
    if (config.rope().scaling == RopeScaling::yarn) {
        context = std::max(context, static_cast<double>(config.rope().original_max_positions) * config.rope().factor);
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

void read_special_ids(const Section& top, const std::filesystem::path& folder, ModelConfig& config) {
    config.eos_ids = read_ids(top, "eos_token_id", config.vocab_size);
    const std::vector<std::int32_t> bos = read_ids(top, "bos_token_id", config.vocab_size);
    if (!bos.empty()) config.bos_id = bos.front();
    const std::filesystem::path path = folder / "generation_config.json";
    if (std::error_code ignored; !std::filesystem::exists(path, ignored)) return;
    const Json json = read_json(path, max_config_bytes);
    const Section generation{json, path.string()};
    if (generation.find("eos_token_id") != nullptr) {
        config.eos_ids = read_ids(generation, "eos_token_id", config.vocab_size);
    }
}

}  // namespace

ModelConfig ModelConfig::load(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / "config.json";
    const Json json = read_json(path, max_config_bytes);
    const Section top{json, path.string()};
    ModelConfig config;
    check_architecture(top, config);
    read_sizes(top, config);
    read_dtype(top, config);
    if (config.model_type == "opt") {
        read_opt_options(top, config);
    } else {
        read_llama_options(top, config);
        read_rope(top, config);
        stretch_context(config);
    }
    read_special_ids(top, folder, config);
    return config;
}

}  // namespace longhaul::engine
