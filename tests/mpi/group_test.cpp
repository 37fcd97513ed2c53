// Collectives of a group of processes, `mpirun -n 2|4|8 group_test`: through shared memory, by messages, and as on
// nodes of two ranks, every sum has the bits of the tree over the ranks. Exit code 0 if all are right.
#include "engine/parallel/group.hpp"

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <thread>
#include <vector>

#include "engine/parallel/node_exchange.hpp"
#include "kernels/flush_denormals.hpp"
#include "runner/host/world.hpp"

namespace {

using namespace longhaul;
using engine::Group;

int failures = 0;

void expect(bool right, const char* what, const char* path, std::int64_t count) {
    if (right) return;
    ++failures;
    std::printf("FAIL: %s, %s, %lld values\n", path, what, static_cast<long long>(count));
}

/// Values of all magnitudes and signs, including denormals: sums depend on the order and on flushing.
float value_of(int rank, std::int64_t i) {
    const auto mixed =
        static_cast<std::uint32_t>(i + 1) * 2654435761U + static_cast<std::uint32_t>(rank) * 40503U * 977U;
    const std::uint32_t bits = mixed * 1664525U + 1013904223U;
    const float sizes[4]{1.0F, 1e7F, 3e-8F, 2e-39F};
    return (static_cast<float>(bits >> 8U) / 1e7F - 0.8F) * sizes[bits & 3U];
}

float tree(const std::vector<float>& parts, std::size_t first, std::size_t count) {
    if (count == 1) return parts[first];
    return tree(parts, first, count / 2) + tree(parts, first + count / 2, count / 2);
}

void check_sums(Group& group, const char* path) {
    const kernels::FlushDenormals flush;
    for (const std::int64_t count : {1, 5, 2048, 8192, 16384, 65536, 131072, 131075, 600000}) {
        std::vector<float> data(static_cast<std::size_t>(count)), expected(data.size());
        std::vector<float> parts(static_cast<std::size_t>(group.size()));
        for (std::int64_t i = 0; i < count; ++i) {
            for (int r = 0; r < group.size(); ++r) parts[static_cast<std::size_t>(r)] = value_of(r, i);
            data[static_cast<std::size_t>(i)] = value_of(group.rank(), i);
            expected[static_cast<std::size_t>(i)] = tree(parts, 0, parts.size());
        }
        group.all_reduce(data.data(), count);
        expect(std::memcmp(data.data(), expected.data(), data.size() * sizeof(float)) == 0, "sum", path, count);
    }
}

void check_gathers(Group& group, const char* path) {
    for (const std::int64_t count : {1, 1000, 131073}) {
        std::vector<float> mine(static_cast<std::size_t>(count)),
            all(mine.size() * static_cast<std::size_t>(group.size()));
        for (std::int64_t i = 0; i < count; ++i) mine[static_cast<std::size_t>(i)] = value_of(group.rank(), i);
        group.all_gather(mine.data(), all.data(), count);
        bool right = true;
        for (int r = 0; r < group.size(); ++r) {
            for (std::int64_t i = 0; i < count; ++i) {
                right = right && all[static_cast<std::size_t>(r * count + i)] == value_of(r, i);
            }
        }
        expect(right, "all_gather", path, count);
    }
}

/// Broadcasts from the first rank, which comes late: meanwhile the others call their while-waiting action.
void check_broadcasts(Group& group, const char* path) {
    int calls = 0;
    group.set_while_waiting([&] { ++calls; });
    for (const std::int64_t count : {0, 3, 524280, 524281, 3000000}) {
        std::vector<std::byte> bytes(group.is_first() ? static_cast<std::size_t>(count) : 7);
        for (std::size_t i = 0; group.is_first() && i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
        if (group.is_first()) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        group.broadcast(bytes);
        bool right = bytes.size() == static_cast<std::size_t>(count);
        for (std::size_t i = 0; i < bytes.size(); ++i) right = right && bytes[i] == static_cast<std::byte>(i % 251);
        expect(right, "broadcast", path, count);
    }
    expect(group.is_first() || calls > 0, "action while waiting", path, calls);
    group.set_while_waiting({});
}

/// Lowers a resource limit of this process during its lifetime.
class Limit {
  public:
    Limit(bool applies, __rlimit_resource resource, rlim_t value) : resource_(resource) {
        getrlimit(resource, &before_);
        const rlimit lower{value, before_.rlim_max};
        if (applies) setrlimit(resource, &lower);
    }
    ~Limit() { setrlimit(resource_, &before_); }
    Limit(const Limit&) = delete;
    Limit& operator=(const Limit&) = delete;

  private:
    __rlimit_resource resource_;
    rlimit before_{};
};

/// If one rank is refused shared memory, no rank uses it, and the sums go by messages.
void check_refusals(const runner::World& world) {
    std::signal(SIGXFSZ, SIG_IGN);
    {
        const Limit no_large_files(world.is_first(), RLIMIT_FSIZE, 1000);
        expect(!engine::NodeMemory::create(world.comm(), 4096), "refused to the first rank", "shared memory", 4096);
        const auto group = engine::make_mpi_group(world.comm());
        check_sums(*group, "shared memory refused");
    }
    {
        const Limit no_more_files(world.rank() + 1 == world.size(), RLIMIT_NOFILE, 3);
        expect(!engine::NodeMemory::create(world.comm(), 4096), "refused to the last rank", "shared memory", 4096);
    }
    expect(engine::NodeMemory::create(world.comm(), 4096) != nullptr, "granted", "shared memory", 4096);
}

}  // namespace

int main() {
    const runner::World world;
    check_refusals(world);
    const struct {
        const char* name;
        engine::MpiGroupOptions options;
    } paths[]{{"shared memory", {.threads = 1}},
              {"shared memory, 2 threads", {.threads = 2}},
              {"messages", {.shared_memory = false}},
              {"nodes of two ranks", {.ranks_per_node = 2}},
              {"nodes of three ranks", {.ranks_per_node = 3}}};  // no subtrees: messages
    for (const auto& path : paths) {
        const auto group = engine::make_mpi_group(world.comm(), path.options);
        for (int turn = 0; turn < 2; ++turn) {  // the second time after an odd number of rounds
            check_sums(*group, path.name);
            check_broadcasts(*group, path.name);
            check_gathers(*group, path.name);
        }
        expect(engine::min_over_ranks(*group, group->rank() + 5) == 5, "least", path.name, 1);
    }
    int all = 0;
    MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, world.comm());
    if (world.is_first()) std::printf("%d ranks: %d failures\n", world.size(), all);
    return all == 0 ? 0 : 1;
}
