// `longhaul bench all-reduce`: the sum over a group's ranks (two per layer), through shared memory, by our own
// messages, and by MPI_Allreduce.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <vector>

#include "engine/error.hpp"
#include "runner/bench/bench.hpp"

namespace longhaul::runner {
namespace {

using Sum = std::function<void(float*, std::int64_t)>;

/// Seconds per sum on the slowest rank, averaged over enough calls that reading the clock does not matter.
double time_once(MPI_Comm ranks, const Sum& sum, std::vector<float>& data) {
    const std::int64_t count = data.size();
    const std::int64_t calls = std::clamp<std::int64_t>((std::int64_t{1} << 22) / count, 4, 400);
    std::fill(data.begin(), data.end(), 1.0F);  // the values soon overflow to infinity, which does not affect the time
    MPI_Barrier(ranks);
    const auto start = std::chrono::steady_clock::now();
    for (std::int64_t i = 0; i < calls; ++i) sum(data.data(), count);
    const double mine = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    double slowest = 0;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, ranks);
    return slowest / static_cast<double>(calls);
}

/// Checks that all paths give the same bits: a wrong path must not look fast.
void check_bits(engine::Group& group, engine::Group& messages, std::int64_t count) {
    std::vector<float> by_group(count);
    std::uint32_t state = 1U + static_cast<std::uint32_t>(group.rank());
    for (float& value : by_group) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<float>(state >> 8U) * (state & 64U ? 1.0F : 1e-6F);
    }
    std::vector<float> by_messages = by_group;
    group.all_reduce(by_group.data(), count);
    messages.all_reduce(by_messages.data(), count);
    const bool same = std::memcmp(by_group.data(), by_messages.data(), by_group.size() * sizeof(float)) == 0;
    if (engine::min_over_ranks(messages, same ? 1 : 0) == 1) return;
    throw Error(
        "all-reduce: expected the same bits through shared memory as by messages, got others; please report it");
}

}  // namespace

BenchTable bench_all_reduce(BenchSetup& setup) {
    BenchTable table{.title = {},
                     .columns = {{"rows", "rows"},
                                 {"bytes", "KB", 1e-3},
                                 {"seconds", "us", 1e6, 1},
                                 {"messages_seconds", "us, messages", 1e6, 1},
                                 {"library_seconds", "us, MPI_Allreduce", 1e6, 1},
                                 {"bytes_per_second", "GB/s", 1e-9, 2},
                                 {"messages_bytes_per_second", "GB/s, messages", 1e-9, 2},
                                 {"library_bytes_per_second", "GB/s, MPI_Allreduce", 1e-9, 2}},
                     .lines = {},
                     .details = {}};
    MPI_Comm ranks = setup.world->comm();
    const auto messages = engine::make_mpi_group(ranks, {.threads = setup.threads, .shared_memory = false});
    const std::array<Sum, 3> sums{[&](float* data, std::int64_t count) { setup.group->all_reduce(data, count); },
                                  [&](float* data, std::int64_t count) { messages->all_reduce(data, count); },
                                  [&](float* data, std::int64_t count) {
                                      MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM,
                                                    ranks);
                                  }};
    for (const std::int64_t rows : {1, 8, 32, 512}) {
        const std::int64_t count = rows * setup.shape.hidden_size;
        check_bits(*setup.group, *messages, count);
        std::vector<float> data(count);
        std::array<std::vector<double>, 3> seconds;
        for (const Sum& sum : sums) time_once(ranks, sum, data);  // grows buffers and touches pages
        for (int round = 0; round < 9; ++round) {
            for (std::size_t i = 0; i < sums.size(); ++i) seconds[i].push_back(time_once(ranks, sums[i], data));
        }
        const auto bytes = static_cast<double>(count) * sizeof(float);
        nlohmann::ordered_json line{{"ranks", setup.group->size()}, {"rows", rows}, {"bytes", bytes}};
        const std::array<std::string, 3> names{"", "messages_", "library_"};
        for (std::size_t i = 0; i < sums.size(); ++i) {
            line[names[i] + "seconds"] = bench_median(seconds[i]);
            line[names[i] + "bytes_per_second"] = bytes / bench_median(seconds[i]);
        }
        setup.add(table, line);
    }
    return table;
}

}  // namespace longhaul::runner
