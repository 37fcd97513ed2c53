// Products of a warpgroup, four warps, with rows in shared memory: wgmma in code for sm_90a, else mma for each warp. On
// an H100 both gave the same bits in 102,400 chains of 16 to 1024 inputs whose magnitudes differed by up to 2^32, and
// the tests of matmuls compare them, because few rows use mma and more use wgmma.
#pragma once

#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {

constexpr int panel_inputs = 64;      ///< of a row in shared memory
constexpr int panel_row_bytes = 128;  ///< in bf16
constexpr int panel_fragments = panel_inputs / 16;

/// Byte offset of inputs 8 * piece.. of a row in a panel: pieces are exchanged so that those of eight rows are in
/// different banks, in the way that wgmma expects of panels that start at multiples of 1024 bytes.
__device__ __forceinline__ int place_in_panel(int row, int piece) {
    return row * panel_row_bytes + ((piece ^ row % 8) * 16);
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)

constexpr bool has_wgmma = true;

/// Makes this thread's writes to shared memory, once a barrier follows, visible to the products of all warpgroups.
__device__ __forceinline__ void publish_panel() {
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/// For wgmma: a panel whose groups of eight rows follow each other, with 128-byte exchange of pieces.
__device__ __forceinline__ std::uint64_t panel_descriptor(const std::byte* panel) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(panel));
    return (address & 0x3ffffU) >> 4 | std::uint64_t{1} << 16 | std::uint64_t{8 * panel_row_bytes >> 4} << 32 |
           std::uint64_t{1} << 62;
}

// clang-format off
#define LONGHAUL_SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define LONGHAUL_SUMS_4(n) LONGHAUL_SUMS(n), LONGHAUL_SUMS(n + 1), LONGHAUL_SUMS(n + 2), LONGHAUL_SUMS(n + 3)
#define LONGHAUL_OPERANDS "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b)
__device__ __forceinline__ void wgmma_bf16(float (&d)[4][4], const uint4& a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, 1, 1, 1, 0;"
        : LONGHAUL_SUMS_4(0) : LONGHAUL_OPERANDS);
}
__device__ __forceinline__ void wgmma_bf16(float (&d)[8][4], const uint4& a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, 1, 1, 1, 0;"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4) : LONGHAUL_OPERANDS);
}
__device__ __forceinline__ void wgmma_bf16(float (&d)[16][4], const uint4& a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, 1, 1, 1, 0;"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4), LONGHAUL_SUMS_4(8), LONGHAUL_SUMS_4(12) : LONGHAUL_OPERANDS);
}
__device__ __forceinline__ void wgmma_bf16(float (&d)[24][4], const uint4& a, std::uint64_t b) {
    asm volatile("wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, 1, 1, 1, 0;"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4), LONGHAUL_SUMS_4(8), LONGHAUL_SUMS_4(12), LONGHAUL_SUMS_4(16), LONGHAUL_SUMS_4(20)
        : LONGHAUL_OPERANDS);
}
#undef LONGHAUL_OPERANDS
#undef LONGHAUL_SUMS_4
#undef LONGHAUL_SUMS
// clang-format on

/// Starts d += a b for fragments first.. of a panel of NT * 8 rows. a[f]: the warp's 16 outputs, as mma_bf16 takes
/// them; d[n]: sums with rows 8n.., as mma_bf16 returns them. Called by all warps of the warpgroup; d and a must not be
/// touched before finish_products().
template <int NT, int fragments>
__device__ __forceinline__ void start_products(float (&d)[NT][4], const uint4 (&a)[fragments], const std::byte* panel,
                                               int first = 0) {
    const std::uint64_t b = panel_descriptor(panel) + first * 2;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int f = 0; f < fragments; ++f) wgmma_bf16(d, a[f], b + f * 2);  // 32 bytes further, in units of 16
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Waits for the products of all but the last `pending` calls of start_products().
template <int pending = 0, int NT>
__device__ __forceinline__ void finish_products(float (&d)[NT][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    if constexpr (pending == 0) {
#pragma unroll
        for (int n = 0; n < NT; ++n)
            asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
    }
}

#else

constexpr bool has_wgmma = false;

__device__ __forceinline__ void publish_panel() {}

template <int NT, int fragments>
__device__ __forceinline__ void start_products(float (&d)[NT][4], const uint4 (&a)[fragments], const std::byte* panel,
                                               int first_fragment = 0) {
    constexpr int group = 4;  // of mmas that do not wait for each other
    const int row = static_cast<int>(threadIdx.x) % 8, piece = static_cast<int>(threadIdx.x) % 32 / 8;
#pragma unroll
    for (int f = 0; f < fragments; f += 2) {
#pragma unroll
        for (int first = 0; first < NT; first += group) {
            std::uint32_t b[group][4];
#pragma unroll
            for (int n = 0; n < group; ++n)
                load_matrix_x4(b[n], panel + place_in_panel((first + n) * 8 + row, (first_fragment + f) * 2 + piece));
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4& outputs = a[f + half];
#pragma unroll
                for (int n = 0; n < group; ++n) {
                    mma_bf16(d[first + n], {outputs.x, outputs.y, outputs.z, outputs.w},
                             {b[n][2 * half], b[n][2 * half + 1]});
                }
            }
        }
    }
}
template <int pending = 0, int NT>
__device__ __forceinline__ void finish_products(float (&/*d*/)[NT][4]) {}

#endif

}  // namespace longhaul::kernels::cuda
