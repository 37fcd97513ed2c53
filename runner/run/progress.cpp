#include "runner/run/progress.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "runner/host/message_text.hpp"

namespace longhaul::runner {
namespace {

constexpr double rate_window_seconds = 30;
constexpr const char* erase_line = "\r\033[2K";

}  // namespace

ReplicaTotals sum_of(const std::vector<ReplicaTotals>& slots) {
    ReplicaTotals sum;
    for (const ReplicaTotals& slot : slots) {
        sum.in_flight += slot.in_flight;
        sum.unfinished_tokens += slot.unfinished_tokens;
        sum.emitted += slot.emitted;
        sum.prefilled += slot.prefilled;
        sum.drafted += slot.drafted;
        sum.accepted += slot.accepted;
        sum.target_calls += slot.target_calls;
        sum.decode_tokens += slot.decode_tokens;
        sum.rounds += slot.rounds;
        sum.done_items += slot.done_items;
        sum.failed_items += slot.failed_items;
        sum.done_tokens += slot.done_tokens;
        sum.kept_tokens += slot.kept_tokens;
        sum.resumed_unfinished += slot.resumed_unfinished;
        sum.decode_microseconds += slot.decode_microseconds;
        sum.prefill_microseconds += slot.prefill_microseconds;
        sum.mixed_microseconds += slot.mixed_microseconds;
        sum.mixed_tokens += slot.mixed_tokens;
        if (slot.is(ReplicaTotals::State::decode)) sum.enter(ReplicaTotals::State::decode);
    }
    return sum;
}

JobProgress ProgressMeter::update(const ReplicaTotals& sum, double seconds) {
    JobProgress progress;
    progress.items = size_.items;
    progress.done = size_.done_before + sum.done_items;
    progress.failed = size_.failed_before + sum.failed_items;
    progress.in_flight = sum.in_flight;
    progress.tokens = sum.emitted;
    progress.prefilling = !sum.is(ReplicaTotals::State::decode) && sum.in_flight > 0;
    progress.prefilled = sum.prefilled;
    if (sum.drafted > 0) progress.acceptance = static_cast<double>(sum.accepted) / static_cast<double>(sum.drafted);
    if (sum.target_calls > 0) {
        progress.block_efficiency = static_cast<double>(sum.decode_tokens) / static_cast<double>(sum.target_calls);
    }

    samples_.push_back({seconds, sum.emitted});
    while (samples_.size() > 2 && samples_[1].seconds <= seconds - rate_window_seconds) samples_.pop_front();
    const double window = seconds - samples_.front().seconds;
    if (window > 0) progress.tokens_per_second = static_cast<double>(sum.emitted - samples_.front().tokens) / window;

    // Items may end before max-tokens: estimate the rest from the average length of the finished items.
    double tokens_per_item = static_cast<double>(size_.max_tokens);
    const std::int64_t good = sum.done_items - sum.failed_items;
    if (good >= 5) tokens_per_item = static_cast<double>(sum.done_tokens) / static_cast<double>(good);
    const double left_items = static_cast<double>(size_.items - progress.done);
    const double all = static_cast<double>(size_.items) * tokens_per_item;
    const std::int64_t waiting = std::max<std::int64_t>(size_.kept_tokens - sum.kept_tokens, 0);
    const double there = static_cast<double>(sum.unfinished_tokens + waiting);
    const double left = std::max(left_items * tokens_per_item - there, 0.0);
    if (all > 0) progress.share = std::clamp(1.0 - left / all, 0.0, 1.0);
    if (left_items <= 0) {
        progress.share = 1;
        progress.eta_seconds = 0;
    } else if (progress.tokens_per_second > 0) {
        progress.eta_seconds = left / progress.tokens_per_second;
    }
    return progress;
}

nlohmann::ordered_json JobProgress::to_json() const {
    nlohmann::ordered_json json;
    json["items"] = items;
    json["done"] = done;
    json["failed"] = failed;
    json["in_flight"] = in_flight;
    json["tokens"] = tokens;
    json["tokens_per_second"] = tokens_per_second;
    json["share"] = share;
    if (eta_seconds >= 0) json["eta_seconds"] = eta_seconds;
    if (acceptance >= 0) json["acceptance"] = acceptance;
    json["block_efficiency"] = block_efficiency;
    return json;
}

std::string progress_line(const JobProgress& progress) {
    std::string line = grouped(progress.done) + " of " + grouped(progress.items) + " items";
    if (progress.failed > 0) line += " (" + grouped(progress.failed) + " failed)";
    line += formatted(", %.1f %%, %.0f tokens/s", 100 * progress.share, progress.tokens_per_second);
    if (progress.prefilling) line += ", reading prompts: " + counted(progress.prefilled, "token", "tokens") + " so far";
    if (progress.acceptance >= 0) line += formatted(", acceptance %.0f %%", 100 * progress.acceptance);
    if (progress.block_efficiency > 0) line += formatted(", %.2f tokens per call", progress.block_efficiency);
    line += ", " + grouped(progress.in_flight) + " in flight";
    if (progress.eta_seconds > 0) line += ", " + duration_text(progress.eta_seconds) + " left";
    return line;
}

bool is_watched() {
    const char* wish = std::getenv("LONGHAUL_PROGRESS");
    if (wish != nullptr && std::string_view(wish) == "live") return true;
    if (wish != nullptr && std::string_view(wish) == "plain") return false;
    if (::isatty(STDERR_FILENO) == 1) return true;
    if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr) return false;
    // Under mpirun stderr is not a terminal: check where mpirun's own stderr goes.
    std::array<char, 128> target{};
    const std::string link = "/proc/" + std::to_string(::getppid()) + "/fd/2";
    const ssize_t count = ::readlink(link.c_str(), target.data(), target.size());
    const std::string_view name(target.data(), count > 0 ? static_cast<std::size_t>(count) : 0);
    return name.starts_with("/dev/pts/") || name.starts_with("/dev/tty");
}

void warn_of_damage(const std::string& line) {
    std::fprintf(stderr, "%swarning: checkpoint damaged (log/ lists all damage): %s\n", is_watched() ? erase_line : "",
                 line.c_str());
}

void ProgressPrinter::show(const JobProgress& progress) {
    const std::string line = label_ + ": " + progress_line(progress);
    // Erase the line before writing it again: the new one may be shorter.
    std::fprintf(stderr, live_ ? "%s%s" : "%s%s\n", live_ ? erase_line : "", line.c_str());
    std::fflush(stderr);
    open_ = live_;
}

void ProgressPrinter::finish() {
    if (open_) std::fputc('\n', stderr);
    open_ = false;
}

}  // namespace longhaul::runner
