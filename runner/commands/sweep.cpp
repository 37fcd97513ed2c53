// `longhaul sweep`: many runs that differ in a few keys, one after another on all ranks, with one table as the result.
// Each point of the sweep has its own run folder. Finished points are skipped, started ones resume.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <utility>

#include "engine/error.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/signals.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/launch/launch.hpp"
#include "runner/sweep/sweep.hpp"
#include "runner/sweep/sweep_folder.hpp"
#include "runner/sweep/sweep_table.hpp"

namespace longhaul::runner {
namespace {

/// Finds out whether all items of a point are done. Opens the data once for consecutive points that share it.
class DoneFinder {
  public:
    bool is_done(const SweepPoint& point) {
        const RunFolder folder{point.settings.output};
        const std::optional<Finished> finished = read_finished(folder, point.settings);
        if (!finished) return false;
        const std::string needs = data_needs(point.settings);
        if (needs != needs_) {
            try {
                const auto data = DataSet::open(point.settings);
                fingerprint_ = data->fingerprint();
                num_inputs_ = data->size();
            } catch (const InputError&) {
                return false;  // reported when the point runs
            }
            needs_ = needs;
        }
        check_identity(folder, point.settings, {{"data", fingerprint_}});
        return finished->items == num_inputs_ * point.settings.samples;
    }

  private:
    std::string needs_, fingerprint_;
    std::int64_t num_inputs_ = 0;
};

class SweepRun {
  public:
    /// Checks all points against the existing contents of the folder. Collective.
    SweepRun(World& world, const Placement& placement, const Sweep& sweep, std::vector<SweepPoint> points);

    /// Runs the points that are not done; returns the exit code. Collective.
    int run();

  private:
    struct PointEnd {
        std::optional<int> ends_sweep{};  ///< exit code with which the sweep ends here
        bool done = false;
        std::string why{};  ///< rank 0: why the point failed
    };

    void look_at_all();
    void start();
    std::optional<int> must_stop() const;
    void keep_what_fits(const Settings& settings);
    PointEnd run_point(std::size_t index);
    int run_points();
    int say_end();

