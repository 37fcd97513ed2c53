// Identity of processes (unique beyond the pid), whether another process is still alive, and clocks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longhaul::runner {

/// Identifies a process uniquely, also after its pid was reused.
struct ProcessId {
    std::string host;
    std::int64_t pid = 0;
    std::string start_ticks;    ///< start time in clock ticks since boot, from /proc
    std::string boot_id;        ///< of the machine's current boot
    std::string pid_namespace;  ///< of the container; a pid has no meaning in another namespace

    static ProcessId mine();
    /// nullopt: cannot be known from here (other machine or container).
    [[nodiscard]] std::optional<bool> is_alive() const;
};

/// A unique tag for the name of a temporary file: several launches may write into one folder at the same time.
std::string process_tag();

/// Seconds since this process was started, dynamic linking included; resolution 0.01 s.
double seconds_since_start();

/// The current time in UTC, ISO 8601.
std::string utc_now();

}  // namespace longhaul::runner
