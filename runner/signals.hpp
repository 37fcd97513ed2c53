// Requests to stop, by signal. Handlers set a flag and nothing else.
#pragma once

namespace longhaul::runner {

/// SIGUSR1, and SIGTERM and SIGINT the first time, ask for a stop with everything saved; a second SIGTERM or SIGINT
/// ends the process at once.
void install_stop_signals();

/// Whether a stop was asked for.
[[nodiscard]] bool stop_signalled() noexcept;

/// The signal that asked first, for the log: "SIGUSR1"; "" for none.
[[nodiscard]] const char* stop_signal_name() noexcept;

}  // namespace longhaul::runner
