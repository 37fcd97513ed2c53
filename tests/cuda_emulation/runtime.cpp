// Emulation of kernels/cuda/runtime.hpp in host memory, as lazy as a GPU may be: an operation runs only when the host
// or another stream waits for it (in reverse order: immediately). So tests detect reads of results without waiting, and
// changes to memory that a copy still reads. New memory is filled with NaN, because the contents of GPU memory are
// undefined.
#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/runtime.hpp"
#include "tests/cuda_emulation/cuda_emulation.hpp"

namespace longhaul::kernels::cuda {
namespace {

class Queue;

/// State shared by streams and threads.
struct Machine {
    std::recursive_mutex mutex;
    std::vector<Queue*> queues;
    std::exception_ptr failure;  ///< the first one; thrown to all who wait, as a GPU does, until no stream is left
    std::map<const std::byte*, std::size_t> memories;  ///< device memory and page-locked memory

    /// Whether this is memory to which a copy may be asynchronous.
    bool knows(const void* data) const {
        const auto* const at = static_cast<const std::byte*>(data);
        const auto behind = memories.upper_bound(at);
        return behind != memories.begin() && at < std::prev(behind)->first + std::prev(behind)->second;
    }
    void rethrow_failure() const {
        if (failure != nullptr) std::rethrow_exception(failure);
    }
};

Machine& machine() {
    static auto* const only = new Machine;  // never destroyed: memory may be released at the end of the program
    return *only;
}

using Lock = std::lock_guard<std::recursive_mutex>;

/// The operations of one stream.
class Queue {
  public:
    void ask(std::function<void()> operation) {
        operations_.push_back(std::move(operation));
        ++num_queued_;
        if (emulation::reversed()) run_all();
    }
    [[nodiscard]] std::uint64_t num_queued() const { return num_queued_; }

    void run_to(std::uint64_t num_operations) {
        while (num_done_ < num_operations) {
            if (runs_) throw std::logic_error("emulated streams wait for each other");
            const std::function<void()> operation = std::move(operations_.front());
            operations_.pop_front();
            runs_ = true;
            try {
                operation();
            } catch (...) {
                if (machine().failure == nullptr) machine().failure = std::current_exception();
            }
            runs_ = false;
            ++num_done_;
        }
    }
    void run_all() { run_to(num_queued_); }

  private:
    std::deque<std::function<void()>> operations_;
    std::uint64_t num_queued_ = 0, num_done_ = 0;
    bool runs_ = false;
};

}  // namespace
}  // namespace longhaul::kernels::cuda

struct CUstream_st {
    std::shared_ptr<longhaul::kernels::cuda::Queue> queue;
};
struct CUevent_st {
    std::shared_ptr<longhaul::kernels::cuda::Queue> queue;  ///< nullptr: never recorded
    std::uint64_t num_operations = 0;
};

namespace longhaul::kernels::cuda {

// Pending calls of a stream are submitted (native()) before the machine is locked, because submitting locks it, too.

Stream::Stream(const GraphPolicy& policy)
    : native_(new CUstream_st{std::make_shared<Queue>()}), launches_(make_launcher(native_), policy) {
    const Lock lock(machine().mutex);
    machine().queues.push_back(native_->queue.get());
}
Stream::~Stream() {
    launches_.flush();
    const Lock lock(machine().mutex);
    native_->queue->run_all();
    std::erase(machine().queues, native_->queue.get());
    if (machine().queues.empty()) machine().failure = nullptr;
    delete native_;
}
void Stream::synchronize() const {
    const NativeStream stream = native();
    const Lock lock(machine().mutex);
    stream->queue->run_all();
    machine().rethrow_failure();
}
bool Stream::done() const {
    synchronize();
    return true;
}

Event::Event() : native_(new CUevent_st) {}
Event::~Event() {
    delete native_;
}
void Event::record(const Stream& stream) {
    const NativeStream native = stream.native();
    const Lock lock(machine().mutex);
    *native_ = {native->queue, native->queue->num_queued()};
}
void Event::make_wait(const Stream& stream) const {
    const NativeStream native = stream.native();
    const Lock lock(machine().mutex);
    if (native_->queue == nullptr) return;
    native->queue->ask([recorded = *native_] { recorded.queue->run_to(recorded.num_operations); });
}
void Event::synchronize() const {
    const Lock lock(machine().mutex);
    if (native_->queue != nullptr) native_->queue->run_to(native_->num_operations);
    machine().rethrow_failure();
}

void emulation::ask(NativeStream stream, std::function<void()> operation) {
    const Lock lock(machine().mutex);
    stream->queue->ask(std::move(operation));
}

std::byte* allocate_pinned(std::size_t num_bytes) {
    return allocate_memory(num_bytes);
}
void release_pinned(std::byte* data) noexcept {
    release_memory(data);
}

int num_gpus() {
    return 1;
}
/// GPU 1 is for tests of kernels: one without clusters.
GpuProperties properties_of(int gpu) {
    return {.name = "emulated",
            .uuid = std::to_string(gpu),
            .major = gpu == 0 ? 9 : 8,
            .minor = 0,
            .multiprocessors = 4,
            .memory_bytes = std::size_t{4} << 30,
            .l2_bytes = std::size_t{1} << 20,
            .shared_bytes = block_shared_bytes};
}
int resident_clusters(const void* /*kernel*/, unsigned /*block_threads*/, std::size_t /*shared_bytes*/,
                      const Extent& cluster) {
    return std::max(1, properties_of(0).multiprocessors / static_cast<int>(cluster.x * cluster.y));
}
void use_gpu(int /*gpu*/) {}
std::size_t free_memory_bytes() {
    return std::size_t{4} << 30;
}

std::byte* allocate_memory(std::size_t num_bytes) {
    constexpr std::size_t alignment = 256;
    const std::size_t whole = std::max((num_bytes + alignment - 1) / alignment * alignment, alignment);
    auto* const data = static_cast<std::byte*>(std::aligned_alloc(alignment, whole));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0xff, whole);
    const Lock lock(machine().mutex);
    machine().memories[data] = whole;
    return data;
}
/// Waits for all queued operations of all streams, as CUDA does, but not for launches that were not submitted yet.
void release_memory(std::byte* data) noexcept {
    const Lock lock(machine().mutex);
    for (Queue* const queue : machine().queues) queue->run_all();
    machine().memories.erase(data);
    std::free(data);
}
void fill_zero(const Stream& stream, std::byte* to, std::size_t num_bytes) {
    if (num_bytes > 0) emulation::ask(stream.native(), [=] { std::memset(to, 0, num_bytes); });
}
/// Memory that is not page-locked is read or written before the call returns.
void copy(const Stream& stream, void* to, const void* from, std::size_t num_bytes) {
    if (num_bytes == 0) return;
    const NativeStream native = stream.native();
    const Lock lock(machine().mutex);
    if (machine().knows(from)) {
        emulation::ask(native, [=] { std::memcpy(to, from, num_bytes); });
    } else {
        const auto* const bytes = static_cast<const std::byte*>(from);
        emulation::ask(native, [to, taken = std::vector<std::byte>(bytes, bytes + num_bytes)] {
            std::memcpy(to, taken.data(), taken.size());
        });
    }
    if (!machine().knows(to)) native->queue->run_all();
}

}  // namespace longhaul::kernels::cuda
