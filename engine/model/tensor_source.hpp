// Where weights come from: the tensors of a model folder, or random ones.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "engine/model/read_ahead.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/stored_matrix.hpp"
#include "engine/model/weight_plan.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

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
