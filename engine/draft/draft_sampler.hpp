// Turns the logits rows of a drafter (draft models, Medusa heads) into the distributions that its trees draw from. A
// device that can choose tokens draws in device memory and only the drawn tokens are copied to the host; otherwise the
// host runs the logits pipeline and gets whole distributions. The trees are the same either way.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/logits.hpp"
#include "engine/sampling/noise.hpp"
#include "engine/sampling/params.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {

/// Draft distributions that a device keeps for the verifier (kernels::KeptDistribution) are allocated in slabs of this
/// many. A batch needs at most as many as its trees have nodes.
constexpr std::int64_t kept_per_slab = 16;

/// Describes one row of logits: the distribution of the token after a tree node.
struct DraftRow {
    NodeContext context;      ///< for the penalty
    SamplingParams sampling;  ///< temperature 0: a one-hot distribution, which the host computes
    Noise noise;
    std::int64_t position = 0;             ///< absolute position of the drawn tokens
    std::int32_t node = 0;                 ///< their parent in the tree
    std::span<const std::uint32_t> lanes;  ///< noise lanes that draw, each with its own noise
    std::int64_t num_draws = 0;            ///< tokens that each lane draws; 0: the whole distribution is needed
    bool with_q = true;                    ///< whether probabilities are needed
};

class DraftSampler {
  public:
    /// Only the first `vocab_size` tokens of the logits are drafted.
    DraftSampler(kernels::Device& device, std::int64_t vocab_size)
        : device_(device), vocab_size_(vocab_size), pipeline_({}, vocab_size) {}

    /// One distribution per row; rows[i] describes row i of `logits`. If the device draws, a distribution holds only
    /// the tokens that the lanes drew and the most probable one; under Noise::Kind::own the whole distribution also
    /// stays in device memory (Distribution::kept). The same on every rank.
    std::vector<Distribution> distributions(Logits& logits, std::span<const DraftRow> rows);
    /// Allows the memory of all kept distributions to be reused.
    void release_kept() { num_kept_ = 0; }

  private:
    [[nodiscard]] std::vector<Distribution> draw_on_device(Logits& logits, std::span<const DraftRow> rows);
    std::byte* kept_slot();

    kernels::Device& device_;
    std::int64_t vocab_size_;
    LogitsPipeline pipeline_;
    std::vector<kernels::Buffer> kept_;  ///< slabs of kept_per_slab distributions
    std::size_t num_kept_ = 0;
};

}  // namespace longhaul::engine
