// The weights of a Llama-architecture decoder as one rank holds them (Megatron: algorithms.md section 7).
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
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
    std::int64_t vocab = 0;                            ///< rows of embedding and head on this rank, padding included

    Split(const ModelConfig& config, int rank, int size);
};

struct LayerWeights {
    kernels::Buffer attention_norm, mlp_norm;  // f32 [hidden]
    kernels::Matrix qkv;                       // [(heads + 2 kv_heads) head_dim, hidden]
    kernels::Matrix output;                    // [hidden, heads head_dim], row-parallel
    kernels::Matrix gate_up;                   // [2 intermediate, hidden]: gate rows, then up rows
    kernels::Matrix down;                      // [hidden, intermediate], row-parallel
    kernels::Buffer qkv_bias, output_bias, gate_up_bias, down_bias;  // f32; empty where the model has none
};

struct Weights {
    kernels::Matrix embedding;  // [vocab, hidden], vocabulary-parallel
    kernels::Matrix head;       // the same; empty where it is tied to the embedding
    kernels::Buffer final_norm;
    std::vector<LayerWeights> layers;

    [[nodiscard]] const kernels::Matrix& head_or_embedding() const { return head.data ? head : embedding; }
    [[nodiscard]] std::int64_t resident_bytes() const;
    /// Read by one decode step: everything but an untied embedding.
    [[nodiscard]] std::int64_t streamed_bytes() const;
};

/// Where tensors come from: a folder, or a generator of random ones.
class TensorSource {
  public:
    virtual ~TensorSource() = default;
    /// The whole tensor; valid until `done`. Throws InputError when it is missing or of another shape.
    virtual kernels::WeightRows matrix(const std::string& name, std::int64_t rows, std::int64_t columns) = 0;
    virtual std::vector<float> vector(const std::string& name, std::int64_t size) = 0;
    /// The tensor was packed: its memory may go.
    virtual void done(const std::string& name) = 0;
};

/// What matrices are packed as: those of the layers, and embedding and head.
struct WeightTypes {
    kernels::DType layers = kernels::DType::bf16;
    kernels::DType tables = kernels::DType::bf16;
};

Weights load_weights(const ModelConfig& config, const Split& split, WeightTypes types, kernels::Device& device,
                     TensorSource& source);

/// Reads from a model folder. `notices` collects what a user should know (NaN weights).
class FolderSource final : public TensorSource {
  public:
    FolderSource(const SafetensorsFolder& folder, std::vector<std::string>& notices)
        : folder_(folder), notices_(notices) {}
    kernels::WeightRows matrix(const std::string& name, std::int64_t rows, std::int64_t columns) override;
    std::vector<float> vector(const std::string& name, std::int64_t size) override;
    void done(const std::string& name) override;

  private:
    void warn_about_nan(const TensorView& view, const std::string& name);
    const SafetensorsFolder& folder_;
    std::vector<std::string>& notices_;
};

/// Small random bf16 weights, a function of the seed and the tensor's name; norms are ones.
class RandomSource final : public TensorSource {
  public:
    explicit RandomSource(std::uint64_t seed) : seed_(seed) {}
    kernels::WeightRows matrix(const std::string& name, std::int64_t rows, std::int64_t columns) override;
    std::vector<float> vector(const std::string& name, std::int64_t size) override;
    void done(const std::string& name) override;

  private:
    std::uint64_t seed_;
    std::vector<std::vector<std::uint16_t>> held_;
};

}  // namespace longhaul::engine
