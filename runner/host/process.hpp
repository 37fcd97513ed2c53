// Processes and their clock: this one by names that no other has, and whether another still runs.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace longhaul::runner {

/// A process, told apart from later ones with its number.
struct ProcessId {
    std::string host;
    std::int64_t pid = 0;
    std::string start_ticks;    ///< when it started, in the words of /proc
    std::string boot_id;        ///< of the machine
    std::string pid_namespace;  ///< of the container: in another one the number says nothing

    static ProcessId mine();
    /// nullopt: it cannot be known from here (another machine or container).
    [[nodiscard]] std::optional<bool> is_alive() const;
};

/// A name for a temporary that nobody else has: several launches may write into one folder at the same time.
std::string process_tag();

/// Since this process was started, dynamic linking and all; to a hundredth of a second.
double seconds_since_start();

/// Now, UTC, ISO 8601.
std::string utc_now();

}  // namespace longhaul::runner
