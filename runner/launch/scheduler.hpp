// Distributes items over replicas: one fixed order of work and one shared counter, without a coordinator.
//
// The counter is in the memory of world rank 0; replicas increment it by one-sided MPI. In Open MPI over TCP such a
// call progresses only while its owner is inside MPI, so every rank calls `poke` from the engine's loop and while it
// waits for the others.
#pragma once

#include <mpi.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/host/watchdog.hpp"
#include "runner/job/shard.hpp"
#include "runner/run/replica_totals.hpp"
#include "runner/run/results.hpp"

namespace longhaul::runner {

/// The facts about a job's items that decide the order.
struct WorkFacts {
    std::int64_t num_inputs = 0, samples = 1;
    Shard shard{};  ///< only inputs of this shard
    std::function<bool(const ItemKey&)> done;
    std::function<std::int64_t(const ItemKey&)> kept_tokens;  ///< output; -1: none
    std::function<std::int64_t(std::int64_t index)> prompt_bytes;
};

/// Work numbers (index × samples + sample) of the items to do: items with kept tokens first (those with the most tokens
/// first), then the longest prompts; ties in input order.
std::vector<std::int64_t> order_of_work(const WorkFacts& facts);

/// Shared memory of a launch: counter, stop word, failure count, and one slot of totals per rank.
class Board {
  public:
    /// Collective over `world`. `every_seconds`: how often `poke` posts totals and reads the stop word.
    Board(MPI_Comm world, double every_seconds = 0.25);
    ~Board();  ///< collective
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;

    /// Fetches and increments the counter, which starts at 0. Waits until rank 0 enters MPI.
    std::int64_t take_next();

    /// Adds failed items; returns the total of all replicas.
    std::int64_t add_failures(std::int64_t count);

    /// Cheap, never blocks: progresses MPI for calls of other ranks; periodically posts `totals` and reads the stop
    /// word.
    void poke(const ReplicaTotals& totals);
    /// Posts `totals` now and waits until rank 0 has received them.
    void post(const ReplicaTotals& totals);

    /// Requests all replicas to stop.
    void request_stop(StopReason reason);
    /// As of the last read; the most severe reason if there are several.
    [[nodiscard]] StopReason stop_reason() const;
    /// Seconds without a completed read in which rank 0's beat had changed.
    [[nodiscard]] double unanswered_seconds() const { return owner_.seconds(); }

    /// Rank 0 only, any thread: current slots of all ranks.
    [[nodiscard]] std::vector<ReplicaTotals> totals() const;

  private:
    using Clock = std::chrono::steady_clock;

    [[nodiscard]] MPI_Aint slot_offset() const;
    void note_look();

    MPI_Comm world_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;
    std::int64_t* words_ = nullptr;  ///< on rank 0: the window's memory
    int rank_ = 0, size_ = 1;
    std::chrono::duration<double> every_;
    Clock::time_point last_probe_, last_look_;
    bool looking_ = false;
    std::array<MPI_Request, 2> requests_{MPI_REQUEST_NULL, MPI_REQUEST_NULL};
    ReplicaTotals posted_;
    std::array<std::int64_t, 8> looked_{};  ///< words from the stop word to rank 0's beat
    std::array<std::int64_t, 8> unused_{};
    std::int64_t stop_seen_ = 0;
    Silence owner_;
};

}  // namespace longhaul::runner
