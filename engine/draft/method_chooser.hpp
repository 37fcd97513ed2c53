// Chooses between two draft methods by tokens per second of whole steps, measured while they run. It drafts with the
// better one and tries the other one again and again: soon while the comparison is uncertain, then at growing
// intervals, within about 1 % of the time, and sooner once the better one pauses, the text has grown by half or another
// number of sequences decodes. Called by DraftChooser on a group's first rank, only under `coupled`, where measured
// time cannot change the text.
#pragma once

#include <array>
#include <cstdint>

namespace longhaul::engine {

/// Tokens per second of one method in its recent steps, and how uncertain that is.
class MeasuredRate {
  public:
    void record(double seconds, double tokens);
    /// Number of steps that count; older ones fade.
    [[nodiscard]] double steps() const { return steps_; }
    [[nodiscard]] double rate() const { return tokens_ / seconds_; }
    [[nodiscard]] double step_seconds() const { return seconds_ / steps_; }
    /// Variance of log(rate()).
    [[nodiscard]] double log_variance() const;

  private:
    double steps_ = 0, seconds_ = 0, tokens_ = 0;
    double seconds_squared_ = 0, tokens_squared_ = 0, tokens_seconds_ = 0;
};

class MethodChooser {
  public:
    struct Conditions {
        std::int64_t sequences = 0;  ///< that decode
        std::int64_t context = 0;    ///< mean number of positions of a sequence
        bool pauses = false;         ///< the preferred method does not draft
        /// Whether they are so unlike those of the last trial, `before`, that the other method may be the faster one.
        [[nodiscard]] bool differ_from(const Conditions& before) const;
    };
    /// The method of the next step, 0 or 1.
    std::int64_t choose(const Conditions& now);
    /// Time and tokens of the step, if its time covers nothing but decoding.
    void record(double seconds, std::int64_t tokens);

    /// The method that was faster so far; the first one at the start.
    [[nodiscard]] std::int64_t preferred() const { return preferred_; }
    /// Whether it is certainly the faster one.
    [[nodiscard]] bool decided() const;

  private:
    /// Steps with one method in a row.
    struct Visit {
        std::int64_t method = 0;
        std::int64_t steps = 0;
        double typical_seconds = 0;  ///< mean of the recent steps
        double lost = 0;             ///< seconds beyond those that the preferred method takes for as many tokens
    };
    [[nodiscard]] bool on_trial() const { return visit_.method != preferred_; }
    [[nodiscard]] bool settles() const;
    [[nodiscard]] bool may_try() const;
    [[nodiscard]] bool trial_is_over() const;
    void begin_visit(std::int64_t method);
    void end_trial();

    /// Estimate of log(rate of the second method / rate of the first).
    struct Ratio {
        double mean = 0, variance = 0.25;
        [[nodiscard]] bool is_clear() const;
    };
    [[nodiscard]] Ratio seen_in_trial() const;
    [[nodiscard]] Ratio ratio_after_trial() const;

    std::array<MeasuredRate, 2> rates_;
    std::array<bool, 2> visited_{};
    Visit visit_;
    Ratio ratio_;
    std::int64_t preferred_ = 0;
    Conditions now_, tried_;                          ///< of the next step, of the last trial
    std::int64_t interval_ = 0;                       ///< steps between the last trial and the next
    double elapsed_ = 0, lost_ = 0, trial_cost_ = 0;  ///< seconds; the cost of the last trial
};

}  // namespace longhaul::engine
