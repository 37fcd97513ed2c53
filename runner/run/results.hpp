// Files of results. During a run, each replica of each launch appends to its own journal results/R-EPOCH.jsonl (and
// statistics to log/stats-R-EPOCH.jsonl); readers merge them.
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

#include "engine/replica/work_item.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
#include "runner/job/settings.hpp"
#include "runner/run/result_lines.hpp"

namespace longhaul::runner {

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
        std::int32_t prompt_tokens = 0;  ///< 0 in lines of older versions
        bool own_max_tokens : 1 = false, failed : 1 = false, at_length : 1 = false;
        bool lacks_answer : 1 = false;  ///< its reasoning has no end
        bool can_resume : 1 = false;    ///< the line has what a greater `max-tokens` needs to continue the item
    };
    static_assert(sizeof(Entry) <= 48, "what an item costs in memory, at the end of a run of millions");

    /// Reads all result files of a run folder, or of the shards of a job, which have no items in common. Throws
    /// InputError if a file cannot be read.
    static ResultIndex read(const std::filesystem::path& run) { return read(std::span(&run, 1)); }
    static ResultIndex read(std::span<const std::filesystem::path> runs);

    [[nodiscard]] const Entry* find(const ItemKey& key) const;
    [[nodiscard]] const std::vector<Entry>& entries() const { return entries_; }  ///< in input order
    [[nodiscard]] ResultRecord load(const Entry& entry) const;                    ///< throws InputError

    /// The newest line that a greater `max-tokens` can continue, also if the newest line of the item is a failure
    /// (under that `max-tokens`, for want of memory). nullptr: the item starts from its prompt.
    [[nodiscard]] const Entry* find_resumable(const ItemKey& key) const;
    [[nodiscard]] const std::filesystem::path& path(const LinePlace& place) const { return lines_.path(place.file); }
    /// One line for each file with damaged lines, which do not count.
    [[nodiscard]] const std::vector<std::string>& damage() const { return damage_; }

    /// Whether the entry is final. An item without its own `max-tokens` is not final if it ended at its length and
    /// `max-tokens` is greater now, or if it failed under another `max-tokens` (its error may depend on it). A failed
    /// item is never final under `retry-failed`.
    static bool is_done(const Entry& entry, const Settings& settings);

  private:
    void add(const std::filesystem::path& run);

    mutable LineReader lines_;
    std::vector<Entry> entries_;
    std::vector<std::string> damage_;
    std::vector<Entry> before_failures_;  ///< of items that failed: the newest line that can be resumed
};

/// Writes TO/results.jsonl with the first `num_inputs` × `samples` items, or the part of them in `shard`; all of them
/// must be in the index. `tag`: for the name of the temporary. Throws.
void write_results(const std::filesystem::path& to, const std::string& tag, const ResultIndex& index,
                   std::int64_t num_inputs, const Settings& settings);

/// XXH3-64 of FOLDER/results.jsonl in hexadecimal, as in summary.json. Throws InputError.
std::string hash_of_results(const std::filesystem::path& folder);

/// Writes TO/stats.jsonl from the statistics of all launches of `runs`, in input order, the newest line per item, and
/// calls `each` for each line. Returns one line for each file with damage, and one if items of `results` have none.
std::vector<std::string> write_statistics(const std::filesystem::path& to, const std::string& tag,
                                          std::span<const std::filesystem::path> runs, const ResultIndex& results,
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
