// Plans of a layer's attention: over keys and values of heads, of a latent, or linear.
#include <array>
#include <utility>

#include "engine/model/weight_plan_builder.hpp"

namespace longhaul::engine {
namespace {

using kernels::DeltaShape;

/// Adds the rows `heads` of q or k. Their dimensions are ordered such that i and i + head_dim / 2 are a pair:
/// rotated ones first in each half, if a head is rotated in part (a dot product does not depend on the order).
void add_heads(std::vector<TensorPart>& parts, const TensorPart& heads, std::int64_t dim, const RopeConfig& rope) {
    const std::int64_t rotated = rope.rotated_dims(dim);
    if (rotated == dim && !rope.interleaved) {
        parts.push_back(heads);
        return;
    }
    const std::int64_t pairs = rotated / 2, others = (dim - rotated) / 2;
    const std::int64_t second = rope.interleaved ? 1 : pairs, step = rope.interleaved ? 2 : 1;
    struct Run {
        std::int64_t from, count, step;
    };
    for (std::int64_t first = heads.first_row; first < heads.first_row + heads.num_rows; first += dim) {
        for (const Run& run : {Run{0, pairs, step}, Run{rotated, others, 1}, Run{second, pairs, step},
                               Run{rotated + others, others, 1}}) {
            if (run.count == 0) continue;
            TensorPart part = heads;
            part.first_row = first + run.from;
            part.num_rows = run.count;
            part.row_step = run.step;
            parts.push_back(std::move(part));
        }
    }
}

/// Attention to keys and values of heads.
class HeadsPlanner {
  public:
    HeadsPlanner(PlanBuilder& plans, const PlannedLayer& layer)
        : plans_(plans),
          config_(plans.config),
          split_(plans.split),
          names_(plans.names),
          layer_(layer),
          heads_(config_.heads(layer.kind)) {}

    void add_norms() {
        const LayerConfig& kind = layer_.kind;
        if (kind.head_norm) {
            head_norm("query_norm", layer_.weights.query_norm, gain_of_head(names_.query_norm), kind.query_norm_scale);
            if (!kind.shares_kv) head_norm("key_norm", layer_.weights.key_norm, gain_of_head(names_.key_norm), 1.0);
        } else if (kind.whole_norm) {
            head_norm("query_norm", layer_.weights.query_norm, query_rows(names_.query_norm, ".weight", 1), 1.0);
            head_norm("key_norm", layer_.weights.key_norm, kv_rows(names_.key_norm, ".weight", 1), 1.0);
        }
    }

    void add_qkv() {
        plans_.column_parallel(layer_.name + "qkv", layer_.weights.qkv, plans_.types.layers,
                               qkv(".weight", layer_.input_width));
    }

    void add_qkv_bias() { plans_.vector(layer_.name + "qkv_bias", layer_.weights.qkv_bias, qkv(".bias", 1)); }

    void add_output_gate() {
        std::vector<TensorPart> parts;
        if (gates_in_query()) {
            for (std::int64_t head = split_.first_head; head < split_.first_head + split_.num_heads; ++head)
                parts.push_back(head_block(2, 2 * head + 1, ".weight", layer_.input_width));
        } else {
            parts.push_back(query_rows(names_.output_gate, ".weight", layer_.input_width));
        }
        plans_.column_parallel(layer_.name + "output_gate", layer_.weights.output_gate, plans_.types.layers,
                               std::move(parts));
    }

  private:
    [[nodiscard]] TensorPart gain_of_head(const std::string& tensor) const {
        return whole(layer_.from + tensor + ".weight", heads_.dim);
    }

    /// The gains of the RMS norm on heads of q or k: one head's, or those of all heads of this rank.
    void head_norm(const char* name, Norm& to, const TensorPart& gains, double scale) {
        to.eps = static_cast<float>(config_.norm_eps);
        std::vector<TensorPart> parts;
        add_heads(parts, gains, heads_.dim, layer_.kind.rope);
        WeightPlan& plan = plans_.vector(layer_.name + name, to.gain, std::move(parts));
        plan.offset = config_.files.norm_adds_one ? 1.0F : 0.0F;
        plan.scale = static_cast<float>(scale);
    }

