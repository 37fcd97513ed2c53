// The ranks of a group as threads of this process: tensor parallelism without MPI.
#pragma once

#include <barrier>
#include <cstring>
#include <memory>
#include <span>
#include <vector>

#include "engine/parallel/group.hpp"
#include "kernels/flush_denormals.hpp"

namespace longhaul::engine::testing {

/// Shared by the threads of a group. Each collective: publish, barrier, read the others, barrier.
struct ThreadExchange {
    explicit ThreadExchange(int size) : barrier(size), floats(static_cast<std::size_t>(size)), bytes(floats.size()) {}
    std::barrier<> barrier;
    std::vector<std::vector<float>> floats;
    std::vector<std::vector<std::byte>> bytes;
};

class ThreadGroup final : public Group {
  public:
    ThreadGroup(std::shared_ptr<ThreadExchange> exchange, int rank, int size)
        : exchange_(std::move(exchange)), rank_(rank), size_(size) {}

    [[nodiscard]] int rank() const override { return rank_; }
    [[nodiscard]] int size() const override { return size_; }

    void all_reduce(float* data, std::int64_t count) override {
        const kernels::FlushDenormals flush;
        for (int step = 1; step < size_; step *= 2) {
            mine().assign(data, data + count);
            exchange_->barrier.arrive_and_wait();
            const std::vector<float>& other = exchange_->floats[rank_ ^ step];
            for (std::int64_t i = 0; i < count; ++i) data[i] += other[i];
            exchange_->barrier.arrive_and_wait();
        }
    }

    void all_gather(const float* send, float* recv, std::int64_t count) override {
        mine().assign(send, send + count);
        exchange_->barrier.arrive_and_wait();
        for (int r = 0; r < size_; ++r) {
            std::memcpy(recv + r * count, exchange_->floats[r].data(), static_cast<std::size_t>(count) * sizeof(float));
        }
        exchange_->barrier.arrive_and_wait();
    }

    void broadcast(std::vector<std::byte>& bytes) override {
        if (rank_ == 0) exchange_->bytes[0] = bytes;
        exchange_->barrier.arrive_and_wait();
        if (rank_ != 0) bytes = exchange_->bytes[0];
        exchange_->barrier.arrive_and_wait();
    }

    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
        exchange_->bytes[rank_].assign(bytes.begin(), bytes.end());
        exchange_->barrier.arrive_and_wait();
        std::vector<std::vector<std::byte>> all;
        if (rank_ == 0) all = exchange_->bytes;
        exchange_->barrier.arrive_and_wait();
        return all;
    }

  private:
    std::vector<float>& mine() { return exchange_->floats[rank_]; }

    std::shared_ptr<ThreadExchange> exchange_;
    int rank_;
    int size_;
};

/// The `size` ranks of one group, each to be used by its own thread.
inline std::vector<std::unique_ptr<Group>> make_thread_groups(int size) {
    check_group_size(size);
    auto exchange = std::make_shared<ThreadExchange>(size);
    std::vector<std::unique_ptr<Group>> groups;
    groups.reserve(size);
    for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_unique<ThreadGroup>(exchange, rank, size));
    return groups;
}

}  // namespace longhaul::engine::testing
