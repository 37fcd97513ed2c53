#include "runner/signals.hpp"

#include <csignal>

namespace longhaul::runner {
namespace {

volatile std::sig_atomic_t first_signal = 0;

void note(int signal) {
    if (first_signal == 0) first_signal = signal;
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
