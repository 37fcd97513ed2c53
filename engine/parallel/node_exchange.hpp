// Data exchange between the ranks of one node, used by the MPI group (mpi_group.cpp): each rank writes to its own slot
// in shared memory, which all can read, and publishes a counter. No messages and no locks; no system calls unless a
// rank waits for long.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace longhaul::engine {

/// Unnamed shared memory (memfd) of the processes of a node. The system frees it when the last process exits, however
/// it exits. It takes no space in /dev/shm.
class NodeMemory {
  public:
    /// `bytes_per_rank` zero-filled bytes for each rank of `node` (all on one machine), each part placed near its rank.
    /// Collective. Returns nullptr on all ranks if the system refuses on any of them (another container, a security
    /// policy, no memory).
    static std::unique_ptr<NodeMemory> create(MPI_Comm node, std::size_t bytes_per_rank);
    ~NodeMemory();
    NodeMemory(const NodeMemory&) = delete;
    NodeMemory& operator=(const NodeMemory&) = delete;

    [[nodiscard]] std::byte* data() const { return mapped_ + mark_bytes; }

  private:
    static constexpr std::size_t mark_bytes =
        4096;  ///< a page before the parts; holds the mark that identifies this memory

    NodeMemory(std::byte* mapped, std::size_t num_bytes) : mapped_(mapped), num_bytes_(num_bytes) {}
    std::byte* mapped_;
    std::size_t num_bytes_;
};

/// Exchange in rounds. In each round every rank calls `begin`, may fill its slot, calls `post`, and may then `await`
/// slots of other ranks. Their contents stay unchanged until this rank calls `post` in the next round.
class NodeExchange {
  public:
    static constexpr std::size_t slot_bytes = std::size_t{512} << 10;
    using Idle = std::function<void()>;

    /// Collective. Returns nullptr on all ranks if there is no shared memory.
    static std::unique_ptr<NodeExchange> create(MPI_Comm node);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }

    /// Starts a round and returns this rank's slot. Waits for ranks that still read the slot's contents of two rounds
    /// ago. `idle`, if set, is called repeatedly while waiting.
    std::byte* begin(const Idle& idle = {});
    void post();
    /// Waits until `rank` has posted this round; returns its slot.
    const std::byte* await(int rank, const Idle& idle = {});

  private:
    /// Header before a rank's two slots. The alignment gives the counter its own cache line and separates it from the
    /// adjacent line, which processors fetch along with it.
    struct alignas(4096) Head {
        std::atomic<std::uint64_t> posted{0};  ///< number of rounds posted
    };
    static_assert(std::atomic<std::uint64_t>::is_always_lock_free);
    static constexpr std::size_t rank_bytes = sizeof(Head) + 2 * slot_bytes;

    NodeExchange(std::unique_ptr<NodeMemory> memory, int rank, int size)
        : memory_(std::move(memory)), rank_(rank), size_(size) {}
    [[nodiscard]] Head& head(int rank) const;
    [[nodiscard]] std::byte* slot(int rank) const;
    void wait_for(int rank, std::uint64_t round, const Idle& idle) const;

    std::unique_ptr<NodeMemory> memory_;
    int rank_, size_;
    std::uint64_t round_ = 0;
};

}  // namespace longhaul::engine
