// Weight plan: which parts of which tensors form each matrix and vector of a rank. Also the tensor-parallel split
// (Split). Used for loading, checks and the memory plan.
#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

#include "engine/error.hpp"
#include "engine/model/tensor_names.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {
namespace {

using kernels::Buffer;
using kernels::DType;
using kernels::Matrix;

/// Plans one rank's part of the model.
class Planner {
  public:
    Planner(const ModelConfig& config, const Split& split, WeightTypes types, const TensorNames& names)
        : c_(config), s_(split), types_(types), names_(names) {}

    std::vector<WeightPlan> plan(Weights& weights) {
        const std::int64_t embedding = c_.embedding_width();
        column_parallel("embedding", weights.embedding, types_.tables, {vocabulary(names_.embedding, embedding)});
        if (c_.learned_positions) {
            everywhere("positions", weights.positions, kernels::act_type(types_.layers), names_.positions,
                       c_.position_rows(), c_.hidden_size);
        }
        if (embedding != c_.hidden_size) {
            everywhere("project_in", weights.project_in, types_.layers, names_.project_in, c_.hidden_size, embedding);
            everywhere("project_out", weights.project_out, types_.layers, names_.project_out, embedding,
                       c_.hidden_size);
        }
        if (c_.layer_embedding_size > 0) layer_embeddings(weights);
        weights.layers.resize(c_.num_layers);
        add_layers(0, weights.layers, c_.hidden_size);
        if (c_.has_final_norm()) norm("final_norm", weights.final_norm, names_.final_norm, c_.layers.back().norm);
        if (!c_.tied_embeddings) {
            column_parallel("head", weights.head, types_.tables, {vocabulary(names_.head, embedding)});
        }
        return std::move(plans_);
    }

    std::vector<WeightPlan> plan_layers(std::int64_t first, std::span<LayerWeights> layers, std::int64_t input_width) {
        add_layers(first, layers, input_width);
        return std::move(plans_);
    }

  private:
    void add_layers(std::int64_t first, std::span<LayerWeights> layers, std::int64_t input_width) {
        for (LayerWeights& w : layers) {
            const std::string number = std::to_string(first) + ".";
            layer(c_.layer(first++), names_.layers + number, "layers." + number, w, input_width);
        }
    }

    void layer_embeddings(Weights& weights) {
        const std::int64_t width = c_.layer_embeddings_width();
        column_parallel("layer_embedding", weights.layer_embedding, types_.tables,
                        {vocabulary(names_.layer_embedding, width)});
        everywhere("layer_projection", weights.layer_projection, types_.layers, names_.layer_projection, width,
                   c_.hidden_size);
        weights.layer_projection_norm.eps = static_cast<float>(c_.norm_eps);
        vector("layer_projection_norm", weights.layer_projection_norm.gain,
               {whole(names_.layer_projection_norm + ".weight", c_.layer_embedding_size)});
    }

