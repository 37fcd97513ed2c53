#include "runner/host/signals.hpp"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <ctime>

namespace longhaul::runner {
namespace {

volatile std::sig_atomic_t first_signal = 0;
std::atomic<std::int64_t> requested_at{0};  ///< nanoseconds of the monotonic clock; 0: no request yet
static_assert(std::atomic<std::int64_t>::is_always_lock_free, "a signal handler writes it");

std::int64_t now_nanoseconds() {
    struct timespec now {};
    ::clock_gettime(CLOCK_MONOTONIC, &now);  // async-signal-safe
    return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void note_time() {
    std::int64_t never = 0;
    requested_at.compare_exchange_strong(never, now_nanoseconds());
}

void note(int signal) {
    if (first_signal == 0) first_signal = signal;
    note_time();
}

void install(int signal, int flags) {
    struct sigaction action {};
    action.sa_handler = note;
    action.sa_flags = flags;
    sigemptyset(&action.sa_mask);
    sigaction(signal, &action, nullptr);
}

}  // namespace

void install_stop_signals() {
    install(SIGUSR1, SA_RESTART);
    install(SIGTERM, SA_RESTART | static_cast<int>(SA_RESETHAND));
    install(SIGINT, SA_RESTART | static_cast<int>(SA_RESETHAND));
}

bool stop_signalled() noexcept {
    return first_signal != 0;
}

void note_stop_request() noexcept {
    note_time();
}

double seconds_since_stop_request() noexcept {
    const std::int64_t at = requested_at;
    return at == 0 ? -1 : 1e-9 * static_cast<double>(now_nanoseconds() - at);
}

const char* stop_signal_name() noexcept {
    switch (first_signal) {
        case 0:
            return "";
        case SIGUSR1:
            return "SIGUSR1";
        case SIGTERM:
            return "SIGTERM";
        case SIGINT:
            return "SIGINT";
        default:
            return "a signal";
    }
}

}  // namespace longhaul::runner
