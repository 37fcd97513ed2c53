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
#include "engine/model/latent_attention.hpp"
#include "engine/model/linear_attention.hpp"
#include "engine/model/weights.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

using kernels::DType;

}  // namespace

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

std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows) {
    constexpr std::int64_t f32 = 4;
    const auto act = static_cast<std::int64_t>(kernels::bytes_of(kernels::act_type(weight_types(precision).layers)));
    const std::int64_t width = std::max(split.padded_hidden, kernels::padded_inputs(config.embedding_width()));
    std::int64_t queries = 0, qkv = 0, experts_of_row = 0, shared_rows = 0, router_outputs = 0;
    std::int64_t latent_size = 0, num_up = 1, expert_hidden = config.hidden_size;
    std::int64_t widest_mlp = std::max(split.shared_intermediate, kernels::padded_inputs(config.layer_embedding_size));
    bool has_biases = false, has_whole_norm = false;
    for (const LayerConfig& layer : config.layers) {
        queries = std::max(queries, split.query_width(config.heads(layer)));
        qkv = std::max(qkv, split.qkv_width(config.heads(layer)));
        has_biases = has_biases || layer.experts.bias;
        has_whole_norm = has_whole_norm || layer.whole_norm;
        experts_of_row = std::max(experts_of_row, layer.experts.per_token);
        shared_rows = std::max(shared_rows, layer.experts.num_terms() - layer.experts.per_token);
        router_outputs = std::max(router_outputs, layer.experts.num_logits());
        latent_size = std::max(latent_size, layer.experts.latent_size);
        num_up = std::max(num_up, layer.num_up());
        if (layer.experts.count > 0) expert_hidden = config.expert_hidden_size(layer.experts);
        if (layer.has_mlp && layer.experts.count == 0) widest_mlp = std::max(widest_mlp, split.mlp_width(layer));
    }
    // Each expert of a row has a copy of it, the sums of its two matmuls, the input of the second, and its biases.
    const std::int64_t of_biases = has_biases ? f32 * std::max(2 * split.expert_intermediate, config.hidden_size) : 0;
    const std::int64_t of_experts =
        f32 * router_outputs + f32 * shared_rows * config.hidden_size +
        experts_of_row * (act * kernels::padded_inputs(expert_hidden) +
                          (num_up * f32 + act) * split.expert_intermediate + f32 * expert_hidden + of_biases) +
        act * kernels::padded_inputs(latent_size) + f32 * latent_size;
    const std::int64_t bytes_per_row =
        2 * f32 * config.hidden_size + act * width + f32 * std::max({widest_matrix(config, split), qkv, width}) +
        f32 * queries + act * std::max(queries, widest_mlp) + of_experts + f32 * config.layer_embeddings_width() +
        (has_whole_norm ? f32 * (config.num_heads + config.num_kv_heads) : 0) +
        (config.linear.rule == kernels::StateRule::sum ? f32 * config.linear.num_value_heads : 0);
    const std::int64_t of_gates = std::max(f32 * queries, LinearAttention::row_bytes(split.delta));
    const std::int64_t of_latents =
        config.has_latent_attention() ? LatentAttention::bytes(config.latent, split, rows) : 0;
    return rows * (bytes_per_row + (config.has_linear_attention() ? of_gates : 0)) + of_latents +
           logit_rows * f32 * split.vocab;
}

}  // namespace longhaul::engine
