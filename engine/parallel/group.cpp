#include "engine/parallel/group.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "engine/bytes.hpp"
#include "engine/failure.hpp"

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

/// Runs `body` and returns what it throws; code done: nothing.
Failure failure_of(const std::function<void()>& body) {
    try {
        body();
        return {"", ExitCode::done};
    } catch (const std::exception&) {
        return current_failure();
    }
}

}  // namespace

void check_group_size(int size) {
    if (size != 1 && size != 2 && size != 4 && size != 8) {
        throw std::logic_error("a group has 1, 2, 4 or 8 ranks, not " + std::to_string(size));
    }
}

std::int64_t min_over_ranks(Group& group, std::int64_t mine) {
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
    const Failure failure = failure_of(body);
    ByteWriter mine;
    mine.put(static_cast<int>(failure.code));
    mine.put(failure.line);
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

}  // namespace longhaul::engine
