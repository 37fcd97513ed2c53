#include "runner/launch/job_run.hpp"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <optional>
#include <stdexcept>
#include <unordered_map>

#include "engine/error.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/process.hpp"
#include "runner/launch/replica_driver.hpp"
#include "runner/run/batch_answers.hpp"
#include "runner/run/job_outcome.hpp"
#include "runner/run/progress.hpp"
#include "runner/run/results.hpp"
#include "runner/run/token_ledger.hpp"

namespace longhaul::runner {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// What rank 0 determines and broadcasts, except `size`.
struct Plan {
    std::vector<std::int64_t> order;
    EarlierResults earlier;
    JobSize size{};
};

/// Output tokens of each item that are in a checkpoint, by work number. Reads the ids of the data only if there are
/// checkpoints.
std::unordered_map<std::int64_t, std::int64_t> checkpointed_items(const DataSet& data, const Settings& settings,
                                                                  const engine::CheckpointStore& store) {
    std::unordered_map<std::int64_t, std::int64_t> tokens;
    if (store.items().empty()) return tokens;
    for (std::int64_t index = 0; index < data.size(); ++index) {
        if (!settings.shard.has(index)) continue;
        const std::string id = data.id(index);
        for (std::int64_t sample = 0; sample < settings.samples; ++sample) {
            const auto at = store.items().find(checkpoint_key(id, sample));
            if (at != store.items().end()) tokens[index * settings.samples + sample] = at->second;
        }
    }
    return tokens;
}

void say_what_continues(const JobSize& size) {
    const auto say = [](std::int64_t count, const char* one, const char* many) {
        if (count == 0) return;
        std::fprintf(stderr, "note: max-tokens was raised: %s at the old limit %s\n",
                     counted(count, "item that ended", "items that ended").c_str(), count == 1 ? one : many);
    };
    say(size.continued, "continues from there", "continue from there");
    say(size.restarted, "starts again from the prompt", "start again from the prompt");
}

Plan make_plan(const LoadedJob& loaded, const JobPhase& phase, engine::CheckpointStore& store, Log& log) {
    const Settings& settings = phase.settings;
    const DataSet& data = *loaded.data;
    const ResultIndex results = ResultIndex::read(phase.folder.root);
    for (const std::string& line : results.damage()) log.tell("warning: " + line);
    const auto checkpointed = checkpointed_items(data, settings, store);
    const auto number = [&](const ItemKey& key) { return key.index * settings.samples + key.sample; };

    Plan plan{.order = {}, .earlier = EarlierResults(phase.folder.root)};
    plan.size.items = settings.shard.share_of(data.size()) * settings.samples;
    plan.size.max_tokens = settings.max_tokens;
    WorkFacts facts;
    facts.num_inputs = data.size();
    facts.samples = settings.samples;
    facts.shard = settings.shard;
    facts.done = [&](const ItemKey& key) {
        const ResultIndex::Entry* entry = results.find(key);
        const bool done = entry != nullptr && ResultIndex::is_done(*entry, settings);
        plan.size.done_before += done ? 1 : 0;
        plan.size.failed_before += done && entry->failed ? 1 : 0;
        return done;
    };
    facts.kept_tokens = [&](const ItemKey& key) {
        const auto at = checkpointed.find(number(key));
        const ResultIndex::Entry* const earlier = results.find_resumable(key);
        return std::max<std::int64_t>(at != checkpointed.end() ? at->second : -1,
                                      earlier != nullptr ? earlier->num_tokens : -1);
    };
    facts.prompt_bytes = [&](std::int64_t index) { return data.prompt_bytes(index); };
    plan.order = order_of_work(facts);

    for (const std::int64_t item : plan.order) {
        const ItemKey key{item / settings.samples, item % settings.samples};
        plan.size.kept_tokens += std::max<std::int64_t>(facts.kept_tokens(key), 0);
        const ResultIndex::Entry* const earlier = results.find_resumable(key);
        if (earlier != nullptr) plan.earlier.add(results, *earlier);
        const ResultIndex::Entry* const newest = results.find(key);
        if (newest != nullptr && newest->at_length && !checkpointed.contains(item))
            ++(earlier == newest ? plan.size.continued : plan.size.restarted);
    }
    std::vector<std::string> unfinished;
    for (const std::int64_t item : plan.order) {
        if (!checkpointed.contains(item)) continue;
        unfinished.push_back(checkpoint_key(data.id(item / settings.samples), item % settings.samples));
    }
    if (!phase.superseded()) store.remove_unneeded(unfinished, phase.epoch);
    say_what_continues(plan.size);
    return plan;
}

/// Displays progress on rank 0, from the driver's background thread.
class Monitor {
  public:
    Monitor(const JobPhase& phase, const JobSize& size, const Board& board)
        : phase_(phase), board_(board), meter_(size), printer_(phase.label, is_watched()) {}

    void attach(ReplicaDriver& driver) {
        update();
        driver.every(printer_.live() ? 0.5 : 2.0, [this] { update(); });
    }

