// Results, one JSON line per item. During a run, each replica of each launch appends to its own journal
// results/R-EPOCH.jsonl (and statistics to log/stats-R-EPOCH.jsonl); readers merge them. A journal line also has the
// item's position in the input (`index`) and always its `sample`, because `samples` may be raised later.
//
// If an item has several lines, the one of the newest launch counts; a last line without a newline (a crash) does not.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/replica/replica.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
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

/// One line of results.jsonl in memory.
struct ResultRecord {
    ItemKey key;
    std::string id{};
    std::string text{};
    std::int64_t num_tokens = 0;
    /// "length", "stop", "repetition", "error"; "partial" only in `longhaul results --partial`
    std::string finish_reason{};
    std::string error{};
    std::vector<std::int32_t> token_ids{};
    engine::LossByPosition loss{};   ///< of a teacher-forced continuation; empty if there is none
    std::string logprobs{};          ///< JSON from `logprobs_text`; "" if none were requested
    std::int64_t max_tokens = 0;     ///< limit when the item was generated; journal only
    bool own_max_tokens = false;     ///< `max_tokens` is the item's own, not the job's; journal only
    std::int64_t prompt_tokens = 0;  ///< 0: the prompt could not be made; journal only
    /// Counters (statistics_to_json) of an item that a greater `max-tokens` continues: its journal line has `token_ids`
    /// too. "" for others; journal only.
    std::string statistics{};
};

/// "ID: reason" of an item that failed.
std::string failure_of(const ResultRecord& record);

/// Which optional fields a line has.
struct ResultFormat {
    bool sample = false;  ///< the job has several samples per prompt
    bool token_ids = false;
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

/// One line of results.jsonl without newline, keys in a fixed order (results.cpp). The same record gives the same
/// bytes. Bytes of `text` that are not valid UTF-8 become U+FFFD.
std::string format_result(const ResultRecord& record, const ResultFormat& format);

/// The field `logprobs` of a line: per token a list [[id, logprob], …] with the chosen token first, then the k most
/// probable other tokens, best first. `rows`: as made by engine/sampling/log_softmax.hpp; the result is "" if empty.
/// Numbers are the shortest that read back to the same float32, so the bytes are the same everywhere.
std::string logprobs_text(std::span<const std::int32_t> tokens, std::span<const std::int32_t> rows);

/// The opposite: rows with `num_best` tokens for which `logprobs_text` gives `text`. Empty if there are none.
std::vector<std::int32_t> logprobs_rows(std::string_view text, std::int64_t num_best);

/// Formats and parses a journal line (results/). nullopt if it is not a valid line.
std::string format_journal(const ResultRecord& record, const ResultFormat& format);
std::optional<ResultRecord> parse_journal(std::string_view line);

/// A line of stats.jsonl (with `index`, which is removed from the merged file). `drafts`: nullopt if nothing is
/// drafted; then there is no MBSU.
std::string format_statistics(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t replica,
                              const std::optional<DraftCost>& drafts);

/// Position of a line in one of several files, which are numbered from the oldest launch.
struct LinePlace {
    ItemKey key;
    std::int64_t offset = 0;
    std::uint32_t num_bytes = 0;
    std::uint32_t file = 0;
};

/// Reads lines from many files; single-threaded. Keeps some files open between calls.
class LineReader {
  public:
    /// Adds a file; returns its number for LinePlace.
    std::uint32_t add(std::filesystem::path path);
    [[nodiscard]] const std::filesystem::path& path(std::uint32_t file) const { return paths_[file]; }
    /// Throws InputError. Returns fewer bytes if the file is shorter now.
    [[nodiscard]] std::string read(const LinePlace& place);

  private:
    std::vector<std::filesystem::path> paths_;
    std::map<std::uint32_t, std::unique_ptr<InputFile>> open_;
};

/// Index of the result line of each item; single-threaded.
class ResultIndex {
  public:
    struct Entry {
        LinePlace place{};
        std::int32_t num_tokens = 0;
        std::int32_t max_tokens = 0;
        bool own_max_tokens = false, failed = false, at_length = false;
        bool can_go_on = false;  ///< has what a greater `max-tokens` needs to continue it
    };
    static_assert(sizeof(Entry) <= 48, "what an item costs in memory, at the end of a run of millions");

    /// Reads all result files of a run folder, or of the shards of a job, which have no items in common. Throws
    /// InputError if a file cannot be read.
    static ResultIndex read(const std::filesystem::path& run) { return read(std::span(&run, 1)); }
    static ResultIndex read(std::span<const std::filesystem::path> runs);

    [[nodiscard]] const Entry* find(const ItemKey& key) const;
    [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }  ///< in input order
    [[nodiscard]] ResultRecord load(const Entry& entry) const;                    ///< throws InputError

    /// Whether the entry is final. An item without its own `max-tokens` is not final if it ended at its length and
    /// `max-tokens` is greater now, or if it failed under another `max-tokens` (its error may depend on it). A failed
    /// item is never final under `retry-failed`.
    static bool is_done(const Entry& entry, const Settings& settings);

  private:
    void add(const std::filesystem::path& run);

    mutable LineReader lines_;
    std::vector<Entry> entries_;
};

/// Writes TO/results.jsonl with the first `num_inputs` × `samples` items, or the part of them in `shard`; all of them
/// must be in the index. `tag`: for the name of the temporary. Throws.
void write_results(const std::filesystem::path& to, const std::string& tag, const ResultIndex& index,
                   std::int64_t num_inputs, const Settings& settings);

/// XXH3-64 of FOLDER/results.jsonl in hexadecimal, as in summary.json. Throws InputError.
std::string hash_of_results(const std::filesystem::path& folder);

/// Writes TO/stats.jsonl from the statistics of all launches of `runs`, in input order, the newest line per item, and
/// calls `each` for each line.
void write_statistics(const std::filesystem::path& to, const std::string& tag,
                      std::span<const std::filesystem::path> runs,
                      const std::function<void(const nlohmann::ordered_json&)>& each);

/// The result and statistics files that a replica appends to.
class ResultWriter {
  public:
    ResultWriter(const std::filesystem::path& run, std::int64_t replica, std::int64_t epoch, ResultFormat format,
                 std::optional<DraftCost> drafts);

    /// From the replica's thread. `work_index` is what `take_durable` returns later. Throws StorageError.
    void append(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t work_index);

    /// Makes everything appended durable; call it from one thread only. Throws StorageError.
    void sync();

    /// Work indices of results that became durable since the last call.
    std::vector<std::int64_t> take_durable();

  private:
    std::int64_t replica_;
    ResultFormat format_;
    std::optional<DraftCost> drafts_;
    LineFile results_, statistics_;
    std::mutex mutex_;
    std::vector<std::int64_t> pending_, durable_;
};

}  // namespace longhaul::runner
