// NCCL on one GPU: a group of one rank joins, gathers, sums and leaves. The sum of many elements is exchanged in
// shares, which one rank sends to itself.
#include <gtest/gtest.h>

#include <memory>
#include <numeric>
#include <vector>

#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

class LinksTest : public ::testing::TestWithParam<DeviceCase> {
  protected:
    void SetUp() override {
        device_ = GetParam().make(1);
        ASSERT_NE(device_->links(), nullptr);
        try {
            static_cast<void>(device_->links()->address());
        } catch (const DeviceError& error) {
            GTEST_SKIP() << error.what();  // the library is not installed
        }
    }
    [[nodiscard]] std::unique_ptr<DeviceLink> join() const {
        return device_->links()->join(device_->links()->new_id(), 0, 1);
    }
    [[nodiscard]] static std::vector<float> numbers(std::int64_t count) {
        std::vector<float> values(static_cast<std::size_t>(count));
        std::iota(values.begin(), values.end(), 1.0F);
        return values;
    }

    std::unique_ptr<Device> device_;
};

TEST_P(LinksTest, OneRankGathersAndSumsItsOwn) {
    const auto link = join();
    // By one all-gather, and in shares; the last two are the threshold between them and one beyond it.
    for (const std::int64_t count : {1, 4096, 1 << 20, 1 << 18, (1 << 18) + 1}) {
        const std::vector<float> values = numbers(count);
        const OnDevice from(*device_, values);
        Guarded to(*device_, values.size() * 4);
        link->all_gather(from.floats(), to.floats(), count);
        link->finish();
        EXPECT_EQ(to.values(), values) << count;
        link->all_reduce(to.floats(), count);
        link->finish();
        EXPECT_TRUE(to.intact());
        EXPECT_EQ(to.values(), values) << count;
    }
}

// Collectives are queued like kernels: each sees what was computed before it.
TEST_P(LinksTest, CollectivesKeepTheirPlaceAmongKernels) {
    const auto link = join();
    constexpr std::int64_t count = 4096;
    const std::vector<float> values = numbers(count);
    const OnDevice once(*device_, values);
    Guarded sum(*device_, values.size() * 4);
    device_->upload(sum.data(), values.data(), values.size() * 4);
    for (int i = 0; i < 20; ++i) {
        link->all_reduce(sum.floats(), count);
        device_->add(sum.floats(), once.floats(), count);
    }
    link->finish();
    std::vector<float> expected = values;
    for (float& value : expected) value *= 21;
    EXPECT_EQ(sum.values(), expected);
}

TEST_P(LinksTest, AGroupMayBeJoinedAfterAnother) {
    for (int i = 0; i < 2; ++i) {
        const auto link = join();
        const OnDevice data(*device_, numbers(8));
        link->all_reduce(data.floats(), 8);
        link->finish();
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, LinksTest, ::testing::Values(tensor_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
