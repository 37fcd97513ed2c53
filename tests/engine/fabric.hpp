// Links between the devices of one process, for tests. Transfers go through a thread group of their own.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "engine/parallel/group.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/engine/thread_group.hpp"

namespace longhaul::engine::testing {

/// Configurable links: which ranks share a device, which fail to connect. Sums go through a thread group of their own.
struct Fabric {
    std::vector<std::string> addresses;  ///< of each rank's device
    int rank_that_cannot_join = -1;
    bool no_id = false;
    std::string address_without_library = "none";
    kernels::SumOrder order = kernels::SumOrder::fixed;
    std::vector<std::unique_ptr<Group>> groups = make_thread_groups(static_cast<int>(addresses.size()));
    std::atomic<int> sums{0}, gathers{0}, finished{0};
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
    void all_gather(const float* data, float* received, std::int64_t count) override {
        ++fabric_.gathers;
        std::vector<float> mine(static_cast<std::size_t>(count)), all(mine.size() * fabric_.groups.size());
        device_.download(mine.data(), reinterpret_cast<const std::byte*>(data), mine.size() * sizeof(float));
        fabric_.groups[static_cast<std::size_t>(rank_)]->all_gather(mine.data(), all.data(), count);
        device_.upload(reinterpret_cast<std::byte*>(received), all.data(), all.size() * sizeof(float));
    }
    void finish() override { ++fabric_.finished; }

  private:
    Fabric& fabric_;
    RemoteDevice& device_;
    int rank_;
};

class FabricLinks final : public kernels::DeviceLinks {
  public:
    FabricLinks(Fabric& fabric, RemoteDevice& device, std::string address)
        : fabric_(fabric), device_(device), address_(std::move(address)) {}
    [[nodiscard]] std::string address() const override {
        if (address_ == fabric_.address_without_library) throw std::runtime_error("no library here");
        return address_;
    }
    [[nodiscard]] std::vector<std::byte> new_id() const override {
        if (fabric_.no_id) throw std::runtime_error("no id to be had");
        return {std::byte{42}};
    }
    std::unique_ptr<kernels::DeviceLink> join(std::span<const std::byte> id, int rank, int size) override {
        EXPECT_EQ(id.size(), 1U);
        EXPECT_EQ(id[0], std::byte{42});
        EXPECT_TRUE(rank >= 0 && rank < size);
        EXPECT_EQ(size, static_cast<int>(fabric_.addresses.size()));
        if (rank == fabric_.rank_that_cannot_join) throw std::runtime_error("the cable is out");
        return std::make_unique<FabricLink>(fabric_, device_, rank);
    }

    [[nodiscard]] kernels::SumOrder sum_order() const override { return fabric_.order; }

  private:
    Fabric& fabric_;
    RemoteDevice& device_;
    std::string address_;
};

}  // namespace longhaul::engine::testing