    void layer(const LayerConfig& kind, const std::string& from, const std::string& name, LayerWeights& w,
               std::int64_t input_width) {
        const std::string output = from + names_.output;
        if (!names_.attention_norm.empty())
            norm(name + "attention_norm", w.attention_norm, from + names_.attention_norm, kind.norm);
        if (!names_.mlp_norm.empty()) norm(name + "mlp_norm", w.mlp_norm, from + names_.mlp_norm, kind.norm);
        if (kind.norms_outputs()) {
            norm(name + "attention_out_norm", w.attention_out_norm, from + names_.attention_out_norm, kind.norm);
            norm(name + "mlp_out_norm", w.mlp_out_norm, from + names_.mlp_out_norm, kind.norm);
        }
        if (kind.head_norm) {
            const auto gain = [&](const std::string& tensor) {
                return whole(from + tensor + ".weight", c_.heads(kind).dim);
            };
            head_norm(name + "query_norm", w.query_norm, gain(names_.query_norm), kind, kind.query_scale);
            if (!kind.shares_kv) head_norm(name + "key_norm", w.key_norm, gain(names_.key_norm), kind, 1.0);
        } else if (kind.whole_norm) {
            const HeadShape heads = c_.heads(kind);
            const std::int64_t dim = heads.dim;
            head_norm(name + "query_norm", w.query_norm,
                      rows(from + names_.query_norm + ".weight", c_.num_heads * dim, 1, s_.first_head * dim,
                           s_.query_width(heads)),
                      kind, 1.0);
            head_norm(name + "key_norm", w.key_norm,
                      rows(from + names_.key_norm + ".weight", heads.num_kv_heads * dim, 1,
                           s_.first_kv_head_of(heads) * dim, s_.kv_width(heads)),
                      kind, 1.0);
        }
        if (kind.linear) {
            linear(from, name, w);
        } else if (c_.has_latent_attention()) {
            latent(from, name, w.latent);
        } else {
            column_parallel(name + "qkv", w.qkv, types_.layers, qkv(from, ".weight", input_width, kind));
        }
        if (kind.output_gate)
            column_parallel(name + "output_gate", w.output_gate, types_.layers, output_gate(from, input_width));
        const HeadShape heads = c_.heads(kind);
        if (!kind.linear)
            row_parallel(name + "output", w.output, output + ".weight", c_.num_heads * heads.value_dim,
                         s_.value_width(heads));
        if (kind.experts.count > 0) {
            experts(kind.experts, from, name, w);
            if (c_.shared_intermediate_size > 0)
                mlp(kind, {c_.shared_intermediate_size, s_.shared_intermediate}, from, name, w);
            if (kind.experts.own_norms) expert_norms(kind, from, name, w);
        } else {
            mlp(kind, {c_.mlp_width(kind), s_.mlp_width(kind)}, from, name, w);
        }
        if (c_.layer_embedding_size > 0) {
            everywhere(name + "embedding_gate", w.embedding_gate, types_.layers, from + names_.embedding_gate,
                       c_.layer_embedding_size, c_.hidden_size);
            everywhere(name + "embedding_output", w.embedding_output, types_.layers, from + names_.embedding_output,
                       c_.hidden_size, c_.layer_embedding_size);
            norm(name + "embedding_out_norm", w.embedding_out_norm, from + names_.embedding_out_norm, kind.norm);
        }
        if (kind.qkv_bias) vector(name + "qkv_bias", w.qkv_bias, qkv(from, ".bias", 1, kind));
        if (kind.output_bias) {
            vector(name + "output_bias", w.output_bias, {whole(output + ".bias", c_.hidden_size)});
        }
        if (kind.output_scale) vector(name + "output_scale", w.output_scale, {whole(from + names_.output_scale, 1)});
        if (kind.sinks)
            vector(name + "sinks", w.sinks, {rows(from + names_.sinks, c_.num_heads, 1, s_.first_head, s_.num_heads)});
    }

    /// The rows of a key head stand side by side, and so do its numbers of the filter, tap by tap.
    void linear(const std::string& from, const std::string& name, LayerWeights& layer) {
        LinearWeights& w = layer.linear;
        const kernels::DeltaShape all = c_.linear.shape(1);
        const std::string tensors = from + names_.linear;
        LinearParts parts = c_.linear.fused ? fused_parts(tensors, all) : linear_parts(tensors, all);
        column_parallel(name + "inputs", w.inputs, types_.layers, std::move(parts.inputs));
        column_parallel(name + "gates", w.gates, kernels::act_type(types_.layers), std::move(parts.gates));
        std::vector<TensorPart> filter;
        const std::int64_t first_head = first_linear_head(), end_head = first_head + s_.delta.num_key_heads;
        for (std::int64_t head = first_head; head < end_head; ++head) {
            for (std::int64_t tap = 0; tap < all.taps; ++tap) {
                for (const auto& [first, count] : channels_of(all, head)) {
                    TensorPart& part = filter.emplace_back(rows(tensors + "conv1d.weight",
                                                                all.num_key_heads * all.channels() * all.taps, 1,
                                                                first * all.taps + tap, count));
                    part.row_step = part.taps = all.taps;
                }
            }
        }
        vector(name + "filter", w.filter, std::move(filter));
        vector(name + "log_rate", w.log_rate, {of_values(tensors + "A_log", all, 1, 1)});
        vector(name + "step_bias", w.step_bias, {of_values(tensors + "dt_bias", all, 1, 1)});
        w.norm.eps = static_cast<float>(c_.norm_eps);
        vector(name + "linear_norm", w.norm.gain, {whole(tensors + "norm.weight", all.value_dim)});
        row_parallel(name + "output", layer.output, tensors + "out_proj.weight", all.num_value_heads() * all.value_dim,
                     s_.delta.num_value_heads() * all.value_dim);
    }

