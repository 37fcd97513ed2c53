// Transfers from host to device through page-locked buffers (staging.hpp).
#include "kernels/cuda/staging.hpp"

#include <algorithm>
#include <utility>

namespace longhaul::kernels::cuda {

Pinned::Pinned(std::size_t num_bytes) : data_(allocate_pinned(num_bytes)), num_bytes_(num_bytes) {}
Pinned::Pinned(Pinned&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), num_bytes_(std::exchange(other.num_bytes_, 0)) {}
Pinned& Pinned::operator=(Pinned&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(num_bytes_, other.num_bytes_);
    return *this;
}
Pinned::~Pinned() {
    if (data_ != nullptr) release_pinned(data_);
}

void PinnedRing::send(std::byte* to, const void* from, std::size_t num_bytes) {
    const auto* bytes = static_cast<const std::byte*>(from);
    for (std::size_t at = 0; at < num_bytes; at += piece_bytes) {
        send_piece(to + at, bytes + at, std::min(piece_bytes, num_bytes - at));
    }
}

void PinnedRing::send_piece(std::byte* to, const std::byte* from, std::size_t num_bytes) {
    Turn& turn = turns_[next_];
    next_ = (next_ + 1) % turns_.size();
    if (turn.used) turn.sent.synchronize();
    if (turn.memory.num_bytes() < num_bytes) {
        constexpr std::size_t min_bytes = 64 << 10;
        turn.memory = Pinned(std::max(num_bytes, std::min(piece_bytes, std::max(min_bytes, 2 * num_bytes))));
    }
    std::memcpy(turn.memory.data(), from, num_bytes);
    copy(stream_, to, turn.memory.data(), num_bytes);
    turn.sent.record(stream_);
    turn.used = true;
}

}  // namespace longhaul::kernels::cuda
