// Partial KV caches selected by rank (`partial-cache-mode = dynamic | static`): a pass of one row per sequence ranks
// the positions in each layer, for each KV head, and gathers the best ones, which the row and the draft passes after it
// read. Called by drafters that use the target's own keys and values.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/partial_kv.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

class Model;

/// What the draft passes of one sequence read. Gathered keys and values are in the sequence's scratch pages.
struct SelectedKv {
    PartialKv kv;
    std::int64_t ranked_at = -1;  ///< RankedSelection::ranked_at of the gathered ones; -1: nothing is gathered
};

class KvRanker {
  public:
    /// `tree_slots`: scratch slots that the drafts and the target's pass use; the gathered pages come after them.
    KvRanker(const PartialCache& cache, std::int64_t tree_slots);

    struct Request {
        SelectedKv* selected;
        KvSequence* sequence;
        std::span<const std::int32_t> context;  ///< tokens; at least those whose KV is committed
        std::int64_t prompt_tokens;
    };
    /// Sets what the draft passes of this step read; ranks again where the text has reached the next selection.
    /// Collective over the model's group. Throws std::bad_alloc if there are too few pages.
    void select(Model& model, std::span<const Request> requests);

    [[nodiscard]] std::int64_t scratch_slots(const TextSize& text) const;  ///< of a sequence of this size

  private:
    struct Due;
    void rank(Model& model, std::span<const Due> due);
    [[nodiscard]] std::span<std::byte* const> gathered_pages(const KvSequence& sequence, std::int64_t gathered) const;

    PartialCache cache_;
    std::int64_t tree_slots_;
    kernels::Buffer positions_;  ///< int32 [kv_heads, ranked positions] of one layer and sequence
};

}  // namespace longhaul::engine