    [[nodiscard]] TensorPart query_rows(const std::string& tensor, const char* suffix, std::int64_t columns) const {
        return rows_of(layer_.from + tensor + suffix, config_.num_heads * heads_.dim, columns,
                       split_.first_head * heads_.dim, split_.query_width(heads_));
    }
    [[nodiscard]] TensorPart kv_rows(const std::string& tensor, const char* suffix, std::int64_t columns) const {
        return rows_of(layer_.from + tensor + suffix, heads_.num_kv_heads * heads_.dim, columns,
                       split_.first_kv_head_of(heads_) * heads_.dim, split_.kv_width(heads_));
    }
    [[nodiscard]] bool gates_in_query() const { return layer_.kind.output_gate && names_.output_gate.empty(); }
    /// Of a tensor with several blocks of rows for each head: its queries and their gates (gates_in_query), or its
    /// queries, keys and values (QkvTensors::fused_by_head).
    [[nodiscard]] TensorPart head_block(std::int64_t per_head, std::int64_t block, const char* suffix,
                                        std::int64_t columns) const {
        return rows_of(layer_.from + names_.query + suffix, per_head * config_.num_heads * heads_.dim, columns,
                       block * heads_.dim, heads_.dim);
    }

    [[nodiscard]] std::vector<TensorPart> qkv_by_head(const char* suffix, std::int64_t columns) const {
        std::vector<TensorPart> parts;
        const auto blocks = [&](std::int64_t which, std::int64_t first, std::int64_t width) {
            for (std::int64_t head = first; head < first + width / heads_.dim; ++head) {
                const TensorPart block = head_block(3, 3 * head + which, suffix, columns);
                if (which == 2) {
                    parts.push_back(block);
                } else {
                    add_heads(parts, block, heads_.dim, layer_.kind.rope);
                }
            }
        };
        blocks(0, split_.first_head, split_.query_width(heads_));
        blocks(1, split_.first_kv_head_of(heads_), split_.kv_width(heads_));
        blocks(2, split_.first_kv_head_of(heads_), split_.kv_width(heads_));
        return parts;
    }

    [[nodiscard]] std::vector<TensorPart> qkv(const char* suffix, std::int64_t columns) const {
        if (config_.files.qkv == QkvTensors::fused_by_head) return qkv_by_head(suffix, columns);
        const LayerConfig& kind = layer_.kind;
        std::vector<TensorPart> parts;
        const auto add = [&](const TensorPart& rows) { add_heads(parts, rows, heads_.dim, kind.rope); };
        if (gates_in_query()) {
            for (std::int64_t head = split_.first_head; head < split_.first_head + split_.num_heads; ++head)
                add(head_block(2, 2 * head, suffix, columns));
        } else {
            add(fused(query_rows(names_.query, suffix, columns), suffix, 0));
        }
        if (kind.shares_kv) return parts;
        const std::int64_t all_queries = config_.num_heads * heads_.dim, all_keys = heads_.num_kv_heads * heads_.dim;
        add(fused(kv_rows(names_.key, suffix, columns), suffix, all_queries));
        parts.push_back(fused(kv_rows(kind.keys_are_values ? names_.key : names_.value, suffix, columns), suffix,
                              all_queries + all_keys));
        return parts;
    }

    /// QkvTensors::fused: the same rows in the tensor of all three, where `before` rows come before them.
    [[nodiscard]] TensorPart fused(TensorPart part, const char* suffix, std::int64_t before) const {
        if (config_.files.qkv != QkvTensors::fused) return part;
        part.tensor = layer_.from + names_.query + suffix;
        part.rows = (config_.num_heads + 2 * heads_.num_kv_heads) * heads_.dim;
        part.first_row += before;
        return part;
    }

