// Everything except the prompt that determines the output of one item (engine/replica/work_item.hpp).
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/sampling/params.hpp"

namespace longhaul::engine {

/// What an output must look like: structured output, also called guided decoding. engine/grammar makes a grammar of it.
struct OutputFormat {
    enum class Kind : std::uint8_t {
        any,
        json_schema,  ///< a JSON value of this schema
        regex,        ///< a text that the expression matches as a whole
        choice,       ///< one of these texts
        gbnf,         ///< a text of this grammar in GBNF
    };

    Kind kind = Kind::any;
    std::vector<std::string> texts{};

    friend bool operator==(const OutputFormat&, const OutputFormat&) = default;
};

/// What a model writes before it answers.
struct Reasoning {
    std::string end{};            ///< the text that ends it, such as "</think>"; "": the model answers at once
    std::int64_t max_tokens = 0;  ///< then the text that ends it is written for the model; 0: any number

    friend bool operator==(const Reasoning&, const Reasoning&) = default;
};

/// Items of a job may differ in every field. Items with equal options share one object.
struct GenerationOptions {
    std::int64_t max_tokens = 1;  ///< >= 1
    std::uint64_t seed = 1;
    SamplingParams sampling{};                ///< without what the replica sets
    std::vector<std::string> dry_breakers{};  ///< sequence breakers of DRY
    std::vector<std::int32_t> eos_ids{};      ///< tokens that end the item
    std::vector<TokenBias> logit_bias{};
    Reasoning reasoning{};
    OutputFormat format{};  ///< of the answer; an output ends where it cannot go on, also without a token of eos_ids
    std::vector<std::string> stop{};  ///< stop strings: each ends the item
    std::int64_t stop_loops = 0;      ///< length of a loop that ends the item (loop_detector.hpp); 0: off
    std::int64_t logprobs = 0;  ///< number of top tokens reported with log-probabilities beside the chosen one; 0: off

    [[nodiscard]] bool has_reasoning() const { return !reasoning.end.empty(); }
    /// Whether the token ends the item and is no part of its text.
    [[nodiscard]] bool is_end(std::int32_t token) const {
        return std::find(eos_ids.begin(), eos_ids.end(), token) != eos_ids.end();
    }
};

}  // namespace longhaul::engine
