// The sum of a row-parallel matmul over the ranks: the upper levels of numerics.hpp's tree of slices, of which each
// rank holds a whole subtree. On the host, for engine/parallel/mpi_group.cpp.
#pragma once

#include <cstdint>
#include <span>

namespace longhaul::kernels {

/// out[i] = the parts' i-th elements added as a balanced binary tree, parts in the order of the ranks:
/// ((p0+p1)+(p2+p3)) and so on; denormals are flushed. 1, 2, 4 or 8 parts of f32 [count]; `out` may be one of them.
/// Uses up to `threads` threads if there is enough work; the bits do not depend on it. Throws std::logic_error on
/// another number of parts.
void sum_ranks(float* out, std::span<const float* const> parts, std::int64_t count, int threads);

/// to = from, f32 [count], not overlapping; `threads` as in sum_ranks.
void copy_floats(float* to, const float* from, std::int64_t count, int threads);

}  // namespace longhaul::kernels
