// Drives one rank's engine::Replica: takes work from the shared counter (Board), records results, writes the heartbeat,
// and handles stop requests. Created by run_phase (job_run.cpp).
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "engine/checkpoint/store.hpp"
#include "engine/replica/replica.hpp"
#include "runner/host/watchdog.hpp"
#include "runner/launch/job_phase.hpp"
#include "runner/launch/loaded_job.hpp"
#include "runner/launch/questions.hpp"
#include "runner/launch/scheduler.hpp"
#include "runner/run/earlier_results.hpp"
#include "runner/run/log.hpp"
#include "runner/run/results.hpp"
#include "runner/run/token_ledger.hpp"

namespace longhaul::runner {

class ReplicaDriver {
  public:
    /// `order`: result of order_of_work. All references must outlive the driver.
    ReplicaDriver(const World& world, LoadedJob& loaded, const JobPhase& phase, const std::vector<std::int64_t>& order,
                  EarlierResults& earlier, engine::CheckpointStore& store, Board& board);
    ~ReplicaDriver();

    /// Generates until there is no more work or a stop is requested, then waits for all ranks. Collective over the
    /// world. Ends all ranks on a failure that the others cannot detect.
    engine::ReplicaOutcome run();

    /// The first storage error (exit code 74); "" if there was none.
    [[nodiscard]] std::string storage_error() const;
    /// Adds a task to the background thread; call it before `run`.
    void every(double seconds, std::function<void()> task) { pulse_.every(seconds, std::move(task)); }

  private:
    using Clock = std::chrono::steady_clock;

    [[nodiscard]] bool is_first() const { return world_.rank_in_replica() == 0; }
    [[nodiscard]] ItemKey key_of(std::int64_t number) const {
        return {number / phase_.settings.samples, number % phase_.settings.samples};
    }
    [[nodiscard]] engine::ReplicaOptions options() const;
    engine::ReplicaHooks hooks();
    std::optional<engine::WorkItem> next_work();
    [[nodiscard]] std::shared_ptr<const engine::GenerationOptions> options_of(const Prompt& prompt) const;
    [[nodiscard]] engine::EarlierOutput earlier_output(const engine::WorkItem& item) const;
    [[nodiscard]] bool may_resume(const engine::FinishedItem& item) const;
    void note_first_token();
    [[nodiscard]] ResultRecord record_of(const engine::FinishedItem& item, const std::string& id) const;
    void finished(const engine::FinishedItem& item);
    void record_bad_prompt(std::int64_t number, const Prompt& prompt);
    void write_states(const ResultRecord& record, const engine::TextStates& states) const;
    void record(const ResultRecord& record, const engine::FinishedItem& item);
    bool stop_requested();
    void progress(const engine::ReplicaProgress& progress);
    void poke();
    void sync_results() noexcept;
    void write_heartbeat() noexcept;
    void note_storage_error(const std::string& line) noexcept;
    void forget_durable();

    const World& world_;
    LoadedJob& loaded_;
    const JobPhase& phase_;
    const std::vector<std::int64_t>& order_;
    EarlierResults& earlier_;
    engine::CheckpointStore& store_;
    Board& board_;
    Log log_;
    ResultWriter writer_;
    std::shared_ptr<const engine::GenerationOptions> job_options_;  // of items without options of their own
    Questions questions_;                                           // mode = multiple-choice
    std::set<std::string> damaged_;                                 // lines that were logged already
    std::optional<TokenLedger> ledger_;                             // on the first rank of the replica
    std::set<std::int64_t> own_limits_;  // numbers of the items with a max-tokens of their own
    std::set<std::int64_t> resumed_;     // numbers of the items that continue from a checkpoint; the first rank's
    Watchdog watchdog_;
    Pulse pulse_;
    std::unique_ptr<engine::Replica> replica_;
    ReplicaTotals totals_;            ///< main thread only
    ReplicaTotals shown_totals_;      ///< a copy for the heartbeat, under mutex_
    double first_token_seconds_ = 0;  ///< a copy for the heartbeat, under mutex_
    mutable std::mutex mutex_;
    std::string storage_error_;  ///< under mutex_
    std::atomic<bool> storage_failed_{false};
    Clock::time_point last_progress_;
};

}  // namespace longhaul::runner
