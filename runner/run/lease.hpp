// Who runs here: one record a launch, RUN/launches/EPOCH.json, made by exclusive creation, so that the number (the
// epoch) belongs to one launch and needs no locks of the file system. The holder of the newest record renews its
// modification time; when it ends it leaves EPOCH.ended.json.
//
// The epoch is in every name a launch writes, and a new record says how much of each older result file counts: what a
// launch writes after it was taken for dead is never read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "engine/json.hpp"
#include "runner/run/lease_record.hpp"

namespace longhaul::runner {

enum class LeaseState {
    live,   ///< renewed in time, and its process is there as far as one can see
    stale,  ///< its process is gone, or it was not renewed in time
    ended,  ///< its launch said goodbye
};

struct LeaseView {
    LeaseRecord record;
    LeaseState state = LeaseState::ended;
    double age_seconds = 0;  ///< since the last renewal
    nlohmann::json ending;   ///< what an ended launch left; null otherwise
};

/// The newest launch of a run folder as it stands now; nullopt before the first. Writes nothing that stays.
std::optional<LeaseView> newest_lease(const std::filesystem::path& run);

/// What ended launches of a run folder took at most from a request to stop to their end; 0 where none was asked to.
double longest_stop_seconds(const std::filesystem::path& run);

/// "host node7, pid 4242, since 2026-01-02T03:04:05Z"
std::string describe_holder(const LeaseRecord& record);

/// The right to write into a run folder, held by rank 0 of a launch.
class Lease {
  public:
    /// Takes the next epoch. Throws UsageError naming the holder when a live launch is there.
    static Lease take(const std::filesystem::path& run, double lease_seconds);

    [[nodiscard]] const LeaseRecord& record() const { return record_; }
    [[nodiscard]] std::int64_t epoch() const { return record_.epoch; }

    /// Says that the holder lives. From any one thread. False when a later launch has taken over: stop.
    [[nodiscard]] bool renew() const noexcept;

    /// The launch is over; `ending` says how. Best effort: without it the lease is found stale later.
    void end(const nlohmann::json& ending) const noexcept;

  private:
    Lease(std::filesystem::path run, LeaseRecord record) : run_(std::move(run)), record_(std::move(record)) {}

    std::filesystem::path run_;
    LeaseRecord record_;
};

}  // namespace longhaul::runner