    [[nodiscard]] std::int64_t first_linear_head() const { return s_.rank * s_.delta.num_key_heads; }

    /// Rows of this rank's value heads. `all`: the heads of all ranks.
    [[nodiscard]] TensorPart of_values(std::string tensor, const kernels::DeltaShape& all, std::int64_t per_head,
                                       std::int64_t columns) const {
        return rows(std::move(tensor), all.num_value_heads() * per_head, columns,
                    first_linear_head() * all.values_per_key * per_head, s_.delta.num_value_heads() * per_head);
    }

    /// First channel and number of channels of a key head's q, k and v, where those of all heads follow each other.
    static std::array<std::pair<std::int64_t, std::int64_t>, 3> channels_of(const kernels::DeltaShape& all,
                                                                            std::int64_t head) {
        const std::int64_t keys = all.num_key_heads * all.key_dim;
        return {{{head * all.key_dim, all.key_dim},
                 {keys + head * all.key_dim, all.key_dim},
                 {2 * keys + head * all.values_width(), all.values_width()}}};
    }

    /// Rows of LinearWeights::inputs and gates.
    struct LinearParts {
        std::vector<TensorPart> inputs, gates;
    };

    [[nodiscard]] LinearParts linear_parts(const std::string& tensors, const kernels::DeltaShape& all) const {
        LinearParts parts;
        for (std::int64_t head = 0; head < s_.delta.num_key_heads; ++head) {
            for (const auto& [first, count] : channels_of(all, first_linear_head() + head))
                parts.inputs.push_back(rows(tensors + "in_proj_qkv.weight", all.num_key_heads * all.channels(),
                                            c_.hidden_size, first, count));
        }
        parts.inputs.push_back(of_values(tensors + "in_proj_z.weight", all, all.value_dim, c_.hidden_size));
        for (const char* tensor : {"in_proj_a.weight", "in_proj_b.weight"})
            parts.gates.push_back(of_values(tensors + tensor, all, 1, c_.hidden_size));
        return parts;
    }

    /// The same with LinearAttentionConfig::fused.
    [[nodiscard]] LinearParts fused_parts(const std::string& tensors, const kernels::DeltaShape& all) const {
        LinearParts parts;
        const auto add = [&](std::vector<TensorPart>& to, const char* tensor, std::int64_t per_head, std::int64_t first,
                             std::int64_t count) {
            for (std::int64_t head = 0; head < s_.delta.num_key_heads; ++head)
                to.push_back(rows(tensors + tensor, all.num_key_heads * per_head, c_.hidden_size,
                                  (first_linear_head() + head) * per_head + first, count));
        };
        const std::int64_t width = all.channels() + all.values_width(), values = all.values_per_key;
        add(parts.inputs, "in_proj_qkvz.weight", width, 0, all.channels());
        add(parts.inputs, "in_proj_qkvz.weight", width, all.channels(), all.values_width());
        add(parts.gates, "in_proj_ba.weight", 2 * values, values, values);
        add(parts.gates, "in_proj_ba.weight", 2 * values, 0, values);
        return parts;
    }

    /// A head's rows follow those of its queries.
    [[nodiscard]] std::vector<TensorPart> output_gate(const std::string& from, std::int64_t columns) const {
        std::vector<TensorPart> parts;
        for (std::int64_t head = s_.first_head; head < s_.first_head + s_.num_heads; ++head)
            parts.push_back(rows(from + names_.query + ".weight", 2 * c_.num_heads * c_.head_dim, columns,
                                 (2 * head + 1) * c_.head_dim, c_.head_dim));
        return parts;
    }

