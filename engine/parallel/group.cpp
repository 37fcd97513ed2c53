#include "engine/parallel/group.hpp"

#include <algorithm>
#include <barrier>
#include <cstring>
#include <stdexcept>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "kernels/flush_denormals.hpp"

namespace longhaul::engine {
namespace {

class LocalGroup final : public Group {
  public:
    [[nodiscard]] int rank() const override { return 0; }
    [[nodiscard]] int size() const override { return 1; }
    void all_reduce(float*, std::int64_t) override {}
    void all_gather(const float* send, float* recv, std::int64_t count) override {
        std::memcpy(recv, send, static_cast<std::size_t>(count) * sizeof(float));
    }
    void broadcast(std::vector<std::byte>&) override {}
    std::vector<std::vector<std::byte>> gather(std::span<const std::byte> bytes) override {
        return {std::vector<std::byte>(bytes.begin(), bytes.end())};
    }
};

/// What the threads of a thread group share. Each collective: publish, barrier, read the others, barrier.
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

/// What `body` throws, as an exit code and a line; code 0: nothing.
std::pair<int, std::string> failure_of(const std::function<void()>& body) {
    try {
        body();
        return {0, ""};
    } catch (const Error& error) {
        return {static_cast<int>(error.exit_code()), error.what()};
    } catch (const std::exception& error) {
        return {static_cast<int>(ExitCode::error), error.what()};
    }
}

}  // namespace

void check_group_size(int size) {
    if (size != 1 && size != 2 && size != 4 && size != 8) {
        throw std::logic_error("a group has 1, 2, 4 or 8 ranks, not " + std::to_string(size));
    }
}

std::int64_t least_of(Group& group, std::int64_t mine) {
    if (group.size() == 1) return mine;
    ByteWriter message;
    message.put(mine);
    std::int64_t all = mine;
    for (const std::vector<std::byte>& part : group.gather(message.bytes())) {
        all = std::min(all, ByteReader(part).get<std::int64_t>());
    }
    ByteWriter agreed;
    agreed.put(all);
    group.broadcast(agreed.bytes());
    return ByteReader(agreed.bytes()).get<std::int64_t>();
}

void agree(Group& group, const std::function<void()>& body) {
    const auto [code, line] = failure_of(body);
    ByteWriter mine;
    mine.put(code);
    mine.put(line);
    std::vector<std::byte> verdict;
    for (const std::vector<std::byte>& part : group.gather(mine.bytes())) {
        if (ByteReader(part).get<int>() != 0 && verdict.empty()) verdict = part;
    }
    group.broadcast(verdict);
    if (verdict.empty()) return;
    ByteReader reader(verdict);
    const auto exit_code = static_cast<ExitCode>(reader.get<int>());
    throw Error(reader.get_string(), exit_code);
}

std::unique_ptr<Group> make_local_group() {
    return std::make_unique<LocalGroup>();
}

std::vector<std::unique_ptr<Group>> make_thread_groups(int size) {
    check_group_size(size);
    auto exchange = std::make_shared<ThreadExchange>(size);
    std::vector<std::unique_ptr<Group>> groups;
    groups.reserve(size);
    for (int rank = 0; rank < size; ++rank) groups.push_back(std::make_unique<ThreadGroup>(exchange, rank, size));
    return groups;
}

}  // namespace longhaul::engine
