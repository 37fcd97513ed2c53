// Counters of one item, as stats.jsonl reports and checkpoints store them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/scoring.hpp"

namespace longhaul::engine {

/// Totals of an item when its output reached `tokens`, cumulative from the first token on.
struct LengthRow {
    std::int64_t tokens = 0;
    double seconds = 0;  ///< without prefill
    std::int64_t target_calls = 0, draft_calls = 0, accepted = 0, accepted_ngram = 0, accepted_ngram_path = 0;
    std::int64_t accepted_draft_model = 0;
};

/// Counters of one item for its tokens so far, cumulative over launches; the fields of stats.jsonl.
struct ItemStatistics {
    double seconds = 0, prefill_seconds = 0;  ///< time in flight; the part before it decodes
    std::int64_t steps = 0, target_calls = 0, draft_calls = 0, drafted = 0, accepted = 0, accepted_ngram = 0;
    /// Tokens accepted in steps in which an n-gram proposed the last of them: those of TokenSwift's β.
    std::int64_t accepted_ngram_path = 0;
    std::int64_t accepted_resampled = 0;  ///< accepted nodes that only re-sampling proposed
    std::int64_t draft_model_calls = 0,
                 accepted_draft_model = 0;  ///< the part of steps in which draft models alone draft
    std::int64_t decode_tokens = 0;         ///< tokens emitted by target calls (block efficiency = this / target_calls)
    std::int64_t checkpoint_rounds = 0, resumes = 0, recomputed_tokens = 0, recomputed_rows = 0;
    std::int64_t cached_tokens = 0;   ///< of the prompt, whose keys and values were copied (prefix caching)
    std::int64_t branched_trees = 0;  ///< trees in which some node has several children
    double checkpoint_stall_seconds = 0;
    std::vector<LengthRow> by_length;  ///< a row per 1,024 output tokens
    LossByPosition loss;               ///< of a given continuation; first rank only

    [[nodiscard]] double block_efficiency() const {
        return target_calls > 0 ? static_cast<double>(decode_tokens) / static_cast<double>(target_calls) : 0.0;
    }
    /// Adds the row that is due at `num_output` tokens.
    void count_length(std::int64_t num_output);
};

/// Counters as JSON text, for a checkpoint. Parsing unknown or damaged text gives zeros.
std::string statistics_to_json(const ItemStatistics& statistics);
ItemStatistics statistics_from_json(const std::string& text);

}  // namespace longhaul::engine
