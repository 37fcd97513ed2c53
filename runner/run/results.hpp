// Results: one line an item. While a run goes on, each replica of each launch appends to its own results/R-EPOCH.jsonl
// (and statistics to log/stats-R-EPOCH.jsonl); readers put them together. A line there also has the item's place in
// the input (`index`) and always its `sample`, since `samples` may be raised later.
//
// Of several lines for one item the newest launch's counts; a last line without its end (a crash) is none.
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

/// Which continuation of which prompt.
struct ItemKey {
    std::int64_t index = 0;  ///< of the prompt, in the order of the input
    std::int64_t sample = 0;

    auto operator<=>(const ItemKey&) const = default;  // NOLINT(modernize-use-nullptr): clang-tidy 14 misreads it
};

/// "ID#SAMPLE": what an item is called in checkpoints.
std::string checkpoint_key(const std::string& id, std::int64_t sample);

/// A line of results.jsonl in memory.
struct ResultRecord {
    ItemKey key;
    std::string id;
    std::string text;
    std::int64_t num_tokens = 0;
    std::string finish_reason;  ///< "length", "stop", "error"; "partial" only in `longhaul results --partial`
    std::string error;
    std::vector<std::int32_t> token_ids;
    engine::LossByPosition loss{};  ///< of a given continuation; empty where there is none
    std::string logprobs{};         ///< JSON, as `logprobs_text` makes it; "" where none were asked for
    std::int64_t max_tokens = 0;    ///< as it was asked for; journal only
    bool own_max_tokens = false;    ///< the item's, not the job's; journal only
};

/// What decides which fields a line has.
struct ResultFormat {
    bool sample = false;  ///< the job asks for several samples
    bool token_ids = false;
};
ResultFormat result_format(const Settings& settings);

/// What a target call's drafts cost where reading weights is all that takes time, in target calls: `level` for each
/// level of the tree. MBSU (memory-bound speedup) = block efficiency / (levels x level + 1).
struct DraftCost {
    double level = 0;         ///< parameters of the draft models that run for a level / the target's
    std::int64_t levels = 0;  ///< of each tree; 0: as many as were run

    [[nodiscard]] double mbsu(const engine::ItemStatistics& statistics) const;
};

/// One line of results.jsonl, no newline, keys in the order of design.md; the same bytes for the same record. Bytes of
/// `text` that are not UTF-8 become U+FFFD.
std::string format_result(const ResultRecord& record, const ResultFormat& format);

/// `logprobs` of a line: for each token a list [[id, logprob], …], the chosen token first and then those of the k most
/// probable that are not the chosen one, best first. `rows`: as engine/sampling/log_softmax.hpp makes them; "" for
/// none. Numbers are the shortest that read back to the same float32: the same bytes everywhere.
std::string logprobs_text(std::span<const std::int32_t> tokens, std::span<const std::int32_t> rows);

/// The line as results/ has it, and back. nullopt for what is no such line.
std::string format_journal(const ResultRecord& record, const ResultFormat& format);
std::optional<ResultRecord> parse_journal(std::string_view line);

/// A line of stats.jsonl (with `index`, which the merged file leaves out). `drafts`: nullopt where nothing is drafted,
/// which has no MBSU.
std::string format_statistics(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t replica,
                              const std::optional<DraftCost>& drafts);

/// Where a line lies in one of several files, which are numbered from the oldest launch on.
struct LinePlace {
    ItemKey key;
    std::int64_t offset = 0;
    std::uint32_t num_bytes = 0;
    std::uint32_t file = 0;
};

/// Lines of many files, from one thread. Keeps some of the files open from one line to the next.
class LineReader {
  public:
    /// Number of the file, for LinePlace.
    std::uint32_t add(std::filesystem::path path);
    [[nodiscard]] const std::filesystem::path& path(std::uint32_t file) const { return paths_[file]; }
    /// Throws InputError; fewer bytes where the file is shorter now.
    [[nodiscard]] std::string read(const LinePlace& place);

  private:
    std::vector<std::filesystem::path> paths_;
    std::map<std::uint32_t, std::unique_ptr<InputFile>> open_;
};

/// Where the line of each item is. From one thread.
class ResultIndex {
  public:
    struct Entry {
        LinePlace place{};
        std::int32_t num_tokens = 0;
        std::int32_t max_tokens = 0;
        bool own_max_tokens = false, failed = false, at_length = false;
    };
    static_assert(sizeof(Entry) <= 48, "what an item costs in memory, at the end of a run of millions");

    /// Reads all result files of a run folder, or of the shards of a job, which have no item in common. Throws
    /// InputError where one cannot be read.
    static ResultIndex read(const std::filesystem::path& run) { return read(std::span(&run, 1)); }
    static ResultIndex read(std::span<const std::filesystem::path> runs);

    [[nodiscard]] const Entry* find(const ItemKey& key) const;
    [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }  ///< in the order of the input
    [[nodiscard]] ResultRecord load(const Entry& entry) const;                    ///< Throws InputError

    /// Whether the entry is the final word on its item. One that ended at its length does not count under a greater
    /// `max-tokens` (the item is generated again from its beginning) unless it has a `max-tokens` of its own; a failed
    /// one neither (its error may speak of it), nor under `retry-failed`.
    static bool is_done(const Entry& entry, const Settings& settings);

  private:
    void add(const std::filesystem::path& run);

    mutable LineReader lines_;
    std::vector<Entry> entries_;
};

/// Writes TO/results.jsonl with the first `num_inputs` × `samples` items, or their part in `shard`, all of which must
/// be there. `tag`: of the temporary. Throws.
void write_results(const std::filesystem::path& to, const std::string& tag, const ResultIndex& index,
                   std::int64_t num_inputs, const Settings& settings);

/// Writes TO/stats.jsonl from the statistics of all launches of `runs`, in the order of the input, the newest line an
/// item, and hands each line to `each`.
void write_statistics(const std::filesystem::path& to, const std::string& tag,
                      std::span<const std::filesystem::path> runs,
                      const std::function<void(const nlohmann::ordered_json&)>& each);

/// What a replica appends to.
class ResultWriter {
  public:
    ResultWriter(const std::filesystem::path& run, std::int64_t replica, std::int64_t epoch, ResultFormat format,
                 std::optional<DraftCost> drafts);

    /// From the replica's thread. `work_index` is what `take_durable` gives back. Throws StorageError.
    void append(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t work_index);

    /// Makes everything appended durable; from any one thread. Throws StorageError.
    void sync();

    /// Work indices whose results became durable since the last call.
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
