// Races in the shared memory of emulated kernels are found, and only those (tests/cuda_emulation/race_check.hpp).
#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

template <class Body>
__global__ void call(Body body) {
    body();
}

/// What is reported of a kernel of one block with 64 threads; "" if nothing is.
template <class Body>
std::string report(Body body) {
    const Stream stream;
    launch(stream, call<Body>, 1, 64, 1024, body);
    try {
        stream.synchronize();
    } catch (const std::logic_error& error) {
        return error.what();
    }
    return "";
}

TEST(RacesOfKernels, AMissingBarrierOfTheBlockIsFound) {
    const auto rotate = [](bool waits) {
        return report([=] {
            auto* const values = shared_memory<volatile int>();
            values[threadIdx.x] = 1;
            if (waits) __syncthreads();
            static_cast<void>(values[(threadIdx.x + 32) % 64]);
        });
    };
    EXPECT_EQ(rotate(true), "");
    EXPECT_NE(rotate(false).find("race in shared memory: thread 32 writes byte 128 read by thread 0"),
              std::string::npos)
        << rotate(false);
}

TEST(RacesOfKernels, ExchangesOfAWarpDoNotOrderItsAccesses) {
    const auto rotate = [](bool waits) {
        return report([=] {
            auto* const values = shared_memory<volatile int>();
            values[threadIdx.x] = 1;
            static_cast<void>(__shfl_xor_sync(full_warp, 1, 1));
            if (waits) __syncwarp();
            static_cast<void>(values[threadIdx.x ^ 1U]);
        });
    };
    EXPECT_EQ(rotate(true), "");
    EXPECT_NE(rotate(false), "");
}

TEST(RacesOfKernels, ACopyIsWaitedForBeforeTheBarrier) {
    alignas(16) const std::byte from[16]{};
    const auto read = [&](bool waits) {
        return report([=, &from] {
            if (threadIdx.x == 0) {
                copy_async_16(shared_memory<std::byte>(), from);
                commit_copies();
                if (waits) wait_copies<0>();
            }
            __syncthreads();
            static_cast<void>(shared_memory<volatile int>()[0]);
        });
    };
    EXPECT_EQ(read(true), "");
    EXPECT_NE(read(false), "");
}

}  // namespace
}  // namespace longhaul::kernels::cuda
