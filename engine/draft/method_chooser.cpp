#include "engine/draft/method_chooser.hpp"

#include <algorithm>
#include <cmath>

namespace longhaul::engine {
namespace {

constexpr double keep_rate = 0.99;  // decay per step of a measured rate: a memory of about 100 steps
constexpr double max_delay = 3;     // cap on a step's time, in recent steps: another process may interrupt it
constexpr double slow = 0.1;        // weight of a new step in the mean of the recent ones
constexpr double repeated = 1.5;    // steps of one passage resemble each other: they say less than independent ones
constexpr double passage = 0.03;    // standard deviation of log(rate) between passages of a text
// The first steps with a method do not count: it still chooses its trees; later on draft models catch up.
constexpr std::int64_t first_settling = 16, settling = 4;
constexpr double max_settling_loss = 8;              // preferred steps, after which they count all the same
constexpr double min_counted = 8, max_counted = 40;  // steps of a trial
constexpr double max_trial_loss = 24;                // preferred steps
constexpr double min_gain = 0.01;   // log of the ratio of rates from which on the other method is preferred
constexpr double clear = 2;         // standard errors of a clear difference
constexpr double max_surprise = 2;  // cap on what a trial says otherwise than those before, in standard errors
// Steps between trials; `longest_unclear`: while the difference is not clear.
constexpr std::int64_t shortest_interval = 32, longest_interval = 4096, longest_unclear = 128;
// Cost of trials: a share of the elapsed time, and some steps at the start.
constexpr double trial_share = 0.01, first_trials = 32;
// Standard deviation of what the comparison may have changed by since the last trial: each time, and by a text that has
// doubled.
constexpr double drift = 0.06, drift_of_doubling = 0.3;

}  // namespace

void MeasuredRate::record(double seconds, double tokens) {
    steps_ = keep_rate * steps_ + 1;
    seconds_ = keep_rate * seconds_ + seconds;
    tokens_ = keep_rate * tokens_ + tokens;
    seconds_squared_ = keep_rate * seconds_squared_ + seconds * seconds;
    tokens_squared_ = keep_rate * tokens_squared_ + tokens * tokens;
    tokens_seconds_ = keep_rate * tokens_seconds_ + tokens * seconds;
}

double MeasuredRate::log_variance() const {
    if (steps_ < 2) return 1;
    // Of a ratio of sums: the squared deviations of each step's tokens from the rate times its seconds.
    const double off = tokens_squared_ - 2 * rate() * tokens_seconds_ + rate() * rate() * seconds_squared_;
    return repeated * steps_ / (steps_ - 1) * std::max(off, 0.0) / (tokens_ * tokens_) + passage * passage;
}

bool MethodChooser::Ratio::is_clear() const {
    return std::abs(mean) > clear * std::sqrt(variance);
}

bool MethodChooser::decided() const {
    return ratio_.is_clear();
}

bool MethodChooser::settles() const {
    const double limit = max_settling_loss * (rates_[preferred_].steps() > 0 ? rates_[preferred_].step_seconds() : 0);
    return visit_.steps <= (visited_[visit_.method] ? settling : first_settling) &&
           (!on_trial() || visit_.lost <= limit);
}

bool MethodChooser::Conditions::differ_from(const Conditions& before) const {
    return 2 * context >= 3 * before.context || sequences >= 2 * before.sequences ||
           2 * sequences <= before.sequences || (pauses && !before.pauses);
}

bool MethodChooser::may_try() const {
    const MeasuredRate& now = rates_[preferred_];
    if (now.steps() < min_counted) return false;
    const bool due = visit_.steps >= interval_ || (now_.differ_from(tried_) && visit_.steps >= shortest_interval);
    return due && lost_ + trial_cost_ <= trial_share * elapsed_ + first_trials * now.step_seconds();
}

/// Compares rates of about the same time, so that neither the machine's speed nor the passage decides.
MethodChooser::Ratio MethodChooser::seen_in_trial() const {
    return {.mean = std::log(rates_[1].rate() / rates_[0].rate()),
            .variance = rates_[0].log_variance() + rates_[1].log_variance()};
}

MethodChooser::Ratio MethodChooser::ratio_after_trial() const {
    const double growth = static_cast<double>(std::max<std::int64_t>(now_.context, 1)) /
                          static_cast<double>(std::max<std::int64_t>(tried_.context, 1));
    const double changed = tried_.context > 0 ? drift_of_doubling * std::log2(growth) : 0;
    const double before = ratio_.variance + drift * drift + changed * changed;
    const Ratio seen = seen_in_trial();
    const double weight = before / (before + seen.variance);
    // The machine may have become faster or slower between the two measurements.
    const double limit = max_surprise * std::sqrt(before + seen.variance);
    const double surprise = std::clamp(seen.mean - ratio_.mean, -limit, limit);
    return {.mean = ratio_.mean + weight * surprise, .variance = (1 - weight) * before};
}

bool MethodChooser::trial_is_over() const {
    const double counted = rates_[visit_.method].steps();
    if (visit_.lost > max_trial_loss * rates_[preferred_].step_seconds()) return counted >= 2;
    if (counted < min_counted) return false;
    return static_cast<double>(visit_.steps) >= max_counted + (visited_[visit_.method] ? settling : first_settling) ||
           seen_in_trial().is_clear();
}

void MethodChooser::begin_visit(std::int64_t method) {
    visit_ = {.method = method};
}

void MethodChooser::end_trial() {
    ratio_ = ratio_after_trial();
    tried_ = now_;
    visited_ = {true, true};
    trial_cost_ = std::max(visit_.lost, 0.0);
    const double gain = preferred_ == 0 ? ratio_.mean : -ratio_.mean;
    if (gain < min_gain) {
        // A difference that is not clear after several trials is small.
        interval_ = std::clamp(decided() ? 2 * interval_ : interval_ * 3 / 2, shortest_interval,
                               decided() ? longest_interval : longest_unclear);
        begin_visit(preferred_);
        return;
    }
    preferred_ = visit_.method;  // the visit goes on
    interval_ = std::max(interval_ / 2, shortest_interval);
    visit_.steps = 0;
}

std::int64_t MethodChooser::choose(const Conditions& now) {
    now_ = now;
    if (on_trial()) {
        if (trial_is_over()) end_trial();
    } else if (may_try()) {
        begin_visit(1 - preferred_);
        rates_[visit_.method] = {};
    }
    return visit_.method;
}

void MethodChooser::record(double seconds, std::int64_t tokens) {
    ++visit_.steps;
    double& typical = visit_.typical_seconds;
    const double taken = typical > 0 ? std::min(seconds, max_delay * typical) : seconds;
    typical += std::max(slow, 1 / static_cast<double>(visit_.steps)) * (taken - typical);
    elapsed_ += taken;
    const auto emitted = static_cast<double>(tokens);
    const bool settling_now = settles();
    if ((on_trial() || settling_now) && rates_[preferred_].steps() >= 2) {
        const double loss = taken - emitted / rates_[preferred_].rate();
        visit_.lost += loss;
        lost_ = std::max(0.0, lost_ + loss);
    }
    if (!settling_now) rates_[visit_.method].record(taken, emitted);
}

}  // namespace longhaul::engine
