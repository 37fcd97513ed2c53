// Launcher for emulated GPUs. A call waits only for the calls that LaunchList::before returns: of all calls that may
// run, the last one runs first. A graph runs exactly the arguments it was given, so that a missing update shows.
#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <utility>

#include "kernels/cuda/launches.hpp"
#include "tests/cuda_emulation/cuda_emulation.hpp"

namespace longhaul::kernels::cuda {
namespace {

dim3 dimensions(const Extent& extent) {
    return {extent.x, extent.y, extent.z};
}

std::vector<std::size_t> latest_first(const LaunchList& list) {
    std::vector<std::size_t> order;
    std::vector<std::vector<std::size_t>> before;
    for (std::size_t i = 0; i < list.size(); ++i) before.push_back(list.before(i));
    std::vector<bool> done(list.size());
    const auto may_run = [&](std::size_t i) {
        return !done[i] && std::all_of(before[i].begin(), before[i].end(), [&](std::size_t b) { return done[b]; });
    };
    while (order.size() < list.size()) {
        std::size_t next = list.size();
        while (next > 0 && !may_run(next - 1)) --next;
        if (next == 0) throw std::logic_error("launches wait for each other");
        done[next - 1] = true;
        order.push_back(next - 1);
    }
    return order;
}

std::mutex launches_mutex;
std::map<const void*, std::int64_t> launches;

void count_launch(const void* kernel) {
    const std::lock_guard lock(launches_mutex);
    ++launches[kernel];
}

/// Queues the calls of `list` on the stream, with a copy of their present arguments.
void queue_calls(NativeStream stream, const LaunchList& list) {
    const auto copied = std::make_shared<const LaunchList>(list);
    for (const std::size_t i : latest_first(list)) {
        emulation::ask(stream, [copied, i] {
            const KernelCall& call = (*copied)[i];
            count_launch(call.kernel);
            const std::int64_t before = emulation::waits_for_previous();
            emulation::run(dimensions(call.grid), dimensions(call.block), dimensions(call.cluster), call.shared_bytes,
                           [&] { call.type->call(call.kernel, copied->parameters(i)); });
            const Extent &grid = call.grid, &block = call.block;
            const std::int64_t threads = std::int64_t{grid.x} * grid.y * grid.z * block.x * block.y * block.z;
            if (emulation::waits_for_previous() - before != (call.early ? threads : 0))
                throw std::logic_error("all threads of an early kernel, and of no other, wait for the previous call");
        });
    }
}

std::atomic<std::int64_t> num_graphs = 0, num_graph_calls = 0;

class EmulatedGraph final : public Graph {
  public:
    EmulatedGraph(NativeStream stream, LaunchList list) : stream_(stream), list_(std::move(list)) {}

    void set(std::size_t i, const LaunchList& list) override { list_.set(i, list); }
    void launch() override {
        ++num_graphs;
        num_graph_calls += static_cast<std::int64_t>(list_.size());
        queue_calls(stream_, list_);
    }

  private:
    NativeStream stream_;
    LaunchList list_;
};

class EmulatedLauncher final : public Launcher {
  public:
    explicit EmulatedLauncher(NativeStream stream) : stream_(stream) {}

    void launch(const LaunchList& list) override { queue_calls(stream_, list); }
    std::unique_ptr<Graph> instantiate(const LaunchList& list) override {
        return std::make_unique<EmulatedGraph>(stream_, list);
    }

  private:
    NativeStream stream_;
};

}  // namespace

emulation::GraphLaunches emulation::graph_launches() {
    return {num_graphs, num_graph_calls};
}

std::int64_t emulation::launches_of(const void* kernel) {
    const std::lock_guard lock(launches_mutex);
    return launches[kernel];
}

std::unique_ptr<Launcher> make_launcher(NativeStream stream) {
    return std::make_unique<EmulatedLauncher>(stream);
}

}  // namespace longhaul::kernels::cuda
