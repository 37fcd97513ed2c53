#include "kernels/host_memory.hpp"

#include <sys/mman.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/checks.hpp"

namespace longhaul::kernels {
namespace {

constexpr std::size_t huge_page_bytes = std::size_t{2} << 20;
constexpr std::size_t mapped_from_bytes = 2 * huge_page_bytes;

std::size_t round_up(std::size_t value, std::size_t unit) {
    return (value + unit - 1) / unit * unit;
}

/// Anonymous mapping that starts on a huge page: maps more than needed and unmaps both ends.
std::byte* map_aligned(std::size_t num_bytes) {
    const std::size_t wanted = round_up(num_bytes, huge_page_bytes);
    const std::size_t mapped = wanted + huge_page_bytes;
    void* raw = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (raw == MAP_FAILED) throw std::bad_alloc();
    auto* start = static_cast<std::byte*>(raw);
    const std::size_t head =
        round_up(reinterpret_cast<std::uintptr_t>(start), huge_page_bytes) - reinterpret_cast<std::uintptr_t>(start);
    if (head > 0) munmap(start, head);
    if (huge_page_bytes > head) munmap(start + head + wanted, huge_page_bytes - head);
    madvise(start + head, wanted, MADV_HUGEPAGE);  // only a hint: the memory works without it
    return start + head;
}

}  // namespace

std::byte* allocate_host(std::size_t num_bytes) {
    if (num_bytes >= mapped_from_bytes) return map_aligned(num_bytes);
    const std::size_t rounded = round_up(num_bytes, 64);
    auto* data = static_cast<std::byte*>(std::aligned_alloc(64, rounded));
    if (data == nullptr) throw std::bad_alloc();
    std::memset(data, 0, rounded);
    return data;
}

void release_host(std::byte* data, std::size_t num_bytes) noexcept {
    if (data == nullptr) return;
    if (num_bytes >= mapped_from_bytes) {
        munmap(data, round_up(num_bytes, huge_page_bytes));
    } else {
        std::free(data);
    }
}

void HostDevice::upload(std::byte* to, const void* from_host, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(to, from_host, num_bytes);
}

Buffer HostDevice::adopt(const std::byte* data, std::size_t num_bytes) {
    return Buffer::borrowed(const_cast<std::byte*>(data), num_bytes);  // weights are only read
}

void HostDevice::begin_pass(const PassRows& pass) {
    check_pass(pass);
    pass_ = pass;
}

void HostDevice::download(void* to_host, const std::byte* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(to_host, from, num_bytes);
}

void HostDevice::copy_within(std::byte* to, const std::byte* from, std::size_t num_bytes) {
    if (num_bytes > 0) std::memcpy(to, from, num_bytes);
}

}  // namespace longhaul::kernels
