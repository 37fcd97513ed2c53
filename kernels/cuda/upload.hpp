// Small arrays of the host that kernels of a pass read: gathered in page-locked memory and sent in one copy, which the
// host does not wait for.
#pragma once

#include <array>
#include <cstring>
#include <span>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

class Upload {
  public:
    /// Begins the next sending of at most `num_bytes`, parts rounded up to 16.
    void begin(std::size_t num_bytes) {
        turn_ = 1 - turn_;
        Side& side = sides_[turn_];
        if (side.used) side.copied.synchronize();  // as a rule done long ago: this side was sent two passes back
        if (side.host.num_bytes() < num_bytes) side.host = Pinned(num_bytes + num_bytes / 2);
        filled_ = 0;
    }
    /// Byte of the device's copy where `items` will begin.
    template <typename T>
    std::size_t add(std::span<const T> items) {
        const std::size_t at = filled_;
        if (!items.empty()) std::memcpy(sides_[turn_].host.data() + at, items.data(), items.size_bytes());
        filled_ = rounded(at + items.size_bytes());
        return at;
    }
    /// Where the device has it, once `stream` has come so far; until the next sending.
    std::byte* send(const Stream& stream) {
        Side& side = sides_[turn_];
        auto* to = device_.get<std::byte>(stream, static_cast<std::int64_t>(filled_));
        copy(stream, to, side.host.data(), filled_);
        side.copied.record(stream);
        side.used = true;
        return to;
    }
    /// Room that a part takes.
    static constexpr std::size_t rounded(std::size_t num_bytes) { return (num_bytes + 15) / 16 * 16; }

  private:
    struct Side {
        Pinned host;
        Event copied;
        bool used = false;
    };
    std::array<Side, 2> sides_;
    std::size_t turn_ = 0;
    std::size_t filled_ = 0;
    Workspace device_;
};

}  // namespace longhaul::kernels::cuda
