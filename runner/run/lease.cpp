#include "runner/run/lease.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstdio>

#include "engine/error.hpp"
#include "runner/host/files.hpp"
#include "runner/run/result_files.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path record_path(const fs::path& run, std::int64_t epoch) {
    return run / "launches" / (std::to_string(epoch) + ".json");
}
fs::path ending_path(const fs::path& run, std::int64_t epoch) {
    return run / "launches" / (std::to_string(epoch) + ".ended.json");
}

Json to_json(const LeaseRecord& record) {
    Json json{{"epoch", record.epoch},
              {"host", record.holder.host},
              {"pid", record.holder.pid},
              {"start_ticks", record.holder.start_ticks},
              {"boot_id", record.holder.boot_id},
              {"pid_namespace", record.holder.pid_namespace},
              {"started", record.started},
              {"lease_seconds", record.lease_seconds},
              {"accepted", record.accepted}};
    if (!record.slurm.empty()) json["slurm"] = record.slurm;
    return json;
}

/// nullopt: the record cannot be read because its writer died while writing it.
std::optional<LeaseRecord> read_record(const fs::path& run, std::int64_t epoch) {
    LeaseRecord record;
    record.epoch = epoch;
    const Json json = engine::try_parse_json(read_if_there(record_path(run, epoch)));
    if (!json.is_object()) return std::nullopt;
    try {
        record.holder = {json.at("host"), json.at("pid"), json.at("start_ticks"), json.at("boot_id"),
                         json.at("pid_namespace")};
        record.started = json.at("started");
        record.lease_seconds = json.at("lease_seconds");
        record.accepted = json.at("accepted").get<std::map<std::string, std::int64_t>>();
        record.slurm = json.value("slurm", SlurmRecord());
    } catch (const Json::exception&) {
        return std::nullopt;
    }
    return record;
}

/// If a record cannot be read, only its age is known. Its launch wrote no results, so what counts is what the launches
/// before it accepted.
LeaseRecord record_of(const fs::path& run, std::int64_t epoch) {
    if (std::optional<LeaseRecord> record = read_record(run, epoch)) return *record;
    LeaseRecord unknown;
    unknown.epoch = epoch;
    unknown.holder.host = "unknown";
    for (std::int64_t older = epoch - 1; older > 0; --older) {
        const std::optional<LeaseRecord> record = read_record(run, older);
        if (!record) continue;
        unknown.accepted = accept_results(run, &*record);
        break;
    }
    return unknown;
}

std::int64_t newest_epoch(const fs::path& run) {
    std::int64_t newest = 0;
    for (const std::string& name : names_in(run / "launches")) {
        std::int64_t epoch = 0;
        const auto [end, bad] = std::from_chars(name.data(), name.data() + name.size(), epoch);
        if (bad == std::errc() && std::string_view(end) == ".json") newest = std::max(newest, epoch);
    }
    return newest;
}

/// The newest epoch in the names of results and checkpoints (R-EPOCH…). It exceeds `newest_epoch` only if launches/ was
/// emptied by hand. A new launch must not reuse these names.
std::int64_t newest_written_epoch(const fs::path& run) {
    std::int64_t newest = 0;
    for (const char* folder : {"results", "checkpoints"}) {
        for (const std::string& name : names_in(run / folder)) {
            const std::size_t dash = name.find('-');
            std::int64_t epoch = 0;
            if (dash != std::string::npos) {
                std::from_chars(name.data() + dash + 1, name.data() + name.size(), epoch);
            }
            constexpr std::int64_t max_launches = 1'000'000'000;  // a greater number is not one of our names
            if (epoch < max_launches) newest = std::max(newest, epoch);
        }
    }
    return newest;
}

double seconds_of(const struct timespec& time) {
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

/// The current time by the clock of the file system. On a network file system this is the server's clock, which also
/// sets the leases' modification times; clocks of nodes may differ by more than a lease.
double storage_now(const fs::path& run) {
    const fs::path probe = run / "launches" / (".now." + process_tag());
    struct stat status {};
    const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd >= 0) {
        const bool known = ::futimens(fd, nullptr) == 0 && ::fstat(fd, &status) == 0;
        ::close(fd);
        ::unlink(probe.c_str());
        if (known) return seconds_of(status.st_mtim);
    }
    struct timespec now {};
    ::clock_gettime(CLOCK_REALTIME, &now);
    return seconds_of(now);
}

