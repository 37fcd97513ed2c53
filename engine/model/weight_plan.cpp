#include "engine/model/weight_plan.hpp"

#include <algorithm>
#include <utility>

#include "engine/model/weight_plan_builder.hpp"

namespace longhaul::engine {
namespace {

using kernels::Matrix;

/// The rows of this rank's tokens.
TensorPart vocabulary(const PlanBuilder& plans, const std::string& tensor, std::int64_t columns) {
    const Split& split = plans.split;
    return rows_of(tensor + ".weight", plans.config.vocab_size, columns, split.rank * split.vocab, split.vocab);
}

/// ModelConfig::layer_embedding_size.
void plan_layer_embeddings(PlanBuilder& plans, Weights& weights) {
    const std::int64_t width = plans.config.layer_embeddings_width();
    plans.column_parallel("layer_embedding", weights.layer_embedding, plans.types.tables,
                          {vocabulary(plans, plans.names.layer_embedding, width)});
    plans.replicated("layer_projection", weights.layer_projection, plans.types.layers, plans.names.layer_projection,
                     width, plans.config.hidden_size);
    weights.layer_projection_norm.eps = static_cast<float>(plans.config.norm_eps);
    plans.vector("layer_projection_norm", weights.layer_projection_norm.gain,
                 {whole(plans.names.layer_projection_norm + ".weight", plans.config.layer_embedding_size)});
}

/// What is before the layers.
void plan_embedding(PlanBuilder& plans, Weights& weights) {
    const ModelConfig& config = plans.config;
    const std::int64_t width = config.embedding_width(), hidden = config.hidden_size;
    plans.column_parallel("embedding", weights.embedding, plans.types.tables,
                          {vocabulary(plans, plans.names.embedding, width)});
    if (config.learned_positions)
        plans.replicated("positions", weights.positions, kernels::act_type(plans.types.layers), plans.names.positions,
                         config.position_rows(), hidden);
    if (width != hidden) {
        plans.replicated("project_in", weights.project_in, plans.types.layers, plans.names.project_in, hidden, width);
        plans.replicated("project_out", weights.project_out, plans.types.layers, plans.names.project_out, width,
                         hidden);
    }
    if (config.layer_embedding_size > 0) plan_layer_embeddings(plans, weights);
}

void plan_norms(PlanBuilder& plans, const PlannedLayer& layer) {
    LayerWeights& w = layer.weights;
    const auto norm = [&](const char* name, Norm& to, const std::string& tensor) {
        plans.norm(layer.name + name, to, tensor, layer.kind.norm);
    };
    const TensorNames& names = plans.names;
    if (!names.attention_norm.empty()) norm("attention_norm", w.attention_norm, layer.from + names.attention_norm);
    if (!names.mlp_norm.empty() && layer.kind.has_mlp) norm("mlp_norm", w.mlp_norm, layer.mlp_from + names.mlp_norm);
    if (!layer.kind.norms_outputs()) return;
    norm("attention_out_norm", w.attention_out_norm, layer.from + names.attention_out_norm);
    norm("mlp_out_norm", w.mlp_out_norm, layer.mlp_from + names.mlp_out_norm);
}

/// What adds a layer's own embedding to its output.
void plan_embedding_gate(PlanBuilder& plans, const PlannedLayer& layer) {
    LayerWeights& w = layer.weights;
    const std::int64_t width = plans.config.layer_embedding_size, hidden = plans.config.hidden_size;
    plans.replicated(layer.name + "embedding_gate", w.embedding_gate, plans.types.layers,
                     layer.from + plans.names.embedding_gate, width, hidden);
    plans.replicated(layer.name + "embedding_output", w.embedding_output, plans.types.layers,
                     layer.from + plans.names.embedding_output, hidden, width);
    plans.norm(layer.name + "embedding_out_norm", w.embedding_out_norm, layer.from + plans.names.embedding_out_norm,
               layer.kind.norm);
}

void plan_layer(PlanBuilder& plans, const PlannedLayer& layer) {
    plan_norms(plans, layer);
    plan_attention(plans, layer);
    plan_mlp(plans, layer);
    if (plans.config.layer_embedding_size > 0) plan_embedding_gate(plans, layer);
    plan_attention_vectors(plans, layer);
    if (layer.kind.output_scale)
        plans.vector(layer.name + "output_scale", layer.weights.output_scale,
                     {whole(layer.from + plans.names.output_scale, 1)});
}

void plan_layers(PlanBuilder& plans, std::int64_t first, std::span<LayerWeights> layers, std::int64_t input_width) {
    for (LayerWeights& weights : layers) {
        const LayerConfig& kind = plans.config.layer(first);
        const std::size_t first_plan = plans.plans().size();
        plan_layer(plans, {.kind = kind,
                           .from = plans.names.attention_prefix(kind, first),
                           .mlp_from = plans.names.mlp_prefix(kind, first),
                           .name = "layers." + std::to_string(first) + ".",
                           .input_width = input_width,
                           .weights = weights});
        for (std::size_t i = first_plan; i < plans.plans().size() && plans.config.files.by_columns; ++i) {
            WeightPlan& plan = plans.plans()[i];
            for (TensorPart& part : plan.parts) part.stack.by_columns = plan.matrix != nullptr;
        }
        ++first;
    }
}

}  // namespace

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
    PlanBuilder plans(config, split, types, tensor_names(config));
    plan_embedding(plans, weights);
    weights.layers.resize(config.num_layers);
    plan_layers(plans, 0, weights.layers, config.hidden_size);
    if (config.has_final_norm())
        plans.norm("final_norm", weights.final_norm, plans.names.final_norm, config.layers.back().norm);
    if (!config.tied_embeddings)
        plans.column_parallel("head", weights.head, types.tables,
                              {vocabulary(plans, plans.names.head, config.embedding_width())});
    if (config.head_bias)
        plans.vector(
            "head_bias", weights.head_bias,
            {rows_of(plans.names.head + ".bias", config.vocab_size, 1, split.rank * split.vocab, split.vocab)});
    return plans.take();
}

std::vector<WeightPlan> plan_layers(const ModelConfig& config, const Split& split, WeightTypes types,
                                    const TensorNames& names, std::int64_t first, std::span<LayerWeights> layers,
                                    std::int64_t input_width) {
    PlanBuilder plans(config, split, types, names);
    plan_layers(plans, first, layers, input_width > 0 ? input_width : config.hidden_size);
    return plans.take();
}

}  // namespace longhaul::engine
