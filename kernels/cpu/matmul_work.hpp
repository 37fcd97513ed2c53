// Products dealt out to threads, and where their sums go: as they are, or to what is done with them while they are in
// the first cache.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/work_queue.hpp"
#include "kernels/device.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {

/// Blocks of 16 outputs.
constexpr std::int64_t blocks_of(std::int64_t num_outputs) {
    return (num_outputs + lanes - 1) / lanes;
}

/// Whether gates and ups stand in turn, a block of each: where they fill blocks.
inline bool stands_in_turn(const Matrix& w) {
    return w.gated && w.num_outputs % (2 * lanes) == 0;
}

/// At most block_rows inputs of a product, act [count, stride].
struct MatmulRows {
    const std::byte* x;
    std::int64_t stride;  ///< elements
    std::int64_t first;   ///< of the product's rows
    std::int64_t count;
};

/// Sums of some rows and blocks of a product, [row][output].
struct SumsOfBlocks {
    std::int64_t first_row, num_rows;
    std::int64_t first_block, end_block;
    const float* sums;
    std::int64_t stride;
};

/// What becomes of a product.
struct MatmulOutput {
    float* sums = nullptr;  ///< [rows, num_outputs] where there is no `finish`
    /// From any thread, for all rows and blocks, a multiple of `unit` blocks at once (but the last ones).
    std::function<void(const SumsOfBlocks&)> finish = {};
    std::int64_t unit = 1;
};

/// Blocks that are finished at once: whole units and, but for odd heads, whole tiles; few, so that their sums stay in
/// the near caches.
inline std::int64_t blocks_finished_at_once(const KernelTable& table, std::int64_t unit) {
    return (2 * table.blocks_per_piece + unit - 1) / unit * unit;
}
/// Room for them; whoever gives a `finish` keeps to it.
constexpr std::int64_t max_finished_at_once = 32;

/// The blocks of `range` to where they go, of rows from `first_row`. multiply(BlockRange, Sums) gives their sums.
template <class Multiply>
void multiply_into(const MatmulOutput& out, std::int64_t num_outputs, std::int64_t first_row, std::int64_t num_rows,
                   std::int64_t at_once, BlockRange range, const Multiply& multiply) {
    if (!out.finish) return multiply(range, Sums{out.sums + first_row * num_outputs, num_outputs, 0});
    alignas(64) float sums[block_rows * max_finished_at_once * lanes];
    for (std::int64_t b = range.first; b < range.end; b += at_once) {
        const std::int64_t end = std::min(b + at_once, range.end);
        const std::int64_t stride = (end - b) * lanes;
        multiply(BlockRange{b, end, range.part_end}, Sums{sums, stride, b * lanes});
        out.finish({first_row, num_rows, b, end, sums, stride});
    }
}

/// How a product is dealt out.
struct MatmulWork {
    int team;
    bool packed_alone;  ///< inputs are packed by one thread for all
    std::int64_t num_blocks;
    std::int64_t unit;   ///< blocks that stay together
    std::int64_t least;  ///< blocks that a thread takes at a time
};

/// pack(part, number of parts) for all parts, then multiply(BlockRange) for all blocks.
template <class Pack, class Multiply>
void share_matmul(WorkQueue& queue, const MatmulWork& work, const Pack& pack, const Multiply& multiply) {
    if (work.packed_alone) {
        const FlushDenormals flush;
        pack(0, 1);
    }
    const std::int64_t units = (work.num_blocks + work.unit - 1) / work.unit;
    queue.fill(units, work.team, std::max<std::int64_t>(1, work.least / work.unit));
    const auto first_block = [&](std::int64_t unit) { return std::min(unit * work.unit, work.num_blocks); };
    Team::mine().run(work.team, [&](Member& member) {
        const FlushDenormals flush;
        if (!work.packed_alone) {
            pack(member.index(), member.size());
            member.barrier();
        }
        queue.work(member.index(), [&](std::int64_t first, std::int64_t end, std::int64_t part_end) {
            multiply(BlockRange{first_block(first), first_block(end), first_block(part_end)});
        });
    });
}

}  // namespace longhaul::kernels::cpu
