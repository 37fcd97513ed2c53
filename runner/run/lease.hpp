// Exclusive access to a run folder: one record per launch, RUN/launches/EPOCH.json, made by exclusive creation, so that
// the number (the epoch) belongs to one launch without file-system locks. The holder of the newest record renews its
// modification time; when it ends, it writes EPOCH.ended.json.
//
// Every file name that a launch writes contains its epoch, and a new record says how many bytes of each older result
// file count. So what a launch writes after it was declared dead is never read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/json.hpp"
#include "runner/run/lease_record.hpp"

namespace longhaul::runner {

enum class LeaseState {
    live,   ///< renewed in time, and its process is alive or unknown
    stale,  ///< its process is gone, or it was not renewed in time
    ended,  ///< its launch wrote EPOCH.ended.json
};

struct LeaseView {
    LeaseRecord record;
    LeaseState state = LeaseState::ended;
    double age_seconds = 0;  ///< since the last renewal
    nlohmann::json ending;   ///< content of EPOCH.ended.json; null if the launch has not ended
};

/// The newest launch of a run folder and its current state; nullopt before the first launch. Writes only a temporary
/// probe file.
std::optional<LeaseView> newest_lease(const std::filesystem::path& run);

/// Longest time in seconds from a stop request to the end of a launch, over all ended launches of a run folder; 0 if
/// none was requested to stop.
double longest_stop_seconds(const std::filesystem::path& run);

/// "host node7, pid 4242, since 2026-01-02T03:04:05Z"
std::string describe_holder(const LeaseRecord& record);

/// The lease of a run folder, held by rank 0 of a launch.
class Lease {
  public:
    /// Takes the next epoch. Throws UsageError naming the holder if a live launch holds the folder, InputError if a
    /// result file is gone. `discard_until`: the results of the launches up to this epoch do not count for the new one;
    /// throws UsageError if there is a newer one.
    static Lease take(const std::filesystem::path& run, double lease_seconds,
                      std::optional<std::int64_t> discard_until = {});

    [[nodiscard]] const LeaseRecord& record() const { return record_; }
    [[nodiscard]] std::int64_t epoch() const { return record_.epoch; }

    /// Renews the lease; call it from one thread only. Returns false if a later launch has taken over: then stop.
    [[nodiscard]] bool renew() const noexcept;

    /// Whether no later launch has taken over.
    [[nodiscard]] bool is_newest() const noexcept;

    /// Writes how the launch ended. Best effort: without it the lease becomes stale later.
    void end(const nlohmann::json& ending) const noexcept;

  private:
    Lease(std::filesystem::path run, LeaseRecord record) : run_(std::move(run)), record_(std::move(record)) {}

    std::filesystem::path run_;
    LeaseRecord record_;
};

}  // namespace longhaul::runner