    void update() {
        progress_ = meter_.update(sum_of(board_.totals()), seconds_since(start_));
        const double seconds = seconds_since(start_);
        if (printer_.live() || seconds - last_line_ >= 30) {
            printer_.show(progress_);
            last_line_ = seconds;
        }
        if (seconds - last_write_ < 2) return;
        last_write_ = seconds;
        write("running");
    }

    void write(const std::string& state) const {
        if (phase_.superseded()) return;
        nlohmann::ordered_json json = progress_.to_json();
        json["epoch"] = phase_.epoch;
        json["state"] = state;
        json["time"] = utc_now();
        try {
            replace_file(phase_.folder.status() / "run.json", engine::json_text(json, 2) + "\n", Durable::no, "own");
        } catch (const std::exception&) {
            // Only for display: ignore failures.
        }
    }

    void end() {
        progress_ = meter_.update(sum_of(board_.totals()), seconds_since(start_));
        if (printer_.live()) printer_.show(progress_);
        printer_.finish();
        write("ended");
    }

    [[nodiscard]] ReplicaTotals totals() const { return sum_of(board_.totals()); }
    [[nodiscard]] double seconds() const { return seconds_since(start_); }

  private:
    const JobPhase& phase_;
    const Board& board_;
    ProgressMeter meter_;
    ProgressPrinter printer_;
    JobProgress progress_;
    Clock::time_point start_ = Clock::now();
    double last_line_ = 0, last_write_ = -10;
};

/// Rank 0: ends the launch if the beat of a rank stops (SIGSTOP, a dead node), because the other ranks would wait
/// forever.
class HangFinder {
  public:
    HangFinder(const Board& board, double seconds) : board_(board), seconds_(seconds) {}

    void check() {
        const std::vector<ReplicaTotals> slots = board_.totals();
        ranks_.resize(slots.size());
        for (std::size_t rank = 0; rank < slots.size(); ++rank) {
            ranks_[rank].pass(steady_seconds());
            ranks_[rank].note(slots[rank].beat);
            if (seconds_ > 0 && ranks_[rank].seconds() > seconds_ + 2) {
                abort_all("rank " + std::to_string(rank) +
                              ": expected a heartbeat within watchdog-seconds, got none; run again to resume from "
                              "the last checkpoint",
                          static_cast<int>(ExitCode::error));
            }
        }
    }

  private:
    const Board& board_;
    double seconds_;
    std::vector<Silence> ranks_;
};

/// Writes RUN/references.jsonl, one {"id", "reference"?, "length"?} per input in input order, if the data has
/// references or required lengths. Scores are computed from this file, so they do not need the data itself.
void write_references(const std::filesystem::path& run, const DataSet& data, const Shard& shard,
                      const engine::Tokenizer& tokenizer) {
    std::optional<FileReplacement> file;
    for (std::int64_t index = 0; index < data.size(); ++index) {
        if (!shard.has(index)) continue;
        std::optional<std::string> reference;
        try {
            reference = data.reference(index, tokenizer);
        } catch (const std::invalid_argument&) {
            // A book that cannot be tokenized: its item failed for the same reason and has no reference.
        }
        const std::optional<std::int64_t> words = data.required_words(index);
        if (!reference && !words) continue;
        nlohmann::ordered_json line{{"id", data.id(index)}};
        if (reference) line["reference"] = *reference;
        if (words) line["length"] = *words;
        if (!file) file.emplace(run / "references.jsonl", "own");
        file->append(engine::json_text(line) + "\n");
    }
    if (file) file->commit(Durable::yes);
}

/// Rank 0: counts the results so far and writes results.jsonl if all items are done.
void collect(const JobPhase& phase, const LoadedJob& loaded, Log& log, JobOutcome& outcome) {
    const ResultIndex results = ResultIndex::read(phase.folder.root);
    const std::int64_t inputs = loaded.data->size();
    outcome.items = phase.settings.shard.share_of(inputs) * phase.settings.samples;
    Settings settled = phase.settings;
    settled.retry_failed = false;  // an item that was retried and failed again is done
    for (std::int64_t index = 0; index < inputs; ++index) {
        for (std::int64_t sample = 0; sample < phase.settings.samples; ++sample) {
            const ResultIndex::Entry* entry = results.find({index, sample});
            if (entry == nullptr) continue;
            const bool done = ResultIndex::is_done(*entry, settled);
            outcome.done += done ? 1 : 0;
            if (!done || !entry->failed) continue;
            if (outcome.failed++ == 0) outcome.first_failure = failure_of(results.load(*entry));
        }
    }
    const bool tried_all = !phase.settings.retry_failed || outcome.stop == StopReason::none;
    outcome.all_done = outcome.done == outcome.items && tried_all;
    const std::string tag = std::to_string(phase.epoch);
    for (const std::string& line :
         add_statistics(std::span(&phase.folder.root, 1), phase.folder.root, tag, results, outcome))
        log.tell("warning: " + line);
    if (!outcome.all_done) return;
    if (phase.settings.task == "openai-batch") write_batch_answers(phase.folder.root, tag, results, phase.settings);
    write_results(phase.folder.root, tag, results, inputs, phase.settings);
    if (!wants_continuation(phase.settings))
        write_references(phase.folder.root, *loaded.data, phase.settings.shard, *loaded.tokenizer);
    engine::CheckpointStore(phase.folder.checkpoints(),
                            checkpoint_identity(phase.settings, loaded.fingerprints, loaded.model->config()),
                            phase.epoch)
        .remove_unneeded({}, phase.epoch + 1);
    TokenLedger::remove_all(phase.folder.status());
}

int exit_code_of(const JobOutcome& outcome, bool storage_failed) {
    if (storage_failed) return static_cast<int>(ExitCode::storage);
    if (outcome.stop == StopReason::failures || outcome.stop == StopReason::superseded) {
        return static_cast<int>(ExitCode::error);
    }
    if (!outcome.all_done) return static_cast<int>(ExitCode::stopped);
    return static_cast<int>(outcome.failed > 0 ? ExitCode::items_failed : ExitCode::done);
}

/// Prints the first storage error of any rank on rank 0; returns on all ranks whether there was one.
bool print_storage_errors(const World& world, const std::string& mine) {
    const std::vector<std::string> lines = world.gather(mine);
    std::int64_t failed = 0;
    for (const std::string& line : lines) {
        if (line.empty()) continue;
        if (failed++ == 0) std::fprintf(stderr, "error: %s\n", line.c_str());
    }
    std::vector<std::int64_t> word{failed};
    world.broadcast(word);
    return word.front() > 0;
}

void run_replicas(const World& world, LoadedJob& loaded, const JobPhase& phase, Plan& plan,
                  engine::CheckpointStore& store, JobOutcome& outcome, std::string& storage_error) {
    Board board(world.comm());
    std::optional<ReplicaDriver> made;  // if it throws on one rank, agree ends all ranks before they wait for it
    world.agree([&] { made.emplace(world, loaded, phase, plan.order, plan.earlier, store, board); });
    ReplicaDriver& driver = *made;
    Monitor monitor(phase, plan.size, board);
    HangFinder hangs(board, phase.settings.watchdog_seconds);
    if (world.is_first()) {
        monitor.attach(driver);
        driver.every(Watchdog::check_interval, [&] { hangs.check(); });
    }
    driver.run();
    storage_error = driver.storage_error();
    MPI_Barrier(world.comm());  // all ranks have posted their final totals
    outcome.stop = board.stop_reason();
    if (!world.is_first()) return;
    monitor.end();
    const ReplicaTotals sum = monitor.totals();
    outcome.seconds = monitor.seconds();
    outcome.tokens = sum.emitted;
    outcome.rounds = sum.rounds;
    outcome.resumed_items = sum.resumed_unfinished;  // collect() adds those that are finished
}

}  // namespace

