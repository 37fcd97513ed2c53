// `longhaul status RUN`: how far a run is and what its replicas do, from the run folder alone. Needs no MPI.
//
// States of a run: `new` (no launch yet), `running`, `stopped` (ended on request, everything saved), `failed` (ended
// with an error), `crashed` (its process is gone, or its lease is old), `finished`.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/files.hpp"
#include "runner/lease.hpp"
#include "runner/progress.hpp"
#include "runner/results.hpp"
#include "runner/run_folder.hpp"
#include "runner/sweep_folder.hpp"

namespace longhaul::runner {
namespace {

using Ordered = nlohmann::ordered_json;

/// What a run folder says about its run.
struct RunStatus {
    std::string state = "new";
    std::optional<LeaseView> lease;
    Ordered progress;               ///< of the newest launch, as rank 0 saw it; null before
    std::vector<Ordered> replicas;  ///< heartbeats of the newest launch
    std::int64_t done = 0, failed = 0;
};

std::string state_of(const LeaseView& lease) {
    if (lease.state == LeaseState::live) return "running";
    if (lease.state == LeaseState::stale) return "crashed";
    return lease.ending.value("state", "failed");
}

RunStatus read_status(const RunFolder& folder) {
    RunStatus status;
    status.lease = newest_lease(folder.root);
    if (!status.lease) return status;
    status.state = state_of(*status.lease);
    const std::int64_t epoch = status.lease->record.epoch;
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder.status(), error)) {
        if (entry.path().extension() != ".json") continue;
        const Ordered json = Ordered::parse(read_if_there(entry.path()), nullptr, false);
        if (!json.is_object() || json.value("epoch", std::int64_t{0}) != epoch) continue;
        (entry.path().filename() == "run.json" ? status.progress : status.replicas.emplace_back()) = json;
    }
    std::sort(status.replicas.begin(), status.replicas.end(),
              [](const Ordered& a, const Ordered& b) { return a.value("replica", 0) < b.value("replica", 0); });
    const ResultIndex results = ResultIndex::read(folder.root);
    status.done = static_cast<std::int64_t>(results.entries().size());
    for (const ResultIndex::Entry& entry : results.entries()) status.failed += entry.failed ? 1 : 0;
    return status;
}

/// How the newest launch began, from its replicas' heartbeats; -1: not yet.
struct LaunchStart {
    double load_seconds = -1;         ///< of the replica that took longest to have its model
    double first_token_seconds = -1;  ///< from the start of the program to the first token of any replica
};

LaunchStart launch_start(const std::vector<Ordered>& replicas) {
    LaunchStart start;
    for (const Ordered& replica : replicas) {
        start.load_seconds = std::max(start.load_seconds, replica.value("load_seconds", -1.0));
        const double first = replica.value("first_token_seconds", -1.0);
        if (first < 0) continue;
        start.first_token_seconds = start.first_token_seconds < 0 ? first : std::min(start.first_token_seconds, first);
    }
    return start;
}

std::string start_line(const LaunchStart& start) {
    std::array<char, 100> line{};
    std::snprintf(line.data(), line.size(), "model loaded in %.2f s", start.load_seconds);
    std::string text = line.data();
    if (start.first_token_seconds < 0) return text + ", no token yet";
    std::snprintf(line.data(), line.size(), ", first token after %.2f s", start.first_token_seconds);
    return text + line.data();
}

Ordered to_json(const RunFolder& folder, const RunStatus& status) {
    Ordered json;
    json["run"] = folder.root.string();
    json["state"] = status.state;
    if (status.lease) {
        const LeaseRecord& record = status.lease->record;
        json["launch"] = {{"epoch", record.epoch},
                          {"host", record.holder.host},
                          {"pid", record.holder.pid},
                          {"started", record.started},
                          {"renewed_seconds_ago", status.lease->age_seconds}};
        const LaunchStart start = launch_start(status.replicas);
        if (start.load_seconds >= 0) json["launch"]["load_seconds"] = start.load_seconds;
        if (start.first_token_seconds >= 0) json["launch"]["first_token_seconds"] = start.first_token_seconds;
        if (!status.lease->ending.is_null()) json["ending"] = Ordered(status.lease->ending);
    }
    json["done"] = status.done;
    json["failed"] = status.failed;
    if (!status.progress.is_null()) json["progress"] = status.progress;
    json["replicas"] = status.replicas;
    return json;
}

std::string launch_line(const LeaseView& lease) {
    const std::string what = "launch " + std::to_string(lease.record.epoch) + ", " + describe_holder(lease.record);
    if (lease.state == LeaseState::ended) return what + " (ended)";
    std::array<char, 64> age{};
    std::snprintf(age.data(), age.size(), ", sign of life %.0f s ago", std::max(lease.age_seconds, 0.0));
    return what + age.data();
}

