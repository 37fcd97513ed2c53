// Values of a page that are infinite or NaN, in attention on tensor cores. If some queries do not see a whole tile,
// their p are 0, but 0 times a non-finite value would be NaN. Such values are applied to the queries that see them, and
// then replaced by 0. They are rare, so each thread only looks for them in its share of the page.
#pragma once

#include "kernels/cuda/attention_tensor_shape.cuh"

namespace longhaul::kernels::cuda {

/// Bits 15 and 31: whether the lower and the upper element of a bf16 pair are infinite or NaN.
__device__ __forceinline__ std::uint32_t nonfinite(std::uint32_t pair) {
    constexpr std::uint32_t exponents = 0x7f807f80U, lowest = 0x00800080U, carries = 0x80008000U;
    return ((pair & exponents) + lowest) & carries;
}

/// Calls `see(pair)` for each pair of this thread's share of a page's values in shared memory.
template <class T, class See>
__device__ __forceinline__ void for_each_pair(std::byte* values, See see) {
    constexpr int slots = T::threads / T::pieces;
    static_assert(slots % T::places == 0);
    const int first = static_cast<int>(threadIdx.x) / T::pieces, piece = static_cast<int>(threadIdx.x) % T::pieces;
    std::byte* const at = values + T::place(first, piece);
#pragma unroll 4
    for (int slot = 0; slot < tile_tokens; slot += slots) {
        uint4& four = *reinterpret_cast<uint4*>(at + slot * T::stride);
        see(four.x);
        see(four.y);
        see(four.z);
        see(four.w);
    }
}

/// found[w]: whether warp w found a value that is not finite.
template <class T>
__device__ __forceinline__ void find_nonfinite(std::byte* values, int* found) {
    std::uint32_t bits = 0;
    for_each_pair<T>(values, [&](std::uint32_t pair) { bits |= nonfinite(pair); });
    const int any = __any_sync(full_warp, bits != 0 ? 1 : 0);
    if (threadIdx.x % 32 == 0) found[threadIdx.x / 32] = any;
}

template <class T>
__device__ __forceinline__ void clear_nonfinite(std::byte* values) {
    for_each_pair<T>(values, [](std::uint32_t& pair) { pair &= ~((nonfinite(pair) >> 15) * 0xffffU); });
}

}  // namespace longhaul::kernels::cuda
