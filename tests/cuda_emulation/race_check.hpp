// Finds races in the shared memory of an emulated block, as compute-sanitizer's racecheck does on a GPU: two threads
// access a byte, one of them writes it, and no barrier is between them. Within a warp only __syncwarp orders accesses,
// not shuffles, votes or ldmatrix, which the emulation cannot run without a barrier of its own; between warps only
// __syncthreads and cluster barriers do. What cp.async copies is there once the thread that asked for it has waited.
//
// Accesses of kernels are known only in gpu_races_test, which compiles them with LONGHAUL_GPU_RACES and
// -fsanitize=thread; race_hooks.cpp takes the place of that sanitizer's library. Bulk copies, the shared memory of
// other blocks, and what mbarriers order are not looked at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::kernels::cuda::emulation {

enum class Access { read, write, copy_begins, copy_arrives };

/// Who accesses memory, and how many barriers it has passed.
struct Moment {
    std::uint32_t thread = 0;          ///< of the block
    std::uint32_t block_barriers = 0;  ///< block and cluster barriers
    std::uint32_t warp_barriers = 0;   ///< __syncwarp

    [[nodiscard]] std::uint32_t warp() const { return thread / 32; }
    [[nodiscard]] std::uint32_t lane() const { return thread % 32; }
};

/// What happened to each byte of a block's shared memory since the last barriers.
class SharedShadow {
  public:
    /// Forgets all accesses: another block begins.
    void begin_block() { ++block_; }

    /// Notes an access to bytes [first, first + count). `place`: of the instruction. Returns a description of the race,
    /// "" if there is none.
    std::string note(std::size_t first, std::size_t count, Access access, const Moment& now, const void* place);

  private:
    struct Byte {
        std::uint32_t block = 0;  ///< of the accesses below; others are forgotten

        bool is_written = false, is_pending = false;  ///< pending: by a copy that may still come
        Moment writer;
        const void* write_place = nullptr;

        std::uint32_t reading_warps = 0;  ///< a bit per warp, since the block barrier of `reader`
        std::uint32_t reading_lanes = 0;  ///< of the reader's warp, since its warp barrier
        Moment reader;                    ///< the last one
        const void* read_place = nullptr;

        [[nodiscard]] bool write_races(const Moment& now, Access access) const;
        [[nodiscard]] bool read_races(const Moment& now) const;
        void add_read(const Moment& now, const void* place);
        void set_write(const Moment& now, Access access, const void* place);
    };

    std::vector<Byte> bytes_;
    std::uint32_t block_ = 1;
};

}  // namespace longhaul::kernels::cuda::emulation
