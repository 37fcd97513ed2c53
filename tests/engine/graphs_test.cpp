// Plain decoding launches the same kernels in each step, so they reach the GPU in graphs.
#include <gtest/gtest.h>

#include "kernels/cuda/cuda_device.hpp"
#include "tests/cuda_emulation/cuda_emulation.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

constexpr int model_layers = 2;  ///< of tiny_model

TEST(Graphs, StepsOfPlainDecodingAreLaunchedAsGraphs) {
    Job job{base_options()};
    job.items = 1;
    job.options.draft.method = "ar";
    job.options.draft.tree = "";
    job.generation.max_tokens = 24;
    job.make_device = [] {
        return std::make_unique<RemoteDevice>(
            std::make_unique<kernels::cuda::CudaDevice>(kernels::cuda::Arithmetic::tensor, 0));
    };
    const auto before = kernels::cuda::emulation::graph_launches();
    ASSERT_EQ(launch(job).items.at(0).tokens.size(), 24U);
    const auto after = kernels::cuda::emulation::graph_launches();
    // The first steps build lists and graphs. After that, a new page or a longer path may change the shape.
    EXPECT_GE(after.graphs - before.graphs, 24 / 2);
    EXPECT_GE(after.calls - before.calls, 8 * (after.graphs - before.graphs));
}

// The sum over the ranks after each half of a layer goes through the host, so no graph can extend across it.
TEST(Graphs, HalvesOfLayersBetweenSumsAreGraphs) {
    Job job{base_options()};
    job.items = 1;
    job.ranks = 2;
    job.options.draft.method = "ar";
    job.options.draft.tree = "";
    job.generation.max_tokens = 24;
    job.make_device = [] {
        return std::make_unique<RemoteDevice>(
            std::make_unique<kernels::cuda::CudaDevice>(kernels::cuda::Arithmetic::tensor, 0));
    };
    const auto before = kernels::cuda::emulation::graph_launches();
    ASSERT_EQ(launch(job).items.at(0).tokens.size(), 24U);
    const auto after = kernels::cuda::emulation::graph_launches();
    EXPECT_GE(after.graphs - before.graphs, job.ranks * (24 - 4) * 2 * model_layers);
}

}  // namespace
}  // namespace longhaul::engine
