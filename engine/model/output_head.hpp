// Output head: last part of a forward pass. Turns rows of the residual stream into logits.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/model/compute_context.hpp"
#include "engine/model/logits.hpp"
#include "engine/model/split.hpp"
#include "engine/parallel/group.hpp"

namespace longhaul::engine {

class OutputHead {
  public:
    /// The caller keeps all arguments alive.
    OutputHead(ComputeContext& context, Group& group, const ModelConfig& config, const Split& split,
               const Weights& weights);

    /// Logits of the rows x, f32 [num_rows, hidden], normed by `norm` (not normed if it is empty), over the whole
    /// vocabulary on every rank. Collective. Waits for the device.
    Logits logits(const float* x, std::int64_t num_rows, const Norm& norm);

  private:
    const std::byte* input_of(const float* x, std::int64_t num_rows, const Norm& norm);
    Logits of_one_rank(PooledBuffer local, std::int64_t num_rows);
    Logits of_all_ranks(float* local, std::int64_t num_rows);
    Logits gathered_on_host(const float* local, std::int64_t num_rows);
    [[nodiscard]] PooledStaging download(const float* from, std::int64_t count);

    ComputeContext& context_;
    Group& group_;
    const ModelConfig& config_;
    const Split& split_;
    const Weights& weights_;
    bool host_memory_;  ///< the device computes in host memory
    PooledBuffer::Pool buffers_;
    PooledStaging::Pool stagings_;
    Scratch local_, gathered_;  ///< with several ranks: logits of this rank's vocabulary part, and of all parts
    std::vector<float> parts_;  ///< all parts, on the host
    std::vector<std::int32_t> part_rows_;
};

}  // namespace longhaul::engine
