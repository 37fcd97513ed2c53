// The runtime in host memory: every operation is done when it is asked for. New memory is filled with NaN, as a GPU's
// would hold anything.
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

Stream::Stream() = default;
Stream::~Stream() = default;
void Stream::synchronize() const {}
bool Stream::done() const {
    return true;
}

Event::Event() = default;
Event::~Event() = default;
void Event::record(const Stream& /*stream*/) {}
void Event::make_wait(const Stream& /*stream*/) const {}
void Event::synchronize() const {}

std::byte* allocate_pinned(std::size_t num_bytes) {
    return allocate_memory(num_bytes);
}
void release_pinned(std::byte* data) noexcept {
    release_memory(data);
}

Pinned::Pinned(std::size_t num_bytes) : data_(allocate_memory(num_bytes)), num_bytes_(num_bytes) {}
Pinned::Pinned(Pinned&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
Pinned& Pinned::operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}
Pinned::~Pinned() {
    release_memory(data_);
}

int num_gpus() {
    return 1;
}
GpuProperties properties_of(int /*gpu*/) {
    return {.name = "emulated",
            .uuid = "0",
            .major = 9,
            .minor = 0,
            .multiprocessors = 4,
            .memory_bytes = std::size_t{4} << 30,
            .l2_bytes = std::size_t{1} << 20};
}
void use_gpu(int /*gpu*/) {}
std::size_t free_memory_bytes() {
    return std::size_t{4} << 30;
}

std::byte* allocate_memory(std::size_t num_bytes) {
    constexpr std::size_t alignment = 256;
    const std::size_t whole = (num_bytes + alignment - 1) / alignment * alignment;
    void* data = std::aligned_alloc(alignment, whole == 0 ? alignment : whole);
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0xff, whole);
    return static_cast<std::byte*>(data);
}
void release_memory(std::byte* data) noexcept {
    std::free(data);
}
void fill_zero(const Stream& /*stream*/, std::byte* to, std::size_t num_bytes) {
    if (num_bytes > 0) std::memset(to, 0, num_bytes);
}
void copy(const Stream& /*stream*/, void* to, const void* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(to, from, num_bytes);
}

}  // namespace longhaul::kernels::cuda
