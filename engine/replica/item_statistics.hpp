// Counters of one item, as stats.jsonl reports and checkpoints store them.
#pragma once

#include <cstdint>
#include <string>

#include "engine/scoring.hpp"

namespace longhaul::engine {

/// Counters of one item for its tokens so far, cumulative over launches; the fields of stats.jsonl.
struct ItemStatistics {
    double seconds = 0, prefill_seconds = 0;  ///< time in flight; the part before it decodes
    std::int64_t steps = 0, target_calls = 0, draft_calls = 0, drafted = 0, accepted = 0, accepted_ngram = 0;
    std::int64_t decode_tokens = 0;  ///< tokens emitted by target calls (block efficiency = this / target_calls)
    std::int64_t checkpoint_rounds = 0, resumes = 0, recomputed_tokens = 0, recomputed_rows = 0;
    std::int64_t branched_trees = 0;  ///< trees in which some node has several children
    double checkpoint_stall_seconds = 0;
    LossByPosition loss;  ///< of a given continuation; first rank only

    [[nodiscard]] double block_efficiency() const {
        return target_calls > 0 ? static_cast<double>(decode_tokens) / static_cast<double>(target_calls) : 0.0;
    }
};

/// Counters as JSON text, for a checkpoint. Parsing unknown or damaged text gives zeros.
std::string statistics_to_json(const ItemStatistics& statistics);
ItemStatistics statistics_from_json(const std::string& text);

}  // namespace longhaul::engine
