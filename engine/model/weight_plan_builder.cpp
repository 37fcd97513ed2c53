#include "engine/model/weight_plan_builder.hpp"

#include <algorithm>

namespace longhaul::engine {

using kernels::Buffer;
using kernels::DType;
using kernels::Matrix;

WeightPlan& PlanBuilder::vector(std::string name, Buffer& to, std::vector<TensorPart> parts) {
    WeightPlan& plan = plans_.emplace_back();
    plan.name = std::move(name);
    plan.parts = std::move(parts);
    plan.vector = &to;
    return plan;
}

WeightPlan& PlanBuilder::matrix(std::string name, Matrix& to, DType dtype, std::vector<TensorPart> parts,
                                int num_slices, std::int64_t slice_length) {
    WeightPlan& plan = plans_.emplace_back();
    plan.name = std::move(name);
    plan.parts = std::move(parts);
    plan.matrix = &to;
    plan.dtype = dtype;
    plan.num_slices = num_slices;
    plan.slice_length = slice_length;
    return plan;
}

WeightPlan& PlanBuilder::column_parallel(std::string name, Matrix& to, DType dtype, std::vector<TensorPart> parts) {
    const std::int64_t inputs = kernels::padded_inputs(parts.front().columns);
    return matrix(std::move(name), to, dtype, std::move(parts), kernels::num_slices, inputs / kernels::num_slices);
}

WeightPlan& PlanBuilder::row_parallel(std::string name, Matrix& to, std::string tensor, std::int64_t inputs,
                                      std::int64_t local_inputs, std::int64_t outputs) {
    if (outputs == 0) outputs = config.hidden_size;
    TensorPart part = rows_of(std::move(tensor), outputs, inputs, 0, outputs);
    part.first_column = std::min(split.rank * local_inputs, inputs);  // the last rank may hold only padding
    part.num_columns = std::min(local_inputs, inputs - part.first_column);
    return matrix(std::move(name), to, types.layers, {std::move(part)},
                  kernels::num_slices / static_cast<int>(split.size),
                  kernels::padded_inputs(inputs) / kernels::num_slices);
}

WeightPlan& PlanBuilder::replicated(std::string name, Matrix& to, DType dtype, const std::string& tensor,
                                    std::int64_t outputs, std::int64_t inputs) {
    return column_parallel(std::move(name), to, dtype, {rows_of(tensor + ".weight", outputs, inputs, 0, outputs)});
}

WeightPlan& PlanBuilder::of_head(std::string name, Matrix& to, TensorPart part, std::int64_t inputs) {
    return matrix(std::move(name), to, kernels::act_type(types.layers), {std::move(part)}, kernels::num_slices,
                  kernels::padded_inputs(inputs) / kernels::num_slices);
}

void PlanBuilder::norm(const std::string& name, Norm& to, const std::string& tensor, NormKind kind) {
    to.eps = static_cast<float>(config.norm_eps);
    vector(name, to.gain, {whole(tensor + ".weight", config.hidden_size)}).offset =
        config.files.norm_adds_one ? 1.0F : 0.0F;
    if (kind == NormKind::layer) vector(name + "_bias", to.bias, {whole(tensor + ".bias", config.hidden_size)});
    if (kind == NormKind::layer_without_bias)  // zeros
        vector(name + "_bias", to.bias, {whole(tensor + ".weight", config.hidden_size)}).scale = 0.0F;
}

}  // namespace longhaul::engine
