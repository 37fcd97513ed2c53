// Weight plan: which parts of which tensors form each matrix and vector of a rank. Used for loading, checks and the
// memory plan.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/split.hpp"
#include "engine/model/stored_matrix.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// Types that matrices are packed as: those of the layers, and the tables (embedding and head).
struct WeightTypes {
    kernels::DType layers = kernels::DType::bf16;
    kernels::DType tables = kernels::DType::bf16;
};

/// Rows and columns that a rank takes from a tensor of the checkpoint. Rows beyond the last one are zeros (padding).
struct TensorPart {
    std::string tensor;
    std::int64_t rows = 0, columns = 0;  ///< shape of the whole tensor, or of one matrix of a stack
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_column = 0, num_columns = 0;
    std::int64_t end_row = 0;   ///< rows from here on are another matrix of the tensor; 0: all rows are one matrix
    std::int64_t row_step = 1;  ///< 2: two kinds of rows alternate, and these are the ones or the others
    bool transposed = false;    ///< its columns are the rows of the matrix
    std::int64_t taps = 0;      ///< of a convolution's filter, whose `rows` numbers are [rows / taps, 1, taps]; 0: none
    StackPlace stack{};         ///< which of several matrices (or vectors) of this shape in the tensor

    /// Rows of the matrix that it gives.
    [[nodiscard]] std::int64_t num_outputs() const { return transposed ? num_columns : num_rows; }
    /// Number of its rows that exist in the tensor (without padding).
    [[nodiscard]] std::int64_t present_rows() const;
    /// The rows of the tensor that they are within: the first, and the one after the last.
    [[nodiscard]] std::int64_t first_present() const;
    [[nodiscard]] std::int64_t end_present() const;
    /// Shape of the tensor if it is no matrix.
    [[nodiscard]] std::vector<std::int64_t> vector_shape() const;
};

struct TensorNames;

/// How one matrix or vector of a rank is built: stacked parts of tensors. Exactly one of `matrix` and `vector` is set.
struct WeightPlan {
    std::string name;  ///< "layers.3.qkv"
    std::vector<TensorPart> parts;
    kernels::Matrix* matrix = nullptr;  ///< destination matrix, of `dtype`, `num_slices` and `slice_length`
    kernels::Buffer* vector = nullptr;  ///< destination vector, f32 [rows of the parts]; the tensors have one dimension
    float offset = 0.0F, scale = 1.0F;  ///< of a vector's elements: (x + offset) * scale
    kernels::DType dtype = kernels::DType::bf16;
    int num_slices = 0;
    std::int64_t slice_length = 0;
    bool gated = false;                 ///< gate and up rows for gated_matmul
    ExpertConfig of_experts{};          ///< the experts of which it is a part; count = 0: of none
    LayerWeights* completes = nullptr;  ///< layer whose experts are all there once this plan is filled

    [[nodiscard]] std::int64_t num_rows() const;
    /// The matrix it produces, without data.
    [[nodiscard]] kernels::Matrix geometry() const;
    /// Bytes of the matrix as `device` packs it, or of the vector.
    [[nodiscard]] std::size_t packed_bytes(const kernels::Device& device) const;
};

/// Plans of a matrix, and a vector, that every rank holds whole. The tensor is "NAME.weight".
WeightPlan whole_matrix(const std::string& name, std::int64_t rows, std::int64_t columns, kernels::DType dtype,
                        kernels::Matrix& matrix);
WeightPlan whole_vector(const std::string& name, std::int64_t size, kernels::Buffer& vector);

/// Plans of all weights of a rank, in loading order. Resizes weights.layers; the plans point into `weights`.
std::vector<WeightPlan> plan_weights(const ModelConfig& config, const Split& split, WeightTypes types,
                                     Weights& weights);

/// The same for layers only: `layers.size()` layers starting at number `first` of the checkpoint, with tensor names
/// `names`. `input_width`: inputs of the QKV matrix; 0: hidden_size.
std::vector<WeightPlan> plan_layers(const ModelConfig& config, const Split& split, WeightTypes types,
                                    const TensorNames& names, std::int64_t first, std::span<LayerWeights> layers,
                                    std::int64_t input_width = 0);

}  // namespace longhaul::engine
