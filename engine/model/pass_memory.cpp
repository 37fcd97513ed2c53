#include "engine/model/pass_memory.hpp"

#include <algorithm>

#include "engine/model/latent_attention.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t f32 = 4;

/// Bytes of a row in each buffer of ComputeContext, whose names these are: the most that any layer needs.
class RowBytes {
  public:
    RowBytes(const ModelConfig& config, const Split& split, Precision precision)
        : config_(config),
          split_(split),
          act_(static_cast<std::int64_t>(kernels::bytes_of(kernels::act_type(weight_types(precision).layers)))) {
        add_tables();
        for (const LayerConfig& layer : config.layers) {
            add_attention(layer);
            add_mlp(layer);
        }
    }

    [[nodiscard]] std::int64_t sum() const {
        return normed_ + projected_ + queries_ + head_squares_ + attended_ + sum_ + expert_inputs_ + expert_sums_ +
               expert_biases_ + expert_latents_ + expert_latent_sums_ + mixed_ + mixer_gates_ + layer_embeddings_;
    }

  private:
    static void widen(std::int64_t& buffer, std::int64_t bytes) { buffer = std::max(buffer, bytes); }

    /// Embeddings, and the input of the head.
    void add_tables() {
        const std::int64_t widest = std::max(config_.hidden_size, config_.embedding_width());
        widen(normed_, act_ * kernels::padded_inputs(widest));
        widen(projected_, f32 * std::max(widest, config_.layer_embeddings_width()));
        widen(sum_, f32 * widest);
        widen(layer_embeddings_, f32 * config_.layer_embeddings_width());
        widen(queries_, f32 * split_.num_heads * config_.widest_head());
    }

    void add_attention(const LayerConfig& layer) {
        if (layer.linear) return add_linear_attention();
        const HeadShape heads = config_.heads(layer);
        widen(attended_, act_ * kernels::padded_inputs(config_.num_heads * heads.value_dim) / split_.size);
        if (layer.whole_norm) widen(head_squares_, f32 * (config_.num_heads + config_.num_kv_heads));
        if (layer.output_gate) widen(mixed_, f32 * split_.query_width(heads));
        if (!config_.has_latent_attention()) return widen(projected_, f32 * split_.qkv_width(heads));
        widen(normed_, act_ * kernels::padded_inputs(config_.latent.query_rank));
        widen(projected_, f32 * std::max(config_.latent.query_rank, split_.qkv_width(heads)));
        widen(attended_, act_ * split_.query_width(heads));
    }

    void add_linear_attention() {
        const kernels::DeltaShape& shape = split_.delta;
        const std::int64_t values = shape.num_key_heads * shape.values_width();
        widen(projected_, f32 * (shape.num_key_heads * shape.channels() + values));
        widen(mixer_gates_, f32 * shape.gates_width());
        widen(mixed_, f32 * values);
        widen(attended_, act_ * kernels::padded_inputs(values * split_.size) / split_.size);
        if (shape.rule == kernels::StateRule::sum) widen(head_squares_, f32 * config_.linear.num_value_heads);
    }

    void add_mlp(const LayerConfig& layer) {
        if (layer.experts.count > 0) add_experts(layer);
        widen(projected_, f32 * split_.up_width(layer));
        if (layer.has_mlp && layer.experts.count == 0) widen(attended_, act_ * split_.mlp_width(layer));
        if (layer.parallel) widen(expert_sums_, f32 * config_.hidden_size);
        widen(attended_, act_ * kernels::padded_inputs(config_.layer_embedding_size));
    }

    /// Each expert of a row has a copy of it.
    void add_experts(const LayerConfig& layer) {
        const ExpertConfig& experts = layer.experts;
        const std::int64_t copies = experts.per_token, inputs = config_.expert_hidden_size(experts);
        const std::int64_t width = split_.expert_intermediate, up_width = layer.num_up() * width;
        widen(projected_, f32 * std::max({experts.num_logits(), experts.latent_size, copies * up_width}));
        widen(attended_, act_ * std::max(copies * width, split_.shared_intermediate));
        widen(expert_inputs_, act_ * copies * kernels::padded_inputs(inputs));
        widen(expert_sums_, f32 * experts.num_terms() * inputs);
        if (config_.shared_intermediate_size > 0) widen(expert_sums_, f32 * config_.hidden_size);
        if (experts.bias) widen(expert_biases_, f32 * copies * std::max(up_width, inputs));
        widen(expert_latents_, act_ * kernels::padded_inputs(experts.latent_size));
        widen(expert_latent_sums_, f32 * experts.latent_size);
    }

    const ModelConfig& config_;
    const Split& split_;
    const std::int64_t act_;  ///< bytes of a matmul's input
    std::int64_t normed_ = 0, projected_ = 0, queries_ = 0, head_squares_ = 0, attended_ = 0, sum_ = 0;
    std::int64_t expert_inputs_ = 0, expert_sums_ = 0, expert_biases_ = 0, expert_latents_ = 0, expert_latent_sums_ = 0;
    std::int64_t mixed_ = 0, mixer_gates_ = 0, layer_embeddings_ = 0;
};

}  // namespace

std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows) {
    const std::int64_t residual = f32 * config.hidden_size;
    const std::int64_t of_latents =
        config.has_latent_attention() ? LatentAttention::bytes(config.latent, split, rows) : 0;
    return rows * (residual + RowBytes(config, split, precision).sum()) + of_latents + logit_rows * f32 * split.vocab;
}

}  // namespace longhaul::engine
