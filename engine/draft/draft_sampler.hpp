// Where the tokens of drafts are drawn: for rows of a drafter's logits, the distributions that its trees draw from. A
// device that chooses tokens draws them where the logits are, and only the drawn ones come to the host; else the host's
// pipeline gives whole distributions. Trees are the same either way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/logits.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/params.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {

/// Distributions of drafts that a device keeps for the verifier (kernels::KeptDistribution) are so many per piece of
/// memory; of a batch, no more than its trees have nodes.
constexpr std::int64_t kept_per_slab = 16;

/// One row of logits: what follows a node of a tree.
struct DraftRow {
    NodeContext context;      ///< for the penalty
    SamplingParams sampling;  ///< temperature above 0
    Noise noise;
    std::int64_t position = 0;             ///< absolute, of the tokens that are drawn
    std::int32_t node = 0;                 ///< their parent
    std::span<const std::uint32_t> lanes;  ///< that draw, each with noise of its own
    std::int64_t num_draws = 0;            ///< tokens that each lane draws; 0: the whole distribution is needed
    bool with_q = true;                    ///< whether probabilities are wanted
};

class DraftSampler {
  public:
    /// `vocab_size`: of the logits, the first tokens, which alone are drafted.
    DraftSampler(kernels::Device& device, std::int64_t vocab_size)
        : device_(device), vocab_size_(vocab_size), pipeline_({}, vocab_size) {}

    /// Row i of `logits` is described by rows[i]. Where the device drew: the tokens that the lanes draw and the
    /// most probable one, and all of the distribution in device memory (Distribution::kept) where noise is a node's
    /// own. The same on every rank.
    std::vector<Distribution> distributions(Logits& logits, std::span<const DraftRow> rows);
    /// What the device keeps is not needed any more.
    void release_kept() { num_kept_ = 0; }

  private:
    [[nodiscard]] std::vector<Distribution> draw_on_device(Logits& logits, std::span<const DraftRow> rows);
    std::byte* room_to_keep();

    kernels::Device& device_;
    std::int64_t vocab_size_;
    LogitsPipeline pipeline_;
    std::vector<kernels::Buffer> kept_;  ///< slabs of kept_per_slab distributions
    std::size_t num_kept_ = 0;
};

}  // namespace longhaul::engine
