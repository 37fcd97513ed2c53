#include "engine/prefill_pace.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr double first_pass_flops = 1.5e11;  // about a second of a few processors
constexpr double shortest_seconds = 0.5, wanted_seconds = 0.7, longest_seconds = 1.0;
constexpr double most_growth = 4;  // a pass that was quick by chance should not be followed by one of a minute
constexpr std::int64_t least_rows = 16;
constexpr std::int64_t block_rows = 512;  // devices compute many rows in blocks of so many

}  // namespace

PrefillPace::PrefillPace(double row_flops, std::int64_t ceiling) : ceiling_(ceiling) {
    set(first_pass_flops / row_flops);
}

void PrefillPace::took(std::int64_t num_rows, double seconds) {
    const double fitting = static_cast<double>(num_rows) * wanted_seconds / seconds;
    if (seconds > longest_seconds) {
        if (fitting < static_cast<double>(rows_)) set(fitting);
    } else if (seconds < shortest_seconds && num_rows >= rows_) {  // fewer rows cost more each
        set(std::min(fitting, most_growth * static_cast<double>(rows_)));
    }
}

void PrefillPace::set(double rows) {
    rows_ = static_cast<std::int64_t>(std::min(rows, static_cast<double>(ceiling_)));
    rows_ = std::max(rows_, std::min(least_rows, ceiling_));
    const std::int64_t whole = rows_ >= block_rows ? block_rows : least_rows;
    if (rows_ > whole && rows_ < ceiling_) rows_ = rows_ / whole * whole;
}

}  // namespace longhaul::engine