    PlanBuilder& plans_;
    const ModelConfig& config_;
    const Split& split_;
    const TensorNames& names_;
    const PlannedLayer& layer_;
    const HeadShape heads_;
};

/// Projections of latent attention. The rows that give rotated dimensions are ordered such that i and i + rope_dim / 2
/// are a pair.
class LatentPlanner {
  public:
    LatentPlanner(PlanBuilder& plans, const PlannedLayer& layer)
        : plans_(plans), config_(plans.config), split_(plans.split), names_(plans.names), layer_(layer) {}

    void add() {
        add_down();
        add_query_up();
        add_kv_up();
    }

  private:
    void add_down() {
        LatentWeights& w = layer_.weights.latent;
        const std::string kv_down = layer_.from + names_.kv_down + ".weight";
        const std::int64_t rows = latent_.kv_rank + latent_.rope_dim, columns = config_.hidden_size;
        if (latent_.query_rank > 0) {
            plans_.replicated(layer_.name + "query_down", w.query_down, plans_.types.layers,
                              layer_.from + names_.query_down, latent_.query_rank, columns);
            norm("query_norm", w.query_norm, names_.query_norm, latent_.query_rank);
        }
        column_parallel("kv_down", w.kv_down, {rows_of(kv_down, rows, columns, 0, latent_.kv_rank)});
        std::vector<TensorPart> key_rope;
        add_rotated(key_rope, rows_of(kv_down, rows, columns, latent_.kv_rank, latent_.rope_dim));
        column_parallel("key_rope", w.key_rope, std::move(key_rope));
        norm("kv_norm", w.kv_norm, names_.kv_norm, latent_.kv_rank);
    }

    void add_query_up() {
        const bool of_latent = latent_.query_rank > 0;
        const std::string tensor = layer_.from + (of_latent ? names_.query_up : names_.query) + ".weight";
        const std::int64_t rows = config_.num_heads * latent_.query_dim();
        const std::int64_t columns = of_latent ? latent_.query_rank : config_.hidden_size;
        std::vector<TensorPart> queries;
        for (std::int64_t head = split_.first_head; head < split_.first_head + split_.num_heads; ++head) {
            const std::int64_t first = head * latent_.query_dim();
            queries.push_back(rows_of(tensor, rows, columns, first, latent_.nope_dim));
            add_rotated(queries, rows_of(tensor, rows, columns, first + latent_.nope_dim, latent_.rope_dim));
        }
        column_parallel("query_up", layer_.weights.latent.query_up, std::move(queries));
    }

    void add_kv_up() {
        LatentWeights& w = layer_.weights.latent;
        w.key_up.resize(static_cast<std::size_t>(split_.num_heads));
        w.value_up.resize(w.key_up.size());
        const std::string tensor = layer_.from + names_.kv_up + ".weight";
        const std::int64_t per_head = latent_.nope_dim + latent_.value_dim, rows = config_.num_heads * per_head;
        for (std::size_t i = 0; i < w.key_up.size(); ++i) {
            const std::int64_t first = (split_.first_head + static_cast<std::int64_t>(i)) * per_head;
            TensorPart keys = rows_of(tensor, rows, latent_.kv_rank, first, latent_.nope_dim);
            keys.transposed = true;
            const std::string head = layer_.name + "heads." + std::to_string(i) + ".";
            plans_.of_head(head + "key_up", w.key_up[i], std::move(keys), latent_.nope_dim);
            plans_.of_head(head + "value_up", w.value_up[i],
                           rows_of(tensor, rows, latent_.kv_rank, first + latent_.nope_dim, latent_.value_dim),
                           latent_.kv_rank);
        }
    }

    void column_parallel(const char* name, kernels::Matrix& to, std::vector<TensorPart> parts) {
        plans_.column_parallel(layer_.name + name, to, plans_.types.layers, std::move(parts));
    }

    void add_rotated(std::vector<TensorPart>& parts, const TensorPart& rotated) const {
        if (!latent_.interleaved) return parts.push_back(rotated);
        for (const std::int64_t first : {0, 1}) {
            TensorPart& part = parts.emplace_back(rotated);
            part.first_row += first;
            part.num_rows /= 2;
            part.row_step = 2;
            part.end_row = rotated.first_row + rotated.num_rows;
        }
    }

