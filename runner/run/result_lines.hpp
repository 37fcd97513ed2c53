// Lines of results.jsonl, of the journals that it is made of (results/R-EPOCH.jsonl) and of stats.jsonl: one JSON
// object per item. A journal line also has the item's position in the input (`index`) and always its `sample`, because
// `samples` may be raised later.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/replica/work_item.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// Identifies an item: which sample of which prompt.
struct ItemKey {
    std::int64_t index = 0;  ///< of the prompt, in input order
    std::int64_t sample = 0;

    auto operator<=>(const ItemKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};

/// "ID#SAMPLE": the name of an item in checkpoints.
std::string checkpoint_key(const std::string& id, std::int64_t sample);

/// What the choices of a question got (mode = multiple-choice).
struct ChoiceScores {
    std::vector<double> logprobs{};       ///< of each choice, in nats: the sum over its tokens
    std::int64_t chosen = 0;              ///< index of the most probable one
    std::int64_t chosen_norm = 0;         ///< of the most probable one per character of its text
    std::vector<std::int64_t> right{};    ///< indices; empty: not known
    bool may_have_several_right = false;  ///< the data says of each choice whether it is right
    /// Where several may be right: of the probability of all choices the share of the right ones (TruthfulQA's MC2).
    std::optional<double> mc2{};
    std::string group{};  ///< of the question (few-shot-group); "": none
};

/// One line of results.jsonl in memory.
struct ResultRecord {
    ItemKey key;
    std::string id{};
    std::string text{};
    std::optional<std::string> answer{};  ///< the part of `text` behind the reasoning; nullopt if that has no end
    bool has_reasoning = false;  ///< the item has a `reasoning-end`, and its line the answer, which may be null
    std::int64_t num_tokens = 0;
    /// "length", "stop", "repetition", "error"; "partial" only in `longhaul results --partial`
    std::string finish_reason{};
    std::string error{};
    std::vector<std::int32_t> token_ids{};
    engine::LossByPosition loss{};  ///< of a teacher-forced continuation; empty if there is none
    std::optional<ChoiceScores> choices{};
    std::string logprobs{};          ///< JSON from `logprobs_text`; "" if none were requested
    std::int64_t max_tokens = 0;     ///< limit when the item was generated; journal only
    bool own_max_tokens = false;     ///< `max_tokens` is the item's own, not the job's; journal only
    std::int64_t prompt_tokens = 0;  ///< 0: the prompt could not be made; journal only
    /// Counters (statistics_to_json) of an item that a greater `max-tokens` would continue, which its line then keeps
    /// with its tokens (`resume`). "" for others; journal only.
    std::string statistics{};
    std::string resume{};  ///< as parsed, for `resume_tokens`; journal only
};

/// "ID: reason" of an item that failed.
std::string failure_of(const ResultRecord& record);

/// Which optional fields a line has.
struct ResultFormat {
    bool sample = false;  ///< the job has several samples per prompt
    bool token_ids = false;
    bool continuations = false;  ///< the data has what continues each prompt: is it what greedy decoding gives (acc)?
};
ResultFormat result_format(const Settings& settings);

/// Cost of the drafts of one target call, in target calls, if time is only the reading of weights: `level` per level of
/// the tree. MBSU (memory-bound speedup) = block efficiency / (levels x level + 1).
struct DraftCost {
    double level = 0;         ///< parameters of the draft models that run per level / the target's parameters
    std::int64_t levels = 0;  ///< levels of each tree; 0: use the measured number of draft calls per target call
    double tree = 0;          ///< what runs once per tree
    double draft_model =
        -1;  ///< `level` of steps in which draft models alone draft, where it differs; < 0: it is `level`

    [[nodiscard]] double mbsu(const engine::ItemStatistics& statistics) const;
};

/// One line of results.jsonl without newline, keys in a fixed order (result_lines.cpp). The same record gives the same
/// bytes. Bytes of `text` that are not valid UTF-8 become U+FFFD.
std::string format_result(const ResultRecord& record, const ResultFormat& format);

/// The field `logprobs` of a line: per token a list [[id, logprob], …] with the chosen token first, then the k most
/// probable other tokens, best first. `rows`: as made by engine/sampling/log_softmax.hpp; the result is "" if empty.
/// Numbers are the shortest that read back to the same float32, so the bytes are the same everywhere.
std::string logprobs_text(std::span<const std::int32_t> tokens, std::span<const std::int32_t> rows);

/// The opposite: rows with `num_best` tokens for which `logprobs_text` gives `text`. Empty if there are none.
std::vector<std::int32_t> logprobs_rows(std::string_view text, std::int64_t num_best);

/// Formats and parses a journal line (results/), which ends with a checksum of the rest. nullopt if it is not a valid
/// line. With `statistics` the line has the field `resume`, made of `token_ids`.
std::string format_journal(const ResultRecord& record, const ResultFormat& format);
std::optional<ResultRecord> parse_journal(std::string_view line);

/// The tokens in `resume` of a parsed record. Empty if its line has none, or no checksum.
std::vector<std::int32_t> resume_tokens(const ResultRecord& record);

/// Ends a line of a journal with the XXH3-64 of all that comes before that field.
void append_checksum(std::string& line);

/// Of a line of a journal. Lines of older versions have none.
enum class Checksum { none, right, wrong };
/// Cuts the checksum off the end of a line, if there is one.
Checksum cut_checksum(std::string& line);

/// A line of stats.jsonl (with `index`, which is removed from the merged file). `drafts`: nullopt if nothing is
/// drafted; then there is no MBSU.
std::string format_statistics(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t replica,
                              const std::optional<DraftCost>& drafts, const ResultFormat& format = {});

}  // namespace longhaul::runner
