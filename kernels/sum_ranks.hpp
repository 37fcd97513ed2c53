// The sum over the ranks of a row-parallel product: the upper levels of numerics.hpp's tree of slices, which the ranks
// of a group hold as whole subtrees. On the host, for whoever brings the parts together.
#pragma once

#include <cstdint>
#include <span>

namespace longhaul::kernels {

/// out[i] = the parts' i-th elements added as a balanced binary tree, parts in the order of the ranks:
/// ((p0+p1)+(p2+p3)) and so on; denormals are flushed. 1, 2, 4 or 8 parts of f32 [count]; `out` may be one of them. Up
/// to `threads` threads where there is work for them; the bits do not depend on it.
void sum_ranks(float* out, std::span<const float* const> parts, std::int64_t count, int threads);

/// to = from, f32 [count], not overlapping; threads as above.
void copy_floats(float* to, const float* from, std::int64_t count, int threads);

}  // namespace longhaul::kernels
