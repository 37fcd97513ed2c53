// What checkpoints have of an item.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/identity.hpp"
#include "engine/draft/draft_state.hpp"

namespace longhaul::engine {

/// An item restored from checkpoints. Positions [0, kv_tokens) can be read with CheckpointStore::read_kv.
struct RestoredItem {
    std::string key;
    std::string last_commit;  ///< newest commit used: the `previous_commit` of the item's next round
    std::int64_t prompt_tokens = 0;
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logprobs{};  ///< of `tokens`; the caller checks that their number fits the job
    std::vector<DrafterState> drafter;     ///< oldest first
    std::string statistics;
    std::int64_t kv_tokens = 0;  ///< contiguous intact prefix; of sliding windows and states: see usable_positions
    /// The positions are divided into ranges, each read from the files of one round; these are the ends of the ranges,
    /// the last is kv_tokens. A caller that reads all layers and heads of a range before the next range opens each file
    /// only once.
    std::vector<std::int64_t> kv_ends;
    std::vector<std::int64_t> states_at;  ///< numbers of positions behind which states are stored, ascending
    std::vector<std::string> damage;      ///< one line per damaged or missing file, with file and dataset

    /// The most positions, at most `wanted`, behind which a text can go on: those that its windows need are stored.
    [[nodiscard]] std::int64_t usable_positions(std::int64_t wanted, const CheckpointIdentity& identity) const;
};

/// What checkpoints have of the keys and values in a drafter's own layer: positions [first, end) of an item, all heads.
struct RestoredDraftKv {
    std::int64_t first = 0, end = 0;  ///< equal: nothing
    std::vector<std::string> damage;  ///< as RestoredItem::damage
};

}  // namespace longhaul::engine
