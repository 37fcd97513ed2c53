// Progress of a run: the numbers, and their text and JSON forms. Used by the launch's monitor and by `longhaul status`.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/run/replica_totals.hpp"

namespace longhaul::runner {

/// The size of a job, for progress.
struct JobSize {
    std::int64_t items = 0;        ///< inputs × samples
    std::int64_t max_tokens = 0;   ///< per item
    std::int64_t done_before = 0;  ///< items finished by earlier launches, failed ones included
    std::int64_t failed_before = 0;
    std::int64_t kept_tokens = 0;  ///< output tokens of unfinished items, from checkpoints and earlier results
    std::int64_t continued = 0;    ///< items that ended at a lower max-tokens, and continue from there
    std::int64_t restarted = 0;    ///< the same, but they start again from the prompt
};

/// Sums over all replicas of one launch.
ReplicaTotals sum_of(const std::vector<ReplicaTotals>& slots);

/// The state of a run at one moment.
struct JobProgress {
    std::int64_t items = 0, done = 0, failed = 0, in_flight = 0;
    std::int64_t tokens = 0;       ///< emitted by this launch
    double tokens_per_second = 0;  ///< over the last rate_window_seconds (progress.cpp)
    double share = 0;              ///< fraction of the job's tokens done, unfinished items included
    double eta_seconds = -1;       ///< -1: unknown
    double acceptance = -1;        ///< accepted / drafted tokens; -1: nothing drafted
    double block_efficiency = 0;   ///< tokens per target call
    bool prefilling = false;       ///< no replica is decoding yet
    std::int64_t prefilled = 0;    ///< prompt tokens computed by this launch

    [[nodiscard]] nlohmann::ordered_json to_json() const;
};

/// Computes JobProgress from successive totals; the token rate is that of the last 30 seconds.
class ProgressMeter {
  public:
    explicit ProgressMeter(const JobSize& size) : size_(size) {}
    JobProgress update(const ReplicaTotals& totals, double seconds);

  private:
    struct Sample {
        double seconds = 0;
        std::int64_t tokens = 0;
    };
    JobSize size_;
    std::deque<Sample> samples_;
};

/// "12 of 40 items, 31.4 %, 812 tokens/s, acceptance 54 %, 2.31 tokens per call, 3 in flight, 4 min 10 s left"
std::string progress_line(const JobProgress& progress);

/// Whether a person is watching: standard error is a terminal, also through mpirun. LONGHAUL_PROGRESS=live or plain
/// overrides.
bool is_watched();

/// For the first damaged checkpoint that a launch or replica finds: a failing disk is worth knowing about. Printed to
/// standard error, in place of a live line of progress, which is written again.
void warn_of_damage(const std::string& line);

/// Prints progress to standard error: one live line on a terminal, otherwise a new line per call of `show`.
class ProgressPrinter {
  public:
    ProgressPrinter(std::string label, bool live) : label_(std::move(label)), live_(live) {}
    ~ProgressPrinter() { finish(); }
    ProgressPrinter(const ProgressPrinter&) = delete;
    ProgressPrinter& operator=(const ProgressPrinter&) = delete;

    [[nodiscard]] bool live() const { return live_; }
    void show(const JobProgress& progress);
    void finish();  ///< ends the live line

  private:
    std::string label_;
    bool live_;
    bool open_ = false;
};

}  // namespace longhaul::runner
