#include "runner/launch/launch.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <utility>

#include "engine/error.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/signals.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/run/earlier_results.hpp"
#include "runner/run/log.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

// --- before a launch

void broadcast(const World& world, std::vector<Assignment>& assignments) {
    nlohmann::json json = nlohmann::json::array();
    for (const Assignment& a : assignments) json.push_back({a.key, a.value, a.origin});
    std::string bytes = engine::json_text(json);
    world.broadcast(bytes);
    assignments.clear();
    for (const auto& entry : engine::try_parse_json(bytes)) assignments.push_back({entry[0], entry[1], entry[2]});
}

// --- start of a launch

void write_job(const Launch& launch) {
    replace_file(launch.folder.root / "job.cfg", format_settings(launch.settings), Durable::yes,
                 std::to_string(launch.epoch));
}

/// If the folder belongs to a job already, its job.cfg stays unchanged until the model is checked, too (`begin`).
void write_lost_job(const Launch& launch) {
    const fs::path path = launch.folder.root / "job.cfg";
    std::error_code error;
    if (!fs::exists(path, error) || fs::file_size(path, error) == 0) write_job(launch);
}

std::int64_t num_items(const Launch& launch) {
    return launch.settings.shard.share_of(launch.loaded.data->size()) * launch.settings.samples;
}

/// Checks that the run folder and the shards beside it belong to this job.
void check_job(const Launch& launch) {
    if (!launch.starts_afresh) check_identity(launch.folder, launch.settings, launch.loaded.fingerprints);
    if (launch.settings.shard.is_part()) check_other_shards(launch.settings, launch.loaded.fingerprints);
}

/// open_run on rank 0.
std::optional<Finished> open_folder(Launch& launch) {
    const Settings& settings = launch.settings;
    if (!launch.loaded.data) launch.loaded.data = DataSet::open(settings);
    launch.loaded.fingerprints["data"] = launch.loaded.data->fingerprint();
    if (settings.shard.is_part()) {
        create_shard_folder(settings);
        check_other_shards(settings, launch.loaded.fingerprints);  // before a refused shard creates its folder
    }
    launch.folder.create();
    const std::optional<std::int64_t> discarded = check_own_folder(launch.folder, settings, launch.loaded.fingerprints);
    launch.starts_afresh = discarded.has_value();
    const std::optional<Finished> finished = read_finished(launch.folder, settings);
    if (!discarded && finished && finished->items == num_items(launch)) {
        write_lost_job(launch);
        return finished;
    }
    if (const auto newest = newest_lease(launch.folder.root); !discarded && newest && newest->ending.is_object())
        launch.previous_ending = newest->ending;
    launch.hold = std::make_unique<Hold>(launch.folder.root, settings.lease_seconds, discarded);
    launch.epoch = launch.hold->epoch();
    if (discarded) remove_durably(launch.folder.root / "finished.json");  // it could be taken for the new job's
    write_lost_job(launch);
    return std::nullopt;
}

std::string kernels_text(const kernels::Device& device) {
    const std::string place = device.place();
    return std::string(device.name()) + " kernels" + (place.empty() ? "" : " on " + place);
}

/// Note for a run whose earlier launches used another kind of device; "" if the kind is the same.
std::string device_change(const Launch& launch) {
    const std::string now = device_kind(launch.settings);
    if (launch.kinds_before.empty() || launch.kinds_before.back() == now) return "";
    return "device: this run was computed with " + launch.kinds_before.back() + " so far and continues on " + now +
           ", as allow-device-change says: its text may match neither device's";
}

