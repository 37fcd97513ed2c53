// How the ranks of one node hand each other numbers: each writes into memory of its own that all can read, and counts.
// No message, no lock, no system call while nobody waits long.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

namespace longhaul::engine {

/// Memory that processes share and nobody can name: it goes with the last of them, however they end, and needs no room
/// in /dev/shm.
class NodeMemory {
  public:
    /// `bytes_per_rank`, zero-filled, for each rank of `node` (all on one machine), each part near its rank.
    /// Collective; nullptr on all ranks where the system refuses any of them (another container, a security policy, no
    /// memory).
    static std::unique_ptr<NodeMemory> create(MPI_Comm node, std::size_t bytes_per_rank);
    ~NodeMemory();
    NodeMemory(const NodeMemory&) = delete;
    NodeMemory& operator=(const NodeMemory&) = delete;

    [[nodiscard]] std::byte* data() const { return mapped_ + mark_bytes; }

  private:
    static constexpr std::size_t mark_bytes = 4096;  ///< a page before the parts: what tells this memory from others

    NodeMemory(std::byte* mapped, std::size_t num_bytes) : mapped_(mapped), num_bytes_(num_bytes) {}
    std::byte* mapped_;
    std::size_t num_bytes_;
};

/// Rounds of exchange. In each, every rank calls `begin`, may fill its slot, calls `post`, and may then `await` any
/// others' slots, which stay as they are until it calls `begin` for the round after the next.
class NodeExchange {
  public:
    static constexpr std::size_t slot_bytes = std::size_t{512} << 10;
    using Idle = std::function<void()>;

    /// Collective; nullptr on all ranks where there is no shared memory.
    static std::unique_ptr<NodeExchange> create(MPI_Comm node);

    [[nodiscard]] int rank() const { return rank_; }
    [[nodiscard]] int size() const { return size_; }

    /// This rank's slot of a new round. Waits for ranks that still read what it held two rounds ago; `idle`, where
    /// there is one, is called now and then while waiting.
    std::byte* begin(const Idle& idle = {});
    void post();
    /// The slot of a rank, filled.
    const std::byte* await(int rank, const Idle& idle = {});

  private:
    /// What stands before a rank's two slots: a line of its own (and the neighbour that processors fetch with it).
    struct alignas(4096) Head {
        std::atomic<std::uint64_t> posted{0};  ///< rounds
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
