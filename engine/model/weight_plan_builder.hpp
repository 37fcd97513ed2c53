// Builds weight plans: how the rows and columns of tensors are divided between ranks. The plans of a layer's attention
// and of its MLP have a file each (weight_plan_attention.cpp, weight_plan_mlp.cpp). Used by weight_plan.cpp alone.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/split.hpp"
#include "engine/model/tensor_names.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {

/// Collects the plans of a rank in loading order.
class PlanBuilder {
  public:
    PlanBuilder(const ModelConfig& config, const Split& split, WeightTypes types, const TensorNames& names)
        : config(config), split(split), types(types), names(names) {}

    const ModelConfig& config;
    const Split& split;
    const WeightTypes types;
    const TensorNames& names;

    /// Each adds a plan, which stays where it is until the next one. `name`: of the plan.
    WeightPlan& vector(std::string name, kernels::Buffer& to, std::vector<TensorPart> parts);
    WeightPlan& column_parallel(std::string name, kernels::Matrix& to, kernels::DType dtype,
                                std::vector<TensorPart> parts);
    /// This rank sums its own slices; the all-reduce adds those of the other ranks. `inputs`: of the whole model;
    /// `local_inputs`: of each rank; `outputs`: 0: hidden_size.
    WeightPlan& row_parallel(std::string name, kernels::Matrix& to, std::string tensor, std::int64_t inputs,
                             std::int64_t local_inputs, std::int64_t outputs = 0);
    /// A whole matrix replicated on every rank. `tensor`: without ".weight".
    WeightPlan& replicated(std::string name, kernels::Matrix& to, kernels::DType dtype, const std::string& tensor,
                           std::int64_t outputs, std::int64_t inputs);
    /// The matrix of one head, whose slices are all on this rank.
    WeightPlan& of_head(std::string name, kernels::Matrix& to, TensorPart part, std::int64_t inputs);
    /// Of hidden states. `tensor`: without ".weight" and ".bias".
    void norm(const std::string& name, Norm& to, const std::string& tensor, NormKind kind);

    /// Plans added so far.
    [[nodiscard]] std::vector<WeightPlan>& plans() { return plans_; }
    [[nodiscard]] std::vector<WeightPlan> take() { return std::move(plans_); }

  private:
    WeightPlan& matrix(std::string name, kernels::Matrix& to, kernels::DType dtype, std::vector<TensorPart> parts,
                       int num_slices, std::int64_t slice_length);

    std::vector<WeightPlan> plans_;
};

/// `count` rows from `first` of a tensor of the shape [rows, columns].
inline TensorPart rows_of(std::string tensor, std::int64_t rows, std::int64_t columns, std::int64_t first,
                          std::int64_t count) {
    return {.tensor = std::move(tensor),
            .rows = rows,
            .columns = columns,
            .first_row = first,
            .num_rows = count,
            .first_column = 0,
            .num_columns = columns};
}
inline TensorPart whole(std::string tensor, std::int64_t size) {
    return rows_of(std::move(tensor), size, 1, 0, size);
}

/// A layer whose weights are planned.
struct PlannedLayer {
    const LayerConfig& kind;
    std::string from;      ///< prefix of its tensors
    std::string mlp_from;  ///< of those of the MLP and its norms
    std::string name;      ///< prefix of its plans
    std::int64_t input_width;
    LayerWeights& weights;
};

/// Norms of heads, projections and the output projection; then what is added to projections and scores.
void plan_attention(PlanBuilder& plans, const PlannedLayer& layer);
void plan_attention_vectors(PlanBuilder& plans, const PlannedLayer& layer);

/// The MLP, or the experts and the shared one.
void plan_mlp(PlanBuilder& plans, const PlannedLayer& layer);

}  // namespace longhaul::engine