void log_start(const Launch& launch) {
    const World& world = launch.world;
    Log log(launch.folder.launch_log(launch.epoch));
    log.say("launch " + std::to_string(launch.epoch) + " on " + world.host() + ", " + std::to_string(world.size()) +
            " ranks, " + std::to_string(world.num_replicas()) + " replicas of " +
            std::to_string(launch.settings.tensor_parallel));
    log.say("rank 0: " + launch.loaded.placement.describe() + ", kernels " + std::string(launch.loaded.device->name()));
    for (std::size_t rank = 0; rank < launch.loaded.devices.size(); ++rank) {
        if (const std::string& device = launch.loaded.devices[rank]; !device.empty())
            log.say("rank " + std::to_string(rank) + " on " + device);
    }
    if (launch.settings.kernels == "cuda-cublas") {
        log.say(
            "note: kernels = cuda-cublas: prompts are computed by cuBLASLt; the text is one for any batch, drafts and "
            "resumes, but only on " +
            device_kind(launch.settings));
    }
    if (const std::string change = device_change(launch); !change.empty()) log.tell("note: " + change);
    if (const std::string warning = lossy_rule_warning(launch.settings); !warning.empty())
        log.tell("warning: " + warning);
    const engine::LoadReport& load = launch.loaded.model->load_report();
    std::array<char, 64> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "model loaded in %.2f s, ", load.seconds);
    log.say("rank 0: " + (seconds.data() + load.how));
    log.say("resolved settings:\n" + format_settings(launch.settings));
    std::vector<std::string> notices = launch.loaded.model->notices();
    for (std::string& notice : launch.loaded.data->notices(*launch.loaded.tokenizer))
        notices.push_back(std::move(notice));
    if (!launch.loaded.drafts.notice().empty()) notices.push_back(launch.loaded.drafts.notice());
    for (const std::string& notice : notices) {
        if (launch.loaded.notices_said) {
            log.say("note: " + notice);
        } else {
            log.tell("note: " + notice);
        }
    }
    launch.loaded.notices_said = true;
    const std::int64_t items = num_items(launch);
    std::fprintf(stderr, "longhaul: %s %s; %d %s, rank 0 on %s, %s; run folder %s (launch %lld)\n",
                 grouped(items).c_str(), items == 1 ? "item" : "items", world.size(),
                 world.size() == 1 ? "rank" : "ranks", launch.loaded.placement.describe().c_str(),
                 kernels_text(*launch.loaded.device).c_str(), launch.folder.root.c_str(),
                 static_cast<long long>(launch.epoch));
}

/// Binds the run folder to this job.
void begin(Launch& launch) {
    if (launch.hold->superseded_now()) return;
    launch.kinds_before = device_kinds(launch.folder);
    write_identity(launch.folder, launch.settings, launch.loaded.fingerprints);
    write_job(launch);
    log_start(launch);
}

/// Logs what the device chose by itself; known only at the end.
void log_choices(const Launch& launch) {
    Log log(launch.folder.launch_log(launch.epoch));
    for (const std::string& line : launch.loaded.device->choices()) log.say("rank 0: " + line);
}

std::int64_t shared_epoch(const World& world, std::int64_t mine) {
    std::vector<std::int64_t> epoch{mine};
    world.broadcast(epoch);
    return epoch.front();
}

// --- comparison with plain decoding

bool same_bytes(const fs::path& a, const fs::path& b) {
    std::ifstream first(a, std::ios::binary), second(b, std::ios::binary);
    if (!first || !second) return false;
    using Iterator = std::istreambuf_iterator<char>;
    return std::equal(Iterator(first), Iterator(), Iterator(second), Iterator());
}

/// Runs the same items by plain decoding into RUN/baseline, its own run folder. Collective; nullopt if it was stopped
/// (then `end` says how).
std::optional<BaselineReport> run_baseline(Launch& launch, const JobPhase& above, LaunchEnd& end) {
    const World& world = launch.world;
    JobPhase phase{.label = "baseline",
                   .folder = {launch.folder.root / "baseline"},
                   .settings = launch.settings,
                   .epoch = 0,
                   .superseded = above.superseded,
                   .superseded_now = above.superseded_now,
                   .begin = {}};
    phase.settings.draft = "ar";
    phase.settings.baseline = false;
    phase.settings.output = phase.folder.root;
    phase.begin = [&] {
        replace_file(phase.folder.root / "job.cfg", format_settings(phase.settings), Durable::yes, "own");
        write_identity(phase.folder, phase.settings, launch.loaded.fingerprints);
    };
    std::unique_ptr<Hold> hold;
    world.agree([&] {
        if (!world.is_first()) return;
        std::fprintf(stderr, "longhaul: the same items by autoregressive decoding, for comparison\n");
        phase.folder.create();
        check_identity(phase.folder, phase.settings, launch.loaded.fingerprints);
        hold = std::make_unique<Hold>(phase.folder.root, phase.settings.lease_seconds);
        phase.epoch = hold->epoch();
    });
    phase.epoch = shared_epoch(world, phase.epoch);
    launch.loaded.drafts.unload();  // plain decoding's memory plan has no drafts
    const JobOutcome outcome = run_phase(world, launch.loaded, phase);
    if (hold)
        hold->set_ending({{"state", outcome.all_done ? "finished" : "stopped"}, {"exit_code", outcome.exit_code}});
    if (!outcome.all_done) {
        end.code = outcome.exit_code;
        if (outcome.stop == StopReason::superseded) end.stop = outcome.stop;
        return std::nullopt;
    }
    BaselineReport report{.speed = outcome.speed, .identical = {}};
    if (launch.settings.is_coupled())
        report.identical =
            !world.is_first() || same_bytes(launch.folder.root / "results.jsonl", phase.folder.root / "results.jsonl");
    return report;
}

