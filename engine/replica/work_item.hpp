// Items as the runner passes them to a replica, and their results.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/hidden_states.hpp"
#include "engine/generation_options.hpp"
#include "engine/replica/item_statistics.hpp"

namespace longhaul::engine {

/// What an item had when a lower max_tokens ended it. Under `coupled` the item continues from there.
struct EarlierOutput {
    std::vector<std::int32_t> tokens;
    std::vector<std::int32_t> logprobs;  ///< a row per token (log_softmax.hpp); empty without `logprobs`
    std::string statistics;              ///< statistics_to_json
};

/// An item from the runner (on the group's first rank).
struct WorkItem {
    std::int64_t number = 0;  ///< the runner's, of the item; returned with the result
    std::string id;           ///< together with `sample` and the seed: the key of its random numbers
    std::int64_t sample = 0;
    std::string checkpoint_key;        ///< unique in the job
    std::vector<std::int32_t> prompt;  ///< at least one token
    /// Teacher forcing: the given target tokens. Drafts are verified against them, and their loss is summed. The item
    /// ends with them (reason stop) or at max_tokens (reason length); end-of-text ids, stop strings and loops do not
    /// end it.
    std::vector<std::int32_t> continuation{};
    std::shared_ptr<const GenerationOptions> options{};  ///< never null
    /// Output tokens that an earlier launch is known to have reached. Those that no checkpoint holds count as
    /// recomputed.
    std::int64_t known_tokens = 0;
    EarlierOutput earlier{};  ///< no tokens: the item has no earlier result; used on the first rank, not sent
};

enum class FinishReason { length, stop, repetition, error };

struct FinishedItem {
    std::int64_t number = 0, sample = 0;  ///< of the WorkItem
    std::vector<std::int32_t> tokens;     ///< all output tokens, end-of-text included; on an error those before it
    std::string text;                     ///< without special tokens and the stop string; empty if only scored
    std::optional<std::string> answer{};  ///< the part of `text` behind the reasoning; nullopt if that has no end
    bool has_reasoning = false;           ///< the item's options have a Reasoning::end
    std::vector<std::int32_t> logprobs;   ///< a row per token (log_softmax.hpp); empty without `logprobs`
    std::int64_t scored_bytes = 0;        ///< bytes of the scored text of a given continuation
    /// Of the scored tokens and the one before them, with ReplicaOptions::keeps_states; nullptr on an error.
    std::shared_ptr<const TextStates> states{};
    FinishReason reason = FinishReason::length;
    std::string error;
    std::int64_t prompt_tokens = 0, max_tokens = 0;  ///< as requested
    ItemStatistics statistics;
};

}  // namespace longhaul::engine