    /// Projections of latent attention. The rows that give rotated dimensions are ordered such that i and i +
    /// rope_dim / 2 are a pair.
    void latent(const std::string& from, const std::string& name, LatentWeights& w) {
        const LatentConfig& l = c_.latent;
        const std::string kv_down = from + names_.kv_down + ".weight", kv_up = from + names_.kv_up + ".weight";
        const std::int64_t down_rows = l.kv_rank + l.rope_dim;
        if (l.query_rank > 0) {
            everywhere(name + "query_down", w.query_down, types_.layers, from + names_.query_down, l.query_rank,
                       c_.hidden_size);
            latent_norm(name + "query_norm", w.query_norm, from + names_.query_norm, l.query_rank);
        }
        column_parallel(name + "kv_down", w.kv_down, types_.layers,
                        {rows(kv_down, down_rows, c_.hidden_size, 0, l.kv_rank)});
        std::vector<TensorPart> key_rope;
        add_rotated(key_rope, rows(kv_down, down_rows, c_.hidden_size, l.kv_rank, l.rope_dim));
        column_parallel(name + "key_rope", w.key_rope, types_.layers, std::move(key_rope));
        latent_norm(name + "kv_norm", w.kv_norm, from + names_.kv_norm, l.kv_rank);

        const std::string query = from + (l.query_rank > 0 ? names_.query_up : names_.query) + ".weight";
        const std::int64_t inputs = l.query_rank > 0 ? l.query_rank : c_.hidden_size;
        std::vector<TensorPart> queries;
        w.key_up.resize(static_cast<std::size_t>(s_.num_heads));
        w.value_up.resize(w.key_up.size());
        for (std::int64_t head = s_.first_head; head < s_.first_head + s_.num_heads; ++head) {
            const std::int64_t first = head * l.query_dim();
            queries.push_back(rows(query, c_.num_heads * l.query_dim(), inputs, first, l.nope_dim));
            add_rotated(queries, rows(query, c_.num_heads * l.query_dim(), inputs, first + l.nope_dim, l.rope_dim));
        }
        column_parallel(name + "query_up", w.query_up, types_.layers, std::move(queries));
        for (std::size_t i = 0; i < w.key_up.size(); ++i) {
            const std::int64_t of_head = l.nope_dim + l.value_dim, all = c_.num_heads * of_head;
            const std::int64_t first = (s_.first_head + static_cast<std::int64_t>(i)) * of_head;
            TensorPart keys = rows(kv_up, all, l.kv_rank, first, l.nope_dim);
            keys.transposed = true;
            const std::string head = name + "heads." + std::to_string(i) + ".";
            of_head_matrix(head + "key_up", w.key_up[i], std::move(keys), l.nope_dim);
            of_head_matrix(head + "value_up", w.value_up[i],
                           rows(kv_up, all, l.kv_rank, first + l.nope_dim, l.value_dim), l.kv_rank);
        }
    }

    void of_head_matrix(std::string name, Matrix& to, TensorPart part, std::int64_t inputs) {
        matrix(std::move(name), to, kernels::act_type(types_.layers), {std::move(part)}, kernels::num_slices,
               kernels::padded_inputs(inputs) / kernels::num_slices);
    }

    void add_rotated(std::vector<TensorPart>& parts, const TensorPart& rotated) const {
        if (!c_.latent.interleaved) return parts.push_back(rotated);
        for (const std::int64_t first : {0, 1}) {
            TensorPart& part = parts.emplace_back(rotated);
            part.first_row += first;
            part.num_rows /= 2;
            part.row_step = 2;
            part.end_row = rotated.first_row + rotated.num_rows;
        }
    }

    /// Of a latent: the classes of transformers give these norms an eps of their own.
    void latent_norm(const std::string& name, Norm& to, const std::string& tensor, std::int64_t size) {
        to.eps = 1e-6F;
        vector(name, to.gain, {whole(tensor + ".weight", size)});
    }

    /// Width of an MLP, whole and on this rank.
    struct MlpWidth {
        std::int64_t whole, local;
    };

    void mlp(const LayerConfig& kind, MlpWidth width, const std::string& from, const std::string& name,
             LayerWeights& w) {
        const bool shared = kind.experts.count > 0;
        const std::string down = from + (shared ? names_.shared_down : names_.down);
        column_parallel(name + "gate_up", w.gate_up, types_.layers,
                        gate_up(from, shared ? names_.shared_up : names_.up, ".weight", c_.hidden_size, width));
        plans_.back().gated = kind.gated && !kind.mlp_bias;
        row_parallel(name + "down", w.down, down + ".weight", width.whole, width.local);
        if (!kind.mlp_bias) return;
        vector(name + "gate_up_bias", w.gate_up_bias, gate_up(from, names_.up, ".bias", 1, width));
        vector(name + "down_bias", w.down_bias, {whole(down + ".bias", c_.hidden_size)});
    }