    /// The classes of transformers give these norms an eps of their own.
    void norm(const char* name, Norm& to, const std::string& tensor, std::int64_t size) {
        to.eps = 1e-6F;
        plans_.vector(layer_.name + name, to.gain, {whole(layer_.from + tensor + ".weight", size)});
    }

    PlanBuilder& plans_;
    const ModelConfig& config_;
    const LatentConfig& latent_ = config_.latent;
    const Split& split_;
    const TensorNames& names_;
    const PlannedLayer& layer_;
};

/// First and number of the rows of queries, keys and values of a key head.
using HeadChannels = std::array<std::pair<std::int64_t, std::int64_t>, 3>;

/// A key head's part of LinearWeights::filter: its channels, tap by tap. `all`: channels of the tensor.
void add_filter(std::vector<TensorPart>& parts, const std::string& tensor, std::int64_t all, std::int64_t taps,
                const HeadChannels& channels) {
    for (std::int64_t tap = 0; tap < taps; ++tap) {
        for (const auto& [first, count] : channels) {
            TensorPart& part = parts.emplace_back(rows_of(tensor, all * taps, 1, first * taps + tap, count));
            part.row_step = part.taps = taps;
        }
    }
}

/// Linear attention. The rows of a key head stand side by side, and so do its numbers of the filter, tap by tap.
class LinearPlanner {
  public:
    LinearPlanner(PlanBuilder& plans, const PlannedLayer& layer)
        : plans_(plans), layer_(layer), tensors_(layer.from + plans.names.linear) {}

    void add() {
        LinearWeights& w = layer_.weights.linear;
        Inputs rows = plans_.config.linear.fused ? fused_inputs() : inputs();
        plans_.column_parallel(layer_.name + "inputs", w.inputs, plans_.types.layers, std::move(rows.inputs));
        plans_.column_parallel(layer_.name + "gates", w.gates, kernels::act_type(plans_.types.layers),
                               std::move(rows.gates));
        plans_.vector(layer_.name + "filter", w.filter, filter());
        plans_.vector(layer_.name + "log_rate", w.log_rate, {of_values("A_log", 1, 1)});
        plans_.vector(layer_.name + "step_bias", w.step_bias, {of_values("dt_bias", 1, 1)});
        w.norm.eps = static_cast<float>(plans_.config.norm_eps);
        plans_.vector(layer_.name + "linear_norm", w.norm.gain, {whole(tensors_ + "norm.weight", all_.value_dim)});
        plans_.row_parallel(layer_.name + "output", layer_.weights.output, tensors_ + "out_proj.weight",
                            all_.num_value_heads() * all_.value_dim, mine_.num_value_heads() * all_.value_dim);
    }

  private:
    /// Rows of LinearWeights::inputs and gates.
    struct Inputs {
        std::vector<TensorPart> inputs, gates;
    };

    [[nodiscard]] Inputs inputs() const {
        Inputs parts;
        for (std::int64_t head = first_head_; head < first_head_ + mine_.num_key_heads; ++head) {
            for (const auto& [first, count] : channels_of(head))
                parts.inputs.push_back(rows_of(tensors_ + "in_proj_qkv.weight", all_.num_key_heads * all_.channels(),
                                               plans_.config.hidden_size, first, count));
        }
        parts.inputs.push_back(of_values("in_proj_z.weight", all_.value_dim, plans_.config.hidden_size));
        for (const char* tensor : {"in_proj_a.weight", "in_proj_b.weight"})
            parts.gates.push_back(of_values(tensor, 1, plans_.config.hidden_size));
        return parts;
    }

