// Totals of a job: of one run folder, or of all shards of a job together. Input of the summary (summary.hpp).
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "runner/run/replica_totals.hpp"
#include "runner/run/results.hpp"

namespace longhaul::runner {

/// Decode speed per replica: tokens and seconds of all replicas and launches (status/R-EPOCH.json), summed. Mixed
/// passes, which also compute parts of prompts, and their tokens do not count.
struct DecodeSpeed {
    std::int64_t tokens = 0;
    double seconds = 0;
    [[nodiscard]] double tokens_per_second() const { return seconds > 0 ? static_cast<double>(tokens) / seconds : 0; }
};

/// Questions whose right choice is known; of those, for how many the most probable one was right, and for how many the
/// most probable one per character.
struct AnswerCounts {
    std::int64_t questions = 0, right = 0;
    std::int64_t with_norm = 0, right_norm = 0;  ///< of questions with choices
    std::int64_t with_mc2 = 0;                   ///< questions with ChoiceScores::mc2
    double mc2 = 0, squares_of_mc2 = 0;          ///< sums over these
};

/// How a phase ended. All members are set on rank 0; `exit_code`, `all_done` and `stop` on all ranks.
struct JobOutcome {
    int exit_code = 0;
    bool all_done = false;
    StopReason stop = StopReason::none;
    std::int64_t items = 0, done = 0, failed = 0;
    std::int64_t without_answer = 0;      ///< items whose reasoning has no end (key reasoning-end)
    std::string first_failure{};          ///< "ID: reason", of the first failed item in input order
    double seconds = 0;                   ///< of this launch
    std::int64_t tokens = 0, rounds = 0;  ///< of this launch
    // From stats.jsonl, over all launches:
    std::int64_t total_tokens = 0, target_calls = 0, drafted = 0, accepted = 0, branched_trees = 0;
    std::int64_t resumed_items = 0;  ///< also those that continued from a checkpoint in this launch and are unfinished
    std::int64_t recomputed_tokens = 0, recomputed_rows = 0;
    std::int64_t prompt_tokens = 0, cached_tokens = 0;  ///< of which so many were copied from other items
    double memory_bound_calls = 0;  ///< target calls plus the cost of their drafts in target calls (DraftCost)
    double checkpoint_stall_seconds = 0;
    double nll = 0;  ///< of teacher-forced continuations, in nats
    std::int64_t scored_tokens = 0, scored_bytes = 0;
    /// Scored tokens of items whose greedy tokens were counted, and these (LossByPosition::greedy_tokens).
    std::int64_t judged_tokens = 0, greedy_tokens = 0;
    AnswerCounts answers;                        ///< of all questions and continuations
    std::map<std::string, AnswerCounts> groups;  ///< of those with a group (few-shot-group)
    DecodeSpeed speed;                           ///< over all launches
    double working_seconds = 0;  ///< prefill and decode time: the longest replica of each launch, summed over launches
};

/// Writes TO/stats.jsonl from the statistics of `runs`, and adds these and the times of all launches to `outcome`.
/// Returns what is damaged or missing among them, as write_statistics does. Throws StorageError.
std::vector<std::string> add_statistics(std::span<const std::filesystem::path> runs, const std::filesystem::path& to,
                                        const std::string& tag, const ResultIndex& results, JobOutcome& outcome);

/// Adds only the times of a run folder's launches, from the last heartbeats of their replicas.
void add_times(const std::filesystem::path& run, JobOutcome& outcome);

}  // namespace longhaul::runner