    /// The router is small and decides which experts a row has, so it is not quantized.
    void experts(const ExpertConfig& kind, const std::string& from, const std::string& name, LayerWeights& w) {
        const MlpWidth width{c_.expert_intermediate_size, s_.expert_intermediate};
        std::vector<TensorPart> router{
            rows(from + names_.router + ".weight", kind.count, c_.hidden_size, 0, kind.count)};
        if (kind.shared_gate) router.push_back(rows(from + names_.shared_gate + ".weight", 1, c_.hidden_size, 0, 1));
        column_parallel(name + "router", w.router, kernels::act_type(types_.layers), std::move(router));
        if (kind.score == RouterScore::sigmoid)
            vector(name + "score_correction", w.score_correction, {whole(from + names_.score_correction, kind.count)});
        if (kind.bias) vector(name + "router_bias", w.router_bias, {whole(from + names_.router + ".bias", kind.count)});
        w.experts.resize(static_cast<std::size_t>(kind.count));
        const std::size_t first = plans_.size();
        if (kind.bias) expert_biases(kind.count, from, name, w, width);
        for (std::int64_t number = 0; number < kind.count; ++number) {
            const std::string to = name + "experts." + std::to_string(number) + ".";
            const std::string tensors = from + names_.experts + (kind.stacked ? "" : std::to_string(number) + ".");
            const StackPlace place{kind.stacked ? kind.count : 0, number, kind.by_rows};
            Expert& expert = w.experts[static_cast<std::size_t>(number)];
            column_parallel(to + "gate_up", expert.gate_up, types_.layers,
                            kind.stacked ? gates_and_ups(tensors + names_.stacked_up, c_.hidden_size, width, place)
                                         : gate_up(tensors, names_.expert_up, ".weight", c_.hidden_size, width));
            row_parallel(to + "down", expert.down, tensors + names_.expert_down + (kind.stacked ? "" : ".weight"),
                         width.whole, width.local);
            plans_.back().parts.front().stack = place;
        }
        for (std::size_t i = first; i < plans_.size(); ++i) plans_[i].of_experts = kind;
        plans_.back().completes = &w;  // the last of them
    }

