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

/// For wgmma: a panel whose groups of eight rows follow each other, with 128-byte exchange of pieces. All in units of
/// 16 bytes: the address in bits 0..13, the leading byte offset in 16..29, the stride byte offset, from one group of
/// eight rows to the next, in 32..45; 1 in bits 62..63 is the exchange. The leading byte offset is ignored if the rows
/// are those of b transposed (K-major). If they are those of b (MN-major), it leads from one panel of 64 columns to the
/// next.
__device__ __forceinline__ std::uint64_t panel_descriptor(const std::byte* panel, int leading_bytes = 16) {
    const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(panel));
    return (address & 0x3ffffU) >> 4 | static_cast<std::uint64_t>(leading_bytes >> 4) << 16 |
           std::uint64_t{8 * panel_row_bytes >> 4} << 32 | std::uint64_t{1} << 62;
}

// clang-format off
#define LONGHAUL_SUMS(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define LONGHAUL_SUMS_4(n) LONGHAUL_SUMS(n), LONGHAUL_SUMS(n + 1), LONGHAUL_SUMS(n + 2), LONGHAUL_SUMS(n + 3)
#define LONGHAUL_OPERANDS "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "l"(b), "n"(by_columns ? 1 : 0), "r"(adds ? 1 : 0)
// d = a b, or d += a b if `adds`. by_columns: whether a row in shared memory is a row of b, not a column.
template <bool by_columns = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[4][4], const uint4& a, std::uint64_t b, bool adds = true) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %22, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15}, "
        "{%16, %17, %18, %19}, %20, p, 1, 1, %21; }"
        : LONGHAUL_SUMS_4(0) : LONGHAUL_OPERANDS);
}
template <bool by_columns = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[8][4], const uint4& a, std::uint64_t b, bool adds = true) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %38, 0; wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, %37; }"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4) : LONGHAUL_OPERANDS);
}
template <bool by_columns = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[16][4], const uint4& a, std::uint64_t b, bool adds = true) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %70, 0; wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "{%64, %65, %66, %67}, %68, p, 1, 1, %69; }"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4), LONGHAUL_SUMS_4(8), LONGHAUL_SUMS_4(12) : LONGHAUL_OPERANDS);
}
template <bool by_columns = false>
__device__ __forceinline__ void wgmma_bf16(float (&d)[24][4], const uint4& a, std::uint64_t b, bool adds = true) {
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %102, 0; wgmma.mma_async.sync.aligned.m64n192k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
        "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
        "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
        "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
        "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
        "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95}, "
        "{%96, %97, %98, %99}, %100, p, 1, 1, %101; }"
        : LONGHAUL_SUMS_4(0), LONGHAUL_SUMS_4(4), LONGHAUL_SUMS_4(8), LONGHAUL_SUMS_4(12), LONGHAUL_SUMS_4(16), LONGHAUL_SUMS_4(20)
        : LONGHAUL_OPERANDS);
}
#undef LONGHAUL_OPERANDS
#undef LONGHAUL_SUMS_4
#undef LONGHAUL_SUMS
// clang-format on

