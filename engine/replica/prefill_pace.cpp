#include "engine/replica/prefill_pace.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double first_pass_flops = 1.5e11;  // about a second of a few processors
constexpr double shortest_seconds = 0.5, wanted_seconds = 0.7, longest_seconds = 1.0;
constexpr double max_growth = 4;  // a pass that was quick by chance should not be followed by one of a minute
constexpr std::int64_t min_rows = 16;
constexpr std::int64_t block_rows = 512;  // devices compute many rows in blocks of so many

}  // namespace

PrefillPace::PrefillPace(double row_flops, std::int64_t ceiling) : ceiling_(ceiling) {
    set(first_pass_flops / row_flops);
}

void PrefillPace::took(std::int64_t num_rows, double seconds) {
    if (num_rows < rows_) return;  // the end of a prompt
    learn_fixed_part(num_rows, seconds);
    const double scale = std::max(1.0, 2 * fixed_seconds_ / wanted_seconds);  // of what is short, wanted and long
    const double a_row = (seconds - fixed_seconds_) / static_cast<double>(num_rows);
    const double fitting = (scale * wanted_seconds - fixed_seconds_) / a_row;
    if (seconds < scale * shortest_seconds) {
        set(std::min(fitting, max_growth * static_cast<double>(rows_)));
    } else if (!tried_more_ && rows_ < block_rows && seconds < 4 * longest_seconds) {
        tried_more_ = true;  // are these few rows what takes so long?
        set(2.0 * static_cast<double>(rows_));
    } else if (seconds > scale * longest_seconds && fitting < static_cast<double>(rows_)) {
        set(fitting);
    }
}

void PrefillPace::learn_fixed_part(std::int64_t num_rows, double seconds) {
    const auto more_rows = static_cast<double>(num_rows - last_rows_);
    if (last_rows_ > 0 && num_rows != last_rows_) {
        const double a_row = (seconds - last_seconds_) / more_rows;
        const double fixed = seconds - a_row * static_cast<double>(num_rows);
        // Otherwise the two say nothing: the machine was busy.
        if (a_row > 0) fixed_seconds_ = std::clamp(fixed, 0.0, 0.99 * std::min(seconds, last_seconds_));
    }
    last_rows_ = num_rows;
    last_seconds_ = seconds;
}

void PrefillPace::set(double rows) {
    rows_ = static_cast<std::int64_t>(std::min(rows, static_cast<double>(ceiling_)));
    rows_ = std::max(rows_, std::min(min_rows, ceiling_));
    const std::int64_t whole = rows_ >= block_rows ? block_rows : min_rows;
    if (rows_ > whole && rows_ < ceiling_) rows_ = rows_ / whole * whole;
}

}  // namespace longhaul::engine
