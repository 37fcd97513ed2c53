// CUDA's execution model on the host, for tests. The blocks of a kernel (or its clusters of blocks) run one by one in
// the calling thread, and their threads are fibers that switch at barriers. To expose code that relies on anything CUDA
// does not guarantee, as a wrong number or an error: shared memory is filled with NaN before each block, asynchronous
// copies arrive only when they are waited for, each warp (and block of a cluster) runs as far as it can before the next
// one, and LONGHAUL_EMULATION_ORDER=reverse runs the last block, warp and lane first, bulk copies at once, and streams
// as early as possible instead of as late as possible.
//
// Denormals are flushed as with -ftz=true, but for f64 as well; LONGHAUL_EMULATION_DENORMALS=keep flushes neither.
//
// Launches that CUDA or the smallest supported GPU would refuse are refused: grids and blocks that are too large,
// unaligned copies and matrices, use of shared memory beyond the requested size, warp operations with missing lanes. A
// launch stays in its stream until something waits for it (runtime.cpp).
//
// With LONGHAUL_GPU_RACES (gpu_races_test) it also reports races in shared memory (race_check.hpp).
//
// Not emulated: time, races between blocks, the rounding of tensor cores within one mma (here: a sum of exact products,
// rounded once).
#pragma once

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <type_traits>

#include "kernels/convert.hpp"
#include "kernels/cuda/runtime.hpp"
#include "tests/cuda_emulation/race_check.hpp"

// NOLINTBEGIN(bugprone-reserved-identifier): these are CUDA's names.
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define LONGHAUL_CLUSTER_DIMS(...)
#define __align__(bytes) alignas(bytes)

namespace longhaul::kernels::cuda {

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x = 1, y = 1, z = 1;
    constexpr dim3(unsigned width = 1, unsigned height = 1, unsigned depth = 1) : x(width), y(height), z(depth) {}
};
template <typename T, std::size_t alignment>
struct alignas(alignment) Two {
    T x, y;
};
template <typename T, std::size_t alignment>
struct alignas(alignment) Four {
    T x, y, z, w;
};
using float2 = Two<float, 8>;
using int2 = Two<int, 8>;
using uint2 = Two<unsigned, 8>;
using float4 = Four<float, 16>;
using int4 = Four<int, 16>;
using uint4 = Four<unsigned, 16>;
inline float2 make_float2(float x, float y) {
    return {x, y};
}
inline uint2 make_uint2(unsigned x, unsigned y) {
    return {x, y};
}
inline float4 make_float4(float x, float y, float z, float w) {
    return {x, y, z, w};
}
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}

extern thread_local uint3 threadIdx;
extern thread_local uint3 blockIdx;
extern thread_local dim3 blockDim;
extern thread_local dim3 gridDim;
constexpr int warpSize = 32;
constexpr unsigned full_warp = 0xffffffffU;

/// In shared memory. A phase ends when all arrivals and bytes have come.
struct alignas(8) Mbarrier {
    std::uint16_t count, pending;
    std::int32_t missing_bytes : 31;
    std::uint32_t phase : 1;
};

namespace emulation {

/// Whether LONGHAUL_EMULATION_ORDER=reverse is set.
bool reversed();
#ifdef LONGHAUL_GPU_RACES
constexpr bool checks_races = true;
#else
constexpr bool checks_races = false;
#endif
/// Notes an access of the current thread, if there is one; what is not in its block's shared memory is ignored. A race
/// makes run() throw std::logic_error at the end of the kernel. `place`: of the instruction.
void note_access(const void* at, std::size_t num_bytes, Access access, const void* place);
/// Queues an operation after all earlier ones on the stream.
void ask(NativeStream stream, std::function<void()> operation);
/// Runs `body` once for each thread of each block. Throws what a thread threw, and std::logic_error if some threads
/// never reach a barrier.
void run(dim3 grid, dim3 block, dim3 cluster, std::size_t shared_bytes, const std::function<void()>& body);

/// Graphs launched so far in this process, and the calls in them.
struct GraphLaunches {
    std::int64_t graphs = 0, calls = 0;
};
GraphLaunches graph_launches();
/// Launches of a kernel so far in this process.
std::int64_t launches_of(const void* kernel);

/// What the lanes of a warp have passed to exchange(), until this lane's next barrier of the warp.
constexpr std::size_t exchange_bytes = 64;  ///< max per lane
template <typename T>
class OfLanes {
  public:
    explicit OfLanes(const std::byte* values) : values_(values) {}
    const T& operator[](int lane) const {
        return *reinterpret_cast<const T*>(values_ + static_cast<std::ptrdiff_t>(exchange_bytes) * lane);
    }

