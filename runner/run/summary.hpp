// The summary at the end of a launch: summary.txt (a table) and summary.json, from the same numbers.
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
    /// Whether results.jsonl is identical byte for byte; nullopt if the verification rule does not guarantee that.
    std::optional<bool> identical;
};

struct Summary {
    JobOutcome outcome;
    Settings settings;
    std::string results;       ///< path of results.jsonl, or for an unfinished run the command that shows its texts
    std::string results_hash;  ///< XXH3-64 of results.jsonl; "" for an unfinished run
    std::int64_t epoch = 1;    ///< of the launch that prints it
    int ranks = 1, replicas = 1, threads = 1;
    std::string kernels;
    std::vector<std::string> devices{};  ///< of each rank: "HOST: GPU 0 of 4, …"; "" for a CPU rank
    /// Device kinds of all launches, in order; more than one only with allow-device-change.
    std::vector<std::string> device_kinds{};
    std::optional<BaselineReport> baseline;
    /// Number of shards that were joined, 0 for a single run. After joining, epoch, ranks, replicas and threads have no
    /// meaning.
    std::int64_t shards = 0;

    /// Decode tokens/s of the run divided by those of plain decoding; nullopt if there was no baseline.
    [[nodiscard]] std::optional<double> speedup() const;
    /// Memory-bound speedup; nullopt if nothing was drafted.
    [[nodiscard]] std::optional<double> mbsu() const;
    /// exp of the mean loss of the scored tokens, and their loss in bits per byte of their text; nullopt if none were
    /// scored.
    [[nodiscard]] std::optional<double> perplexity() const;
    [[nodiscard]] std::optional<double> bits_per_byte() const;
    /// Share of the scored tokens that greedy decoding chooses.
    [[nodiscard]] std::optional<double> token_accuracy() const;
    [[nodiscard]] nlohmann::ordered_json to_json() const;
    [[nodiscard]] std::string to_table() const;
};

}  // namespace longhaul::runner
