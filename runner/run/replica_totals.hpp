// Messages between the replicas of a launch and rank 0, as integers (launch/scheduler.hpp).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace longhaul::runner {

/// Why all replicas must stop.
enum class StopReason : std::int64_t { none = 0, request = 1, failures = 2, storage = 3, superseded = 4 };

/// State and totals that a replica posts to rank 0, since the start of the launch.
struct ReplicaTotals {
    enum class State : std::int64_t { starting, prefill, decode, idle, finished };
    static constexpr std::array<const char*, 5> state_names{"starting", "prefill", "decode", "idle", "finished"};

    std::int64_t beat = 0;  ///< grows while the rank lives
    std::int64_t state = 0;
    std::int64_t in_flight = 0, unfinished_tokens = 0;
    std::int64_t emitted = 0, prefilled = 0, drafted = 0, accepted = 0, target_calls = 0, decode_tokens = 0;
    std::int64_t rounds = 0;
    std::int64_t done_items = 0, failed_items = 0, done_tokens = 0;
    std::int64_t kept_tokens = 0;         ///< output tokens that the items it took began with
    std::int64_t resumed_unfinished = 0;  ///< items that it took from a checkpoint and has not finished
    std::int64_t decode_microseconds = 0, prefill_microseconds = 0;
    std::int64_t mixed_microseconds = 0, mixed_tokens = 0;  ///< of passes that decode and also compute parts of prompts

    void enter(State next) { state = static_cast<std::int64_t>(next); }
    [[nodiscard]] bool is(State which) const { return state == static_cast<std::int64_t>(which); }
    [[nodiscard]] const char* state_name() const { return state_names.at(static_cast<std::size_t>(state)); }
};
static_assert(sizeof(ReplicaTotals) == 20 * sizeof(std::int64_t), "a slot of the board: words alone");

}  // namespace longhaul::runner
