// Weights of a decoder on one rank under tensor parallelism as in Megatron (algorithms.md section 7), and the plans and
// sources that fill them. Used by model_loading.cpp and draft heads.
#pragma once

#include <algorithm>
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
#include "engine/model/stored_matrix.hpp"
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
        if (layer.experts.count == 0) return layer.num_up() * mlp_width(layer);
        return layer.num_up() * std::max(expert_intermediate, shared_intermediate);
    }

    /// Reason why the model cannot be split over `size` ranks; "" if it can.
    static std::string obstacle(const ModelConfig& config, std::int64_t size);
};

/// f32 [hidden]: RMS norm with gain, or LayerNorm with gain and bias. Empty if the model does not have this norm.
struct Norm {
    kernels::Buffer gain, bias;
    float eps = 0;
};

/// Every rank has its part of each expert's MLP, so a rank's work does not depend on which experts are chosen.
struct Expert {
    kernels::Matrix gate_up;  // [2 expert_intermediate, hidden]
    kernels::Matrix down;     // [hidden, expert_intermediate], row-parallel
};

/// Projections of latent attention (LatentConfig). Those to the latents are on every rank. Those of heads are not
/// quantized: a head's matrix has too few inputs.
struct LatentWeights {
    kernels::Matrix query_down;  // [query_rank, hidden]; empty if there is no latent of queries
    kernels::Matrix kv_down;     // [kv_rank, hidden]
    kernels::Matrix key_rope;    // [rope_dim, hidden]; as of queries, the first of all rotated pairs come first
    Norm query_norm, kv_norm;
    kernels::Matrix query_up;               // [heads query_dim, query_rank or hidden]
    std::vector<kernels::Matrix> key_up;    // of each head: [kv_rank, nope_dim]
    std::vector<kernels::Matrix> value_up;  // of each head: [value_dim, kv_rank]
};

/// Linear attention (LinearAttentionConfig). Each key head has its rows side by side, in the order of DeltaShape.
struct LinearWeights {
    kernels::Matrix inputs;  // [key heads channels + value heads value_dim, hidden]: convolution inputs, output gates
    kernels::Matrix gates;   // [2 value heads, hidden]: rates, then steps; not quantized
    kernels::Buffer filter;  // f32 [key heads, taps, channels]
    kernels::Buffer log_rate, step_bias;  // f32 [value heads]
    Norm norm;                            // gain f32 [value_dim], of every value head's output
};

struct LayerWeights {
    Norm attention_norm, mlp_norm;
    Norm attention_out_norm, mlp_out_norm;  // on the outputs of the two blocks; empty if the model has none
    // Gains f32 [head_dim], with LayerConfig::whole_norm [heads head_dim] and [kv_heads head_dim], in the order of the
    // heads' dimensions; likewise.
    Norm query_norm, key_norm;
    // [(heads + 2 kv_heads) head_dim, hidden]. If only a part of a head is rotated, the rotated dimensions of q and k
    // come first in each half of the head. LayerConfig::shares_kv: the rows of the queries alone.
    kernels::Matrix qkv;
    kernels::Matrix output_gate;  // [heads head_dim, hidden]; LayerConfig::output_gate
    LatentWeights latent;         // with latent attention, instead of qkv
    LinearWeights linear;         // with linear attention, likewise
    kernels::Matrix output;       // [hidden, heads value_dim], row-parallel
    kernels::Matrix down;         // [hidden, intermediate], row-parallel
    // [2 intermediate, hidden]: gate rows, then up rows; packed for gated_matmul if there is no bias. Without a gate:
    // [intermediate, hidden].
    kernels::Matrix gate_up;
    kernels::Buffer qkv_bias, output_bias, gate_up_bias, down_bias;  // f32; empty if the model has none
    kernels::Buffer sinks;                                           // f32 [heads]; empty if the model has none
    // If the layer has experts, gate_up and down are those of the shared expert, or empty. The experts' biases are f32
    // [experts, outputs]; the score correction, f32 [experts], is that of RouterScore::sigmoid; empty if the model has
    // none.
    kernels::Matrix router;  // [experts, hidden], replicated
    kernels::Buffer router_bias, score_correction, experts_up_bias, experts_down_bias;
    // With ExpertConfig::own_norms. The router's gain includes hidden^-1/2; expert_scales: f32 [experts].
    Norm router_norm, expert_norm, expert_out_norm, shared_out_norm;
    kernels::Buffer expert_scales;
    kernels::Buffer output_scale;  // f32 [1]; empty if the model has none
    // With embeddings per layer: [layer_embedding_size, hidden] and [hidden, layer_embedding_size], replicated.
    kernels::Matrix embedding_gate, embedding_output;
    Norm embedding_out_norm;
    std::vector<Expert> experts;
    kernels::Buffer expert_memory;  // where all of them are, if the device has its own memory (place_experts)
};

/// Part of the experts of a layer that a pass of `rows` rows reads, if the router chooses all equally often.
double read_share(const ExpertConfig& experts, std::int64_t rows);

