#include "engine/model/read_ahead.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace longhaul::engine {
namespace {

constexpr std::size_t window_bytes = std::size_t{256} << 20;  // prefetched but not used yet
constexpr std::size_t step_bytes = std::size_t{128} << 10;    // Linux truncates longer requests to this

}  // namespace

ReadAhead::ReadAhead(std::vector<std::span<const std::byte>> ranges)
    : ranges_(std::move(ranges)), thread_([this] { run(); }) {}

ReadAhead::~ReadAhead() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    moved_.notify_one();
    thread_.join();
}

void ReadAhead::used(std::size_t num_bytes) {
    {
        const std::lock_guard lock(mutex_);
        used_ += num_bytes;
    }
    moved_.notify_one();
}

bool ReadAhead::wait_for_room(std::size_t asked) {
    std::unique_lock lock(mutex_);
    moved_.wait(lock, [&] { return stop_ || asked < used_ + window_bytes; });
    return !stop_;
}

void ReadAhead::run() {
    static const auto page = static_cast<std::uintptr_t>(::sysconf(_SC_PAGESIZE));
    std::size_t asked = 0;
    for (const std::span<const std::byte> range : ranges_) {
        for (std::size_t done = 0; done < range.size(); done += step_bytes) {
            const std::size_t step = std::min(step_bytes, range.size() - done);
            if (!wait_for_room(asked)) return;
            const auto begin = reinterpret_cast<std::uintptr_t>(range.data() + done);
            const std::uintptr_t first = begin / page * page;
            ::madvise(reinterpret_cast<void*>(first), begin + step - first, MADV_WILLNEED);  // advice: may fail
            asked += step;
        }
    }
}

}  // namespace longhaul::engine
