// The ranks of a launch: MPI begun and ended, errors agreed, replicas split off.
#pragma once

#include <mpi.h>

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "engine/error.hpp"

namespace longhaul::runner {

/// Every rank knows that some rank failed, and rank 0 has printed why, once. Ends the launch with `code` on all ranks,
/// unless who catches it knows how to go on.
struct AgreedFailure {
    int code = 1;
    std::string line;  ///< rank 0: what was printed
};

/// MPI from construction to destruction. One a process.
class World {
  public:
    World();   ///< throws Error when MPI cannot start
    ~World();  ///< collective
    World(const World&) = delete;
    World& operator=(const World&) = delete;

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }
    [[nodiscard]] bool is_first() const { return rank_ == 0; }
    [[nodiscard]] MPI_Comm comm() const { return MPI_COMM_WORLD; }
    [[nodiscard]] const std::string& host() const { return host_; }

    /// Ranks of the same node, and this one's place among them.
    [[nodiscard]] int node_rank() const { return node_rank_; }
    [[nodiscard]] int node_size() const { return node_size_; }

    /// Makes groups of `ranks_per_replica` neighbours; again only when nothing uses the former ones. Collective.
    void split(int ranks_per_replica);
    [[nodiscard]] MPI_Comm replica_comm() const { return replica_comm_; }
    [[nodiscard]] int replica() const { return replica_; }
    [[nodiscard]] int num_replicas() const { return num_replicas_; }
    [[nodiscard]] int rank_in_replica() const { return rank_in_replica_; }

    /// Runs `body` here and compares notes: when it threw anywhere, the line of the lowest rank that failed is printed
    /// once and all ranks throw AgreedFailure. Collective; `body` may be collective over less only if it fails on
    /// all of those ranks.
    void agree(const std::function<void()>& body) const;

    /// Rank 0's bytes on all ranks. Collective.
    void broadcast(std::string& bytes) const;
    void broadcast(std::vector<std::int64_t>& numbers) const;
    /// All ranks' bytes on rank 0 (empty elsewhere). Collective.
    [[nodiscard]] std::vector<std::string> gather(const std::string& bytes) const;

    /// Whether it is so on any rank. Collective.
    [[nodiscard]] bool any(bool mine) const;

    /// Waits for all ranks without burning a core; calls `poke` all the while. Collective.
    void wait_for_all(const std::function<void()>& poke) const;

  private:
    int rank_ = 0, size_ = 1;
    int node_rank_ = 0, node_size_ = 1;
    int replica_ = 0, num_replicas_ = 1, rank_in_replica_ = 0;
    MPI_Comm replica_comm_ = MPI_COMM_NULL;
    std::string host_;
};

/// The line and exit code of the exception in flight; call it in a catch block.
std::string describe_failure(int& code);

/// Prints "error: LINE" and ends all ranks. For a failure in the middle, when the others cannot be told.
[[noreturn]] void abort_all(const std::string& line, int code) noexcept;

/// The exit code of a command under MPI: what `body` returns, or that of a failure all ranks agreed on. Any other
/// exception ends all ranks at once.
int exit_code_of_ranks(const std::function<int()>& body);

}  // namespace longhaul::runner
