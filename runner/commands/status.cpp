// `longhaul status RUN`: shows the progress of a run and its replicas, from the run folder, and the state of its job in
// the queue, from squeue. Needs no MPI.
#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/command_line.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/progress.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/run_status.hpp"
#include "runner/run/shard_folder.hpp"
#include "runner/run/slurm.hpp"
#include "runner/sweep/sweep_folder.hpp"

namespace longhaul::runner {
namespace {

using Ordered = nlohmann::ordered_json;

constexpr std::size_t max_error_bytes = 2000;
constexpr std::size_t max_jobs = 4;  ///< most jobs to query; squeue's manual warns of too many calls

/// Queue state of the jobs that ran the launches of a folder and of the job submitted for it. Each job is queried once.
std::vector<QueueEntry> queue_of(const std::filesystem::path& root, const std::vector<const RunStatus*>& runs) {
    std::vector<SlurmJob> jobs;
    const auto add = [&](std::optional<SlurmJob> job) {
        if (job && std::find(jobs.begin(), jobs.end(), *job) == jobs.end()) jobs.push_back(std::move(*job));
    };
    add(submitted_job(root));
    for (const RunStatus* run : runs) {
        std::optional<SlurmJob> job = run->lease ? job_of(run->lease->record.slurm) : std::nullopt;
        // With several shards, query the array as a whole instead of each of its tasks.
        if (job && runs.size() > 1) job->id = job->id.substr(0, job->id.find('_'));
        if (job && !jobs.empty() && jobs.front().id == job->id) continue;  // same job id, regardless of the cluster
        if (jobs.size() < max_jobs) add(std::move(job));
    }
    std::vector<QueueEntry> queue;
    for (const SlurmJob& job : jobs) {
        for (QueueEntry& entry : ask_squeue(job)) queue.push_back(std::move(entry));
    }
    return queue;
}

Ordered to_json(const std::vector<QueueEntry>& queue) {
    Ordered json = Ordered::array();
    for (const QueueEntry& entry : queue) {
        json.push_back({{"job", entry.job}, {"state", entry.state}, {"restarts", entry.restarts}});
        if (!entry.reason.empty()) json.back()["reason"] = entry.reason;
        if (!entry.time_left.empty()) json.back()["time_left"] = entry.time_left;
    }
    return json;
}

void print_queue(const std::vector<QueueEntry>& queue) {
    for (const QueueEntry& entry : queue)
        std::printf("slurm     job %s: %s\n", entry.job.c_str(), describe(entry).c_str());
}

/// How the newest launch started, from the heartbeats of its replicas; -1: not known yet.
struct LaunchStart {
    double load_seconds = -1;         ///< longest time of a replica to load its model
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
        if (!record.slurm.empty()) json["launch"]["slurm"] = record.slurm;
        const LaunchStart start = launch_start(status.replicas);
        if (start.load_seconds >= 0) json["launch"]["load_seconds"] = start.load_seconds;
        if (start.first_token_seconds >= 0) json["launch"]["first_token_seconds"] = start.first_token_seconds;
        if (!status.lease->ending.is_null()) json["ending"] = Ordered(status.lease->ending);
    }
    json["done"] = status.done;
    json["failed"] = status.failed;
    json["stop_seconds"] = status.stop_seconds;
    if (!status.progress.is_null()) json["progress"] = status.progress;
    json["replicas"] = status.replicas;
    return json;
}

std::string launch_line(const LeaseView& lease) {
    const std::string what = "launch " + std::to_string(lease.record.epoch) + ", " + describe_holder(lease.record);
    if (lease.state == LeaseState::ended) return what + " (ended)";
    std::array<char, 64> age{};
    std::snprintf(age.data(), age.size(), ", heartbeat %.0f s ago", std::max(lease.age_seconds, 0.0));
    return what + age.data();
}

/// The error that ended the newest launch; "" if there was none, or it was not recorded.
std::string error_of(const RunStatus& status) {
    if (status.state != "failed" || !status.lease) return "";
    const auto error = status.lease->ending.find("error");
    return error == status.lease->ending.end() || !error->is_string() ? "" : error->get<std::string>();
}

std::string advice(const std::string& state) {
    if (state == "crashed") return "run the same command again: it resumes from the last checkpoint";
    if (state == "stopped") return "run the same command again: it resumes where it stopped";
    if (state == "failed") return "see log/, then run the same command again";
    return "";
}

void print_table(const RunFolder& folder, const RunStatus& status, const std::vector<QueueEntry>& queue) {
    std::printf("run       %s\nstate     %s\n", folder.root.c_str(), status.state.c_str());
    print_queue(queue);
    if (status.lease) std::printf("holder    %s\n", launch_line(*status.lease).c_str());
    const LaunchStart start = launch_start(status.replicas);
    if (start.load_seconds >= 0) std::printf("start     %s\n", start_line(start).c_str());
    if (!status.progress.is_null()) {
        std::printf("progress  %s\n", progress_line(progress_of(status)).c_str());
    } else {
        std::printf("progress  %s done\n", counted(status.done, "item", "items").c_str());
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
    if (status.stop_seconds > 0)
        std::printf("stop      took %.1f s at most, from the request to the end of the launch\n", status.stop_seconds);
    const std::string error = error_of(status);
    if (!error.empty()) std::printf("error     %s\n", engine::printable(error, max_error_bytes).c_str());
    const std::string what_now = error.empty() ? advice(status.state) : "fix this, then run the same command again";
    if (!what_now.empty()) std::printf("next      %s\n", what_now.c_str());
}

void print_run(const RunFolder& folder, bool json) {
    // A folder whose job was submitted but has not started contains nothing else, which is not an error.
    if (!submitted_job(folder.root) || folder.is_begun()) folder.must_exist();
    const RunStatus status = read_status(folder);
    const std::vector<QueueEntry> queue = queue_of(folder.root, {&status});
    if (json) {
        Ordered line = to_json(folder, status);
        if (!queue.empty()) line["slurm"] = to_json(queue);
        std::printf("%s\n", engine::json_text(line, 2).c_str());
    } else {
        print_table(folder, status, queue);
    }
}

/// State of a sweep: progress of its points, and the running one.
struct SweepStatus {
    std::string state = "new";
    std::optional<LeaseView> lease;
    std::int64_t points = 0, done = 0, begun = 0;
    std::string running;  ///< name of the running point; "" if none
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
    std::printf("points    %s of %s done, %s started\n", grouped(status.done).c_str(), grouped(status.points).c_str(),
                grouped(status.begun).c_str());
    if (!status.running.empty()) {
        std::printf("\n");
        const RunFolder folder{root / status.running};
        print_table(folder, read_status(folder), {});
    } else if (const std::string what_now = advice(status.state); !what_now.empty()) {
        std::printf("next      %s\n", what_now.c_str());
    }
}

/// State of a job in shards: each shard, and the sum.
struct ShardsStatus {
    std::vector<RunStatus> shards;
    std::string state;
    JobProgress sum;
    double stop_seconds = 0;
};

ShardsStatus read_shards_status(const std::filesystem::path& root) {
    ShardsStatus status;
    std::vector<std::string> states;
    bool all_sizes = true;  // a shard that has not started has not counted its items
    for (const RunFolder& folder : shards_of(root)) {
        const RunStatus& shard = status.shards.emplace_back(read_status(folder));
        const JobProgress progress = progress_of(shard);
        states.push_back(shard.state);
        all_sizes &= !shard.progress.is_null();
        status.sum.items += progress.items;
        status.sum.done += shard.done;
        status.sum.failed += shard.failed;
        status.sum.in_flight += progress.in_flight;
        if (shard.state == "running") status.sum.tokens_per_second += progress.tokens_per_second;
        status.stop_seconds = std::max(status.stop_seconds, shard.stop_seconds);
    }
    if (!all_sizes) status.sum.items = 0;
    status.state = state_of_all(states);
    return status;
}

std::string items_text(const JobProgress& progress) {
    const std::int64_t all = progress.items > 0 ? progress.items : progress.done;
    std::string text = (progress.items > 0 ? grouped(progress.done) + " of " : "") + counted(all, "item", "items");
    if (progress.failed > 0) text += " (" + grouped(progress.failed) + " failed)";
    return text;
}

void print_shards(const std::filesystem::path& root, bool json) {
    const ShardsStatus status = read_shards_status(root);
    const std::vector<RunFolder> folders = shards_of(root);
    std::vector<const RunStatus*> runs;
    for (const RunStatus& shard : status.shards) runs.push_back(&shard);
    const std::vector<QueueEntry> queue = queue_of(root, runs);
    if (json) {
        Ordered all{{"job", root.string()},
                    {"state", status.state},
                    {"done", status.sum.done},
                    {"failed", status.sum.failed},
                    {"stop_seconds", status.stop_seconds}};
        if (status.sum.items > 0) all["items"] = status.sum.items;
        if (!queue.empty()) all["slurm"] = to_json(queue);
        all["shards"] = Ordered::array();
        for (std::size_t i = 0; i < folders.size(); ++i) all["shards"].push_back(to_json(folders[i], status.shards[i]));
        std::printf("%s\n", engine::json_text(all, 2).c_str());
        return;
    }
    std::printf("job       %s\nstate     %s\n", root.c_str(), status.state.c_str());
    print_queue(queue);
    std::printf("progress  %s, %.0f tokens/s, %s in flight\n", items_text(status.sum).c_str(),
                status.sum.tokens_per_second, grouped(status.sum.in_flight).c_str());
    for (std::size_t i = 0; i < folders.size(); ++i) {
        const RunStatus& shard = status.shards[i];
        std::printf("shard %-3zu %-8s %s%s\n", i, shard.state.c_str(), items_text(progress_of(shard)).c_str(),
                    shard.lease && shard.state == "running" ? (", " + launch_line(*shard.lease)).c_str() : "");
        if (const std::string error = error_of(shard); !error.empty())
            std::printf("error     %s\n", engine::printable(error, max_error_bytes).c_str());
    }
    if (const std::string what_now = advice(status.state); !what_now.empty())
        std::printf("next      %s\n", what_now.c_str());
}

}  // namespace

int status_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("status"));
    const RunFolder folder{line.places.front()};
    const bool json = line.has("json");
    if (line.has("progress")) {
        if (json) throw UsageError("command line: expected one of --json and --progress, got both");
        std::printf("%s\n", read_progress_line(folder.root).text().c_str());
    } else if (is_sweep_folder(folder.root)) {
        print_sweep(folder.root, json);
    } else if (num_shards(folder.root) > 0) {
        print_shards(folder.root, json);
    } else {
        print_run(folder, json);
    }
    return static_cast<int>(ExitCode::done);
}

}  // namespace longhaul::runner