  private:
    const std::byte* values_;
};
/// Returns the values [32, exchange_bytes] when every lane of the warp has called. Throws std::logic_error if the warp
/// has fewer than 32 lanes, or if a lane ends instead of calling.
const std::byte* exchange(const void* mine, std::size_t num_bytes);
template <typename T>
OfLanes<T> exchange(const T& mine) {
    static_assert(sizeof(T) <= exchange_bytes && std::is_trivially_copyable_v<T>);
    return OfLanes<T>(exchange(&mine, sizeof mine));
}
void block_barrier();
/// Counts the calls of wait_for_previous() in this thread's kernels.
void waited_for_previous();
std::int64_t waits_for_previous();
void warp_barrier();
std::byte* shared_bytes();
int lane();
void cluster_barrier();
unsigned block_of_cluster();
/// The same place in the shared memory of another block of the cluster.
const void* in_block(const void* mine, unsigned block);
void arrive(Mbarrier* mine, unsigned block, std::int32_t bytes);
void wait_for_phase(Mbarrier* barrier, unsigned parity);
void copy_bulk(void* to, const void* from, std::size_t num_bytes, Mbarrier* barrier, unsigned blocks);
/// Throws std::logic_error unless 16 bytes there are aligned and within the block's shared memory.
void check_matrix_row(const void* row);
void copy_later(void* to, const void* from, std::size_t num_bytes);
void commit();
void wait(int pending);

template <typename T>
T from_lane(T value, int source) {
    return exchange(value)[source & 31];
}

}  // namespace emulation

template <typename T>
T* shared_memory() {
    return reinterpret_cast<T*>(emulation::shared_bytes());
}
inline void __syncthreads() {
    emulation::block_barrier();
}
inline void __syncwarp(unsigned /*mask*/ = full_warp) {
    emulation::warp_barrier();
}
inline void __threadfence() {}
template <typename T>
T __shfl_sync(unsigned /*mask*/, T value, int source, int width = 32) {
    const int lane = emulation::lane();
    return emulation::from_lane(value, lane / width * width + source % width);
}
template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lanes) {
    return emulation::from_lane(value, emulation::lane() ^ lanes);
}
template <typename T>
T __shfl_down_sync(unsigned /*mask*/, T value, int lanes) {
    const int source = emulation::lane() + lanes;
    return emulation::from_lane(value, source < 32 ? source : emulation::lane());
}
template <typename T>
T __shfl_up_sync(unsigned /*mask*/, T value, int lanes) {
    const int source = emulation::lane() - lanes;
    return emulation::from_lane(value, source >= 0 ? source : emulation::lane());
}
inline unsigned __ballot_sync(unsigned /*mask*/, int predicate) {
    const auto all = emulation::exchange(predicate != 0);
    unsigned votes = 0;
    for (int i = 0; i < 32; ++i) votes |= (all[i] ? 1U : 0U) << i;
    return votes;
}
inline int __any_sync(unsigned mask, int predicate) {
    return __ballot_sync(mask, predicate) != 0 ? 1 : 0;
}

// Arithmetic of one thread. The emulation runs with denormals flushed, as -ftz=true does.
inline float __fmaf_rn(float a, float b, float c) {
    return std::fmaf(a, b, c);
}
inline float __fadd_rn(float a, float b) {
    return a + b;
}
inline float __fsub_rn(float a, float b) {
    return a - b;
}
inline float __fmul_rn(float a, float b) {
    return a * b;
}
inline float __fdiv_rn(float a, float b) {
    return a / b;
}
inline float __fsqrt_rn(float a) {
    return std::sqrt(a);
}
inline unsigned __float_as_uint(float value) {
    return std::bit_cast<unsigned>(value);
}
inline int __float_as_int(float value) {
    return std::bit_cast<int>(value);
}
inline float __uint_as_float(unsigned bits) {
    return std::bit_cast<float>(bits);
}
inline float __int_as_float(int bits) {
    return std::bit_cast<float>(bits);
}
inline int __float2int_rn(float value) {
    return static_cast<int>(std::nearbyint(value));
}
inline float __int2float_rn(int value) {
    return static_cast<float>(value);
}
/// c + the sum of the products of four pairs of signed bytes.
inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; ++i) {
        c += static_cast<std::int8_t>(static_cast<unsigned>(a) >> (8 * i)) *
             static_cast<std::int8_t>(static_cast<unsigned>(b) >> (8 * i));
    }
    return c;
}
/// c + the products of two signed 16-bit integers with the lower (upper) two of four signed bytes.
inline int __dp2a_lo(int halves, int bytes, int c) {
    for (int i = 0; i < 2; ++i) {
        c += static_cast<std::int16_t>(static_cast<unsigned>(halves) >> (16 * i)) *
             static_cast<std::int8_t>(static_cast<unsigned>(bytes) >> (8 * i));
    }
    return c;
}
inline int __dp2a_hi(int halves, int bytes, int c) {
    return __dp2a_lo(halves, static_cast<int>(static_cast<unsigned>(bytes) >> 16), c);
}
inline int __popc(unsigned bits) {
    return std::popcount(bits);
}
inline int __clz(int bits) {
    return std::countl_zero(static_cast<unsigned>(bits));
}
inline int __ffs(int bits) {
    return bits == 0 ? 0 : std::countr_zero(static_cast<unsigned>(bits)) + 1;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const std::uint64_t bytes = static_cast<std::uint64_t>(b) << 32 | a;
    unsigned result = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned which = selector >> (4 * i) & 7U;
        result |= static_cast<unsigned>(bytes >> (8 * which) & 0xffU) << (8 * i);
    }
    return result;
}
template <typename T>
T __ldg(const T* from) {
    return *from;
}
template <typename T>
T __ldcs(const T* from) {
    return *from;
}

