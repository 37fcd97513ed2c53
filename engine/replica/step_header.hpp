// What a group's first rank decides for a step, and how the other ranks learn of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/draft/draft_state.hpp"
#include "engine/draft/methods.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/work_item.hpp"

namespace longhaul::engine {

/// An item as every rank admits it: the runner's, and what checkpoints hold of it.
struct Admission {
    WorkItem item;
    bool put_back = false;  // waits in this replica already
    bool restored = false;
    std::vector<std::int32_t> output;
    std::vector<std::int32_t> logprobs;  // of `output`; stays on the first rank
    std::int64_t kv_tokens = 0;
    std::string last_commit, statistics;
    std::vector<DrafterState> drafter;
};

/// What the first rank decides for a step.
struct StepHeader {
    enum class Kind : std::uint8_t { step, stop, finish };
    Kind kind = Kind::step;
    double min_probability = 0;     // of a draft node
    TreeLimits trees;               // of this step
    bool feed_drafter = true;       // false: drafting pauses, no sequence waits for what its drafter lacks
    std::int64_t prefill_rows = 0;  // of a prompt, in this step's pass
    bool begin_round = false, store_kv = false, poll_round = false;
    bool wait = false;                   // no forward pass: memory that a checkpoint still reads has to come back first
    std::vector<std::int64_t> put_back;  // sequence numbers, youngest first
    std::vector<std::int64_t> give_up;   // sequence numbers that cannot fit even alone
    std::vector<Admission> admissions;
};

/// The first rank's header, on every rank. Collective.
void share_header(Group& group, StepHeader& header);

}  // namespace longhaul::engine
