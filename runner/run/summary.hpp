// What a run says at its end: a table for people, summary.json for programs, from the same numbers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/job/job.hpp"
#include "runner/run/job_outcome.hpp"

namespace longhaul::runner {

/// The same job by plain decoding, for the speedup.
struct BaselineReport {
    DecodeSpeed speed;
    /// results.jsonl is the same, byte for byte; nullopt where the verification rule does not promise that.
    std::optional<bool> identical;
};

struct Summary {
    JobOutcome outcome;
    Settings settings;
    std::string results;       ///< where they are: results.jsonl, or "longhaul results RUN" for an unfinished run
    std::string results_hash;  ///< XXH3-64 of results.jsonl; "" for an unfinished run
    std::int64_t epoch = 1;    ///< of the launch that says it
    int ranks = 1, replicas = 1, threads = 1;
    std::string kernels;
    std::vector<std::string> devices{};  ///< of each rank, "HOST: GPU 0 of 4, …"; "" where processors compute
    std::vector<std::string>
        device_kinds{};  ///< of the launches, in their order; more than one with allow-device-change
    std::optional<BaselineReport> baseline;
    std::int64_t shards =
        0;  ///< joined here: no launch speaks, so neither epoch nor ranks mean anything; 0: a run's own

    /// Decode tokens a second of the run / of plain decoding; nullopt where it was not measured.
    [[nodiscard]] std::optional<double> speedup() const;
    /// Memory-bound speedup; nullopt where nothing was drafted.
    [[nodiscard]] std::optional<double> mbsu() const;
    /// exp of the mean loss of the scored tokens, and their loss in bits over the bytes of their text; nullopt where
    /// none were scored.
    [[nodiscard]] std::optional<double> perplexity() const;
    [[nodiscard]] std::optional<double> bits_per_byte() const;
    [[nodiscard]] nlohmann::ordered_json to_json() const;
    [[nodiscard]] std::string to_table() const;
};

}  // namespace longhaul::runner