/// Products that run together: begin_products(), then add_row_products() and add_column_products(), then
/// commit_products(). Called by all warps of the warpgroup. Operands and sums must not be touched before
/// finish_products().
__device__ __forceinline__ void begin_products() {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ __forceinline__ void commit_products() {
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
/// Has sums or operands in registers at this point: they are neither computed later nor overwritten before. Needed
/// before begin_products() for all that was computed since the last products, and for operands after finish_products().
template <int NT>
__device__ __forceinline__ void settle(float (&d)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; ++n)
        asm volatile("" : "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])::"memory");
}
template <int steps>
__device__ __forceinline__ void settle(std::uint32_t (&a)[steps][4]) {
#pragma unroll
    for (int f = 0; f < steps; ++f)
        asm volatile("" : "+r"(a[f][0]), "+r"(a[f][1]), "+r"(a[f][2]), "+r"(a[f][3])::"memory");
}
/// Waits for all products but those of the last `pending` calls of commit_products(). d is settled only if none pend.
template <int pending = 0, int NT>
__device__ __forceinline__ void finish_products(float (&d)[NT][4]) {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
    if constexpr (pending == 0) settle(d);
}

/// Starts d += a b for fragments first.. of a panel of NT * 8 rows. a[f]: the warp's 16 outputs, as mma_bf16 takes
/// them; d[n]: sums with rows 8n.., as mma_bf16 returns them. Called by all warps of the warpgroup; d and a must not be
/// touched before finish_products().
template <int NT, int fragments>
__device__ __forceinline__ void start_products(float (&d)[NT][4], const uint4 (&a)[fragments], const std::byte* panel,
                                               int first = 0) {
    const std::uint64_t b = panel_descriptor(panel) + first * 2;
    begin_products();
#pragma unroll
    for (int f = 0; f < fragments; ++f) wgmma_bf16(d, a[f], b + f * 2);  // 32 bytes further, in units of 16
    commit_products();
}
/// d = a b, where the columns of b are rows of panels: NT * 8 rows in each, and 64 inputs per panel. a[f], d[n]: as in
/// start_products().
template <int NT, int steps>
__device__ __forceinline__ void add_row_products(float (&d)[NT][4], const std::uint32_t (&a)[steps][4],
                                                 const std::byte* panels) {
    const std::uint64_t b = panel_descriptor(panels);
#pragma unroll
    for (int f = 0; f < steps; ++f) {
        const int at = f / panel_fragments * (NT * 8 * panel_row_bytes) + f % panel_fragments * 32;
        wgmma_bf16(d, make_uint4(a[f][0], a[f][1], a[f][2], a[f][3]), b + (at >> 4), f > 0);
    }
}
/// d = a b, or d += a b if `adds`, where the rows of b are rows of panels: 64 columns per panel.
template <int NT, int steps>
__device__ __forceinline__ void add_column_products(float (&d)[NT][4], const std::uint32_t (&a)[steps][4],
                                                    const std::byte* panels, bool adds) {
    const std::uint64_t b = panel_descriptor(panels, steps * 16 * panel_row_bytes);
#pragma unroll
    for (int f = 0; f < steps; ++f) {
        const int at = f * 16 * panel_row_bytes;
        wgmma_bf16<true>(d, make_uint4(a[f][0], a[f][1], a[f][2], a[f][3]), b + (at >> 4), adds || f > 0);
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

template <int NT>
__device__ __forceinline__ void clear_sums(float (&d)[NT][4]) {
#pragma unroll
    for (int n = 0; n < NT; ++n) {
        for (float& sum : d[n]) sum = 0.0F;
    }
}
__device__ __forceinline__ void begin_products() {}
__device__ __forceinline__ void commit_products() {}
template <typename T, int count>
__device__ __forceinline__ void settle(T (&/*values*/)[count][4]) {}
template <int NT, int steps>
__device__ __forceinline__ void add_row_products(float (&d)[NT][4], const std::uint32_t (&a)[steps][4],
                                                 const std::byte* panels) {
    const int row = static_cast<int>(threadIdx.x) % 8, piece = static_cast<int>(threadIdx.x) % 32 / 8;
    clear_sums(d);
#pragma unroll
    for (int f = 0; f < steps; f += 2) {
        const std::byte* const panel = panels + f / panel_fragments * (NT * 8 * panel_row_bytes);
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            std::uint32_t b[4];
            load_matrix_x4(b, panel + place_in_panel(n * 8 + row, f % panel_fragments * 2 + piece));
            mma_bf16(d[n], a[f], {b[0], b[1]});
            mma_bf16(d[n], a[f + 1], {b[2], b[3]});
        }
    }
}
template <int NT, int steps>
__device__ __forceinline__ void add_column_products(float (&d)[NT][4], const std::uint32_t (&a)[steps][4],
                                                    const std::byte* panels, bool adds) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    if (!adds) clear_sums(d);
#pragma unroll
    for (int f = 0; f < steps; f += 2) {
#pragma unroll
        for (int n = 0; n < NT; ++n) {
            const std::byte* const panel = panels + n / 8 * (steps * 16 * panel_row_bytes);
            std::uint32_t b[4];
            load_matrix_x4_transposed(b, panel + place_in_panel(f * 16 + lane, n % 8));
            mma_bf16(d[n], a[f], {b[0], b[1]});
            mma_bf16(d[n], a[f + 1], {b[2], b[3]});
        }
    }
}

#endif

}  // namespace longhaul::kernels::cuda