template <typename T>
T __ldcg(const T* from) {
    return *from;
}
inline unsigned atomicAdd(unsigned* to, unsigned value) {
    return std::atomic_ref(*to).fetch_add(value);
}
inline unsigned long long atomicAdd(unsigned long long* to, unsigned long long value) {
    return std::atomic_ref(*to).fetch_add(value);
}
inline unsigned long long atomicMax(unsigned long long* to, unsigned long long value) {
    const std::atomic_ref word(*to);
    unsigned long long before = word;
    while (before < value && !word.compare_exchange_weak(before, value)) {
    }
    return before;
}

inline int reread_thread() {
    return static_cast<int>(threadIdx.x);
}
inline void wait_for_previous() {
    emulation::waited_for_previous();
}
inline void let_next_start() {}
inline void copy_async_16(void* shared, const void* global) {
    emulation::copy_later(shared, global, 16);
}
inline void copy_async_16(void* shared, const void* global, bool is_there) {
    alignas(16) static constexpr std::byte zeros[16]{};
    emulation::copy_later(shared, is_there ? global : zeros, 16);
}
inline void copy_async_4(void* shared, const void* global) {
    emulation::copy_later(shared, global, 4);
}
inline void commit_copies() {
    emulation::commit();
}
template <int pending>
void wait_copies() {
    emulation::wait(pending);
}

inline void init_mbarrier(Mbarrier* barrier, unsigned arrivals) {
    *barrier = {static_cast<std::uint16_t>(arrivals), static_cast<std::uint16_t>(arrivals), 0, 0};
}
inline void publish_mbarriers() {}
inline void arrive_with_bytes(Mbarrier* barrier, unsigned bytes) {
    emulation::arrive(barrier, emulation::block_of_cluster(), static_cast<std::int32_t>(bytes));
}
inline void arrive_at_block(Mbarrier* barrier, unsigned block) {
    emulation::arrive(barrier, block, 0);
}
inline void wait_for_phase(Mbarrier* barrier, unsigned parity) {
    emulation::wait_for_phase(barrier, parity);
}
inline void copy_bulk(void* shared, const void* global, unsigned bytes, Mbarrier* barrier, unsigned blocks) {
    emulation::copy_bulk(shared, global, bytes, barrier, blocks);
}
inline unsigned block_of_cluster() {
    return emulation::block_of_cluster();
}
inline void cluster_barrier() {
    emulation::cluster_barrier();
}
inline float4 load_16_from_block(const float* shared, unsigned block) {
    return *reinterpret_cast<const float4*>(emulation::in_block(shared, block));
}
inline void end_in_cluster() {
    emulation::cluster_barrier();
}
template <int registers>
void take_registers() {}
template <int registers>
void give_registers() {}

inline std::uint32_t round_to_bf16(float low, float high) {
    return static_cast<std::uint32_t>(f32_to_bf16(low)) | static_cast<std::uint32_t>(f32_to_bf16(high)) << 16;
}

inline std::uint32_t difference_of_bf16(std::uint32_t a, std::uint32_t b) {
    const auto half = [](std::uint32_t bits, int shift) { return std::bit_cast<float>(bits >> shift << 16); };
    return round_to_bf16(half(a, 0) - half(b, 0), half(a, 16) - half(b, 16));
}

/// Off by -1, 0 or 1 unit in the last place, as a GPU's may be, but not where no quotient would survive that: next to a
/// power of two.
inline float reciprocal_of(float x) {
    const float nearest = 1.0F / x;
    if (!std::isnormal(nearest) || (std::bit_cast<std::uint32_t>(x) + 1) % (1U << 23) < 2) return nearest;
    return std::bit_cast<float>(std::bit_cast<std::uint32_t>(nearest) + std::bit_cast<std::uint32_t>(x) % 3 - 1);
}
inline float exp2_of(float x) {
    const auto power = static_cast<float>(std::exp2(static_cast<double>(x)));
    return power < std::numeric_limits<float>::min() ? 0.0F : power;
}

void mma_bf16(float (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
void mma_int8(std::int32_t (&d)[4], const std::uint32_t (&a)[4], const std::uint32_t (&b)[2]);
void load_matrix_x4(std::uint32_t (&to)[4], const void* row);
void load_matrix_x4_transposed(std::uint32_t (&to)[4], const void* row);
std::uint32_t transpose_matrix(std::uint32_t pair);

}  // namespace longhaul::kernels::cuda
// NOLINTEND(bugprone-reserved-identifier)

#include "kernels/cuda/launch.hpp"
