// Distributes a matmul over threads (called by cpu_matmul.cpp and cpu_quantized.cpp). The sums are stored, or passed on
// to a fused operation while they are in L1.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/work_queue.hpp"
#include "kernels/device.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::cpu {

/// Number of blocks of 16 outputs.
constexpr std::int64_t blocks_of(std::int64_t num_outputs) {
    return (num_outputs + lanes - 1) / lanes;
}

/// Whether blocks of gates and of ups alternate: if both fill whole blocks.
inline bool is_interleaved(const Matrix& w) {
    return w.gated && w.num_outputs % (2 * lanes) == 0;
}

/// Up to CpuDevice::block_rows_of input rows of a matmul, act [count, stride].
struct MatmulRows {
    const std::byte* x;
    std::int64_t stride;  ///< elements
    std::int64_t first;   ///< index in the matmul's rows
    std::int64_t count;
};

/// Sums of some rows and blocks of a matmul, [row][output].
struct SumsOfBlocks {
    std::int64_t first_row, num_rows;
    std::int64_t first_block, end_block;
    const float* sums;
    std::int64_t stride;
};

/// Where the sums of a matmul go.
struct MatmulOutput {
    float* sums = nullptr;  ///< [rows, num_outputs], if there is no `finish`
    /// Fused operation. Called from any thread, in total for all rows and blocks, for a multiple of `unit` blocks at a
    /// time (except the last ones).
    std::function<void(const SumsOfBlocks&)> finish = {};
    std::int64_t unit = 1;
};

/// One of several matmuls that the threads share as one. Their matrices have the same type and shape, and they have at
/// most CpuDevice::block_rows_of rows in all.
struct MatmulPart {
    const Matrix* w;
    MatmulRows rows;
    const MatmulOutput* out;
    std::int64_t first_packed;  ///< rows of the parts before it: where its packed inputs begin
};

inline std::int64_t rows_of(std::span<const MatmulPart> parts) {
    return parts.back().first_packed + parts.back().rows.count;
}

/// Blocks that are finished at a time: whole units and, except for odd heads, whole tiles; few, so that their sums stay
/// in L1 and L2.
inline std::int64_t blocks_finished_at_once(const KernelTable& table, std::int64_t unit) {
    return (2 * table.blocks_per_piece + unit - 1) / unit * unit;
}
/// Capacity for them; a caller with a `finish` must not exceed it.
constexpr std::int64_t max_finished_at_once = 32;

/// multiply_into with a `finish`, for at most MaxRows rows. (A function of its own, because of its large frame.)
template <std::int64_t MaxRows, class Multiply>
[[gnu::noinline]] void multiply_and_finish(const MatmulOutput& out, std::int64_t first_row, std::int64_t num_rows,
                                           std::int64_t at_once, BlockRange range, const Multiply& multiply) {
    alignas(64) float sums[MaxRows * max_finished_at_once * lanes];
    for (std::int64_t b = range.first; b < range.end; b += at_once) {
        const std::int64_t end = std::min(b + at_once, range.end);
        const std::int64_t stride = (end - b) * lanes;
        multiply(BlockRange{b, end, range.part_end}, Sums{sums, stride, b * lanes});
        out.finish({first_row, num_rows, b, end, sums, stride});
    }
}

/// Computes the blocks of `range` for `num_rows` rows from `first_row` on and stores or finishes them.
/// multiply(BlockRange, Sums) computes the sums.
template <class Multiply>
void multiply_into(const MatmulOutput& out, std::int64_t num_outputs, std::int64_t first_row, std::int64_t num_rows,
                   std::int64_t at_once, BlockRange range, const Multiply& multiply) {
    if (!out.finish) return multiply(range, Sums{out.sums + first_row * num_outputs, num_outputs, 0});
    if (num_rows <= block_rows) {
        multiply_and_finish<block_rows>(out, first_row, num_rows, at_once, range, multiply);
    } else {
        multiply_and_finish<max_block_rows>(out, first_row, num_rows, at_once, range, multiply);
    }
}

/// How matmuls are distributed.
struct MatmulWork {
    int team;
    bool packed_alone;  ///< one thread packs the inputs for all
    std::int64_t num_parts;
    std::int64_t num_blocks;  ///< of each part
    std::int64_t unit;        ///< blocks that stay together
    std::int64_t min_units;   ///< minimum blocks that a thread takes at a time
};

/// Calls pack(share, number of shares) for all shares, then multiply(part, BlockRange) for all blocks of all parts. A
/// thread starts with its share of each part, which is in its node's memory (pack_sources).
template <class Pack, class Multiply>
void share_matmul(WorkQueue& queue, const MatmulWork& work, const Pack& pack, const Multiply& multiply) {
    if (work.packed_alone) {
        const FlushDenormals flush;
        pack(0, 1);
    }
    const std::int64_t units = (work.num_blocks + work.unit - 1) / work.unit;
    const auto first_unit = [&](std::int64_t share) { return share * units / work.team; };
    const auto first_block = [&](std::int64_t unit) { return std::min(unit * work.unit, work.num_blocks); };
    queue.fill_parts(work.team, std::max<std::int64_t>(1, work.min_units / work.unit),
                     [&](std::int64_t share) { return work.num_parts * first_unit(share); });
    // Indices of a share: its units of the first part, then those of the second, ….
    const auto multiply_units = [&](std::int64_t first, std::int64_t end, const WorkQueue::Share& share) {
        const std::int64_t begin = first_unit(share.index), end_unit = first_unit(share.index + 1);
        const std::int64_t in_part = end_unit - begin;
        for (std::int64_t at = first - work.num_parts * begin, last = at + end - first; at < last;) {
            const std::int64_t part = at / in_part, unit = begin + at % in_part;
            const std::int64_t count = std::min(last - at, end_unit - unit);
            multiply(part, BlockRange{first_block(unit), first_block(unit + count), first_block(end_unit)});
            at += count;
        }
    };
    Team::mine().run(work.team, [&](Member& member) {
        const FlushDenormals flush;
        if (!work.packed_alone) {
            pack(member.index(), member.size());
            member.barrier();
        }
        queue.work(member.index(), multiply_units);
    });
}

}  // namespace longhaul::kernels::cpu
