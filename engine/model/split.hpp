// A rank's part of a model under tensor parallelism as in Megatron (ALGORITHMS.md section 7).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/model/config.hpp"
#include "kernels/device.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {

/// A rank's part of every layer under tensor parallelism. The constructor throws UsageError if the model cannot be
/// split this way.
struct Split {
    std::int64_t rank = 0, size = 1;
    std::int64_t num_heads = 0, first_head = 0;        ///< query heads
    std::int64_t num_kv_heads = 0, first_kv_head = 0;  ///< of the model's; replicated if there are fewer than ranks
    bool writes_kv = true;                             ///< whether this is the lowest rank with its KV heads
    std::int64_t padded_hidden = 0;                    ///< inputs of column-parallel layers
    std::int64_t intermediate = 0;                     ///< MLP width of this rank, padded; see mlp_width
    std::int64_t expert_intermediate = 0;              ///< likewise of an expert's MLP
    std::int64_t shared_intermediate = 0;              ///< likewise of the shared expert
    std::int64_t vocab = 0;                            ///< rows of embedding and head on this rank, padding included
    kernels::DeltaShape delta{};                       ///< heads of linear attention

    Split(const ModelConfig& config, int rank, int size);

    /// KV heads of a layer that this rank has, and the first of them.
    [[nodiscard]] std::int64_t kv_heads(const HeadShape& of) const {
        return std::max<std::int64_t>(of.num_kv_heads / size, 1);
    }
    [[nodiscard]] std::int64_t first_kv_head_of(const HeadShape& of) const { return rank * of.num_kv_heads / size; }
    [[nodiscard]] std::int64_t query_width(const HeadShape& of) const { return num_heads * of.dim; }
    /// Inputs of the output projection.
    [[nodiscard]] std::int64_t value_width(const HeadShape& of) const { return num_heads * of.value_dim; }
    [[nodiscard]] std::int64_t kv_width(const HeadShape& of) const { return kv_heads(of) * of.dim; }
    /// Queries, keys and values of a row; without latent attention the outputs of the QKV matrix.
    [[nodiscard]] std::int64_t qkv_width(const HeadShape& of) const { return query_width(of) + 2 * kv_width(of); }
    /// Width of the MLP of a layer without experts on this rank, padded.
    [[nodiscard]] std::int64_t mlp_width(const LayerConfig& layer) const {
        return layer.intermediate_size > 0 ? kernels::padded_inputs(layer.intermediate_size) / size : intermediate;
    }
    /// Outputs of the first matrix of a layer's widest MLP (gate and up, or up alone).
    [[nodiscard]] std::int64_t up_width(const LayerConfig& layer) const {
        if (!layer.has_mlp) return 0;
        if (layer.experts.count == 0) return layer.num_up() * mlp_width(layer);
        return layer.num_up() * std::max(expert_intermediate, shared_intermediate);
    }

    /// Reason why the model cannot be split over `size` ranks; "" if it can.
    static std::string obstacle(const ModelConfig& config, std::int64_t size);
};

}  // namespace longhaul::engine