    void expert_norms(const LayerConfig& kind, const std::string& from, const std::string& name, LayerWeights& w) {
        w.router_norm.eps = static_cast<float>(c_.norm_eps);
        vector(name + "router_norm", w.router_norm.gain, {whole(from + names_.router_norm, c_.hidden_size)});
        plans_.back().scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(c_.hidden_size)));
        vector(name + "expert_scales", w.expert_scales, {whole(from + names_.expert_scales, kind.experts.count)});
        norm(name + "expert_norm", w.expert_norm, from + names_.expert_norm, kind.norm);
        norm(name + "expert_out_norm", w.expert_out_norm, from + names_.expert_out_norm, kind.norm);
        norm(name + "shared_out_norm", w.shared_out_norm, from + names_.shared_out_norm, kind.norm);
    }

    /// Of all experts, which are in stacks: those of an expert's two matmuls, one expert after another.
    void expert_biases(std::int64_t count, const std::string& from, const std::string& name, LayerWeights& w,
                       MlpWidth width) {
        std::vector<TensorPart> up, down;
        for (std::int64_t number = 0; number < count; ++number) {
            const StackPlace place{count, number};
            for (TensorPart& part : gates_and_ups(from + names_.experts + names_.stacked_up + "_bias", 1, width, place))
                up.push_back(std::move(part));
            down.push_back(whole(from + names_.experts + names_.expert_down + "_bias", c_.hidden_size));
            down.back().stack = place;
        }
        vector(name + "experts_up_bias", w.experts_up_bias, std::move(up));
        vector(name + "experts_down_bias", w.experts_down_bias, std::move(down));
    }

    /// Gate rows, then up rows, of a stack's matrix, in which they alternate unless it is stored by rows.
    [[nodiscard]] std::vector<TensorPart> gates_and_ups(const std::string& tensor, std::int64_t columns, MlpWidth width,
                                                        StackPlace place) const {
        std::vector<TensorPart> parts;
        for (const std::int64_t first : {0, 1}) {
            const std::int64_t mine = s_.rank * width.local;
            TensorPart& part =
                parts.emplace_back(rows(tensor, 2 * width.whole, columns,
                                        place.by_rows ? first * width.whole + mine : 2 * mine + first, width.local));
            part.row_step = place.by_rows ? 1 : 2;
            part.end_row = place.by_rows ? (first + 1) * width.whole : 0;
            part.stack = place;
        }
        return parts;
    }

    void norm(const std::string& name, Norm& to, const std::string& tensor, NormKind kind) {
        to.eps = static_cast<float>(c_.norm_eps);
        vector(name, to.gain, {whole(tensor + ".weight", c_.hidden_size)});
        plans_.back().offset = c_.norm_adds_one ? 1.0F : 0.0F;
        if (kind == NormKind::layer) vector(name + "_bias", to.bias, {whole(tensor + ".bias", c_.hidden_size)});
    }

    /// The gains of the RMS norm on heads of q or k: one head's, or those of all heads of this rank.
    void head_norm(const std::string& name, Norm& to, const TensorPart& gains, const LayerConfig& kind, double scale) {
        to.eps = static_cast<float>(c_.norm_eps);
        std::vector<TensorPart> parts;
        add_heads(parts, gains, kind);
        vector(name, to.gain, std::move(parts));
        plans_.back().offset = c_.norm_adds_one ? 1.0F : 0.0F;
        plans_.back().scale = static_cast<float>(scale);
    }

    /// Adds the rows `heads` of q or k. Their dimensions are ordered such that i and i + head_dim / 2 are a pair:
    /// rotated ones first in each half, if a head is rotated in part (a dot product does not depend on the order).
    void add_heads(std::vector<TensorPart>& parts, const TensorPart& heads, const LayerConfig& kind) const {
        const std::int64_t dim = c_.heads(kind).dim, rotated = kind.rope.rotated_dims(dim);
        if (rotated == dim && !kind.rope.interleaved) {
            parts.push_back(heads);
            return;
        }
        const std::int64_t pairs = rotated / 2, others = (dim - rotated) / 2;
        const std::int64_t second = kind.rope.interleaved ? 1 : pairs, step = kind.rope.interleaved ? 2 : 1;
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

    [[nodiscard]] std::vector<TensorPart> qkv(const std::string& from, const char* suffix, std::int64_t columns,
                                              const LayerConfig& kind) const {
        const HeadShape heads = c_.heads(kind);
        const std::int64_t dim = heads.dim, q_rows = c_.num_heads * dim, kv_rows = heads.num_kv_heads * dim;
        const std::int64_t all = q_rows + 2 * kv_rows;
        /// `first`: of this rank; `before`: rows of the fused tensor before this matrix.
        const auto part = [&](const std::string& name, std::int64_t of, std::int64_t first, std::int64_t count,
                              std::int64_t before) {
            if (!c_.fused_qkv) return rows(from + name + suffix, of, columns, first, count);
            return rows(from + names_.query + suffix, all, columns, before + first, count);
        };
        const std::int64_t first_kv = s_.first_kv_head_of(heads) * dim;
        std::vector<TensorPart> parts;
        if (kind.output_gate) {
            for (std::int64_t head = s_.first_head; head < s_.first_head + s_.num_heads; ++head)
                add_heads(parts, rows(from + names_.query + suffix, 2 * q_rows, columns, 2 * head * dim, dim), kind);
        } else {
            add_heads(parts, part(names_.query, q_rows, s_.first_head * dim, s_.query_width(heads), 0), kind);
        }
        if (kind.shares_kv) return parts;
        add_heads(parts, part(names_.key, kv_rows, first_kv, s_.kv_width(heads), q_rows), kind);
        parts.push_back(part(kind.keys_are_values ? names_.key : names_.value, kv_rows, first_kv, s_.kv_width(heads),
                             q_rows + kv_rows));
        return parts;
    }

    [[nodiscard]] std::vector<TensorPart> gate_up(const std::string& from, const std::vector<std::string>& names,
                                                  const char* suffix, std::int64_t columns, MlpWidth width) const {
        std::vector<TensorPart> parts;
        const std::int64_t first = s_.rank * width.local;
        for (const std::string& name : names) {
            if (!c_.fused_gate_up) {
                parts.push_back(rows(from + name + suffix, width.whole, columns, first, width.local));
                continue;
            }
            for (const std::int64_t before : {std::int64_t{0}, width.whole}) {
                parts.push_back(rows(from + name + suffix, 2 * width.whole, columns, before + first, width.local));
                parts.back().end_row = before + width.whole;
            }
        }
        return parts;
    }

    [[nodiscard]] TensorPart vocabulary(const std::string& tensor, std::int64_t columns) const {
        return rows(tensor + ".weight", c_.vocab_size, columns, s_.rank * s_.vocab, s_.vocab);
    }

    static TensorPart rows(std::string tensor, std::int64_t rows, std::int64_t columns, std::int64_t first,
                           std::int64_t count) {
        return {.tensor = std::move(tensor),
                .rows = rows,
                .columns = columns,
                .first_row = first,
                .num_rows = count,
                .first_column = 0,
                .num_columns = columns};
    }
    static TensorPart whole(std::string tensor, std::int64_t size) { return rows(std::move(tensor), size, 1, 0, size); }

    void vector(std::string name, Buffer& to, std::vector<TensorPart> parts) {
        WeightPlan& plan = plans_.emplace_back();
        plan.name = std::move(name);
        plan.parts = std::move(parts);
        plan.vector = &to;
    }

    void matrix(std::string name, Matrix& to, DType dtype, std::vector<TensorPart> parts, int num_slices,
                std::int64_t slice_length) {
        WeightPlan& plan = plans_.emplace_back();
        plan.name = std::move(name);
        plan.parts = std::move(parts);
        plan.matrix = &to;
        plan.dtype = dtype;
        plan.num_slices = num_slices;
        plan.slice_length = slice_length;
    }

    void column_parallel(std::string name, Matrix& to, DType dtype, std::vector<TensorPart> parts) {
        const std::int64_t inputs = kernels::padded_inputs(parts.front().columns);
        matrix(std::move(name), to, dtype, std::move(parts), kernels::num_slices, inputs / kernels::num_slices);
    }

    /// A whole matrix replicated on every rank.
    void everywhere(std::string name, Matrix& to, DType dtype, const std::string& tensor, std::int64_t outputs,
                    std::int64_t inputs) {
        column_parallel(std::move(name), to, dtype, {rows(tensor + ".weight", outputs, inputs, 0, outputs)});
    }

    /// `inputs`: of the whole model; `local_inputs`: of each rank. This rank sums its own slices; the all-reduce adds
    /// those of the other ranks.
    void row_parallel(std::string name, Matrix& to, std::string tensor, std::int64_t inputs,
                      std::int64_t local_inputs) {
        TensorPart part = rows(std::move(tensor), c_.hidden_size, inputs, 0, c_.hidden_size);
        part.first_column = std::min(s_.rank * local_inputs, inputs);  // the last rank may hold only padding
        part.num_columns = std::min(local_inputs, inputs - part.first_column);
        matrix(std::move(name), to, types_.layers, {std::move(part)}, kernels::num_slices / static_cast<int>(s_.size),
               kernels::padded_inputs(inputs) / kernels::num_slices);
    }

    const ModelConfig& c_;
    const Split& s_;
    WeightTypes types_;
    const TensorNames& names_;
    std::vector<WeightPlan> plans_;
};

}  // namespace

