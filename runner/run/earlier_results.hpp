// The results of earlier launches that items continue, because `max-tokens` is greater now.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runner/host/world.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

/// Throws UsageError if a text of the job's run folder, whole or in a checkpoint, would no longer fit into the model's
/// `context` because `max-tokens` is greater than in the newest launch: its result would become an error. Of a shard,
/// the texts of all shards count, because they are joined at one `max-tokens`.
void check_texts_fit(const Settings& settings, std::int64_t context);

/// The epoch of the newest launch of a run folder, if that has ended and the folder has nothing that another job could
/// mix with its own: no text, no line that may have been one, no checkpoint. Failed items are none.
std::optional<std::int64_t> only_failures_until(const RunFolder& folder);

/// check_identity of a job's own folder. If that is another job's and has nothing but failures (a corrected command
/// after one under which all items failed), returns the epoch until which they are not to count.
std::optional<std::int64_t> check_own_folder(const RunFolder& folder, const Settings& settings,
                                             const Fingerprints& fingerprints);

/// Made and filled on rank 0, shared once, then read on every rank that asks for work. Single-threaded.
class EarlierResults {
  public:
    explicit EarlierResults(std::filesystem::path run) : run_(std::move(run)) {}

    void add(const ResultIndex& index, const ResultIndex::Entry& entry);
    /// Gives rank 0's places to all ranks. Collective.
    void share(const World& world);

    /// The record of an item. nullopt if there is none or it can no longer be read.
    [[nodiscard]] std::optional<ResultRecord> find(const ItemKey& key);

  private:
    std::filesystem::path run_;
    LineReader lines_;
    std::vector<std::string> names_;  ///< of the files, by their numbers in places_; "" if no place is there
    std::vector<LinePlace> places_;
};

}  // namespace longhaul::runner
