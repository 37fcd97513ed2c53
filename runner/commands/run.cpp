// `longhaul run`: starts a job, or goes on with it where its run folder stands.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <memory>
#include <optional>

#include "engine/error.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/files.hpp"
#include "runner/job_run.hpp"
#include "runner/lease.hpp"
#include "runner/loaded.hpp"
#include "runner/log.hpp"
#include "runner/placement.hpp"
#include "runner/progress.hpp"
#include "runner/signals.hpp"
#include "runner/summary.hpp"
#include "runner/watchdog.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

/// Rank 0's hold of a run folder: renewed beside everything else, given back at the end.
class Hold {
  public:
    Hold(const RunFolder& folder, double lease_seconds) : lease_(Lease::take(folder.root, lease_seconds)) {
        pulse_.every(lease_seconds / 5, [this] {
            if (!lease_.renew()) superseded_ = true;
        });
        pulse_.start();
    }
    ~Hold() {
        pulse_.stop();
        lease_.end(ending_);
    }
    Hold(const Hold&) = delete;
    Hold& operator=(const Hold&) = delete;

    [[nodiscard]] std::int64_t epoch() const { return lease_.epoch(); }
    [[nodiscard]] bool superseded() const { return superseded_; }
    void set_ending(nlohmann::json ending) { ending_ = std::move(ending); }

  private:
    Lease lease_;
    std::atomic<bool> superseded_{false};
    nlohmann::json ending_{{"state", "failed"}, {"exit_code", 1}};
    Pulse pulse_;
};

// --- the job
// ----------------------------------------------------------------------------------------------------------

std::string pack(const std::vector<Assignment>& assignments) {
    nlohmann::json json = nlohmann::json::array();
    for (const Assignment& a : assignments) json.push_back({a.key, a.value, a.origin});
    return engine::json_text(json);
}

std::vector<Assignment> unpack(const std::string& bytes) {
    std::vector<Assignment> assignments;
    for (const auto& entry : engine::try_parse_json(bytes)) assignments.push_back({entry[0], entry[1], entry[2]});
    return assignments;
}

/// The job, read by rank 0 alone: a shared file system may show the ranks different files.
Settings read_settings(const World& world, const std::vector<std::string>& arguments) {
    std::string file, keys, folder;
    world.agree([&] {
        if (!world.is_first()) return;
        const CommandLine line = parse_command_line(arguments, syntax_of("run"));
        const fs::path job = line.places.front();
        file = pack(read_job_file(job));
        keys = pack(line.keys);
        folder = fs::absolute(job).parent_path().string();
    });
    for (std::string* part : {&file, &keys, &folder}) world.broadcast(*part);
    Settings settings;
    world.agree([&] {
        settings = parse_settings(unpack(file), unpack(keys), folder);
        const auto ranks = settings.tensor_parallel;
        if (world.size() % ranks == 0) return;
        throw UsageError("tensor-parallel: expected a divisor of the number of ranks, got " + std::to_string(ranks) +
                         " with " + std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks") +
                         "; start a multiple with `mpirun -n`");
    });
    return settings;
}

/// `threads` before MPI is there; 0 where it cannot be known yet (the errors come later, once).
int wanted_threads(const std::vector<std::string>& arguments) {
    try {
        const CommandLine line = parse_command_line(arguments, syntax_of("run"));
        const fs::path job = line.places.front();
        return static_cast<int>(parse_settings(read_job_file(job), line.keys, fs::absolute(job).parent_path()).threads);
    } catch (const Error&) {
        return 0;
    }
}

// --- start and end of a launch
// ----------------------------------------------------------------------------------------

/// What everything hangs on in one launch.
struct Launch {
    const World& world;
    Settings settings;
    RunFolder folder;
    Loaded loaded;
    std::unique_ptr<Hold> hold;                     ///< rank 0
    std::optional<nlohmann::json> previous_ending;  ///< rank 0: how the launch before this one ended
    std::int64_t epoch = 0;
};

std::string results_text(const RunFolder& folder, bool all_done) {
    return all_done ? (folder.root / "results.jsonl").string()
                    : "unfinished; `longhaul results " + folder.root.string() + "` shows what there is";
}

/// Throws StorageError: a table that went to a full disk must not look like success.
void print(const std::string& text) {
    const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (!written || std::fflush(stdout) != 0) throw StorageError(storage_line("standard output", "write to it", errno));
}

void write_job(const Launch& launch) {
    replace_file(launch.folder.root / "job.cfg", format_settings(launch.settings), Durable::yes,
                 std::to_string(launch.epoch));
}