std::string Split::obstacle(const ModelConfig& config, std::int64_t size) {
    if (config.num_heads % size != 0) return std::to_string(config.num_heads) + " query heads do not divide by it";
    for (const LayerConfig& layer : config.layers) {
        const HeadShape heads = config.heads(layer);
        if (heads.num_kv_heads % size != 0 && size % heads.num_kv_heads != 0)
            return std::to_string(heads.num_kv_heads) + " KV heads neither divide by it nor divide it";
        const std::int64_t width = config.num_heads * heads.value_dim;
        if (size > 1 && width % 16 != 0)
            return "the heads' total width " + std::to_string(width) + " is not a multiple of 16";
    }
    if (config.linear.num_key_heads % size != 0)
        return std::to_string(config.linear.num_key_heads) + " key heads of linear attention do not divide by it";
    return "";
}

Split::Split(const ModelConfig& config, int group_rank, int group_size) : rank(group_rank), size(group_size) {
    if (const std::string why = obstacle(config, size); !why.empty())
        throw UsageError("tensor-parallel: expected a degree that splits the model, got " + std::to_string(size) +
                         ": " + why);
    num_heads = config.num_heads / size;
    first_head = rank * num_heads;
    num_kv_heads = std::max<std::int64_t>(config.num_kv_heads / size, 1);
    first_kv_head = rank * config.num_kv_heads / size;
    writes_kv = rank == 0 || (rank - 1) * config.num_kv_heads / size != first_kv_head;
    delta = config.linear.shape(size);
    padded_hidden = kernels::padded_inputs(config.hidden_size);
    intermediate = kernels::padded_inputs(config.intermediate_size) / size;
    expert_intermediate = kernels::padded_inputs(config.expert_intermediate_size) / size;
    shared_intermediate = kernels::padded_inputs(config.shared_intermediate_size) / size;
    vocab = (config.vocab_size + size - 1) / size;
}