    /// The same with LinearAttentionConfig::fused.
    [[nodiscard]] Inputs fused_inputs() const {
        Inputs parts;
        const auto add = [&](std::vector<TensorPart>& to, const char* tensor, std::int64_t per_head, std::int64_t first,
                             std::int64_t count) {
            for (std::int64_t head = first_head_; head < first_head_ + mine_.num_key_heads; ++head)
                to.push_back(rows_of(tensors_ + tensor, all_.num_key_heads * per_head, plans_.config.hidden_size,
                                     head * per_head + first, count));
        };
        const std::int64_t width = all_.channels() + all_.values_width(), values = all_.values_per_key;
        add(parts.inputs, "in_proj_qkvz.weight", width, 0, all_.channels());
        add(parts.inputs, "in_proj_qkvz.weight", width, all_.channels(), all_.values_width());
        add(parts.gates, "in_proj_ba.weight", 2 * values, values, values);
        add(parts.gates, "in_proj_ba.weight", 2 * values, 0, values);
        return parts;
    }

    [[nodiscard]] std::vector<TensorPart> filter() const {
        std::vector<TensorPart> parts;
        for (std::int64_t head = first_head_; head < first_head_ + mine_.num_key_heads; ++head)
            add_filter(parts, tensors_ + "conv1d.weight", all_.num_key_heads * all_.channels(), all_.taps,
                       channels_of(head));
        return parts;
    }

    /// Rows of this rank's value heads.
    [[nodiscard]] TensorPart of_values(const char* tensor, std::int64_t per_head, std::int64_t columns) const {
        return rows_of(tensors_ + tensor, all_.num_value_heads() * per_head, columns,
                       first_head_ * all_.values_per_key * per_head, mine_.num_value_heads() * per_head);
    }

    /// Those of all heads follow each other.
    [[nodiscard]] HeadChannels channels_of(std::int64_t head) const {
        const std::int64_t keys = all_.num_key_heads * all_.key_dim;
        return {{{head * all_.key_dim, all_.key_dim},
                 {keys + head * all_.key_dim, all_.key_dim},
                 {2 * keys + head * all_.values_width(), all_.values_width()}}};
    }

    PlanBuilder& plans_;
    const PlannedLayer& layer_;
    const std::string tensors_;                                                ///< prefix
    const DeltaShape all_ = plans_.config.linear.shape(1);                     ///< heads of all ranks
    const DeltaShape& mine_ = plans_.split.delta;                              ///< of this rank
    const std::int64_t first_head_ = plans_.split.rank * mine_.num_key_heads;  ///< its first key head
};

/// Mamba-2 (LinearAttentionConfig::rule). A tensor has the rows of the output gates, then those of the convolution's
/// channels (values, keys, queries), then those of the rates.
class MambaPlanner {
  public:
    MambaPlanner(PlanBuilder& plans, const PlannedLayer& layer)
        : plans_(plans), layer_(layer), tensors_(layer.from + plans.names.linear) {}

    void add() {
        LinearWeights& w = layer_.weights.linear;
        std::vector<TensorPart> inputs;
        for (std::int64_t head = first_head_; head < first_head_ + mine_.num_key_heads; ++head) {
            for (const auto& [first, count] : channels_of(head)) inputs.push_back(of_input(width_ + first, count));
        }
        const std::int64_t values = first_head_ * all_.values_width(),
                           count = mine_.num_key_heads * all_.values_width();
        inputs.push_back(of_input(values, count));
        plans_.column_parallel(layer_.name + "inputs", w.inputs, plans_.types.layers, std::move(inputs));
        plans_.column_parallel(
            layer_.name + "gates", w.gates, kernels::act_type(plans_.types.layers),
            {of_input(width_ + channels_ + first_head_ * all_.values_per_key, mine_.num_value_heads())});
        add_vectors(w);
        w.norm.eps = static_cast<float>(plans_.config.norm_eps);
        plans_.vector(layer_.name + "linear_norm", w.norm.gain,
                      {rows_of(tensors_ + "norm.weight", width_, 1, values, count)});
        plans_.row_parallel(layer_.name + "output", layer_.weights.output, tensors_ + "out_proj.weight", width_, count);
    }

