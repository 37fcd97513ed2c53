#include "runner/launch/replica_driver.hpp"

#include <algorithm>
#include <array>
#include <cstdio>

#include "engine/draft/methods.hpp"
#include "engine/failure.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/host/process.hpp"
#include "runner/host/signals.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/launch/memory_plan.hpp"
#include "runner/run/progress.hpp"

namespace longhaul::runner {
namespace {

constexpr double heartbeat_seconds = 2;
constexpr double sync_seconds = 1;

std::string number_text(double value) {
    std::array<char, 32> text{};
    std::snprintf(text.data(), text.size(), "%.0f", value);
    return text.data();
}

/// What `draft-tree = auto` chose on average.
std::string choice_text(const engine::ReplicaOutcome& outcome) {
    const auto calls = static_cast<double>(std::max<std::int64_t>(outcome.progress.target_calls, 1));
    std::array<char, 120> text{};
    std::snprintf(text.data(), text.size(),
                  "draft-tree = auto: %.1f nodes per target call, none in %.0f %% of %.0f calls",
                  static_cast<double>(outcome.progress.drafted) / calls,
                  100 * static_cast<double>(outcome.calls_without_drafts) / calls, calls);
    return text.data();
}

/// A rank that hangs cannot be recovered: print one line and end all ranks.
Watchdog make_watchdog(const World& world, const JobPhase& phase) {
    return {phase.settings.watchdog_seconds, [&world, &phase](double seconds) {
                abort_all("rank " + std::to_string(world.rank()) + " (host " + world.host() +
                              "): expected a step within watchdog-seconds = " +
                              number_text(phase.settings.watchdog_seconds) + ", got none for " + number_text(seconds) +
                              " s; run again to resume from the last checkpoint, or raise watchdog-seconds",
                          static_cast<int>(ExitCode::error));
            }};
}

void replace_all(std::string& line, const std::string& path, const std::string& word) {
    if (path.empty()) return;
    for (std::size_t at = 0; (at = line.find(path, at)) != std::string::npos; at += word.size())
        line.replace(at, path.size(), word);
}

/// Results depend only on job and seed, not on where the data, the model's folder and a chat template lie: their paths
/// become "data", "model", and the template's name.
std::string without_paths(std::string line, const Settings& settings) {
    replace_all(line, settings.data.string(), "data");
    replace_all(line, settings.model.string(), "model");
    if (engine::ChatTemplate::is_path(settings.chat_template))
        replace_all(line, settings.chat_template, std::filesystem::path(settings.chat_template).filename().string());
    return line;
}

std::string reason_name(engine::FinishReason reason) {
    switch (reason) {
        case engine::FinishReason::length:
            return "length";
        case engine::FinishReason::stop:
            return "stop";
        case engine::FinishReason::repetition:
            return "repetition";
        case engine::FinishReason::error:
            return "error";
    }
    return "error";
}

std::optional<DraftCost> draft_cost(const LoadedJob& loaded, const JobPhase& phase) {
    const Settings& settings = phase.settings;
    if (!settings.draft->drafts() || settings.mode != Mode::generate) return std::nullopt;
    return loaded.drafts.cost(loaded.model->config(), draft_of(settings));
}

}  // namespace

ReplicaDriver::ReplicaDriver(const World& world, LoadedJob& loaded, const JobPhase& phase,
                             const std::vector<std::int64_t>& order, EarlierResults& earlier,
                             engine::CheckpointStore& store, Board& board)
    : world_(world),
      loaded_(loaded),
      phase_(phase),
      order_(order),
      earlier_(earlier),
      store_(store),
      board_(board),
      log_(phase.folder.log() /
           ("replica-" + std::to_string(world.replica()) + "-" + std::to_string(phase.epoch) + ".log")),
      writer_(phase.folder.root, world.replica(), phase.epoch, result_format(phase.settings),
              draft_cost(loaded, phase)),
      job_options_(generation_options(phase.settings, loaded.model->config())),
      watchdog_(make_watchdog(world, phase)),
      last_progress_(Clock::now()) {
    const double watch = phase.settings.watchdog_seconds;
    if (watch > 0) pulse_.every(std::clamp(watch / 8, 0.05, Watchdog::check_interval), [this] { watchdog_.check(); });
    if (!is_first()) return;
    ledger_.emplace(phase.folder.status(), world.replica(), phase.epoch, phase.settings.samples);
    pulse_.every(sync_seconds, [this] { sync_results(); });
    pulse_.every(heartbeat_seconds, [this] { write_heartbeat(); });
}

ReplicaDriver::~ReplicaDriver() {
    pulse_.stop();
}

engine::ReplicaOptions ReplicaDriver::options() const {
    const Settings& settings = phase_.settings;
    engine::ReplicaOptions options = replica_options(settings, loaded_.model->config());
    loaded_.drafts.give_to(options.draft);
    options.kv_memory_bytes = loaded_.kv_memory_bytes(settings);
    options.kv_host_bytes = host_bytes(settings, *loaded_.device);
    if (settings.mode != Mode::multiple_choice)  // an interrupted question starts over
        options.checkpoint.folder = phase_.folder.checkpoints();
    options.checkpoint.identity = checkpoint_identity(settings, loaded_.fingerprints, loaded_.model->config());
    options.checkpoint.replica = world_.replica();
    options.checkpoint.epoch = phase_.epoch;
    options.checkpoint.every_tokens = settings.checkpoint_tokens;
    options.checkpoint.every_seconds = settings.checkpoint_seconds;
    options.checkpoint.store_kv = settings.checkpoint_kv == "store";
    // Replicas share the quota, and what earlier launches have used of it.
    const std::int64_t replicas = world_.num_replicas();
    options.checkpoint.quota_bytes = (settings.checkpoint_quota + replicas - 1) / replicas;
    if (settings.checkpoint_quota > 0 && is_first()) options.checkpoint.earlier_bytes = store_.num_bytes() / replicas;
    return options;
}

engine::ReplicaHooks ReplicaDriver::hooks() {
    engine::ReplicaHooks hooks;
    hooks.next_work = [this] { return next_work(); };
    hooks.finished = [this](const engine::FinishedItem& item) { finished(item); };
    hooks.stop_requested = [this] { return stop_requested(); };
    hooks.progress = [this](const engine::ReplicaProgress& now) { progress(now); };
    hooks.emitted = [this](std::int64_t number, std::span<const std::int32_t>, std::int64_t num_output) {
        if (loaded_.first_token_seconds == 0) note_first_token();
        ledger_->reached(number, num_output);
    };
    hooks.damaged = [this](const std::string& line) {
        if (!damaged_.insert(line).second) return;
        log_.say("checkpoint damaged, will be computed again: " + line);
        if (damaged_.size() == 1) warn_of_damage(line);
    };
    hooks.poke = [this] { poke(); };
    hooks.store = &store_;
    return hooks;
}

void ReplicaDriver::note_first_token() {
    loaded_.first_token_seconds = seconds_since_start();
    {
        const std::lock_guard lock(mutex_);
        first_token_seconds_ = loaded_.first_token_seconds;
    }
    std::array<char, 100> line{};
    std::snprintf(line.data(), line.size(), "model loaded in %.2f s, first token after %.2f s",
                  loaded_.model->load_report().seconds, loaded_.first_token_seconds);
    log_.say(line.data());
}

engine::ReplicaOutcome ReplicaDriver::run() {
    world_.agree_on_collective([&] {
        replica_ =
            std::make_unique<engine::Replica>(*loaded_.model, *loaded_.group, *loaded_.tokenizer, options(), hooks());
    });
    watchdog_.feed();
    pulse_.start();
    engine::ReplicaOutcome outcome;
    try {
        outcome = replica_->run();
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        abort_all(failure.line, static_cast<int>(failure.code));
    }
    std::array<char, 200> times{};
    std::snprintf(times.data(), times.size(),
                  "time in drafts %.2f s, target passes %.2f s, verification %.2f s; stalled by checkpoints %.2f s, "
                  "their writing %.2f s",
                  outcome.draft_seconds, outcome.forward_seconds, outcome.verify_seconds,
                  outcome.checkpoint_stall_seconds, outcome.checkpoint_write_seconds);
    log_.say(times.data());
    if (draft_of(phase_.settings).chooses_tree()) log_.say(choice_text(outcome));
    if (!outcome.checkpoint_error.empty()) note_storage_error(outcome.checkpoint_error);
    if (is_first() && totals_.done_items == 0 && totals_.emitted == 0 && !outcome.stopped) {
        log_.say("no work for this replica: all items were taken or done");
    }
    sync_results();
    forget_durable();
    totals_.enter(ReplicaTotals::State::finished);
    totals_.in_flight = 0;
    if (!outcome.stopped) totals_.unfinished_tokens = 0;
    // no other replica can take over this replica's unfinished items
    if (storage_failed_) board_.request_stop(StopReason::storage);
    world_.wait_for_all([this] { poke(); });
    board_.post(totals_);
    pulse_.stop();
    if (is_first()) write_heartbeat();
    replica_.reset();
    return outcome;
}

std::optional<engine::WorkItem> ReplicaDriver::next_work() {
    for (;;) {
        if (stop_requested()) return std::nullopt;
        if (auto choice = questions_.next()) return choice;
        const std::int64_t taken = board_.take_next();
        if (taken >= static_cast<std::int64_t>(order_.size())) return std::nullopt;
        const std::int64_t number = order_[taken];
        const ItemKey key = key_of(number);
        Prompt prompt = loaded_.data->prompt(key.index, *loaded_.tokenizer,
                                             max_item_positions(phase_.settings, loaded_.model->config()));
        if (prompt.settings && prompt.settings->own_max_tokens) own_limits_.insert(number);
        if (!prompt.error.empty()) {
            record_bad_prompt(number, prompt);
            continue;
        }
        if (!prompt.choices.empty()) {
            const auto options = options_of(prompt);
            questions_.add(number, std::move(prompt), options);
            continue;
        }
        engine::WorkItem item;
        item.number = number;
        item.id = prompt.id;
        item.sample = key.sample;
        item.checkpoint_key = checkpoint_key(prompt.id, key.sample);
        item.prompt = std::move(prompt.tokens);
        item.continuation = std::move(prompt.continuation);
        item.options = options_of(prompt);
        item.known_tokens = std::min(ledger_->known(number), item.options->max_tokens);
        item.earlier = earlier_output(item);
        if (is_first() && store_.items().contains(item.checkpoint_key)) resumed_.insert(number);
        totals_.resumed_unfinished = std::ssize(resumed_);
        return item;
    }
}

/// What an item has from a result that a lower max-tokens ended. None if it is not intact: the item is generated again.
engine::EarlierOutput ReplicaDriver::earlier_output(const engine::WorkItem& item) const {
    std::optional<ResultRecord> record = earlier_.find(key_of(item.number));
    if (!record || record->id != item.id || record->prompt_tokens != std::ssize(item.prompt)) return {};
    const std::int64_t num_best = std::min<std::int64_t>(item.options->logprobs, loaded_.model->config().vocab_size);
    return {.tokens = resume_tokens(*record),
            .logprobs = logprobs_rows(record->logprobs, num_best),
            .statistics = std::move(record->statistics)};
}

/// Whether a greater max-tokens would continue the item. Other rules than `coupled` may not have ended at a step's end.
bool ReplicaDriver::may_resume(const engine::FinishedItem& item) const {
    const Settings& settings = phase_.settings;
    return item.reason == engine::FinishReason::length && !own_limits_.contains(item.number) && settings.is_coupled() &&
           !has_given_texts(settings) && kind_of("max-tokens", settings) == KeyKind::extension;
}

std::shared_ptr<const engine::GenerationOptions> ReplicaDriver::options_of(const Prompt& prompt) const {
    return prompt.settings ? generation_options(*prompt.settings, loaded_.model->config()) : job_options_;
}

void ReplicaDriver::record_bad_prompt(std::int64_t number, const Prompt& prompt) {
    engine::FinishedItem item;
    item.number = number;
    item.reason = engine::FinishReason::error;
    item.error = prompt.error;
    const auto options = options_of(prompt);
    item.max_tokens = options->max_tokens;
    item.has_reasoning = options->has_reasoning() && !has_given_texts(phase_.settings);
    ResultRecord failed = record_of(item, prompt.id);
    failed.error = without_paths(prompt.error, phase_.settings);
    record(failed, item);
}

ResultRecord ReplicaDriver::record_of(const engine::FinishedItem& item, const std::string& id) const {
    ResultRecord record;
    record.key = key_of(item.number);
    record.id = id;
    record.text = item.text;
    record.answer = item.answer;
    record.has_reasoning = item.has_reasoning;
    record.loss = item.statistics.loss;
    record.logprobs = logprobs_text(item.tokens, item.logprobs);
    const bool scored = only_scores(phase_.settings);
    record.num_tokens = scored ? record.loss.num_tokens() : static_cast<std::int64_t>(item.tokens.size());
    record.finish_reason = reason_name(item.reason);
    record.error = item.error;
    record.token_ids = item.tokens;
    record.max_tokens = item.max_tokens;
    record.own_max_tokens = own_limits_.contains(item.number);
    record.prompt_tokens = item.prompt_tokens;
    if (may_resume(item)) record.statistics = engine::statistics_to_json(item.statistics);
    return record;
}

void ReplicaDriver::finished(const engine::FinishedItem& item) {
    const std::string id = loaded_.data->id(key_of(item.number).index);
    if (phase_.settings.mode != Mode::multiple_choice) return record(record_of(item, id), item);
    std::optional<Questions::Done> question = questions_.finished(item);
    if (!question) return;
    ResultRecord result = record_of(question->item, id);
    result.num_tokens = question->num_tokens;
    result.choices = std::move(question->scores);
    record(result, question->item);
}

/// Called before the result is written: an item that is done has its states.
void ReplicaDriver::write_states(const ResultRecord& record, const engine::TextStates& states) const {
    std::array<char, 32> name{};
    std::snprintf(name.data(), name.size(), "%08lld.h5", static_cast<long long>(record.key.index));
    engine::write_text_states(phase_.settings.hidden_states, name.data(),
                              checkpoint_identity(phase_.settings, loaded_.fingerprints, loaded_.model->config()),
                              record.id, states);
}

void ReplicaDriver::record(const ResultRecord& record, const engine::FinishedItem& item) {
    try {
        if (item.states) write_states(record, *item.states);
        writer_.append(record, item, item.number);
    } catch (const StorageError& error) {
        note_storage_error(error.what());  // its checkpoint stays, and the next launch finishes the item again
        return;
    }
    resumed_.erase(item.number);
    totals_.resumed_unfinished = std::ssize(resumed_);
    totals_.done_items += 1;
    totals_.done_tokens += record.num_tokens;
    if (record.finish_reason != "error") return;
    totals_.failed_items += 1;
    log_.say("item " + record.id + " failed: " + item.error);
    const std::int64_t failures = board_.add_failures(1);
    const std::int64_t most = phase_.settings.max_failures;
    if (most > 0 && failures >= most) board_.request_stop(StopReason::failures);
}

bool ReplicaDriver::stop_requested() {
    if (board_.stop_reason() != StopReason::none) {
        // The signal may have reached another rank: this rank's clock starts here.
        if (board_.stop_reason() == StopReason::request) note_stop_request();
        return true;
    }
    if (storage_failed_) {
        board_.request_stop(StopReason::storage);
    } else if (phase_.superseded()) {
        board_.request_stop(StopReason::superseded);
    } else if (stop_signalled()) {
        log_.say(std::string("stop requested by ") + stop_signal_name());
        board_.request_stop(StopReason::request);
    }
    return board_.stop_reason() != StopReason::none;
}

void ReplicaDriver::progress(const engine::ReplicaProgress& now) {
    const Clock::time_point time = Clock::now();
    const auto elapsed = std::chrono::duration_cast<std::chrono::microseconds>(time - last_progress_).count();
    last_progress_ = time;
    switch (now.phase) {
        case engine::ReplicaPhase::idle:
            totals_.enter(ReplicaTotals::State::idle);
            break;
        case engine::ReplicaPhase::prefill:
            totals_.enter(ReplicaTotals::State::prefill);
            totals_.prefill_microseconds += elapsed;
            break;
        case engine::ReplicaPhase::decode:
            totals_.enter(ReplicaTotals::State::decode);
            (now.mixed ? totals_.mixed_microseconds : totals_.decode_microseconds) += elapsed;
            break;
    }
    totals_.in_flight = now.in_flight;
    totals_.unfinished_tokens = now.unfinished_tokens;
    totals_.kept_tokens = now.kept_tokens;
    totals_.emitted = now.emitted_tokens;
    totals_.prefilled = now.prefilled_tokens;
    totals_.drafted = now.drafted;
    totals_.accepted = now.accepted;
    totals_.target_calls = now.target_calls;
    totals_.decode_tokens = now.decode_tokens;
    totals_.mixed_tokens = now.mixed_tokens;
    totals_.rounds = now.checkpoint_rounds;
    {
        const std::lock_guard lock(mutex_);
        shown_totals_ = totals_;
    }
    forget_durable();
}

void ReplicaDriver::poke() {
    watchdog_.feed();
    ++totals_.beat;
    board_.poke(totals_);
    const double watch = phase_.settings.watchdog_seconds;
    if (watch > 0 && board_.unanswered_seconds() > watch) {
        abort_all("rank " + std::to_string(world_.rank()) + " (host " + world_.host() +
                      "): expected an answer of rank 0 within watchdog-seconds = " + number_text(watch) +
                      ", got none; run again to resume from the last checkpoint",
                  static_cast<int>(ExitCode::error));
    }
}

void ReplicaDriver::forget_durable() {
    if (!replica_ || !is_first()) return;
    // A later launch does not count these results: it needs the checkpoints.
    if (board_.stop_reason() == StopReason::superseded) return;
    const std::vector<std::int64_t> durable = writer_.take_durable();
    if (!durable.empty()) replica_->results_durable(durable);
}

void ReplicaDriver::sync_results() noexcept {
    try {
        writer_.sync();
    } catch (const std::exception& error) {
        note_storage_error(error.what());
    }
}

void ReplicaDriver::write_heartbeat() noexcept {
    ReplicaTotals totals;
    double first_token_seconds = 0;
    {
        const std::lock_guard lock(mutex_);
        first_token_seconds = first_token_seconds_;
        totals = shown_totals_;
    }
    const std::string name = std::to_string(world_.replica()) + "-" + std::to_string(phase_.epoch);
    try {
        nlohmann::ordered_json json;
        json["replica"] = world_.replica();
        json["epoch"] = phase_.epoch;
        json["time"] = utc_now();
        json["host"] = world_.host();
        json["pid"] = ProcessId::mine().pid;
        json["phase"] = totals.state_name();
        json["in_flight"] = totals.in_flight;
        json["unfinished_tokens"] = totals.unfinished_tokens;
        json["done"] = totals.done_items;
        json["failed"] = totals.failed_items;
        json["emitted_tokens"] = totals.emitted;
        json["prefilled_tokens"] = totals.prefilled;
        json["drafted"] = totals.drafted;
        json["accepted"] = totals.accepted;
        json["target_calls"] = totals.target_calls;
        json["decode_tokens"] = totals.decode_tokens;
        json["mixed_tokens"] = totals.mixed_tokens;
        json["decode_seconds"] = 1e-6 * static_cast<double>(totals.decode_microseconds);
        json["prefill_seconds"] = 1e-6 * static_cast<double>(totals.prefill_microseconds);
        json["mixed_seconds"] = 1e-6 * static_cast<double>(totals.mixed_microseconds);
        json["checkpoint_rounds"] = totals.rounds;
        json["load_seconds"] = loaded_.model->load_report().seconds;
        if (first_token_seconds > 0) json["first_token_seconds"] = first_token_seconds;
        replace_file(phase_.folder.status() / (name + ".json"), engine::json_text(json, 2) + "\n", Durable::no, "own");
    } catch (const std::exception&) {
        // Only for display: ignore failures.
    }
}

void ReplicaDriver::note_storage_error(const std::string& line) noexcept {
    const std::lock_guard lock(mutex_);
    if (storage_error_.empty()) storage_error_ = line;
    storage_failed_ = true;
}

std::string ReplicaDriver::storage_error() const {
    const std::lock_guard lock(mutex_);
    return storage_error_;
}

}  // namespace longhaul::runner
