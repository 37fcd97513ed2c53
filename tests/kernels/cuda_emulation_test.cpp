// The emulation guarantees what CUDA guarantees and nothing more: errors in a kernel there are errors here.
#include <gtest/gtest.h>

#include <bit>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

template <class Body>
__global__ void call(Body body) {
    body();
}

template <class Body>
void ask(const Stream& stream, Body body) {
    launch(stream, call<Body>, 1, 1, 0, body);
}

template <class Body>
void run(dim3 grid, dim3 block, std::size_t shared_bytes, Body body) {
    const Stream stream;
    launch(stream, call<Body>, grid, block, shared_bytes, body);
    stream.synchronize();
}

TEST(CudaEmulation, EveryThreadOfEveryBlockRunsOnce) {
    std::vector<int> seen(std::size_t{3} * 2 * 70);
    run({3, 2}, {35, 2}, 0,
        [&] { ++seen[((blockIdx.y * gridDim.x + blockIdx.x) * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x]; });
    EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(CudaEmulation, SharedMemoryIsSeenBehindABarrier) {
    std::vector<int> sums(4);
    run({4}, {96}, 96 * sizeof(int), [&] {
        int* const values = shared_memory<int>();
        values[threadIdx.x] = static_cast<int>(threadIdx.x + blockIdx.x);
        __syncthreads();
        if (threadIdx.x != 50) return;
        int sum = 0;
        for (unsigned i = 0; i < blockDim.x; ++i) sum += values[i];
        sums[blockIdx.x] = sum;
    });
    for (int b = 0; b < 4; ++b) EXPECT_EQ(sums[static_cast<std::size_t>(b)], 95 * 96 / 2 + 96 * b);
}

TEST(CudaEmulation, ABarrierThatSomeNeverReachIsAnError) {
    const auto divergent = [] {
        if (threadIdx.x < 32) {
            __syncwarp();
            __syncthreads();
        } else {
            for (int i = 0; i < 2; ++i) __syncthreads();
            __syncthreads();
        }
    };
    EXPECT_NO_THROW(run({1}, {64}, 0, divergent)) << "threads that ended are not waited for, as on a GPU";
    const auto stuck = [] {
        if (threadIdx.x == 3) {
            __syncwarp();
        } else {
            __syncthreads();
        }
    };
    EXPECT_THROW(run({1}, {64}, 0, stuck), std::logic_error);
}

TEST(CudaEmulation, WarpsExchangeValues) {
    std::vector<float> xors(64), downs(64), firsts(64);
    std::vector<unsigned> votes(64);
    run({1}, {64}, 0, [&] {
        const unsigned i = threadIdx.x;
        const auto mine = static_cast<float>(i);
        xors[i] = __shfl_xor_sync(full_warp, mine, 5);
        downs[i] = __shfl_down_sync(full_warp, mine, 4);
        firsts[i] = __shfl_sync(full_warp, mine, 2, 8);
        votes[i] = __ballot_sync(full_warp, i % 3 == 0);
    });
    for (unsigned i = 0; i < 64; ++i) {
        EXPECT_EQ(xors[i], static_cast<float>(i ^ 5U));
        EXPECT_EQ(downs[i], static_cast<float>(i % 32 + 4 < 32 ? i + 4 : i));
        EXPECT_EQ(firsts[i], static_cast<float>(i / 8 * 8 + 2));
        EXPECT_EQ(votes[i] >> (i % 32) & 1U, i % 3 == 0 ? 1U : 0U);
    }
}

TEST(CudaEmulation, CopiesArriveWhenTheyAreWaitedFor) {
    const std::vector<float> from(16, 7.0F);
    float early = 0, first = 0, second_early = 0, second = 0;
    run({1}, {1}, 128, [&] {
        float* const shared = shared_memory<float>();
        copy_async_16(shared, from.data());
        commit_copies();
        copy_async_16(shared + 4, from.data() + 4);
        commit_copies();
        early = shared[0];
        wait_copies<1>();
        first = shared[0];
        second_early = shared[4];
        wait_copies<0>();
        second = shared[4];
    });
    EXPECT_TRUE(std::isnan(early) && std::isnan(second_early));
    EXPECT_EQ(first, 7.0F);
    EXPECT_EQ(second, 7.0F);
}

template <class Body>
void run_clusters(dim3 grid, dim3 block, std::size_t shared_bytes, Body body) {
    const Stream stream;
    launch(in_clusters(stream, 2, 2), call<Body>, grid, block, shared_bytes, body);
    stream.synchronize();
}

/// An mbarrier at the start of shared memory, ready in all blocks of the cluster.
Mbarrier* ready_mbarrier(unsigned arrivals) {
    auto* const barrier = shared_memory<Mbarrier>();
    if (threadIdx.x == 0) init_mbarrier(barrier, arrivals);
    publish_mbarriers();
    cluster_barrier();
    return barrier;
}

TEST(CudaEmulation, BulkCopiesArriveInAllBlocksOfTheMask) {
    alignas(16) const std::vector<float> from{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
    std::vector<float> before(8), seen(8 * 4);
    run_clusters({4, 2}, {32}, 16 + 32, [&] {
        Mbarrier* const barrier = ready_mbarrier(1);
        const unsigned mine = block_of_cluster(), block = blockIdx.y * gridDim.x + blockIdx.x;
        float* const pieces = shared_memory<float>() + 4;
        if (threadIdx.x == 0) {
            arrive_with_bytes(barrier, 32);
            // To the blocks of this row of the cluster, as the left or the right piece.
            copy_bulk(pieces + mine % 2 * 4, from.data() + mine * 4, 16, barrier, 3U << (mine / 2 * 2));
        }
        before[block] = pieces[mine % 2 * 4];
        wait_for_phase(barrier, 0);
        if (threadIdx.x == 0) {
            for (unsigned i = 0; i < 4; ++i) seen[block * 4 + i] = pieces[i * 2];
        }
        cluster_barrier();
    });
    for (unsigned block = 0; block < 8; ++block) {
        const float left = block < 4 ? 0.0F : 2.0F;
        const std::vector<float> of_block(seen.begin() + block * 4, seen.begin() + block * 4 + 4);
        EXPECT_EQ(of_block, (std::vector<float>{left, left, left + 1, left + 1}));
        if (!emulation::reversed()) {
            EXPECT_TRUE(std::isnan(before[block]));
        }
    }
}

TEST(CudaEmulation, PhasesOfAnMbarrierEndWhenAllHaveArrived) {
    int sum = 0;
    run_clusters({2, 2}, {32}, 16, [&] {
        Mbarrier* const barrier = ready_mbarrier(4);
        for (unsigned round = 0; threadIdx.x == 0 && round < 5; ++round) {
            if (block_of_cluster() == round % 4) sum = sum * 2 + static_cast<int>(round);
            for (unsigned to = 0; to < 4; ++to) arrive_at_block(barrier, to);
            wait_for_phase(barrier, round % 2);
        }
        cluster_barrier();
    });
    EXPECT_EQ(sum, 0 * 16 + 1 * 8 + 2 * 4 + 3 * 2 + 4);
}

TEST(CudaEmulation, FaultsOfClustersAreErrors) {
    alignas(16) static const float from[8]{};
    const auto leader = [] { return threadIdx.x == 0 && block_of_cluster() == 0; };
    EXPECT_THROW(run_clusters({3, 2}, {32}, 16, [] {}), std::logic_error) << "not whole clusters";
    EXPECT_THROW(run_clusters({2, 2}, {32}, 16, [] { wait_for_phase(shared_memory<Mbarrier>(), 0); }), std::logic_error)
        << "not initialized";
    EXPECT_THROW(run_clusters({2, 2}, {32}, 16, [] { wait_for_phase(ready_mbarrier(1), 0); }), std::logic_error)
        << "nobody arrives";
    EXPECT_THROW(run_clusters({2, 2}, {32}, 16,
                              [&] {
                                  Mbarrier* const barrier = ready_mbarrier(2);
                                  for (int i = 0; leader() && i < 3; ++i) arrive_at_block(barrier, i == 2 ? 4 : 1);
                              }),
                 std::logic_error)
        << "no such block";
    EXPECT_THROW(run_clusters({2, 2}, {32}, 48,
                              [&] {
                                  Mbarrier* const barrier = ready_mbarrier(1);
                                  if (leader()) copy_bulk(shared_memory<float>() + 8, from, 32, barrier, 1);
                                  wait_for_phase(barrier, 0);
                              }),
                 std::logic_error)
        << "behind shared memory";
    EXPECT_THROW(run_clusters({2, 2}, {64}, 16,
                              [&] {
                                  Mbarrier* const barrier = ready_mbarrier(1);
                                  if (block_of_cluster() == 1) return;
                                  cluster_barrier();
                                  if (leader()) arrive_at_block(barrier, 1);
                              }),
                 std::logic_error)
        << "a block that has ended";
    if (emulation::reversed()) return;  // copies then arrive at once
    EXPECT_THROW(run_clusters({2, 2}, {32}, 48,
                              [&] {
                                  Mbarrier* const barrier = ready_mbarrier(1);
                                  if (leader()) copy_bulk(shared_memory<float>() + 4, from, 16, barrier, 2);
                                  cluster_barrier();
                              }),
                 std::logic_error)
        << "nobody waits for the copy";
}

std::uint32_t bf16_pair(int low, int high) {
    const auto bits = [](int value) { return std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16; };
    return bits(low) | bits(high) << 16;
}

/// Small integers: sums are exact in any order.
int element_a(int row, int k) {
    return (row * 7 + k * 3) % 11 - 5;
}
int element_b(int k, int column) {
    return (k * 5 + column) % 9 - 4;
}

TEST(CudaEmulation, MatrixFragmentsAreThoseOfTheInstructionSet) {
    std::vector<float> product(16 * 8);
    std::vector<int> whole(16 * 8);
    run({1}, {32}, 0, [&] {
        const int g = static_cast<int>(threadIdx.x) / 4, t = static_cast<int>(threadIdx.x) % 4;
        const auto pair_a = [](int row, int k) { return bf16_pair(element_a(row, k), element_a(row, k + 1)); };
        const auto pair_b = [](int k, int column) { return bf16_pair(element_b(k, column), element_b(k + 1, column)); };
        float d[4] = {1, 1, 1, 1};
        mma_bf16(d, {pair_a(g, 2 * t), pair_a(g + 8, 2 * t), pair_a(g, 2 * t + 8), pair_a(g + 8, 2 * t + 8)},
                 {pair_b(2 * t, g), pair_b(2 * t + 8, g)});
        const auto bytes = [](auto element) {
            std::uint32_t word = 0;
            for (int i = 0; i < 4; ++i) word |= (static_cast<std::uint32_t>(element(i)) & 0xffU) << (8 * i);
            return word;
        };
        const auto four_a = [&](int row, int k) { return bytes([&](int i) { return element_a(row, k + i); }); };
        const auto four_b = [&](int k, int column) { return bytes([&](int i) { return element_b(k + i, column); }); };
        std::int32_t e[4] = {1, 1, 1, 1};
        mma_int8(e, {four_a(g, 4 * t), four_a(g + 8, 4 * t), four_a(g, 4 * t + 16), four_a(g + 8, 4 * t + 16)},
                 {four_b(4 * t, g), four_b(4 * t + 16, g)});
        for (int i = 0; i < 4; ++i) {
            const int at = (g + i / 2 * 8) * 8 + 2 * t + i % 2;
            product[static_cast<std::size_t>(at)] = d[i];
            whole[static_cast<std::size_t>(at)] = e[i];
        }
    });
    for (int row = 0; row < 16; ++row) {
        for (int column = 0; column < 8; ++column) {
            int of_16 = 1, of_32 = 1;
            for (int k = 0; k < 32; ++k) {
                of_32 += element_a(row, k) * element_b(k, column);
                if (k < 16) of_16 = of_32;
            }
            EXPECT_EQ(product[static_cast<std::size_t>(row * 8 + column)], static_cast<float>(of_16));
            EXPECT_EQ(whole[static_cast<std::size_t>(row * 8 + column)], of_32);
        }
    }
}

TEST(CudaEmulation, MatricesAreLoadedAsFragments) {
    std::vector<std::uint32_t> plain(32), transposed(32);
    run({1}, {32}, 32 * 16, [&] {
        auto* const matrix = shared_memory<std::uint16_t>();  // [32, 8]: four matrices
        for (unsigned i = 0; i < 8; ++i) {
            matrix[threadIdx.x * 8 + i] = static_cast<std::uint16_t>(threadIdx.x * 8 + i);
        }
        __syncwarp();
        std::uint32_t to[4];
        load_matrix_x4(to, matrix + threadIdx.x * 8);
        plain[threadIdx.x] = to[2];
        load_matrix_x4_transposed(to, matrix + threadIdx.x * 8);
        transposed[threadIdx.x] = to[2];
    });
    for (std::uint32_t lane = 0; lane < 32; ++lane) {
        const std::uint32_t g = lane / 4, t = lane % 4, first = 2 * 64;
        EXPECT_EQ(plain[lane], (first + g * 8 + 2 * t) | (first + g * 8 + 2 * t + 1) << 16);
        EXPECT_EQ(transposed[lane], (first + 2 * t * 8 + g) | (first + (2 * t + 1) * 8 + g) << 16);
    }
}

TEST(CudaEmulation, ErrorsOfThreadsReachTheCaller) {
    EXPECT_THROW(run({2}, {64}, 0,
                     [] {
                         if (threadIdx.x == 7) throw std::runtime_error("seven");
                         __syncthreads();
                     }),
                 std::runtime_error);
    EXPECT_THROW(__syncthreads(), std::logic_error) << "outside of a kernel";
}

TEST(CudaEmulation, WhatAGpuRefusesIsRefused) {
    const auto nothing = [] {};
    EXPECT_THROW(run({1}, {1025}, 0, nothing), std::logic_error);
    EXPECT_THROW(run({1}, {1, 1, 65}, 0, nothing), std::logic_error);
    EXPECT_THROW(run({1, 65536}, {1}, 0, nothing), std::logic_error);
    EXPECT_THROW(run({1, 1, 65536}, {1}, 0, nothing), std::logic_error);
    EXPECT_NO_THROW(run({1}, {1}, block_shared_bytes, nothing));
    EXPECT_THROW(run({1}, {1}, block_shared_bytes + 1, nothing), std::logic_error);
    EXPECT_NO_THROW(run({0, 65536}, {1}, 0, nothing)) << "nothing is launched";
    EXPECT_NO_THROW(run_clusters({2, 2}, {1}, cluster_shared_bytes, nothing));
    EXPECT_THROW(run_clusters({2, 2}, {1}, cluster_shared_bytes + 1, nothing), std::logic_error);
}

TEST(CudaEmulation, ReachesOfAKernelAreChecked) {
    alignas(16) const std::byte from[32]{};
    EXPECT_THROW(run({1}, {1}, 64, [&] { copy_async_16(shared_memory<std::byte>() + 8, from); }), std::logic_error);
    EXPECT_THROW(run({1}, {1}, 64, [&] { copy_async_16(shared_memory<std::byte>(), from + 8); }), std::logic_error);
    EXPECT_THROW(run({1}, {1}, 64, [&] { copy_async_16(shared_memory<std::byte>() + 64, from); }), std::logic_error);
    EXPECT_THROW(run({1}, {1}, 64, [] { shared_memory<std::byte>()[64] = std::byte{1}; }), std::logic_error);
    EXPECT_NO_THROW(run({1}, {1}, 64, [] { shared_memory<std::byte>()[63] = std::byte{1}; }));
    EXPECT_THROW(run({1}, {32}, 64,
                     [] {
                         std::uint32_t to[4];
                         load_matrix_x4(to, shared_memory<std::byte>() + 64);
                     }),
                 std::logic_error);
}

TEST(CudaEmulation, AWarpExchangesWithAllItsLanes) {
    const auto exchange = [] { static_cast<void>(__shfl_xor_sync(full_warp, 1, 1)); };
    EXPECT_THROW(run({1}, {16}, 0, exchange), std::logic_error);
    for (const unsigned missing : {0U, 31U}) {
        EXPECT_THROW(run({1}, {32}, 0,
                         [&] {
                             if (threadIdx.x != missing) exchange();
                         }),
                     std::logic_error);
    }
}

TEST(CudaEmulation, StreamsDoNothingUntilTheyAreWaitedFor) {
    const Stream stream;
    const Pinned page_locked(sizeof(int));
    auto* const here = reinterpret_cast<int*>(page_locked.data());
    std::vector<int> seen(3, -1);
    auto* const on_device = reinterpret_cast<int*>(allocate_memory(sizeof(int)));
    const auto look = [&](int i) { ask(stream, [&, i] { seen[i] = *on_device; }); };
    *here = 1;
    copy(stream, on_device, here, sizeof *here);
    *here = 2;  // the copy reads this
    look(0);
    int pageable = 3;
    copy(stream, on_device, &pageable, sizeof pageable);
    pageable = 4;  // but not this
    look(1);
    EXPECT_EQ(seen, std::vector<int>(3, -1));
    stream.synchronize();
    EXPECT_EQ(seen, (std::vector<int>{2, 3, -1}));
    look(2);
    static_cast<void>(stream.native());                       // submits without waiting
    release_memory(reinterpret_cast<std::byte*>(on_device));  // waits
    EXPECT_EQ(seen[2], 3);
}

/// As on a GPU: a caller that ignores an error gets it again.
TEST(CudaEmulation, AFailureIsThrownToAllWhoWaitUntilNoStreamIsLeft) {
    const auto expect_failures = [](const Stream& stream) {
        EXPECT_THROW(stream.synchronize(), std::runtime_error);
        EXPECT_THROW(stream.synchronize(), std::runtime_error);
    };
    {
        const Stream stream;
        ask(stream, [] { throw std::runtime_error("seven"); });
        expect_failures(stream);
        expect_failures(Stream());
    }
    EXPECT_NO_THROW(Stream().synchronize());
}

TEST(CudaEmulation, EventsBringStreamsInOrder) {
    std::vector<int> order;
    const Stream one, other;
    const auto note = [&](const Stream& stream, int what) { ask(stream, [&, what] { order.push_back(what); }); };
    Event half;
    note(one, 1);
    half.record(one);
    note(one, 3);
    half.make_wait(other);
    note(other, 2);
    other.synchronize();
    EXPECT_EQ(order, (std::vector<int>{1, 2}));
    one.synchronize();
    EXPECT_EQ(order, (std::vector<int>{1, 2, 3}));
}

TEST(CudaDevice, GpusThatLackWhatKernelsNeedAreNamed) {
    GpuProperties gpu;
    gpu.name = "Some GPU";
    gpu.major = 9;
    gpu.shared_bytes = 227 << 10;
    EXPECT_NO_THROW(check_gpu(gpu));
    for (const auto& [major, shared] : {std::pair{7, 227}, std::pair{8, 99}}) {
        gpu.major = major;
        gpu.shared_bytes = static_cast<std::size_t>(shared) << 10;
        try {
            check_gpu(gpu);
            ADD_FAILURE() << major << ", " << shared;
        } catch (const std::invalid_argument& error) {
            const std::string message = error.what();
            EXPECT_NE(message.find("Some GPU with " + std::to_string(major) + ".0 and " + std::to_string(shared)),
                      std::string::npos)
                << message;
        }
    }
}

}  // namespace
}  // namespace longhaul::kernels::cuda
