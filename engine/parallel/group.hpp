// The ranks of one tensor-parallel engine. Communication is a parameter: one rank, MPI, or, in
// tests, threads of one process (tests/engine/thread_group.hpp).
#pragma once

#include <mpi.h>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace longhaul::engine {

/// Collectives of a group of 1, 2, 4 or 8 ranks; every rank calls them in the same order, from one thread.
class Group {
  public:
    virtual ~Group() = default;
    [[nodiscard]] virtual int rank() const = 0;
    [[nodiscard]] virtual int size() const = 0;
    [[nodiscard]] bool is_first() const { return rank() == 0; }

    /// data[i] summed over the ranks, in place, f32: ranks are the leaves of a balanced binary tree (recursive
    /// doubling: partner rank^1, then ^2, then ^4), so that row-parallel partial sums add as numerics.hpp says. Same
    /// bits everywhere.
    virtual void all_reduce(float* data, std::int64_t count) = 0;

    /// recv [size, count] = every rank's send [count], f32.
    virtual void all_gather(const float* send, float* recv, std::int64_t count) = 0;

    /// The first rank's bytes, to all; resizes `bytes` on the others.
    virtual void broadcast(std::vector<std::byte>& bytes) = 0;

    /// Every rank's bytes on the first rank (empty elsewhere).
    virtual std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) = 0;

    /// Called now and then while this rank waits in broadcast or gather for others, who may be reading a checkpoint of
    /// gigabytes meanwhile. May call MPI, not this group.
    void set_while_waiting(std::function<void()> action) { while_waiting_ = std::move(action); }

  protected:
    std::function<void()> while_waiting_;
};

/// Throws std::logic_error where a group cannot have so many ranks.
void check_group_size(int size);

/// The least of all ranks' values, on every rank. Collective.
std::int64_t min_over_ranks(Group& group, std::int64_t mine);

/// Runs `body` on each rank; where it failed on any, all of them throw what the lowest of these threw, before one
/// waits for another in the next collective. Collective; `body` may be that only where it fails on all ranks alike.
void agree(Group& group, const std::function<void()>& body);

/// A group of one.
std::unique_ptr<Group> make_local_group();

/// How the ranks of a communicator bring their numbers together. Never a matter of bits.
struct MpiGroupOptions {
    int threads = 1;            ///< threads of this rank that may help with long sums
    bool shared_memory = true;  ///< among ranks of a node, where the system allows it; false: messages only
    int ranks_per_node = 0;     ///< tests: so many neighbours pass for a node; 0: those of this machine
};

/// Over an MPI communicator (not owned; must outlive the group). Collective. MPI errors throw Error.
/// Ranks of one node exchange through shared memory, nodes by messages: where every node holds the same power of two of
/// neighbours, the subtree of the sum that they are; elsewhere all by messages.
std::unique_ptr<Group> make_mpi_group(MPI_Comm communicator, const MpiGroupOptions& options = {});

}  // namespace longhaul::engine