    World& world_;
    const Sweep& sweep_;
    SweepTable table_;
    std::vector<std::int64_t> done_;  ///< [point] 1 if done; the same on all ranks
    bool failed_ = false;             ///< some point failed; the same on all ranks
    LoadedJob loaded_;
    std::string loaded_model_, loaded_data_;  ///< model_needs and data_needs of what is loaded
    std::unique_ptr<Hold> hold_;              ///< rank 0 only
};

SweepRun::SweepRun(World& world, const Placement& placement, const Sweep& sweep, std::vector<SweepPoint> points)
    : world_(world), sweep_(sweep), table_(sweep, std::move(points)) {
    loaded_.placement = placement;
    world.agree([&] {
        for (const SweepPoint& point : table_.points()) {
            check_ranks(world, point.settings);
            check_device(point.settings, gpus_here());
        }
        if (world.is_first()) look_at_all();
    });
    world.broadcast(done_);
}

/// Rank 0 only.
void SweepRun::look_at_all() {
    DoneFinder finder;
    const std::vector<std::string> keys = sweep_keys(sweep_);
    create_sweep_folder(sweep_);
    for (std::size_t i = 0; i < table_.points().size(); ++i) {
        check_point(table_.points()[i], keys);
        done_.push_back(finder.is_done(table_.points()[i]) ? 1 : 0);
        table_.look(i, done_.back() != 0);
    }
}

void SweepRun::start() {
    world_.agree([&] {
        if (!world_.is_first()) return;
        hold_ = std::make_unique<Hold>(sweep_.output, sweep_.lease_seconds);
        write_sweep(sweep_);
        table_.write();
        std::fprintf(stderr, "longhaul: a sweep of %s points, %s done before; folder %s\n",
                     grouped(table_.size()).c_str(), grouped(table_.count(PointState::done)).c_str(),
                     sweep_.output.c_str());
    });
}

/// The exit code if the sweep must end now. Collective.
std::optional<int> SweepRun::must_stop() const {
    if (world_.any(hold_ && hold_->superseded())) {
        if (world_.is_first()) {
            std::fprintf(stderr, "error: %s: expected to hold the sweep, got superseded by a later launch\n",
                         sweep_.output.c_str());
        }
        return static_cast<int>(ExitCode::error);
    }
    if (world_.any(stop_signalled())) return static_cast<int>(ExitCode::stopped);
    return std::nullopt;
}

/// Unloads model or data that the next point cannot use.
void SweepRun::keep_what_fits(const Settings& settings) {
    const std::string model = model_needs(settings), data = data_needs(settings);
    if (model != loaded_model_) {
        loaded_.unload();
    } else if (data != loaded_data_) {
        loaded_.data.reset();
    }
    loaded_model_ = model;
    loaded_data_ = data;
}

SweepRun::PointEnd SweepRun::run_point(std::size_t index) {
    const SweepPoint& point = table_.points()[index];
    const std::string place = std::to_string(index + 1) + " of " + std::to_string(table_.size());
    if (world_.is_first()) std::fprintf(stderr, "longhaul: point %s, %s\n", place.c_str(), point.name.c_str());
    keep_what_fits(point.settings);
    try {
        Launch launch{.world = world_,
                      .loaded = loaded_,
                      .settings = point.settings,
                      .label = "point " + place,
                      .superseded_above = [this] { return hold_ && hold_->superseded(); }};
        if (open_run(launch)) return {.done = true};
        const LaunchEnd end = load_and_carry_out(launch, [](const Summary&) {});
        if (end.stop == StopReason::failures) return {.why = "max-failures: too many failed items"};
        const bool done =
            end.code == static_cast<int>(ExitCode::done) || end.code == static_cast<int>(ExitCode::items_failed);
        return {.ends_sweep = done ? std::nullopt : std::optional(end.code), .done = done};
    } catch (const AgreedFailure& failure) {
        if (failure.code == static_cast<int>(ExitCode::storage)) throw;
        loaded_.unload();  // may be partly loaded, and on some ranks only
        loaded_model_.clear();
        if (world_.is_first()) std::fprintf(stderr, "longhaul: point %s failed; going on\n", place.c_str());
        return {.why = failure.line.empty() ? "failed" : failure.line};
    }
}

/// Returns exit code 0 after all points have run. Collective.
int SweepRun::run_points() {
    for (std::size_t i = 0; i < done_.size(); ++i) {
        if (done_[i] != 0) continue;
        if (const std::optional<int> code = must_stop()) return *code;
        const PointEnd end = run_point(i);
        if (!end.why.empty()) failed_ = true;
        world_.agree([&] {
            if (!world_.is_first()) return;
            table_.look(i, end.done);
            if (!end.why.empty()) table_.set_failed(i, end.why);
            table_.write();
        });
        if (end.ends_sweep) return *end.ends_sweep;
    }
    return static_cast<int>(ExitCode::done);
}

/// Rank 0 only: prints the table and its errors; returns the exit code of a sweep that ran to the end.
int SweepRun::say_end() {
    print_answer(table_.to_markdown());
    for (const std::size_t i : table_.other_texts()) {
        failed_ = true;
        std::fprintf(stderr,
                     "error: %s: expected the same bytes as plain decoding, got different ones; please report it\n",
                     (table_.points()[i].settings.output / "results.jsonl").c_str());
    }
    if (failed_) return static_cast<int>(ExitCode::error);
    return static_cast<int>(table_.count_with_failed_items() > 0 ? ExitCode::items_failed : ExitCode::done);
}

int SweepRun::run() {
    const bool nothing_to_do = std::find(done_.begin(), done_.end(), 0) == done_.end();
    if (!nothing_to_do) start();
    std::vector<std::int64_t> code{nothing_to_do ? 0 : run_points()};
    world_.agree([&] {
        if (!world_.is_first()) return;
        if (nothing_to_do) {
            std::fprintf(stderr, "longhaul: all %s points are done already\n", grouped(table_.size()).c_str());
            table_.write();
        }
        if (code.front() == 0) code.front() = say_end();
        const bool stopped = code.front() == static_cast<int>(ExitCode::stopped);
        const bool finished = table_.count(PointState::done) == table_.size();
        if (hold_) {
            hold_->set_ending({{"state", stopped    ? "stopped"
                                         : finished ? "finished"
                                                    : "failed"},
                               {"exit_code", code.front()}});
        }
        if (stopped) {
            std::fprintf(stderr, "longhaul: stopped with %s of %s points done; run it again to resume\n",
                         grouped(table_.count(PointState::done)).c_str(), grouped(table_.size()).c_str());
        }
    });
    world_.broadcast(code);
    return static_cast<int>(code.front());
}

int run_sweep(World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    const JobLines lines = read_job_lines(world, "sweep", arguments);
    Sweep sweep;
    world.agree([&] { sweep = parse_sweep(lines.file, lines.keys, lines.path); });
    std::vector<SweepPoint> points;
    world.agree([&] { points = points_of(sweep); });
    return SweepRun(world, placement, sweep, std::move(points)).run();
}

}  // namespace

int sweep_command(const std::vector<std::string>& arguments) {
    install_stop_signals();  // first, since a stop may be requested at any time
    const Placement placement = place_this_rank(threads_of("sweep", arguments, [](const CommandLine& line) {
        return read_sweep(line.places.front(), line.keys).threads;
    }));
    World world;
    return exit_code_of_ranks([&] { return run_sweep(world, arguments, placement); });
}

}  // namespace longhaul::runner
