// The layers of the four generations of Gemma: what config.json says of them, and what their transformers class fixes.
#include <algorithm>
#include <cmath>

#include "engine/model/config_section.hpp"
#include "engine/model/layer_parts.hpp"

namespace longhaul::engine::detail {

namespace {

/// What the first three have in common.
LayerConfig& read_gemma(const Section& top, ModelConfig& config) {
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.files.norm_adds_one = true;
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
    if (top.flag("use_bidirectional_attention")) top.refuse("use_bidirectional_attention", "false");
    LayerConfig& layer = config.layers.front();
    layer.activation = Activation::gelu;
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    return layer;
}

/// Attention divides by the root of head_dim, and should divide by that of another number.
double read_query_scale(const Section& top, const ModelConfig& config) {
    return std::sqrt(static_cast<double>(config.head_dim) / top.positive_or("query_pre_attn_scalar", 256.0, 1e6));
}

/// A soft cap; 0 if it is null.
double read_cap(const Section& top, std::string_view key, double fallback) {
    const bool is_null = top.json.contains(key) && top.find(key) == nullptr;
    return is_null ? 0.0 : top.positive_or(key, fallback, 1e6);
}

}  // namespace

void read_gemma_layers(const Section& top, ModelConfig& config) {
    read_gemma(top, config).rope = read_rope(rope_section(top), top, config, 1e4);
}

/// Gemma 2: soft caps on scores and logits; a window in every second layer.
void read_gemma2_layers(const Section& top, ModelConfig& config) {
    LayerConfig& layer = read_gemma(top, config);
    layer.norm_place = NormPlace::both;
    layer.rope = read_rope(rope_section(top), top, config, 1e4);
    layer.rope.score_scale = read_query_scale(top, config);
    config.logit_cap = read_cap(top, "final_logit_softcapping", 30.0);
    config.score_cap = read_cap(top, "attn_logit_softcapping", 50.0);
    const auto windowed = windowed_layers(top, config.num_layers, [](std::int64_t at) { return at % 2 == 0; });
    set_windows(top, window_of(top, 4096), windowed, config);
}

/// Gemma 3: two kinds of layers, each with RoPE parameters of its own.
void read_gemma3_layers(const Section& top, ModelConfig& config) {
    for (const char* cap : {"final_logit_softcapping", "attn_logit_softcapping"}) {
        if (top.find(cap) != nullptr) top.refuse(cap, "null");
    }
    LayerConfig& layer = read_gemma(top, config);
    layer.norm_place = NormPlace::both;
    layer.head_norm = true;
    layer.query_norm_scale = read_query_scale(top, config);

    const Section shared = rope_section(top);
    layer.rope = read_rope(of_kind(shared, full_attention), top, config, 1e6);
    RopeConfig local;
    if (shared.find(sliding_attention) != nullptr) {
        static const Json empty = Json::object();  // rope_theta beside rope_parameters is that of the full layers
        local = read_rope(of_kind(shared, sliding_attention), {empty, top.file, top.within}, config, 1e4);
    }
    if (top.find("rope_local_base_freq") != nullptr)
        local.theta = top.positive_or("rope_local_base_freq", 1e4, 1e30, 1.0);

    const std::int64_t pattern = top.size_or("sliding_window_pattern", 6, max_layers);
    const auto windowed =
        windowed_layers(top, config.num_layers, [&](std::int64_t at) { return (at + 1) % pattern != 0; });
    set_windows(top, window_of(top, 4096), windowed, config);
    set_ropes(windowed, local, config);
}

namespace {

/// The heads of Gemma 4's full layers: as published, or as transformers 5 writes them, for each layer.
HeadShape full_heads(const Section& top, const ModelConfig& config, bool keys_are_values,
                     const std::vector<bool>& windowed) {
    constexpr std::string_view published = "num_global_key_value_heads", by_layer = "per_layer_config";
    HeadShape heads;
    const Json* const layers = top.find(by_layer);
    if (layers == nullptr) {
        heads.dim = top.size_or("global_head_dim", 512, max_head_dim);
        heads.num_kv_heads = keys_are_values ? top.size_or(published, config.num_kv_heads, max_heads) : 0;
        if (heads.num_kv_heads > 0 && config.num_kv_heads % heads.num_kv_heads != 0)
            top.refuse(published, "a divisor of num_key_value_heads = " + std::to_string(config.num_kv_heads));
        if (heads.dim % 2 != 0) top.refuse("global_head_dim", "an even number");
        return heads;
    }
    if (!layers->is_object()) top.refuse(by_layer, "an object");
    static const Json empty = Json::object();
    std::optional<HeadShape> read;
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        const std::string number = std::to_string(at);
        const auto found = layers->find(number);
        if (windowed[at] && found != layers->end()) top.refuse(by_layer, "full_attention layers alone");
        if (windowed[at]) continue;
        const Section layer{found == layers->end() ? empty : *found, top.file, top.field(by_layer) + "." + number};
        if (!layer.json.is_object()) top.refuse(by_layer, "an object for each layer");
        heads.dim = layer.size_or("head_dim", config.head_dim, max_head_dim);
        heads.num_kv_heads = layer.size_or("num_key_value_heads", config.num_kv_heads, max_heads);
        if (config.num_kv_heads % heads.num_kv_heads != 0)
            layer.refuse("num_key_value_heads", "a divisor of " + std::to_string(config.num_kv_heads));
        if (heads.dim % 2 != 0) layer.refuse("head_dim", "an even number");
        if (read && *read != heads) top.refuse(by_layer, "the same heads in all full_attention layers");
        read = heads;
    }
    return heads;
}

/// What Gemma 4 has of experts: beside the MLP, which is read as a shared expert.
void read_gemma4_experts(const Section& top, ModelConfig& config) {
    if (!top.flag("enable_moe_block")) return;
    ExpertConfig& experts = config.layers.front().experts;
    experts.count = top.size("num_experts", max_experts);
    experts.per_token = top.size("top_k_experts", max_experts);
    if (config.num_layers * experts.count > max_all_experts)
        top.refuse("num_experts", "at most " + std::to_string(max_all_experts) + " experts in all layers");
    if (experts.per_token > experts.count)
        top.refuse("top_k_experts", "at most num_experts = " + std::to_string(experts.count));
    experts.stack = ExpertStack::rows;
    experts.own_norms = true;
    config.expert_intermediate_size = top.size("moe_intermediate_size", max_intermediate_size);
    config.shared_intermediate_size = config.intermediate_size;
}

/// What E2B and E4B have beside the embeddings of tokens.
void read_layer_embeddings(const Section& top, ModelConfig& config) {
    constexpr std::string_view key = "hidden_size_per_layer_input", vocabulary = "vocab_size_per_layer_input";
    if (top.json.contains(key) && top.find(key) == nullptr) return;
    config.layer_embedding_size = get_int_or(top.json, key, 256, 0, max_hidden_size, top.file, top.within);
    if (config.layer_embedding_size == 0) return;
    if (config.layer_embeddings_width() > max_intermediate_size)
        top.refuse(key, "at most " + std::to_string(max_intermediate_size) + " in all layers");
    if (top.size_or(vocabulary, 262144, max_vocab_size) != config.vocab_size)
        top.refuse(vocabulary, "vocab_size = " + std::to_string(config.vocab_size));
}

/// The last layers may attend to the keys and values of earlier ones, and have wider MLPs.
void share_keys(const Section& top, const std::vector<bool>& windowed, ModelConfig& config) {
    constexpr std::string_view key = "num_kv_shared_layers", wide = "use_double_wide_mlp";
    const std::int64_t count = get_int_or(top.json, key, 0, 0, max_layers, top.file, top.within);
    if (count == 0) return;
    if (count >= config.num_layers)
        top.refuse(key, "fewer than num_hidden_layers = " + std::to_string(config.num_layers));
    if (top.flag(wide) && config.has_experts()) top.refuse(wide, "false with enable_moe_block");
    const auto first = windowed.end() - count;
    for (auto it = first; it != windowed.end(); ++it) {
        if (std::find(windowed.begin(), first, *it) == first)
            top.refuse(key, "a number that leaves a layer of each type in layer_types before them");
        LayerConfig& layer = config.layers[static_cast<std::size_t>(it - windowed.begin())];
        layer.shares_kv = true;
        if (top.flag(wide)) layer.intermediate_size = 2 * config.intermediate_size;
    }
}

}  // namespace

