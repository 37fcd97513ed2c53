// The weights of a decoder as one rank holds them (Megatron: algorithms.md section 7).
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/packed_file.hpp"
#include "engine/model/read_ahead.hpp"
#include "engine/model/safetensors.hpp"
#include "kernels/device.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {

/// A rank's part of every layer. Throws UsageError when the model cannot be split so.
struct Split {
    std::int64_t rank = 0, size = 1;
    std::int64_t num_heads = 0, first_head = 0;        ///< query heads
    std::int64_t num_kv_heads = 0, first_kv_head = 0;  ///< replicated where there are fewer than ranks
    bool writes_kv = true;                             ///< the lowest rank that holds its KV heads
    std::int64_t padded_hidden = 0;                    ///< inputs of column-parallel layers
    std::int64_t intermediate = 0;                     ///< of this rank, padded
    std::int64_t head_dim = 0;
    std::int64_t vocab = 0;  ///< rows of embedding and head on this rank, padding included

    Split(const ModelConfig& config, int rank, int size);

    [[nodiscard]] std::int64_t query_width() const { return num_heads * head_dim; }
    [[nodiscard]] std::int64_t kv_width() const { return num_kv_heads * head_dim; }
    /// Outputs of the matrix of queries, keys and values.
    [[nodiscard]] std::int64_t qkv_width() const { return query_width() + 2 * kv_width(); }
    /// Outputs of the first matrix of an MLP.
    [[nodiscard]] std::int64_t up_width(const LayerConfig& layer) const { return layer.num_up() * intermediate; }

    /// Why the model cannot be split over so many ranks; "" where it can.
    static std::string obstacle(const ModelConfig& config, std::int64_t size);
};

/// f32 [hidden]: RMS norm with a gain, or LayerNorm with gain and bias; a norm that the model does not have is empty.
struct Norm {
    kernels::Buffer gain, bias;
    float eps = 0;
};

struct LayerWeights {
    Norm attention_norm, mlp_norm;
    kernels::Matrix qkv;     // [(heads + 2 kv_heads) head_dim, hidden]
    kernels::Matrix output;  // [hidden, heads head_dim], row-parallel
    kernels::Matrix down;    // [hidden, intermediate], row-parallel
    // [2 intermediate, hidden]: gate rows, then up rows, for gated_matmul where there is no bias; without a gate
    // [intermediate, hidden]
    kernels::Matrix gate_up;
    kernels::Buffer qkv_bias, output_bias, gate_up_bias, down_bias;  // f32; empty where the model has none
};

struct Weights {
    kernels::Matrix embedding;    // [vocab, embedding], vocabulary-parallel
    kernels::Matrix head;         // the same; empty where it is tied to the embedding
    kernels::Matrix positions;    // [position_rows, hidden], whole on every rank; empty where none are learned
    kernels::Matrix project_in;   // [hidden, embedding], whole on every rank; empty where the two are equal
    kernels::Matrix project_out;  // [embedding, hidden], likewise
    Norm final_norm;
    std::vector<LayerWeights> layers;

    [[nodiscard]] const kernels::Matrix& head_or_embedding() const { return head.data ? head : embedding; }
    [[nodiscard]] std::int64_t resident_bytes() const;
    /// Read by one decode step: everything but tables of which it takes a row, an untied embedding and positions.
    [[nodiscard]] std::int64_t streamed_bytes() const;
};

/// What matrices are packed as: those of the layers, and embedding and head.
struct WeightTypes {
    kernels::DType layers = kernels::DType::bf16;
    kernels::DType tables = kernels::DType::bf16;
};

/// Rows and columns that a rank takes of a tensor of the checkpoint; rows beyond its last are zeros (padding).
struct TensorPart {
    std::string tensor;
    std::int64_t rows = 0, columns = 0;  ///< of the whole tensor
    std::int64_t first_row = 0, num_rows = 0;
    std::int64_t first_column = 0, num_columns = 0;

