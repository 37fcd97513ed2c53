#include "engine/model/model_plan.hpp"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/weights.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {

using kernels::DType;

WeightTypes weight_types(Precision precision) {
    switch (precision) {
        case Precision::bf16:
            return {DType::bf16, DType::bf16};
        case Precision::fp32:
            return {DType::f32, DType::f32};
        case Precision::int8:
            return {DType::int8, DType::int8};
        case Precision::int4:
            return {DType::int4, DType::int8};
    }
    throw std::logic_error("no such precision");
}

std::vector<kernels::KvLayout> kv_layouts_of(const ModelConfig& config, const Split& split, DType dtype) {
    constexpr std::int64_t max_int8_dims = 512;
    if (dtype == DType::int8 && config.widest_head() > max_int8_dims) {
        throw UsageError("kv-precision: expected bf16 or fp32 for heads of " + std::to_string(config.widest_head()) +
                         " dimensions, got int8, which goes up to " + std::to_string(max_int8_dims));
    }
    std::vector<kernels::KvLayout> layouts;
    for (const ModelConfig::LayerGroup& group : config.layer_groups())
        layouts.push_back({.dtype = dtype,
                           .num_layers = 0,
                           .group = std::ssize(layouts),
                           .window = group.window,
                           .score_cap = static_cast<float>(config.score_cap),
                           .num_kv_heads = group.linear ? 0 : split.kv_heads(group.heads),
                           .head_dim = group.heads.dim,
                           .delta = group.linear ? split.delta : kernels::DeltaShape{}});
    for (const LayerPlace& place : config.places_of_layers()) layouts[place.group].num_layers = place.index + 1;
    return layouts;
}

std::int64_t packed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                 const kernels::Device& device) {
    Weights weights;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_weights(config, split, weight_types(precision), weights)) {
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    }
    return bytes;
}

std::int64_t streamed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                   const kernels::Device& device) {
    Weights weights;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_weights(config, split, weight_types(precision), weights)) {
        const bool is_table = plan.matrix == &weights.positions || plan.matrix == &weights.layer_embedding ||
                              (plan.matrix == &weights.embedding && !config.tied_embeddings);
        if (is_table) continue;
        const double share = plan.of_experts.count > 0 ? read_share(plan.of_experts, 1) : 1.0;
        bytes += std::llround(share * static_cast<double>(plan.packed_bytes(device)));
    }
    return bytes;
}

namespace {

struct NumParameters {
    std::int64_t all = 0, active = 0;
};

NumParameters count_parameters(const ModelConfig& config) {
    Weights weights;
    NumParameters count;
    std::set<std::string_view> counted;  // several parts may be of one tensor
    const std::vector<WeightPlan> plans = plan_weights(config, Split(config, 0, 1), {}, weights);
    ExpertConfig experts;  // all layers that have any have as many
    std::int64_t in_experts = 0;
    for (const WeightPlan& plan : plans) {
        if (plan.of_experts.count > 0) experts = plan.of_experts;
        for (const TensorPart& part : plan.parts) {
            if (!counted.insert(part.tensor).second) continue;
            const std::int64_t size = std::max<std::int64_t>(part.stack.count, 1) * part.rows * part.columns;
            count.all += size;
            if (plan.of_experts.count > 0) in_experts += size;
        }
    }
    count.active = count.all;
    if (experts.count > 0) count.active -= in_experts / experts.count * (experts.count - experts.per_token);
    return count;
}

}  // namespace

std::int64_t num_parameters(const ModelConfig& config) {
    return count_parameters(config).all;
}

std::int64_t num_active_parameters(const ModelConfig& config) {
    return count_parameters(config).active;
}

std::int64_t widest_matrix(const ModelConfig& config, const Split& split) {
    const LatentConfig& latent = config.latent;
    const std::int64_t projected =
        config.has_latent_attention() ? std::max(latent.query_rank, split.num_heads * latent.query_dim()) : 0;
    const kernels::DeltaShape& delta = split.delta;
    const std::int64_t linear = delta.num_key_heads * (delta.channels() + delta.values_width());
    std::int64_t widest = std::max({projected, linear, split.padded_hidden, config.layer_embeddings_width()});
    for (const LayerConfig& layer : config.layers) {
        if (!config.has_latent_attention()) widest = std::max(widest, split.qkv_width(config.heads(layer)));
        widest = std::max({widest, split.up_width(layer), layer.experts.latent_size});
    }
    return widest;
}

}  // namespace longhaul::engine