/// Gemma 4: two kinds of layers, each with RoPE parameters and heads of its own.
void read_gemma4_layers(const Section& top, ModelConfig& config) {
    constexpr std::string_view directions = "use_bidirectional_attention";  // "vision": of images alone
    if (top.find(directions) != nullptr && top.text_or(directions, "") != "vision")
        top.refuse(directions, R"(null or "vision")");
    config.tied_embeddings = top.flag_or("tie_word_embeddings", true);
    config.embedding_scale = std::sqrt(static_cast<double>(config.hidden_size));
    config.rounds_embedding_scale = true;
    constexpr std::string_view cap = "final_logit_softcapping";
    if (top.find(cap) != nullptr) config.logit_cap = top.positive_or(cap, 30.0, 1e6);

    LayerConfig& layer = config.layers.front();
    layer.norm_place = NormPlace::both;
    layer.activation = Activation::gelu;
    layer.head_norm = layer.value_norm = layer.output_scale = true;
    layer.query_norm_scale = std::sqrt(static_cast<double>(config.head_dim));  // attention divides by it
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    read_gemma4_experts(top, config);
    read_layer_embeddings(top, config);

    std::vector<bool> windowed =
        windowed_layers(top, config.num_layers, [](std::int64_t at) { return (at + 1) % 6 != 0; });
    windowed.back() = false;  // as its class has it
    const std::int64_t window = top.size_or("sliding_window", 512, max_context);
    const bool keys_are_values = top.flag("attention_k_eq_v");
    const HeadShape heads = full_heads(top, config, keys_are_values, windowed);
    const Section ropes = rope_section(top);
    static const Json empty = Json::object();
    const auto section_of = [&](std::string_view type) -> Section {
        const Json* own = ropes.find(type);
        if (own != nullptr && !own->is_object()) ropes.refuse(type, "an object");
        return {own == nullptr ? empty : *own, top.file, ropes.field(type)};
    };
    layer.rope = read_rope(section_of(sliding_attention), {empty, top.file, top.within}, config, 1e4);
    const Section full = section_of(full_attention);
    RopeConfig wide = read_proportional_rope(full, heads.dim, 1e6);
    if (full.json.empty()) wide.rotary_dims = 2 * (heads.dim / 8);
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        LayerConfig& one = config.layers[at];
        if (windowed[at]) {
            one.attention_window = window;
            continue;
        }
        one.head_dim = heads.dim;
        one.num_kv_heads = heads.num_kv_heads;
        one.query_norm_scale = std::sqrt(static_cast<double>(heads.dim));
        one.keys_are_values = keys_are_values;
        one.rope = wide;
    }
    share_keys(top, windowed, config);
}

}  // namespace longhaul::engine::detail
