#include "engine/replica/prefill_pace.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double first_pass_flops = 1.5e11;  // about a second on a few processors
constexpr double shortest_seconds = 0.5, wanted_seconds = 0.7, longest_seconds = 1.0;
constexpr double max_growth = 4;  // per pass: one pass that was fast by chance must not lead to a minute-long one
constexpr std::int64_t min_rows = 16;
constexpr std::int64_t block_rows = 512;  // row block of devices that compute many rows

}  // namespace

PrefillPace::PrefillPace(double row_flops, std::int64_t ceiling) : ceiling_(ceiling) {
    set(first_pass_flops / row_flops);
}

void PrefillPace::took(std::int64_t num_rows, double seconds) {
    if (num_rows < rows_) return;  // the last, partial chunk of a prompt
    learn_fixed_part(num_rows, seconds);
    const double scale = std::max(1.0, 2 * fixed_seconds_ / wanted_seconds);  // a large fixed cost raises all limits
    const double a_row = (seconds - fixed_seconds_) / static_cast<double>(num_rows);
    const double fitting = (scale * wanted_seconds - fixed_seconds_) / a_row;
    if (seconds < scale * shortest_seconds) {
        set(std::min(fitting, max_growth * static_cast<double>(rows_)));
    } else if (!tried_more_ && rows_ < block_rows && seconds < 4 * longest_seconds) {
        tried_more_ = true;  // one larger pass, to tell the fixed cost from the cost of the rows
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
        // A cost of 0 or less per row means that the machine was busy: ignore both passes.
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
