// What decides the output of one item, beside its prompt.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/sampling/params.hpp"

namespace longhaul::engine {

/// Items of a job may differ in all of it; those that do not share one object.
struct GenerationOptions {
    std::int64_t max_tokens = 1;  ///< >= 1
    std::uint64_t seed = 1;
    SamplingParams sampling{};
    std::vector<std::int32_t> eos_ids{};  ///< empty with ignore_eos
    std::vector<std::string> stop{};      ///< strings that end the item
    std::int64_t logprobs = 0;            ///< tokens whose log-probabilities are wanted beside the chosen one; 0 = off
};

}  // namespace longhaul::engine