/// Rank 0: opens data and folder. True when there is nothing to do: then the exit code is in `code`.
bool open_folder(Launch& launch, int& code) {
    const Settings& settings = launch.settings;
    launch.loaded.data = DataSet::open(settings);
    launch.loaded.fingerprints["data"] = launch.loaded.data->fingerprint();
    launch.folder.create();
    check_identity(launch.folder, settings, launch.loaded.fingerprints);
    const std::optional<Finished> finished = read_finished(launch.folder, settings);
    if (finished && finished->items == launch.loaded.data->size() * settings.samples) {
        std::fprintf(stderr, "longhaul: all %s items are done already\n", grouped(finished->items).c_str());
        print(read_if_there(launch.folder.root / "summary.txt"));
        code = static_cast<int>(finished->failed > 0 ? ExitCode::items_failed : ExitCode::done);
        return true;
    }
    if (const auto newest = newest_lease(launch.folder.root); newest && newest->ending.is_object())
        launch.previous_ending = newest->ending;
    launch.hold = std::make_unique<Hold>(launch.folder, settings.lease_seconds);
    launch.epoch = launch.hold->epoch();
    // A folder that belongs to a job already keeps its job.cfg until the model, too, was found to be that job's.
    if (!fs::exists(launch.folder.root / "job.cfg")) write_job(launch);
    return false;
}

void log_start(const Launch& launch) {
    const World& world = launch.world;
    Log log(launch.folder.log() / (std::to_string(launch.epoch) + ".log"));
    log.say("launch " + std::to_string(launch.epoch) + " on " + world.host() + ", " + std::to_string(world.size()) +
            " ranks, " + std::to_string(world.num_replicas()) + " replicas of " +
            std::to_string(launch.settings.tensor_parallel));
    log.say("rank 0: " + launch.loaded.placement.describe() + ", kernels " + std::string(launch.loaded.device->name()));
    const engine::LoadReport& load = launch.loaded.model->load_report();
    std::array<char, 64> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "model loaded in %.2f s, ", load.seconds);
    log.say("rank 0: " + (seconds.data() + load.how));
    log.say("resolved settings:\n" + format_settings(launch.settings));
    for (const std::string& notice : launch.loaded.model->notices()) {
        log.say("note: " + notice);
        std::fprintf(stderr, "note: %s\n", notice.c_str());
    }
    const std::int64_t items = launch.loaded.data->size() * launch.settings.samples;
    std::fprintf(stderr, "longhaul: %s %s; %d %s, rank 0 on %s, %s kernels; run folder %s (launch %lld)\n",
                 grouped(items).c_str(), items == 1 ? "item" : "items", world.size(),
                 world.size() == 1 ? "rank" : "ranks", launch.loaded.placement.describe().c_str(),
                 std::string(launch.loaded.device->name()).c_str(), launch.folder.root.c_str(),
                 static_cast<long long>(launch.epoch));
}

/// Loads the model and makes sure that the run folder is of this job. Collective.
void load_all(Launch& launch) {
    const World& world = launch.world;
    std::string data = world.is_first() ? launch.loaded.fingerprints.at("data") : "";
    world.broadcast(data);
    launch.loaded.fingerprints["data"] = data;
    std::vector<std::int64_t> epoch{launch.epoch};
    world.broadcast(epoch);
    launch.epoch = epoch.front();
    load(world, launch.settings, launch.loaded);
    world.agree([&] {
        if (!world.is_first()) return;
        try {
            check_identity(launch.folder, launch.settings, launch.loaded.fingerprints);
        } catch (const UsageError&) {  // refused: the run is what it was
            if (launch.previous_ending) launch.hold->set_ending(*launch.previous_ending);
            throw;
        }
        write_identity(launch.folder, launch.settings, launch.loaded.fingerprints);
        write_job(launch);
        log_start(launch);
    });
}

// --- comparison with plain decoding
// -----------------------------------------------------------------------------------

bool same_bytes(const fs::path& a, const fs::path& b) {
    std::ifstream first(a, std::ios::binary), second(b, std::ios::binary);
    if (!first || !second) return false;
    using Iterator = std::istreambuf_iterator<char>;
    return std::equal(Iterator(first), Iterator(), Iterator(second), Iterator());
}

/// Runs the same items by plain decoding into RUN/baseline, a run folder of its own. Collective; nullopt when it was
/// stopped (then `code` says so).
std::optional<BaselineReport> run_baseline(Launch& launch, int& code) {
    const World& world = launch.world;
    JobPhase phase{.label = "baseline",
                   .folder = {launch.folder.root / "baseline"},
                   .settings = launch.settings,
                   .epoch = 0,
                   .superseded = {}};
    phase.settings.draft = "ar";
    phase.settings.baseline = false;
    phase.settings.output = phase.folder.root;
    std::unique_ptr<Hold> hold;
    world.agree([&] {
        if (!world.is_first()) return;
        std::fprintf(stderr, "longhaul: the same items by autoregressive decoding, for comparison\n");
        phase.folder.create();
        check_identity(phase.folder, phase.settings, launch.loaded.fingerprints);
        hold = std::make_unique<Hold>(phase.folder, phase.settings.lease_seconds);
        phase.epoch = hold->epoch();
        replace_file(phase.folder.root / "job.cfg", format_settings(phase.settings), Durable::yes, "own");
        write_identity(phase.folder, phase.settings, launch.loaded.fingerprints);
    });
    std::vector<std::int64_t> epoch{phase.epoch};
    world.broadcast(epoch);
    phase.epoch = epoch.front();
    const JobOutcome outcome = run_phase(world, launch.loaded, phase);
    if (hold)
        hold->set_ending({{"state", outcome.all_done ? "finished" : "stopped"}, {"exit_code", outcome.exit_code}});
    if (!outcome.all_done) {
        code = outcome.exit_code;
        return std::nullopt;
    }
    return BaselineReport{.speed = outcome.speed,
                          .identical = !world.is_first() || same_bytes(launch.folder.root / "results.jsonl",
                                                                       phase.folder.root / "results.jsonl")};
}

