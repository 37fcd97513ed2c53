// What GPU kernels are written in: CUDA under nvcc, otherwise an emulation of it, so that tests run the same sources on
// any machine (tests/cuda_emulation, on the include path of the test build). Kernels include this header and no CUDA
// header.
//
// Besides CUDA's names (threadIdx, __syncthreads, __shfl_xor_sync, …) a kernel uses the functions below. Shared memory
// is always dynamic, obtained with shared_memory<T>().
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/runtime.hpp"

#if defined(__CUDACC__)

#include <cuda_runtime.h>

namespace longhaul::kernels::cuda {

constexpr unsigned full_warp = 0xffffffffU;

/// The block's dynamic shared memory, 1024-byte aligned.
template <typename T>
__device__ __forceinline__ T* shared_memory() {
    extern __shared__ __align__(1024) unsigned char longhaul_shared_bytes[];
    return reinterpret_cast<T*>(longhaul_shared_bytes);
}

/// threadIdx.x, read again: what a loop computes from it at its end does not occupy registers all the time.
__device__ __forceinline__ int reread_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/// In a kernel launched early(): waits until the call before has ended and all it wrote can be read.
__device__ __forceinline__ void wait_for_previous() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// Lets the next call start if it is an early one and all blocks of this one have come here. It still waits for their
/// end.
__device__ __forceinline__ void let_next_start() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Asynchronous copy of 16 bytes that bypasses L1; both addresses must be aligned to 16. Complete for this thread after
/// wait_copies, and for other threads after a barrier that follows it.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(global) : "memory");
}
/// The same, or 16 zeros if not `is_there`; the address is then not read.
__device__ __forceinline__ void copy_async_16(void* shared, const void* global, bool is_there) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(is_there ? 16 : 0)
                 : "memory");
}
/// Closes the group of copies started since the last call.
__device__ __forceinline__ void commit_copies() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until at most the `pending` newest groups of this thread are still in flight.
template <int pending>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

/// d += a b on bf16: a [16, 16] row-major, b [16, 8] column-major, d [16, 8] f32, as fragments. With g = lane / 4 and t
/// = lane % 4, a lane holds these elements. a: (g, 2t..), (g + 8, 2t..), (g, 2t + 8..), (g + 8, 2t + 8..), two columns
/// each, the lower one in the low half; b: (2t.., g), (2t + 8.., g); d: (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t +
/// 1).
__device__ __forceinline__ void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// d += a b on signed bytes: a [16, 32] row-major, b [32, 8] column-major, d [16, 8] in 32-bit integers. A lane holds
/// these elements. a: (g, 4t..), (g + 8, 4t..), (g, 4t + 16..), (g + 8, 4t + 16..), four columns each; b: (4t.., g),
/// (4t + 16.., g); d as in mma_bf16.
__device__ __forceinline__ void mma_int8(std::int32_t (&d)[4], const std::uint32_t (&a)[4],
                                         const std::uint32_t (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/// Loads four 8 x 8 matrices of 16-bit elements from shared memory. `row`: lanes 8i..8i+7 pass the addresses of the
/// rows (16 bytes each) of matrix i. to[i]: elements (g, 2t), (g, 2t + 1) of matrix i.
__device__ __forceinline__ void load_matrix_x4(std::uint32_t (&to)[4], const void* row) {
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
/// The same, transposed: to[i] holds elements (2t, g), (2t + 1, g) of matrix i.
__device__ __forceinline__ void load_matrix_x4_transposed(std::uint32_t (&to)[4], const void* row) {
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from)
                 : "memory");
}
/// Loads two matrices, with row addresses from lanes 0..15.
__device__ __forceinline__ void load_matrix_x2(std::uint32_t (&to)[2], const void* row) {
    const auto from = static_cast<unsigned>(__cvta_generic_to_shared(row));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "r"(from)
                 : "memory");
}

/// Rounds two values to bf16, the first in the low half. Same as f32_to_bf16, except that NaN payloads may differ.
__device__ __forceinline__ std::uint32_t round_to_bf16(float low, float high) {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

}  // namespace longhaul::kernels::cuda

#include "kernels/cuda/launch.hpp"

#else
#include "cuda_emulation.hpp"
#endif
