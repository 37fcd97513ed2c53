#include "engine/model/layer_parts.hpp"

#include <algorithm>

namespace longhaul::engine::detail {

std::int64_t window_of(const Section& top, std::int64_t fallback) {
    constexpr std::string_view key = "sliding_window";
    if (!top.json.contains(key)) return fallback;
    return top.find(key) == nullptr ? 0 : top.size(key, max_context);
}

std::vector<bool> windowed_layers(const Section& top, std::int64_t num_layers,
                                  const std::function<bool(std::int64_t)>& by_default) {
    std::vector<bool> windowed;
    const Json* types = top.find("layer_types");
    if (types == nullptr) {
        for (std::int64_t layer = 0; layer < num_layers; ++layer) windowed.push_back(by_default(layer));
        return windowed;
    }
    if (!types->is_array() || std::ssize(*types) != num_layers)
        top.refuse("layer_types", "an array of num_hidden_layers = " + std::to_string(num_layers));
    for (const Json& type : *types) {
        if (type != full_attention && type != sliding_attention)
            throw InputError(top.file, top.field("layer_types"),
                             describe(Json(full_attention)) + " or " + describe(Json(sliding_attention)),
                             describe(type));
        windowed.push_back(type == sliding_attention);
    }
    return windowed;
}

void set_windows(const Section& top, std::int64_t window, const std::vector<bool>& windowed, ModelConfig& config) {
    const bool any = std::find(windowed.begin(), windowed.end(), true) != windowed.end();
    if (any && window == 0 && top.find("layer_types") != nullptr)
        top.refuse("sliding_window", "a number of positions, for the layers that layer_types calls sliding_attention");
    if (!any || window == 0) return;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t layer = 0; layer < windowed.size(); ++layer) {
        if (windowed[layer]) config.layers[layer].attention_window = window;
    }
}

Section of_kind(const Section& shared, std::string_view kind) {
    const Json* own = shared.find(kind);
    return own == nullptr ? shared : Section{*own, shared.file, shared.field(kind)};
}

void set_ropes(const std::vector<bool>& windowed, const RopeConfig& rope, ModelConfig& config) {
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < windowed.size(); ++at) {
        if (windowed[at]) config.layers[at].rope = rope;
    }
}

void set_rotated(const std::vector<bool>& rotated, ModelConfig& config) {
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < rotated.size(); ++at) {
        if (!rotated[at]) config.layers[at].rope = {.scaling = RopeScaling::none};
    }
}

void read_rotated_windows(const Section& top, std::int64_t window, std::string_view period_key, ModelConfig& config) {
    const bool by_name = top.find("layer_types") != nullptr;  // beside which published patterns are texts
    const std::int64_t period = by_name ? 1 : top.size_or(period_key, 4, max_layers);
    const auto windowed =
        windowed_layers(top, config.num_layers, [&](std::int64_t at) { return (at + 1) % period != 0; });
    set_windows(top, window, windowed, config);
    set_rotated(windowed, config);
}

ExpertConfig read_experts(const Section& top, const ModelConfig& config, std::string_view count_key,
                          std::int64_t default_count, std::int64_t default_per_token, std::string_view per_token_key) {
    const auto size = [&](std::string_view key, std::int64_t fallback) {
        return fallback > 0 ? top.size_or(key, fallback, max_experts) : top.size(key, max_experts);
    };
    ExpertConfig experts;
    experts.count = size(count_key, default_count);
    if (config.num_layers * experts.count > max_all_experts)
        top.refuse(count_key, "at most " + std::to_string(max_all_experts) + " experts in all layers");
    experts.per_token = size(per_token_key, default_per_token);
    if (experts.per_token > experts.count)
        top.refuse(per_token_key, "at most " + std::string(count_key) + " = " + std::to_string(experts.count));
    return experts;
}

void read_expert_groups(const Section& top, std::string_view count_key, std::int64_t default_groups,
                        std::int64_t default_best, ExpertConfig& experts) {
    constexpr std::string_view groups = "n_group", best = "topk_group";
    experts.num_groups = top.size_or(groups, default_groups, max_experts);
    experts.best_groups = top.size_or(best, default_best, max_experts);
    const std::int64_t size = experts.count / experts.num_groups;
    const bool two = experts.score == RouterScore::sigmoid && experts.num_groups > 1;
    if (experts.count % experts.num_groups != 0 || (two && size < 2))
        top.refuse(groups, "a divisor of " + std::string(count_key) + " = " + std::to_string(experts.count) +
                               (two ? ", with two experts or more in a group" : ""));
    if (experts.best_groups > experts.num_groups || experts.best_groups * size < experts.per_token)
        top.refuse(best, "at most n_group = " + std::to_string(experts.num_groups) +
                             ", and groups with num_experts_per_tok = " + std::to_string(experts.per_token) +
                             " experts or more");
}

std::int64_t linear_dim(const Section& top, std::string_view key, std::int64_t fallback) {
    const std::int64_t value = top.size_or(key, fallback, max_head_dim);
    if (value % 16 != 0) top.refuse(key, "a multiple of 16");
    return value;
}

void read_common(const Section& top, ModelConfig& config, double default_theta) {
    config.tied_embeddings = top.flag("tie_word_embeddings");
    config.layers.front().rope = read_rope(rope_section(top), top, config, default_theta);
}

void read_llama_attention(const Section& top, ModelConfig& config, double default_theta) {
    read_common(top, config, default_theta);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.mlp_bias = top.flag("mlp_bias");
}

void read_qwen3_attention(const Section& top, ModelConfig& config, double default_theta) {
    read_common(top, config, default_theta);
    LayerConfig& layer = config.layers.front();
    layer.qkv_bias = layer.output_bias = top.flag("attention_bias");
    layer.head_norm = true;
}

void read_windows(const Section& top, std::int64_t window, ModelConfig& config) {
    set_windows(top, window, windowed_layers(top, config.num_layers, [&](std::int64_t) { return window > 0; }), config);
}

}  // namespace longhaul::engine::detail
