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
/// The same for 4 bytes, aligned to 4; through L1.
__device__ __forceinline__ void copy_async_4(void* shared, const void* global) {
    const auto to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(global) : "memory");
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

/// Of a kernel that runs in clusters, which only code for sm_90 and later does.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define LONGHAUL_CLUSTER_DIMS(...)
#else
#define LONGHAUL_CLUSTER_DIMS(...) __cluster_dims__(__VA_ARGS__)
#endif

// Blocks of a cluster (sm_90) write into each other's shared memory. Block b of a cluster of width x height is at
// (b % width, b / width) in it.

/// Counts arrivals and bytes, in shared memory. A phase ends when all that it expects have come; the phases alternate
/// in parity, and the first one has parity 0.
struct alignas(8) Mbarrier {
    std::uint64_t state;
};

__device__ __forceinline__ unsigned block_of_cluster() {
    unsigned block;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(block));
    return block;
}
__device__ __forceinline__ unsigned shared_address(const void* shared) {
    return static_cast<unsigned>(__cvta_generic_to_shared(shared));
}
/// Called by one thread, before publish_mbarriers() and a barrier of all blocks that use it.
__device__ __forceinline__ void init_mbarrier(Mbarrier* barrier, unsigned arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}
__device__ __forceinline__ void publish_mbarriers() {
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Waits for all threads of the cluster. Called by whole warps.
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
/// The same for blocks that end then: orders nothing, but no block's shared memory vanishes before all have come. What
/// a thread reads from other blocks, it has used before.
__device__ __forceinline__ void end_in_cluster() {
    __syncwarp();
    asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}
/// Arrives, and has the phase wait for `bytes` more of bulk copies.
__device__ __forceinline__ void arrive_with_bytes(Mbarrier* barrier, unsigned bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
                 : "memory");
}
/// Arrives at the barrier that is at the same place in another block of the cluster, or in this one.
__device__ __forceinline__ void arrive_at_block(Mbarrier* barrier, unsigned block) {
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [there];\n}" ::"r"(shared_address(barrier)),
        "r"(block)
        : "memory");
}
/// Waits until the phase with this parity has ended, if it is the present one; not, if it was the one before, or if
/// the barrier is new and the parity 1.
__device__ __forceinline__ void wait_for_phase(Mbarrier* barrier, unsigned parity) {
    asm volatile(
        "{\n.reg .pred ended;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 ended, [%0], %1;\n"
        "@!ended bra again;\n}" ::"r"(shared_address(barrier)),
        "r"(parity)
        : "memory");
}
/// Asynchronous copy by one thread to this place in all blocks of the mask `blocks`; `barrier`, at its place in each of
/// them, counts the bytes. Addresses and `bytes` are multiples of 16.
__device__ __forceinline__ void copy_bulk(void* shared, const void* global, unsigned bytes, Mbarrier* barrier,
                                          unsigned blocks) {
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1], %2, [%3], "
        "%4;" ::"r"(shared_address(shared)),
        "l"(global), "r"(bytes), "r"(shared_address(barrier)), "h"(static_cast<std::uint16_t>(blocks))
        : "memory");
}
/// Reads what is at the same place, aligned to 16 bytes, in the shared memory of another block or of this one.
__device__ __forceinline__ float4 load_16_from_block(const float* shared, unsigned block) {
    float4 values;
    asm volatile(
        "{\n.reg .b32 there;\nmapa.shared::cluster.u32 there, %4, %5;\n"
        "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];\n}"
        : "=f"(values.x), "=f"(values.y), "=f"(values.z), "=f"(values.w)
        : "r"(shared_address(shared)), "r"(block)
        : "memory");
    return values;
}
/// Called by all warps of a warpgroup: its threads have so many registers from now on; more than before can be had when
/// other warpgroups have given theirs. Nothing in code for other GPUs than sm_90.
template <int registers>
__device__ __forceinline__ void take_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(registers));
#endif
}
template <int registers>
__device__ __forceinline__ void give_registers() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(registers));
#endif
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

/// Rounds two values to bf16, the first in the low half. Same as f32_to_bf16, except that NaN payloads may differ.
__device__ __forceinline__ std::uint32_t round_to_bf16(float low, float high) {
    std::uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/// a - b for two bf16 each, where the differences are exact.
__device__ __forceinline__ std::uint32_t difference_of_bf16(std::uint32_t a, std::uint32_t b) {
    std::uint32_t pair;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(b), "r"(0xbf80bf80U), "r"(a));
    return pair;
}

/// Transposes an 8 x 8 matrix of 16-bit elements, of which a lane has (g, 2t), (g, 2t + 1).
__device__ __forceinline__ std::uint32_t transpose_matrix(std::uint32_t pair) {
    std::uint32_t to;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to) : "r"(pair));
    return to;
}

/// 1 / x with an error of at most one unit in the last place; 0 for x above 2^126.
__device__ __forceinline__ float reciprocal_of(float x) {
    float reciprocal;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(x));
    return reciprocal;
}

/// 2^x by the GPU's own instruction, with a relative error of at most 2^-22. 2^0 is exactly 1; results below 2^-126 are
/// 0; NaN stays NaN.
__device__ __forceinline__ float exp2_of(float x) {
    float power;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
    return power;
}

}  // namespace longhaul::kernels::cuda

#include "kernels/cuda/launch.hpp"

#else
#include "cuda_emulation.hpp"
#endif
