// Prefix caching on devices whose memory the host cannot access: copies wait for the passes that computed them, and
// passes for the copies.
#include <gtest/gtest.h>

#include "tests/engine/device_cases.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

class DevicePrefix : public ::testing::TestWithParam<DeviceCase> {};

TEST_P(DevicePrefix, CopiesAreWhatIsComputed) {
    if (GetParam().make() == nullptr) GTEST_SKIP() << "no such device here";
    for (const char* model : {"gemma3-bf16", "qwen3-next-bf16-modern", "nemotron-h"}) {
        Job job{base_options()};
        job.model = std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / model;
        job.make_device = GetParam().make;
        job.options.draft.method = "ngram";
        job.items = 3;
        job.generation.max_tokens = 6;
        std::vector<std::int32_t> page = prompt_of(1);
        for (std::int64_t item = 0; item < job.items; ++item) {
            job.prompts[item] = page;
            for (std::int32_t i = 0; i < 7; ++i) job.prompts[item].push_back(static_cast<std::int32_t>(11 * item) + i);
        }
        const JobResult with = launch(job);
        job.options.prefix_caching = false;
        EXPECT_EQ(tokens_of(with.items), tokens_of(launch(job).items)) << model;
        for (const std::int64_t item : {1, 2})
            EXPECT_EQ(with.items.at(item).statistics.cached_tokens, std::ssize(page)) << model;
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, DevicePrefix, ::testing::ValuesIn(gpu_cases()),
                         [](const auto& tested) { return tested.param.name; });

}  // namespace
}  // namespace longhaul::engine