  private:
    void add_vectors(LinearWeights& w) {
        std::vector<TensorPart> filter, bias;
        for (std::int64_t head = first_head_; head < first_head_ + mine_.num_key_heads; ++head) {
            add_filter(filter, tensors_ + "conv1d.weight", channels_, all_.taps, channels_of(head));
            for (const auto& [first, count] : channels_of(head))
                bias.push_back(rows_of(tensors_ + "conv1d.bias", channels_, 1, first, count));
        }
        plans_.vector(layer_.name + "filter", w.filter, std::move(filter));
        if (plans_.config.linear.filter_bias)
            plans_.vector(layer_.name + "filter_bias", w.filter_bias, std::move(bias));
        plans_.vector(layer_.name + "log_rate", w.log_rate, {of_values("A_log")});
        plans_.vector(layer_.name + "step_bias", w.step_bias, {of_values("dt_bias")});
        plans_.vector(layer_.name + "skip", w.skip, {of_values("D")});
    }

    [[nodiscard]] TensorPart of_input(std::int64_t first, std::int64_t count) const {
        return rows_of(tensors_ + "in_proj.weight", width_ + channels_ + all_.num_value_heads(),
                       plans_.config.hidden_size, first, count);
    }
    /// Numbers of this rank's value heads.
    [[nodiscard]] TensorPart of_values(const char* tensor) const {
        return rows_of(tensors_ + tensor, all_.num_value_heads(), 1, first_head_ * all_.values_per_key,
                       mine_.num_value_heads());
    }
    /// The heads of a group have the same queries and keys.
    [[nodiscard]] HeadChannels channels_of(std::int64_t head) const {
        const std::int64_t key = width_ + head / (all_.num_key_heads / groups_) * all_.key_dim;
        return {{{key + groups_ * all_.key_dim, all_.key_dim},
                 {key, all_.key_dim},
                 {head * all_.values_width(), all_.values_width()}}};
    }

    PlanBuilder& plans_;
    const PlannedLayer& layer_;
    const std::string tensors_;                                            ///< prefix
    const DeltaShape all_ = plans_.config.linear.shape(1);                 ///< heads of all ranks
    const DeltaShape& mine_ = plans_.split.delta;                          ///< of this rank
    const std::int64_t width_ = all_.num_key_heads * all_.values_width();  ///< values of all heads
    const std::int64_t groups_ = plans_.config.linear.num_groups;
    const std::int64_t channels_ = width_ + 2 * groups_ * all_.key_dim;        ///< of the convolution
    const std::int64_t first_head_ = plans_.split.rank * mine_.num_key_heads;  ///< its first key head
};

}  // namespace

void plan_attention(PlanBuilder& plans, const PlannedLayer& layer) {
    const bool is_mamba = plans.config.linear.rule == kernels::StateRule::sum;
    if (layer.kind.linear) return is_mamba ? MambaPlanner(plans, layer).add() : LinearPlanner(plans, layer).add();
    HeadsPlanner heads(plans, layer);
    heads.add_norms();
    if (plans.config.has_latent_attention()) {
        LatentPlanner(plans, layer).add();
    } else {
        heads.add_qkv();
    }
    if (layer.kind.output_gate) heads.add_output_gate();
    const HeadShape shape = plans.config.heads(layer.kind);
    plans.row_parallel(layer.name + "output", layer.weights.output, layer.from + plans.names.output + ".weight",
                       plans.config.num_heads * shape.value_dim, plans.split.value_width(shape));
}

void plan_attention_vectors(PlanBuilder& plans, const PlannedLayer& layer) {
    LayerWeights& w = layer.weights;
    if (layer.kind.qkv_bias) HeadsPlanner(plans, layer).add_qkv_bias();
    if (layer.kind.output_bias)
        plans.vector(layer.name + "output_bias", w.output_bias,
                     {whole(layer.from + plans.names.output + ".bias", plans.config.hidden_size)});
    if (layer.kind.sinks)
        plans.vector(layer.name + "sinks", w.sinks,
                     {rows_of(layer.from + plans.names.sinks, plans.config.num_heads, 1, plans.split.first_head,
                              plans.split.num_heads)});
}

}  // namespace longhaul::engine