struct Weights {
    kernels::Matrix embedding;    // [vocab, embedding], vocabulary-parallel
    kernels::Matrix head;         // the same; empty if tied to the embedding
    kernels::Matrix positions;    // [position_rows, hidden], replicated; empty if the model has no learned positions
    kernels::Matrix project_in;   // [hidden, embedding], replicated; empty if the two are equal
    kernels::Matrix project_out;  // [embedding, hidden], likewise
    // Embeddings per layer, those of all layers side by side; empty if the model has none.
    kernels::Matrix layer_embedding;   // [vocab, layer_embeddings_width], vocabulary-parallel
    kernels::Matrix layer_projection;  // [layer_embeddings_width, hidden], replicated
    Norm layer_projection_norm;        // gain f32 [layer_embedding_size]
    Norm final_norm;
    std::vector<LayerWeights> layers;

    [[nodiscard]] const kernels::Matrix& head_or_embedding() const { return head.data ? head : embedding; }
    [[nodiscard]] std::int64_t resident_bytes() const;
    /// Bytes read by a pass of `rows` rows: everything except tables of which only single rows are read (an untied
    /// embedding, positions, embeddings per layer), and except experts that are not chosen (read_share).
    [[nodiscard]] std::int64_t streamed_bytes(const ModelConfig& config, std::int64_t rows) const;
};

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

/// Source of tensors: a model folder, or a generator of random values.
class TensorSource {
  public:
    virtual ~TensorSource() = default;
    /// Announces the plans that will be read, in order, so that the source can prefetch.
    virtual void announce(const std::vector<WeightPlan>&) {}
    /// The rows and columns of `part` that exist in the tensor; valid until `done`. Throws InputError if the tensor is
    /// missing or has another shape.
    virtual kernels::WeightRows matrix(const TensorPart& part) = 0;
    /// The same for a vector.
    virtual std::vector<float> vector(const TensorPart& part) = 0;
    /// All tensors returned so far have been packed; their memory may be released.
    virtual void done() {}
};

/// Called when the destination of `plan` is filled. A device's own memory is allocated in granules of megabytes, of
/// which each expert's small matrices would waste a part: once all experts of a layer are there, they move into one
/// buffer.
void place_experts(const WeightPlan& plan, kernels::Device& device);

/// Packs the weights of `source` into the plans' destinations.
void load_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source);

/// Packs the matrices and vectors one after another into `file`, holding only one in memory at a time.
void write_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, TensorSource& source,
                   PackedFileWriter& file);

/// Fills the plans' destinations from `file`, which must outlive them. Throws PackedFileError if it does not fit.
void adopt_weights(const std::vector<WeightPlan>& plans, kernels::Device& device, const PackedFile& file);

class Adapter;  // engine/model/adapter.hpp

/// Reads from a model folder, with prefetch, and merges the adapter, if there is one, into its matrices. Drops pages
/// from this process's memory once their data has been packed.
class FolderSource final : public TensorSource {
  public:
    explicit FolderSource(const SafetensorsFolder& folder, const Adapter* adapter = nullptr);
    ~FolderSource() override;
    void announce(const std::vector<WeightPlan>& plans) override;
    kernels::WeightRows matrix(const TensorPart& part) override;
    std::vector<float> vector(const TensorPart& part) override;
    void done() override { num_converted_ = 0; }

    /// Names of tensors read so far that contain NaN or infinity.
    [[nodiscard]] std::vector<std::string> bad_tensors() const;

  private:
    class Listener;
    [[nodiscard]] bool is_merged(const TensorPart& part) const;
    kernels::WeightRows converted(const TensorPart& part, const MatrixView& view);
    float* converted_memory(std::size_t size);
    kernels::WeightRows transposed(const TensorPart& part);

    const SafetensorsFolder& folder_;
    const Adapter* adapter_;
    std::unique_ptr<ReadAhead> ahead_;
    std::deque<Listener> listeners_;  ///< one per matrix() or vector() call
    /// Matrices that are not stored as floats, or merged, until `done`. Their memory is used again: to get new pages
    /// from the system took as long as all else.
    struct Converted {
        std::unique_ptr<float[]> values;
        std::size_t size = 0;
    };
    std::vector<Converted> converted_;
    std::size_t num_converted_ = 0;
};

/// Small random bf16 weights, determined by the seed and the tensor's name. Gains of norms are ones; biases and sinks
/// are zeros: biases would make all rows alike, so that they share experts.
class RandomSource final : public TensorSource {
  public:
    explicit RandomSource(std::uint64_t seed) : seed_(seed) {}
    kernels::WeightRows matrix(const TensorPart& part) override;
    std::vector<float> vector(const TensorPart& part) override;
    void done() override { held_.clear(); }

  private:
    std::uint64_t seed_;
    std::vector<std::unique_ptr<std::uint16_t[]>> held_;
};

}  // namespace longhaul::engine