double read_share(const ExpertConfig& experts, std::int64_t rows) {
    const double chosen = static_cast<double>(experts.per_token) / static_cast<double>(experts.count);
    return 1.0 - std::pow(1.0 - chosen, static_cast<double>(rows));
}

std::int64_t TensorPart::present_rows() const {
    const std::int64_t after = end_row > 0 ? end_row : rows;
    return std::clamp<std::int64_t>((after - first_row + row_step - 1) / row_step, 0, num_rows);
}

std::int64_t TensorPart::first_present() const {
    return present_rows() > 0 ? first_row : 0;
}

std::int64_t TensorPart::end_present() const {
    return present_rows() > 0 ? first_row + (present_rows() - 1) * row_step + 1 : 0;
}

std::vector<std::int64_t> TensorPart::vector_shape() const {
    if (taps > 0) return {rows / taps, 1, taps};
    return stack.count > 0 ? std::vector{stack.count, rows} : std::vector{rows};
}

std::int64_t WeightPlan::num_rows() const {
    std::int64_t sum = 0;
    for (const TensorPart& part : parts) sum += part.num_outputs();
    return sum;
}

Matrix WeightPlan::geometry() const {
    return {.dtype = dtype,
            .num_outputs = num_rows(),
            .num_inputs = num_slices * slice_length,
            .num_slices = num_slices,
            .slice_length = slice_length,
            .gated = gated,
            .data = {}};
}

std::size_t WeightPlan::packed_bytes(const kernels::Device& device) const {
    return matrix != nullptr ? device.packed_bytes(geometry()) : static_cast<std::size_t>(num_rows()) * sizeof(float);
}

WeightPlan whole_matrix(const std::string& name, std::int64_t rows, std::int64_t columns, kernels::DType dtype,
                        kernels::Matrix& matrix) {
    WeightPlan plan;
    plan.name = name;
    plan.parts = {
        {.tensor = name + ".weight", .rows = rows, .columns = columns, .num_rows = rows, .num_columns = columns}};
    plan.matrix = &matrix;
    plan.dtype = dtype;
    plan.num_slices = kernels::num_slices;
    plan.slice_length = kernels::padded_inputs(columns) / kernels::num_slices;
    return plan;
}

WeightPlan whole_vector(const std::string& name, std::int64_t size, kernels::Buffer& vector) {
    WeightPlan plan;
    plan.name = name;
    plan.parts = {{.tensor = name + ".weight", .rows = size, .columns = 1, .num_rows = size, .num_columns = 1}};
    plan.vector = &vector;
    return plan;
}

std::vector<WeightPlan> plan_weights(const ModelConfig& config, const Split& split, WeightTypes types,
                                     Weights& weights) {
    return Planner(config, split, types, tensor_names(config)).plan(weights);
}

std::vector<WeightPlan> plan_layers(const ModelConfig& config, const Split& split, WeightTypes types,
                                    const TensorNames& names, std::int64_t first, std::span<LayerWeights> layers,
                                    std::int64_t input_width) {
    return Planner(config, split, types, names)
        .plan_layers(first, layers, input_width > 0 ? input_width : config.hidden_size);
}

}  // namespace longhaul::engine