std::string advice(const std::string& state) {
    if (state == "crashed") return "run the same command again: it goes on from the last checkpoint";
    if (state == "stopped") return "run the same command again: it goes on where it stopped";
    if (state == "failed") return "see log/, then run the same command again";
    return "";
}

JobProgress progress_of(const RunStatus& status) {
    const Ordered& json = status.progress;
    JobProgress progress;
    progress.items = json.value("items", std::int64_t{0});
    progress.done = status.done;
    progress.failed = status.failed;
    progress.in_flight = status.state == "running" ? json.value("in_flight", std::int64_t{0}) : 0;
    progress.share = json.value("share", 0.0);
    progress.tokens_per_second = json.value("tokens_per_second", 0.0);
    progress.acceptance = json.value("acceptance", -1.0);
    progress.block_efficiency = json.value("block_efficiency", 0.0);
    progress.eta_seconds = status.state == "running" ? json.value("eta_seconds", -1.0) : -1.0;
    return progress;
}

void print_table(const RunFolder& folder, const RunStatus& status) {
    std::printf("run       %s\nstate     %s\n", folder.root.c_str(), status.state.c_str());
    if (status.lease) std::printf("holder    %s\n", launch_line(*status.lease).c_str());
    const LaunchStart start = launch_start(status.replicas);
    if (start.load_seconds >= 0) std::printf("start     %s\n", start_line(start).c_str());
    if (!status.progress.is_null()) {
        std::printf("progress  %s\n", progress_line(progress_of(status)).c_str());
    } else {
        std::printf("progress  %s items done\n", grouped(status.done).c_str());
    }
    if (status.state == "running") {
        for (const Ordered& replica : status.replicas) {
            std::printf("replica   %d on %s, pid %lld: %s, %lld in flight, %s done, %s tokens\n",
                        replica.value("replica", 0), replica.value("host", "?").c_str(), replica.value("pid", 0LL),
                        replica.value("phase", "?").c_str(), replica.value("in_flight", 0LL),
                        grouped(replica.value("done", std::int64_t{0})).c_str(),
                        grouped(replica.value("emitted_tokens", std::int64_t{0})).c_str());
        }
    }
    const std::string what_now = advice(status.state);
    if (!what_now.empty()) std::printf("next      %s\n", what_now.c_str());
}

/// What a sweep's folder says: how its points stand, and the one that runs.
struct SweepStatus {
    std::string state = "new";
    std::optional<LeaseView> lease;
    std::int64_t points = 0, done = 0, begun = 0;
    std::string running;  ///< name of a point; "" for none
};

SweepStatus read_sweep_status(const std::filesystem::path& root) {
    SweepStatus status;
    status.lease = newest_lease(root);
    if (status.lease) status.state = state_of(*status.lease);
    for (const SweepPoint& point : points_of(read_sweep(root / sweep_marker, {}))) {
        const RunFolder folder{root / point.name};
        ++status.points;
        if (read_finished(folder, point.settings)) {
            ++status.done;
        } else if (const auto lease = newest_lease(folder.root)) {
            ++status.begun;
            if (lease->state == LeaseState::live) status.running = point.name;
        }
    }
    return status;
}

void print_sweep(const std::filesystem::path& root, bool json) {
    const SweepStatus status = read_sweep_status(root);
    if (json) {
        Ordered line{{"sweep", root.string()},
                     {"state", status.state},
                     {"points", status.points},
                     {"done", status.done},
                     {"begun", status.begun}};
        if (!status.running.empty()) line["running"] = status.running;
        std::printf("%s\n", engine::json_text(line, 2).c_str());
        return;
    }
    std::printf("sweep     %s\nstate     %s\n", root.c_str(), status.state.c_str());
    if (status.lease) std::printf("holder    %s\n", launch_line(*status.lease).c_str());
    std::printf("points    %s of %s done, %s begun\n", grouped(status.done).c_str(), grouped(status.points).c_str(),
                grouped(status.begun).c_str());
    if (!status.running.empty()) {
        std::printf("\n");
        const RunFolder folder{root / status.running};
        print_table(folder, read_status(folder));
    } else if (const std::string what_now = advice(status.state); !what_now.empty()) {
        std::printf("next      %s\n", what_now.c_str());
    }
}

}  // namespace

int status_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("status"));
    const RunFolder folder{line.places.front()};
    const bool json = line.has("json");
    if (is_sweep_folder(folder.root)) {
        print_sweep(folder.root, json);
    } else {
        folder.must_exist();
        const RunStatus status = read_status(folder);
        if (json) std::printf("%s\n", engine::json_text(to_json(folder, status), 2).c_str());
        if (!json) print_table(folder, status);
    }
    return std::fflush(stdout) == 0 ? static_cast<int>(ExitCode::done) : static_cast<int>(ExitCode::storage);
}

}  // namespace longhaul::runner