// --- end of a launch

std::string results_text(const RunFolder& folder, bool all_done) {
    return all_done ? (folder.root / "results.jsonl").string()
                    : "unfinished; `longhaul results " + folder.root.string() + " --partial` shows what there is";
}

Summary make_summary(const Launch& launch, const JobOutcome& outcome) {
    return {.outcome = outcome,
            .settings = launch.settings,
            .results = results_text(launch.folder, outcome.all_done),
            .results_hash = {},
            .epoch = launch.epoch,
            .ranks = launch.world.size(),
            .replicas = launch.world.num_replicas(),
            .threads = launch.loaded.placement.threads,
            .kernels = std::string(launch.loaded.device->name()),
            .devices = launch.loaded.devices,
            .device_kinds = device_kinds(launch.folder),
            .baseline = {}};
}

/// Rank 0: writes the summary, and finished.json if the job is done.
void write_summary(const Launch& launch, const Summary& summary) {
    std::string json = engine::json_text(summary.to_json(), 2) + "\n";
    replace_file(launch.folder.root / "summary.json", json, Durable::yes, "own");
    replace_file(launch.folder.root / "summary.txt", summary.to_table(), Durable::yes, "own");
    if (summary.outcome.all_done) {
        write_finished(launch.folder, launch.settings,
                       {summary.outcome.items, summary.outcome.failed, summary.baseline.has_value()});
    }
}

/// Why the launch ended early; "" if it did not, or if that was printed already. `stop`: also of the baseline.
std::string why_it_ended(const Launch& launch, const JobOutcome& outcome, StopReason stop) {
    if (outcome.stop == StopReason::failures)
        return "max-failures: expected fewer than " + std::to_string(launch.settings.max_failures) +
               " failed items, got " + std::to_string(outcome.failed) + "; see " + launch.folder.log().string();
    if (stop == StopReason::superseded)
        return launch.folder.root.string() + ": expected to hold the run folder, got superseded by a later launch";
    return "";
}

void set_ending(const Launch& launch, const Summary& summary, int code) {
    const bool stopped = code == static_cast<int>(ExitCode::stopped);
    if (!launch.hold) return;
    nlohmann::json ending{{"state", stopped                    ? "stopped"
                                    : summary.outcome.all_done ? "finished"
                                                               : "failed"},
                          {"exit_code", code}};
    if (const std::string why = why_it_ended(launch, summary.outcome, summary.outcome.stop); !why.empty())
        ending["error"] = why;
    launch.hold->set_ending(std::move(ending));
}

}  // namespace

Hold::Hold(const fs::path& root, double lease_seconds, std::optional<std::int64_t> discard_until)
    : lease_(Lease::take(root, lease_seconds, discard_until)) {
    pulse_.every(lease_seconds / 5, [this] {
        if (!lease_.renew()) superseded_ = true;
    });
    pulse_.start();
}

Hold::~Hold() {
    pulse_.stop();
    if (const double seconds = seconds_since_stop_request(); seconds >= 0 && ending_.is_object())
        ending_["stop_seconds"] = seconds;
    lease_.end(ending_);
}

void Hold::set_ending(nlohmann::json ending) {
    ending_ = std::move(ending);
    is_ending_known_ = true;
}

void Hold::set_failure(int code, const std::string& line) {
    if (!is_ending_known_) set_ending({{"state", "failed"}, {"exit_code", code}, {"error", line}});
}

void join_if_last(const Settings& settings) {
    if (!settings.shard.is_part()) return;
    const JoinReport report = join_shards(settings.output);
    if (report.state == Joining::joined) {
        std::fprintf(stderr, "longhaul: all %lld shards are done, and joined in %s\n",
                     static_cast<long long>(settings.shard.count), settings.output.c_str());
    } else if (report.state == Joining::differing) {
        std::fprintf(stderr, "note: %s\n", report.why.c_str());
    }
}

JobLines read_job_lines(const World& world, const std::string& command, const std::vector<std::string>& arguments) {
    JobLines lines;
    world.agree([&] {
        if (!world.is_first()) return;
        CommandLine line = parse_command_line(arguments, syntax_of(command));
        lines.file = read_job_file(line.places.front());
        lines.keys = std::move(line.keys);
        lines.path = fs::absolute(line.places.front()).string();
    });
    broadcast(world, lines.file);
    broadcast(world, lines.keys);
    world.broadcast(lines.path);
    return lines;
}

