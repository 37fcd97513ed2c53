#include "kernels/cuda/staging.hpp"

#include <algorithm>
#include <utility>

namespace longhaul::kernels::cuda {

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
        constexpr std::size_t least_bytes = 64 << 10;
        turn.memory = Pinned(std::max(num_bytes, std::min(piece_bytes, std::max(least_bytes, 2 * num_bytes))));
    }
    std::memcpy(turn.memory.data(), from, num_bytes);
    copy(stream_, to, turn.memory.data(), num_bytes);
    turn.sent.record(stream_);
    turn.used = true;
}

}  // namespace longhaul::kernels::cuda
