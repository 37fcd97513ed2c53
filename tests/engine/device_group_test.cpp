// Sums over ranks whose numbers lie in devices: from device to device only where each rank has one of its own and all
// of them can be connected; else over the host. The same bits on every way.
#include "engine/parallel/device_group.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <vector>

#include "tests/engine/remote_device.hpp"

namespace longhaul::engine {
namespace {

using testing::RemoteDevice;

/// Links as a test wants them; their sums go through groups of threads of their own.
struct Fabric {
    std::vector<std::string> addresses;  ///< of each rank's device
    int rank_that_cannot_join = -1;
    bool no_id = false;
    int rank_without_library = -1;
    std::vector<std::unique_ptr<Group>> groups = make_thread_groups(static_cast<int>(addresses.size()));
    std::atomic<int> sums{0}, finished{0};
};

class FabricLink final : public kernels::DeviceLink {
  public:
    FabricLink(Fabric& fabric, RemoteDevice& device, int rank) : fabric_(fabric), device_(device), rank_(rank) {}
    void all_reduce(float* data, std::int64_t count) override {
        ++fabric_.sums;
        std::vector<float> here(static_cast<std::size_t>(count));
        auto* bytes = reinterpret_cast<std::byte*>(data);
        device_.download(here.data(), bytes, here.size() * sizeof(float));
        fabric_.groups[static_cast<std::size_t>(rank_)]->all_reduce(here.data(), count);
        device_.upload(bytes, here.data(), here.size() * sizeof(float));
    }
    void finish() override { ++fabric_.finished; }

  private:
    Fabric& fabric_;
    RemoteDevice& device_;
    int rank_;
};

class FabricLinks final : public kernels::DeviceLinks {
  public:
    FabricLinks(Fabric& fabric, RemoteDevice& device, int rank) : fabric_(fabric), device_(device), rank_(rank) {}
    [[nodiscard]] std::string address() const override {
        if (rank_ == fabric_.rank_without_library) throw std::runtime_error("no library here");
        return fabric_.addresses[static_cast<std::size_t>(rank_)];
    }
    [[nodiscard]] std::vector<std::byte> new_id() const override {
        if (fabric_.no_id) throw std::runtime_error("no id to be had");
        return {std::byte{42}};
    }
    std::unique_ptr<kernels::DeviceLink> join(std::span<const std::byte> id, int rank, int size) override {
        EXPECT_EQ(id.size(), 1U);
        EXPECT_EQ(id[0], std::byte{42});
        EXPECT_EQ(rank, rank_);
        EXPECT_EQ(size, static_cast<int>(fabric_.addresses.size()));
        if (rank == fabric_.rank_that_cannot_join) throw std::runtime_error("the cable is out");
        return std::make_unique<FabricLink>(fabric_, device_, rank_);
    }

  private:
    Fabric& fabric_;
    RemoteDevice& device_;
    int rank_;
};

/// What each rank's device holds after a sum of numbers that tell orders apart, and what it had to say.
struct Outcome {
    std::vector<std::vector<float>> sums;
    std::vector<std::string> notices;
};

Outcome add_over(Fabric& fabric) {
    const int size = static_cast<int>(fabric.addresses.size());
    auto groups = make_thread_groups(size);
    Outcome outcome{std::vector<std::vector<float>>(groups.size()), std::vector<std::string>(groups.size())};
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) {
        threads.emplace_back([&, rank] {
            const auto r = static_cast<std::size_t>(rank);
            RemoteDevice device(kernels::make_cpu_device(kernels::CpuVariant::reference, 1));
            FabricLinks links(fabric, device, rank);
            if (!fabric.addresses[r].empty()) device.device_links = &links;
            const auto sums = make_device_group(device, *groups[r], outcome.notices[r]);
            const float values[] = {1.0F, 1e8F, -1e8F, 3.0F};
            const std::vector<float> mine(100, values[rank]);
            const kernels::Buffer data(device, 400);
            device.upload(data.data(), mine.data(), 400);
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
        for (const std::string& notice : outcome.notices) EXPECT_EQ(notice, "");
    }
}

TEST(DeviceGroup, SaysWhyDevicesCouldNotBeConnectedAndGoesOverTheHost) {
    Fabric cut{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .rank_that_cannot_join = 2};
    Fabric nameless{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .no_id = true};
    Fabric bare{.addresses = {"a/0", "a/1", "b/0", "b/1"}, .rank_without_library = 3};
    for (const auto& [fabric, why] :
         {std::pair{&cut, "the cable is out"}, {&nameless, "no id to be had"}, {&bare, "no library here"}}) {
        const Outcome outcome = add_over(*fabric);
        expect_sums(outcome);
        EXPECT_EQ(fabric->sums, 0);
        for (const std::string& notice : outcome.notices) {
            EXPECT_EQ(notice, std::string("tensor-parallel: sums go over the host, as its devices could not be "
                                          "connected: ") +
                                  why);
        }
    }
}

}  // namespace
}  // namespace longhaul::engine
