// The decisions of a group's first rank for a step, and their broadcast to the other ranks.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "engine/draft/draft_state.hpp"
#include "engine/draft/methods.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/work_item.hpp"

namespace longhaul::engine {

/// An item to admit, on every rank: the runner's WorkItem and its state from checkpoints.
struct Admission {
    WorkItem item;
    bool is_readmission = false;  // of the first preempted sequence that waits; the other fields are unused
    bool restored = false;        // continues from a checkpoint (then `last_commit` is set) or an earlier result
    std::vector<std::int32_t> output;
    std::vector<std::int32_t> logprobs;  // of `output`; first rank only, not sent
    std::int64_t kv_tokens = 0;
    std::string last_commit, statistics;
    std::vector<DrafterState> drafter;
};

/// What a checkpoint round stores besides tokens.
struct RoundContents {
    bool kv = false;      // new keys and values
    bool states = false;  // with them, the states of linear attention, whole
    /// Keys and values of further positions are left to the next round.
    std::int64_t max_positions = std::numeric_limits<std::int64_t>::max();
};

/// The first rank's decisions for a step.
struct StepHeader {
    enum class Kind : std::uint8_t { step, stop, finish };
    Kind kind = Kind::step;
    double min_probability = 0;     // of Proposal
    TreePrices prices;              // likewise
    TreeLimits trees;               // of this step
    bool feed_drafter = true;       // false: drafting pauses; no sequence waits for its drafter to catch up
    std::int64_t prefill_rows = 0;  // maximum prompt rows in this step's pass
    std::int64_t max_copied = 0;    // maximum positions that are copied for prompts in this step
    bool begin_round = false, poll_round = false;
    RoundContents round;                  // of the round that begins
    bool release_prefix = false;          // State::finished_prefix gives back its pages
    bool wait = false;                    // no forward pass in this step: nothing can run yet
    std::vector<std::int64_t> preempt;    // sequence numbers, youngest first
    std::vector<std::int64_t> too_large;  // numbers of sequences that do not fit even alone
    std::vector<Admission> admissions;
};

/// Broadcasts the first rank's header to every rank. Collective.
void share_header(Group& group, StepHeader& header);

}  // namespace longhaul::engine