    /// Rows that the tensor has.
    [[nodiscard]] std::int64_t present_rows() const;
};

struct TensorNames;

/// How one matrix or vector of a rank is made: stacked parts of tensors.
struct WeightPlan {
    std::string name;  ///< "layers.3.qkv"
    std::vector<TensorPart> parts;
    kernels::Matrix* matrix = nullptr;  ///< what it becomes: this, of `dtype`, `num_slices` and `slice_length`,
    kernels::Buffer* vector = nullptr;  ///< or this, f32 [rows of the parts]; their tensors have one dimension
    kernels::DType dtype = kernels::DType::bf16;
    int num_slices = 0;
    std::int64_t slice_length = 0;
    bool gated = false;  ///< gates and ups of a gated product

    [[nodiscard]] std::int64_t num_rows() const;
    /// The matrix it becomes, without its data.
    [[nodiscard]] kernels::Matrix geometry() const;
    /// Of the matrix as `device` packs it, or of the vector.
    [[nodiscard]] std::size_t packed_bytes(const kernels::Device& device) const;
};

/// Everything a rank holds, in the order of loading. `weights` gets its layers and is pointed to by the plans.
std::vector<WeightPlan> plan_weights(const ModelConfig& config, const Split& split, WeightTypes types,
                                     Weights& weights);

/// The same of layers alone, as many as `layers` has, the first of which is number `first` of the checkpoint, under the
/// names `names`. `input_width`: inputs of the matrix of queries, keys and values; 0: hidden_size.
std::vector<WeightPlan> plan_layers(const ModelConfig& config, const Split& split, WeightTypes types,
                                    const TensorNames& names, std::int64_t first, std::span<LayerWeights> layers,
                                    std::int64_t input_width = 0);

/// Where tensors come from: a folder, or a generator of random ones.
class TensorSource {
  public:
    virtual ~TensorSource() = default;
    /// What will be asked for, in this order.
    virtual void announce(const std::vector<WeightPlan>&) {}
    /// The rows and columns of `part` that the tensor has; valid until `done`. Throws InputError when it is missing or
    /// of another shape.
    virtual kernels::WeightRows matrix(const TensorPart& part) = 0;
    /// The same of a tensor of one dimension.
    virtual std::vector<float> vector(const TensorPart& part) = 0;
    /// All tensors given out were packed: their memory may go.
    virtual void done() {}
};

/// Fills what the plans point to.
void load_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source);

/// Packs one thing after the other into `file`, holding one at a time.
void write_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source,
                   PackedFileWriter& file);

/// Fills what the plans point to from `file`, which must outlive it. Throws PackedFileError where it does not fit.
void adopt_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, const PackedFile& file);

/// Reads from a model folder; what was packed leaves this process's memory.
class FolderSource final : public TensorSource {
  public:
    explicit FolderSource(const SafetensorsFolder& folder);
    ~FolderSource() override;
    void announce(const std::vector<WeightPlan>& plans) override;
    kernels::WeightRows matrix(const TensorPart& part) override;
    std::vector<float> vector(const TensorPart& part) override;

    /// Tensors among those read that hold NaN or infinity.
    [[nodiscard]] std::vector<std::string> bad_tensors() const;

  private:
    class Listener;
    [[nodiscard]] kernels::WeightRows rows_of(const TensorPart& part) const;

    const SafetensorsFolder& folder_;
    std::unique_ptr<ReadAhead> ahead_;
    std::deque<Listener> listeners_;  ///< one a matrix() call
};

/// Small random bf16 weights, a function of the seed and the tensor's name; vectors are ones.
class RandomSource final : public TensorSource {
  public:
    explicit RandomSource(std::uint64_t seed) : seed_(seed) {}
    kernels::WeightRows matrix(const TensorPart& part) override;
    std::vector<float> vector(const TensorPart& part) override;
    void done() override { held_.clear(); }

  private:
    std::uint64_t seed_;
    std::vector<std::vector<std::uint16_t>> held_;
};

}  // namespace longhaul::engine
