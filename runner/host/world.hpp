// The MPI ranks of a launch: starts and ends MPI, agrees on errors across ranks, splits ranks into replicas.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/error.hpp"

namespace longhaul::runner {

/// Thrown on all ranks when some rank failed and rank 0 has printed the reason once. Ends the launch with `code` on all
/// ranks unless it is caught.
struct AgreedFailure {
    int code = 1;
    std::string line;  ///< on rank 0: the line that was printed
};

/// MPI from construction to destruction. One per process.
class World {
  public:
    World();   ///< throws Error if MPI cannot start
    ~World();  ///< collective
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }
    [[nodiscard]] bool is_first() const { return rank_ == 0; }
    [[nodiscard]] MPI_Comm comm() const { return MPI_COMM_WORLD; }
    [[nodiscard]] const std::string& host() const { return host_; }

    /// Index of this rank among the ranks of its node, and their number.
    [[nodiscard]] int node_rank() const { return node_rank_; }
    [[nodiscard]] int node_size() const { return node_size_; }

    /// Splits the ranks into groups of `ranks_per_replica` neighbours. May be called again once nothing uses the former
    /// groups. Collective.
    void split(int ranks_per_replica);
    [[nodiscard]] MPI_Comm replica_comm() const { return replica_comm_; }
    [[nodiscard]] int replica() const { return replica_; }
    [[nodiscard]] int num_replicas() const { return num_replicas_; }
    [[nodiscard]] int rank_in_replica() const { return rank_in_replica_; }

    /// Runs `body` on each rank, then checks whether it threw on any. If so, prints the error of the lowest failed rank
    /// once and throws AgreedFailure on all ranks. Collective. `body` may itself be collective over a subset of the
    /// ranks only if it fails on all of that subset.
    void agree(const std::function<void()>& body) const;

    /// agree, for a `body` with collectives of the replica's ranks in it. An Error is one of all of them; anything else
    /// (no memory, a device that failed) may be of one rank, for which the others would wait: it ends the launch.
    void agree_on_collective(const std::function<void()>& body) const;

    /// Copies rank 0's bytes to all ranks. Collective.
    void broadcast(std::string& bytes) const;
    void broadcast(std::vector<std::int64_t>& numbers) const;
    /// Gathers the bytes of all ranks on rank 0 (empty elsewhere). Collective.
    [[nodiscard]] std::vector<std::string> gather(const std::string& bytes) const;

    /// Logical OR over all ranks. Collective.
    [[nodiscard]] bool any(bool mine) const;

    /// Waits for all ranks without spinning; calls `poke` repeatedly while it waits. Collective.
    void wait_for_all(const std::function<void()>& poke) const;

  private:
    int rank_ = 0, size_ = 1;
    int node_rank_ = 0, node_size_ = 1;
    int replica_ = 0, num_replicas_ = 1, rank_in_replica_ = 0;
    MPI_Comm replica_comm_ = MPI_COMM_NULL;
    std::string host_;
};

/// Prints "error: LINE" and ends all ranks. For failures outside of `agree`, where the other ranks cannot be informed.
[[noreturn]] void abort_all(const std::string& line, int code) noexcept;

/// The exit code of a command under MPI: the result of `body`, or the code of an AgreedFailure. Any other exception
/// ends all ranks at once.
int exit_code_of_ranks(const std::function<int()>& body);

}  // namespace longhaul::runner