LeaseState state_of(const LeaseRecord& record, double age_seconds) {
    const std::optional<bool> alive = record.holder.is_alive();
    if (alive && !*alive) return LeaseState::stale;
    return age_seconds > record.lease_seconds ? LeaseState::stale : LeaseState::live;
}

[[noreturn]] void refuse(const fs::path& run, const LeaseView& view) {
    std::array<char, 64> age{};
    std::snprintf(age.data(), age.size(), "%.0f", std::max(0.0, view.age_seconds));
    throw UsageError(run.string() + ": output: expected a run folder that no other launch holds, got one held by " +
                     describe_holder(view.record) + " (renewed " + age.data() +
                     " s ago); wait for it, or stop it with SIGUSR1");
}

}  // namespace

std::string describe_holder(const LeaseRecord& record) {
    return "host " + record.holder.host + ", pid " + std::to_string(record.holder.pid) + ", since " +
           (record.started.empty() ? "an unknown time" : record.started);
}

std::optional<LeaseView> newest_lease(const fs::path& run) {
    const std::int64_t epoch = newest_epoch(run);
    if (epoch == 0) return std::nullopt;
    LeaseView view;
    view.record = record_of(run, epoch);
    struct stat status {};
    if (::stat(record_path(run, epoch).c_str(), &status) == 0) {
        view.age_seconds = storage_now(run) - seconds_of(status.st_mtim);
    }
    const Json ending = engine::try_parse_json(read_if_there(ending_path(run, epoch)));
    view.ending = ending.is_object() ? ending : Json();
    view.state = ending.is_object() ? LeaseState::ended : state_of(view.record, view.age_seconds);
    return view;
}

double longest_stop_seconds(const fs::path& run) {
    double longest = 0;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(run / "launches", error)) {
        if (!entry.path().filename().string().ends_with(".ended.json")) continue;
        const Json json = engine::try_parse_json(read_if_there(entry.path()));
        const Json seconds = json.is_object() ? json.value("stop_seconds", Json()) : Json();
        if (seconds.is_number()) longest = std::max(longest, seconds.get<double>());
    }
    return longest;
}

Lease Lease::take(const fs::path& run, double lease_seconds, std::optional<std::int64_t> discard_until) {
    make_folder(run / "launches");
    for (;;) {
        const std::optional<LeaseView> newest = newest_lease(run);
        if (newest && newest->state == LeaseState::live) refuse(run, *newest);
        if (discard_until && (!newest || newest->record.epoch != *discard_until))
            throw UsageError(run.string() + ": output: expected launch " + std::to_string(*discard_until) +
                             " as the last, got a later one; run again");
        if (newest && !discard_until) must_have_accepted(run, newest->record);
        LeaseRecord record;
        record.epoch = std::max(newest ? newest->record.epoch : 0, newest_written_epoch(run)) + 1;
        record.holder = ProcessId::mine();
        record.started = utc_now();
        record.lease_seconds = lease_seconds;
        record.slurm = slurm_record_from_environment();
        if (!discard_until) record.accepted = accept_results(run, newest ? &newest->record : nullptr);
        // If two launches found the same stale lease, one of them gets the epoch; the other checks again and is
        // refused.
        const std::string text = engine::json_text(to_json(record), 2) + "\n";
        if (create_once(record_path(run, record.epoch), text, process_tag())) return {run, record};
    }
}

bool Lease::renew() const noexcept {
    ::utimensat(AT_FDCWD, record_path(run_, epoch()).c_str(), nullptr, 0);
    return is_newest();
}

bool Lease::is_newest() const noexcept {
    return ::access(record_path(run_, epoch() + 1).c_str(), F_OK) != 0;
}

void Lease::end(const Json& ending) const noexcept {
    try {
        replace_file(ending_path(run_, epoch()), engine::json_text(ending, 2) + "\n", Durable::yes, "own");
    } catch (const std::exception&) {
        // For example a full disk. The record becomes stale later.
    }
}

}  // namespace longhaul::runner