void check_ranks(const World& world, const Settings& settings) {
    const auto ranks = settings.tensor_parallel;
    if (world.size() % ranks == 0) return;
    throw UsageError("tensor-parallel: expected a divisor of the number of ranks, got " + std::to_string(ranks) +
                     " with " + std::to_string(world.size()) + (world.size() == 1 ? " rank" : " ranks") +
                     "; start a multiple with `mpirun -n`");
}

std::optional<Finished> open_run(Launch& launch) {
    const World& world = launch.world;
    std::vector<std::int64_t> words;  // of a finished run: items, failed, baseline
    world.agree([&] {
        if (!world.is_first()) return;
        if (const auto finished = open_folder(launch))
            words = {finished->items, finished->failed, finished->baseline ? 1 : 0};
    });
    world.broadcast(words);
    if (words.empty()) return std::nullopt;
    return Finished{.items = words[0], .failed = words[1], .baseline = words[2] != 0};
}

void load_run(Launch& launch) {
    World& world = launch.world;
    if (!launch.loaded.model) world.split(static_cast<int>(launch.settings.tensor_parallel));
    std::string data = world.is_first() ? launch.loaded.fingerprints.at("data") : "";
    world.broadcast(data);
    launch.loaded.fingerprints["data"] = data;
    launch.epoch = shared_epoch(world, launch.epoch);
    load(world, launch.settings, launch.loaded);
    world.agree([&] {
        if (!world.is_first()) return;
        try {
            // Check settings against the model before the folder is bound to this job, so that a refused job can still
            // change its keys.
            static_cast<void>(replica_options(launch.settings, launch.loaded.model->config()));
            check_job(launch);
            check_texts_fit(launch.settings, launch.loaded.model->config().max_positions);
        } catch (const UsageError&) {  // refused: restore the ending of the previous launch
            if (launch.previous_ending) launch.hold->set_ending(*launch.previous_ending);
            throw;
        }
    });
}

LaunchEnd carry_out(Launch& launch, const std::function<void(const Summary&)>& report) {
    const World& world = launch.world;
    const Hold* const hold = launch.hold.get();  // rank 0
    const auto superseded_above = [&launch] { return launch.superseded_above && launch.superseded_above(); };
    const JobPhase phase{.label = launch.label,
                         .folder = launch.folder,
                         .settings = launch.settings,
                         .epoch = launch.epoch,
                         .superseded = [&] { return (hold && hold->superseded()) || superseded_above(); },
                         .superseded_now = [&] { return (hold && hold->superseded_now()) || superseded_above(); },
                         .begin = [&] { begin(launch); }};
    Summary summary = make_summary(launch, run_phase(world, launch.loaded, phase));
    const JobOutcome& outcome = summary.outcome;
    LaunchEnd end{.code = outcome.exit_code, .stop = outcome.stop};
    if (launch.settings.baseline && launch.settings.draft->drafts() && outcome.all_done)
        summary.baseline = run_baseline(launch, phase, end);
    world.agree([&] {
        if (!world.is_first()) return;
        log_choices(launch);
        if (end.stop == StopReason::superseded) return;  // all other files are the later launch's now
        if (outcome.all_done) summary.results_hash = hash_of_results(launch.folder.root);
        try {
            write_summary(launch, summary);
            report(summary);
        } catch (const StorageError&) {
            if (end.code != static_cast<int>(ExitCode::storage)) throw;  // otherwise it was reported already
        }
        set_ending(launch, summary, end.code);
        if (outcome.all_done) join_if_last(launch.settings);
        if (summary.baseline && summary.baseline->identical == false) {
            throw Error((launch.folder.root / "baseline" / "results.jsonl").string() +
                        ": expected the bytes of results.jsonl, got others; please report it");
        }
    });
    if (const std::string why = why_it_ended(launch, outcome, end.stop); world.is_first() && !why.empty())
        std::fprintf(stderr, "error: %s\n", why.c_str());
    return end;
}

LaunchEnd load_and_carry_out(Launch& launch, const std::function<void(const Summary&)>& report) {
    try {
        load_run(launch);
        return carry_out(launch, report);
    } catch (const AgreedFailure& failure) {
        if (launch.hold) {
            Log(launch.folder.launch_log(launch.epoch)).say("error: " + failure.line);
            launch.hold->set_failure(failure.code, failure.line);
        }
        throw;
    }
}

int exit_code_of(const Finished& finished) {
    return static_cast<int>(finished.failed > 0 ? ExitCode::items_failed : ExitCode::done);
}

void print_answer(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    flush_output();
}

}  // namespace longhaul::runner
