// Requests to stop, by signal. Handlers set a flag and nothing else.
#pragma once

namespace longhaul::runner {

/// SIGUSR1, and SIGTERM and SIGINT the first time, ask for a stop with everything saved; a second SIGTERM or SIGINT
/// ends the process at once.
void install_stop_signals();

/// Whether a stop was asked for.
[[nodiscard]] bool stop_signalled() noexcept;

/// A stop was asked for elsewhere: the time counts from now on, unless it does already. From the main thread.
void note_stop_request() noexcept;

/// Since a stop was first asked for; -1 where none was.
[[nodiscard]] double seconds_since_stop_request() noexcept;

/// The signal that asked first, for the log: "SIGUSR1"; "" for none.
[[nodiscard]] const char* stop_signal_name() noexcept;

}  // namespace longhaul::runner
