// Everything except the prompt that determines the output of one item (engine/replica/work_item.hpp).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/sampling/params.hpp"

namespace longhaul::engine {

/// Items of a job may differ in every field. Items with equal options share one object.
struct GenerationOptions {
    std::int64_t max_tokens = 1;  ///< >= 1
    std::uint64_t seed = 1;
    SamplingParams sampling{};                ///< without what the replica sets
    std::vector<std::string> dry_breakers{};  ///< sequence breakers of DRY
    std::vector<std::int32_t> eos_ids{};      ///< tokens that end the item
    std::vector<TokenBias> logit_bias{};
    std::vector<std::string> stop{};  ///< stop strings: each ends the item
    std::int64_t stop_loops = 0;      ///< length of a loop that ends the item (loop_detector.hpp); 0: off
    std::int64_t logprobs = 0;  ///< number of top tokens reported with log-probabilities beside the chosen one; 0: off
};

}  // namespace longhaul::engine