/// Rank 0: the table, summary.json, and the mark of a finished job.
void conclude(const Launch& launch, const Summary& summary) {
    std::string json = engine::json_text(summary.to_json(), 2) + "\n";
    replace_file(launch.folder.root / "summary.json", json, Durable::yes, "own");
    replace_file(launch.folder.root / "summary.txt", summary.to_table(), Durable::yes, "own");
    if (summary.outcome.all_done) {
        write_finished(launch.folder, launch.settings,
                       {summary.outcome.items, summary.outcome.failed, summary.baseline.has_value()});
    }
    print(summary.to_table());
}

int run_job(const World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    Launch launch{.world = world,
                  .settings = read_settings(world, arguments),
                  .folder = {},
                  .loaded = {},
                  .hold = {},
                  .previous_ending = {}};
    launch.loaded.placement = placement;
    launch.folder.root = launch.settings.output;
    std::vector<std::int64_t> nothing_to_do{0, 0};
    world.agree([&] {
        if (!world.is_first()) return;
        int code = 0;
        nothing_to_do[0] = open_folder(launch, code) ? 1 : 0;
        nothing_to_do[1] = code;
    });
    world.broadcast(nothing_to_do);
    if (nothing_to_do[0] != 0) return static_cast<int>(nothing_to_do[1]);

    const_cast<World&>(world).split(static_cast<int>(launch.settings.tensor_parallel));
    load_all(launch);
    JobPhase phase{.label = "longhaul",
                   .folder = launch.folder,
                   .settings = launch.settings,
                   .epoch = launch.epoch,
                   .superseded = [&] { return launch.hold && launch.hold->superseded(); }};
    Summary summary;
    summary.outcome = run_phase(world, launch.loaded, phase);
    int code = summary.outcome.exit_code;
    if (launch.settings.baseline && launch.settings.draft != "ar" && summary.outcome.all_done) {
        summary.baseline = run_baseline(launch, code);
    }
    summary.settings = launch.settings;
    summary.results = results_text(launch.folder, summary.outcome.all_done);
    summary.epoch = launch.epoch;
    summary.ranks = world.size();
    summary.replicas = world.num_replicas();
    summary.threads = placement.threads;
    summary.kernels = std::string(launch.loaded.device->name());
    world.agree([&] {
        if (!world.is_first()) return;
        try {
            conclude(launch, summary);
        } catch (const StorageError&) {
            if (code != static_cast<int>(ExitCode::storage)) throw;  // else it was said already
        }
        const bool stopped = code == static_cast<int>(ExitCode::stopped);
        if (launch.hold) {
            launch.hold->set_ending({{"state", stopped                    ? "stopped"
                                               : summary.outcome.all_done ? "finished"
                                                                          : "failed"},
                                     {"exit_code", code}});
        }
        if (summary.baseline && !summary.baseline->identical) {
            throw Error((launch.folder.root / "baseline" / "results.jsonl").string() +
                        ": expected the bytes of results.jsonl, got others; please report it");
        }
    });
    if (world.is_first() && summary.outcome.stop == StopReason::failures) {
        std::fprintf(stderr, "error: max-failures: expected fewer than %lld failed items, got %lld; see %s\n",
                     static_cast<long long>(launch.settings.max_failures),
                     static_cast<long long>(summary.outcome.failed), launch.folder.log().c_str());
    }
    if (world.is_first() && summary.outcome.stop == StopReason::superseded) {
        std::fprintf(stderr, "error: %s: expected to hold the run folder, got superseded by a later launch\n",
                     launch.folder.root.c_str());
    }
    return code;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
    install_stop_signals();  // before anything else: a stop may be asked for at any time
    const Placement placement = place_this_rank(wanted_threads(arguments));
    const World world;
    try {
        return run_job(world, arguments, placement);
    } catch (const AgreedFailure& failure) {
        return failure.code;
    } catch (const std::exception&) {
        int code = 1;
        const std::string line = describe_failure(code);
        abort_all(line, code);
    }
}

}  // namespace longhaul::runner
