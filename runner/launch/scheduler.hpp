// Which replica does what: one order of work, one shared counter, no coordinator.
//
// The counter lives in the memory of world rank 0; replicas take from it by one-sided MPI. In Open MPI over TCP such a
// call moves on only while its owner is inside MPI, so every rank pokes MPI from the engine's loop (`poke`), and while
// it waits for the others.
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

/// Facts about the items of a job that decide the order.
struct WorkFacts {
    std::int64_t num_inputs = 0, samples = 1;
    Shard shard{};  ///< only its inputs
    std::function<bool(const ItemKey&)> done;
    std::function<std::int64_t(const ItemKey&)> checkpointed_tokens;  ///< -1: in no checkpoint
    std::function<std::int64_t(std::int64_t index)> prompt_bytes;
};

/// Work numbers (index × samples + sample) of the items to do: what is in a checkpoint first (the furthest on first),
/// then the longest prompts; of equal ones the input's order.
std::vector<std::int64_t> order_of_work(const WorkFacts& facts);

/// The shared memory of a launch: counter, stop word, failures, and a slot of totals for each rank.
class Board {
  public:
    /// Collective over `world`. `every_seconds`: how often `poke` posts totals and looks at the stop word.
    Board(MPI_Comm world, double every_seconds = 0.25);
    ~Board();  ///< collective
    Board(const Board&) = delete;
    Board& operator=(const Board&) = delete;

    /// The next number of the counter, from 0. Waits for rank 0 to enter MPI.
    std::int64_t take_next();

    /// Adds failed items; the total of all replicas.
    std::int64_t add_failures(std::int64_t count);

    /// Cheap, never waits: progress for others' calls, now and then posts `totals` and fetches the stop word.
    void poke(const ReplicaTotals& totals);
    /// Posts `totals` now and waits until rank 0 has them.
    void post(const ReplicaTotals& totals);

    /// Asks all replicas to stop.
    void request_stop(StopReason reason);
    /// As of the last look; of several reasons the gravest.
    [[nodiscard]] StopReason stop_reason() const;
    /// How long rank 0 has not answered, or not moved.
    [[nodiscard]] double unanswered_seconds() const { return owner_.seconds(); }

    /// Rank 0 only; any thread: the slots of all ranks as they are now.
    [[nodiscard]] std::vector<ReplicaTotals> totals() const;
    /// Rank 0 only; any thread.
    [[nodiscard]] std::int64_t taken() const;

  private:
    using Clock = std::chrono::steady_clock;

    [[nodiscard]] MPI_Aint slot_offset() const;
    void note_look();

    MPI_Comm world_ = MPI_COMM_NULL;
    MPI_Win window_ = MPI_WIN_NULL;
    std::int64_t* words_ = nullptr;  ///< rank 0's memory
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
