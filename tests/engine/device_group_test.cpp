// Sums over ranks whose data is in device memory. They go from device to device only if each rank has a device of its
// own and all devices can be connected, else through the host. Both paths give the same bits.
#include "engine/parallel/device_group.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "engine/error.hpp"
#include "tests/engine/fabric.hpp"
#include "tests/engine/remote_device.hpp"

namespace longhaul::engine {
namespace {

using testing::Fabric;
using testing::FabricLinks;
using testing::RemoteDevice;

/// The contents of each rank's device after a sum whose result depends on the order of addition, and the rank's notice.
struct Outcome {
    std::vector<std::vector<float>> sums;
    std::vector<std::vector<float>> gathered;  ///< per rank; empty if the data would have gone through the host
    std::vector<std::string> notices;
};

Outcome add_over(Fabric& fabric) {
    const int size = static_cast<int>(fabric.addresses.size());
    auto groups = testing::make_thread_groups(size);
    Outcome outcome{std::vector<std::vector<float>>(groups.size()), std::vector<std::vector<float>>(groups.size()),
                    std::vector<std::string>(groups.size())};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            const auto r = static_cast<std::size_t>(rank);
            RemoteDevice device(kernels::make_cpu_device(kernels::CpuVariant::reference, 1));
            FabricLinks links(fabric, device, fabric.addresses[r]);
            if (!fabric.addresses[r].empty()) device.device_links = &links;
            const auto sums = make_device_group(device, *groups[r], outcome.notices[r]);
            const float values[] = {1.0F, 1e8F, -1e8F, 3.0F};
            const std::vector<float> mine(100, values[rank]);
            const kernels::Buffer data(device, 400), all(device, 12 * groups.size());
            device.upload(data.data(), mine.data(), 400);
            if (sums->all_gather(data.as<float>() + 7, all.as<float>(), 3))
                outcome.gathered[r].resize(3 * groups.size());
            device.download(outcome.gathered[r].data(), all.data(), outcome.gathered[r].size() * sizeof(float));
            sums->all_reduce(data.as<float>(), 40);
            sums->all_reduce(data.as<float>() + 40, 60);
            sums->finish();
            outcome.sums[r].resize(100);
            device.download(outcome.sums[r].data(), data.data(), 400);
        });
    }
    for (auto& thread : threads) thread.join();
    return outcome;
}

const std::vector<float> right(100, (1.0F + 1e8F) + (-1e8F + 3.0F));

void expect_sums(const Outcome& outcome) {
    for (const std::vector<float>& sum : outcome.sums) EXPECT_EQ(sum, right);
}

TEST(DeviceGroup, GoesFromDeviceToDeviceWhereEachRankHasItsOwn) {
    Fabric fabric{.addresses = {"a/0", "a/1", "b/0", "b/1"}};
    const Outcome outcome = add_over(fabric);
    expect_sums(outcome);
    EXPECT_EQ(fabric.sums, 8);
    EXPECT_EQ(fabric.gathers, 4);
    for (const std::vector<float>& all : outcome.gathered)
        EXPECT_EQ(all, (std::vector<float>{1, 1, 1, 1e8F, 1e8F, 1e8F, -1e8F, -1e8F, -1e8F, 3, 3, 3}));
    EXPECT_EQ(fabric.finished, 4);
    for (const std::string& notice : outcome.notices) EXPECT_EQ(notice, "");
}

TEST(DeviceGroup, GoesOverTheHostWhereTwoRanksShareADeviceOrOneHasNoLinks) {
    for (const std::vector<std::string>& addresses :
         {std::vector<std::string>{"a/0", "a/1", "a/0", "a/1"}, {"a/0", "a/1", "a/2", ""}, {"", "", "", ""}}) {
        Fabric fabric{.addresses = addresses};
        const Outcome outcome = add_over(fabric);
        expect_sums(outcome);
        EXPECT_EQ(fabric.sums, 0);
        for (const std::vector<float>& all : outcome.gathered) EXPECT_TRUE(all.empty());
        for (const std::string& notice : outcome.notices) EXPECT_EQ(notice, "");
    }
}

TEST(DeviceGroup, SaysWhyDevicesCouldNotBeConnectedAndGoesOverTheHost) {
    Fabric cut{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .rank_that_cannot_join = 2};
    Fabric nameless{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .no_id = true};
    Fabric bare{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .address_without_library = "b/1"};
    for (const auto& [fabric, why] :
         {std::pair{&cut, "the cable is out"}, {&nameless, "no id to be had"}, {&bare, "no library here"}}) {
        const Outcome outcome = add_over(*fabric);
        expect_sums(outcome);
        EXPECT_EQ(fabric->sums, 0);
        for (const std::string& notice : outcome.notices) {
            EXPECT_EQ(notice, std::string("tensor-parallel: sums go through host memory, as the devices could not be "
                                          "connected: ") +
                                  why);
        }
    }
}

/// The message of the error that each rank gets.
std::vector<std::string> refusals_of(Fabric& fabric) {
    auto groups = testing::make_thread_groups(static_cast<int>(fabric.addresses.size()));
    std::vector<std::string> messages(groups.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < groups.size(); ++r) {
        threads.emplace_back([&, r] {
            RemoteDevice device(kernels::make_cpu_device(kernels::CpuVariant::reference, 1));
            FabricLinks links(fabric, device, fabric.addresses[r]);
            device.device_links = &links;
            std::string notice;
            try {
                static_cast<void>(make_device_group(device, *groups[r], notice));
            } catch (const InputError& error) {
                messages[r] = error.what();
            }
            EXPECT_EQ(notice, "");
        });
    }
    for (auto& thread : threads) thread.join();
    return messages;
}

TEST(DeviceGroup, DoesNotReplaceSumsThatOnlyTheLibraryGives) {
    constexpr auto library = kernels::SumOrder::library;
    Fabric connected{.addresses = {"a/0", "a/1"}, .order = library};
    EXPECT_EQ(refusals_of(connected), std::vector<std::string>(2));
    Fabric shared{.addresses = {"a/0", "a/0"}, .order = library};
    Fabric cut{.addresses = {"a/0", "a/1"}, .rank_that_cannot_join = 1, .order = library};
    for (const auto& [fabric, got] :
         {std::pair{&shared, "two ranks on one GPU, or a rank without one"}, {&cut, "the cable is out"}}) {
        EXPECT_EQ(refusals_of(*fabric),
                  std::vector<std::string>(2, std::string("job: all-reduce: expected a GPU for each rank, connected by "
                                                          "NCCL, got ") +
                                                  got + "; use all-reduce = ordered"));
    }
}

}  // namespace
}  // namespace longhaul::engine