JobOutcome run_phase(const World& world, LoadedJob& loaded, const JobPhase& phase) {
    std::unique_ptr<engine::CheckpointStore> store;
    Log log(phase.folder.launch_log(phase.epoch));
    world.agree([&] {
        store = std::make_unique<engine::CheckpointStore>(
            phase.folder.checkpoints(),
            checkpoint_identity(phase.settings, loaded.fingerprints, loaded.model->config()), phase.epoch - 1);
    });
    Plan plan{.order = {}, .earlier = EarlierResults(phase.folder.root)};
    world.agree([&] {
        if (!world.is_first()) return;
        phase.begin();
        plan = make_plan(loaded, phase, *store, log);
        for (const std::string& line : store->damage()) log.say("checkpoint damaged, will be computed again: " + line);
        if (!store->damage().empty()) warn_of_damage(store->damage().front());
        log.say(grouped(plan.size.items) + " items, " + grouped(plan.size.done_before) + " done before, " +
                grouped(store->items().size()) + " in checkpoints");
    });
    world.broadcast(plan.order);
    plan.earlier.share(world);

    JobOutcome outcome;
    std::string storage_error;
    if (!plan.order.empty()) run_replicas(world, loaded, phase, plan, *store, outcome, storage_error);
    const bool storage_failed = print_storage_errors(world, storage_error);
    world.agree([&] {
        if (!world.is_first()) return;
        if (phase.superseded_now()) outcome.stop = StopReason::superseded;
        if (outcome.stop != StopReason::superseded) collect(phase, loaded, log, outcome);
    });
    outcome.exit_code = exit_code_of(outcome, storage_failed);
    std::vector<std::int64_t> shared{outcome.exit_code, outcome.all_done ? 1 : 0,
                                     static_cast<std::int64_t>(outcome.stop)};
    world.broadcast(shared);
    outcome.exit_code = static_cast<int>(shared[0]);
    outcome.all_done = shared[1] != 0;
    outcome.stop = static_cast<StopReason>(shared[2]);
    if (world.is_first() && outcome.stop == StopReason::superseded) {
        log.say("ended: superseded by a later launch");
    } else if (world.is_first()) {
        log.say("ended with " + std::to_string(outcome.exit_code) + ": " + grouped(outcome.done) + " of " +
                grouped(outcome.items) + " items done, " + grouped(outcome.failed) + " failed");
    }
    return outcome;
}

}  // namespace longhaul::runner
