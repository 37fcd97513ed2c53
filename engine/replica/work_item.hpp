// Items as the runner hands them out, and as it gets them back.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/generation_options.hpp"
#include "engine/replica/item_statistics.hpp"

namespace longhaul::engine {

/// One item as the runner hands it out (group's first rank).
struct WorkItem {
    std::int64_t index = 0;  ///< the runner's own number; comes back with the result
    std::string id;          ///< with `sample` and the seed: the key of its random numbers
    std::int64_t sample = 0;
    std::string checkpoint_key;        ///< unique in the job
    std::vector<std::int32_t> prompt;  ///< at least one token
    /// The target's tokens, where they are given: drafts are verified against them, and their loss is summed up. Ends
    /// the item ("stop") unless max_tokens does ("length"); end-of-text ids and stop strings do not.
    std::vector<std::int32_t> continuation{};
    std::shared_ptr<const GenerationOptions> options{};  ///< never null
    std::int64_t known_tokens = 0;  ///< output tokens an earlier launch is known to have reached; what of them no
                                    ///< checkpoint holds counts as recomputed
};

enum class FinishReason { length, stop, error };

struct FinishedItem {
    std::int64_t index = 0;
    std::vector<std::int32_t>
        tokens;        ///< all output tokens, end-of-text included; the error's prefix where reason is error
    std::string text;  ///< without special tokens and without the stop string; empty where it was only scored
    std::vector<std::int32_t> logprobs;  ///< a row for each of `tokens` (log_softmax.hpp); empty without `logprobs`
    std::int64_t scored_bytes = 0;       ///< of a given continuation's text
    FinishReason reason = FinishReason::length;
    std::string error;
    std::int64_t prompt_tokens = 0, max_tokens = 0;  ///< as they were asked for
    ItemStatistics statistics;
};

}  // namespace longhaul::engine
