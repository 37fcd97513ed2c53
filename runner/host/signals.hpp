// Stop requests by signal. The handlers only set a flag and record the time of the first request.
#pragma once

namespace longhaul::runner {

/// SIGUSR1, and the first SIGTERM or SIGINT, request a stop with everything saved. A second SIGTERM or SIGINT ends the
/// process at once.
void install_stop_signals();

/// Whether a signal requested a stop.
[[nodiscard]] bool stop_signalled() noexcept;

/// Records a stop that was requested elsewhere (on another rank). Keeps the time of an earlier request. Call it from
/// the main thread.
void note_stop_request() noexcept;

/// Seconds since the first stop request; -1 if there was none.
[[nodiscard]] double seconds_since_stop_request() noexcept;

/// Name of the first signal, for the log: "SIGUSR1"; "" if there was none.
[[nodiscard]] const char* stop_signal_name() noexcept;

}  // namespace longhaul::runner
