// What replicas of a launch and rank 0 tell each other in numbers.
#pragma once

#include <cstdint>

namespace longhaul::runner {

/// Why all replicas are to stop.
enum class StopReason : std::int64_t { none = 0, request = 1, failures = 2, storage = 3, superseded = 4 };

/// What a replica tells rank 0 about itself, all launch totals.
struct ReplicaTotals {
    enum class State : std::int64_t { starting, prefill, decode, idle, finished };

    std::int64_t beat = 0;  ///< grows while the rank lives
    std::int64_t state = 0;
    std::int64_t in_flight = 0, unfinished_tokens = 0;
    std::int64_t emitted = 0, prefilled = 0, drafted = 0, accepted = 0, target_calls = 0, decode_tokens = 0;
    std::int64_t rounds = 0;
    std::int64_t done_items = 0, failed_items = 0, done_tokens = 0;
    std::int64_t decode_microseconds = 0, prefill_microseconds = 0;
    std::int64_t mixed_microseconds = 0, mixed_tokens = 0;  ///< of passes that decode and compute parts of prompts
};
static_assert(sizeof(ReplicaTotals) == 18 * sizeof(std::int64_t), "a slot of the board: words alone");

}  // namespace longhaul::runner
