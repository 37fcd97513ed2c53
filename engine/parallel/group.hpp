// Collectives of the ranks of one tensor-parallel engine (a replica). Implementations: a single rank, MPI, and in tests
// the threads of one process (tests/engine/thread_group.hpp).
#pragma once

#include <mpi.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace longhaul::engine {

/// Collectives of a group of 1, 2, 4 or 8 ranks. Every rank calls them in the same order, from one thread.
class Group {
  public:
    virtual ~Group() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    [[nodiscard]] bool is_first() const { return rank() == 0; }

    /// Sums data[i] over the ranks, in place, f32 [count]. The ranks are the leaves of a balanced binary tree
    /// (recursive doubling: partner rank^1, then ^2, then ^4), so row-parallel partial sums add in the order of
    /// numerics.hpp. Same bits on every rank.
    virtual void all_reduce(float* data, std::int64_t count) = 0;

    /// recv [size, count] = every rank's send [count], f32.
    virtual void all_gather(const float* send, float* recv, std::int64_t count) = 0;

    /// Sends the first rank's bytes to all ranks; resizes `bytes` on the others.
    virtual void broadcast(std::vector<std::byte>& bytes) = 0;

    /// Returns every rank's bytes on the first rank (empty on the others).
    virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) = 0;

    /// Sets a function that is called repeatedly while this rank waits in broadcast or gather for other ranks, which
    /// may be reading a checkpoint of gigabytes. It may call MPI, but not this group.
    void set_while_waiting(std::function<void()> action) { while_waiting_ = std::move(action); }

  protected:
    std::function<void()> while_waiting_;
};

/// Throws std::logic_error if a group cannot have `size` ranks.
void check_group_size(int size);

/// Minimum of all ranks' values, on every rank. Collective.
std::int64_t min_over_ranks(Group& group, std::int64_t mine);

/// Runs `body` on each rank. If it fails on any rank, all ranks throw an Error with the exit code and message of the
/// lowest failing rank, so that no rank waits for a failed one in the next collective. Collective. `body` may use
/// collectives only if it fails either on all ranks or on none.
void agree(Group& group, const std::function<void()>& body);

/// A group with a single rank.
std::unique_ptr<Group> make_local_group();

/// How an MPI group exchanges data. Does not affect result bits.
struct MpiGroupOptions {
    int threads = 1;  ///< threads of this rank that may take part in long sums
    bool shared_memory =
        true;  ///< use shared memory between ranks of a node if the system allows it; false: messages only
    int ranks_per_node = 0;  ///< tests: treat this many consecutive ranks as one node; 0: the ranks on this machine
};

/// A group over an MPI communicator (not owned; must outlive the group). Collective. MPI errors throw Error. Ranks of
/// one node exchange data through shared memory and nodes exchange messages if every node holds the same power-of-two
/// number of consecutive ranks, i.e. a subtree of the sum. Otherwise all ranks use messages.
std::unique_ptr<Group> make_mpi_group(MPI_Comm communicator, const MpiGroupOptions& options = {});

}  // namespace longhaul::engine
