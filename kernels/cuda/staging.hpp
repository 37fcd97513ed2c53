// Transfers from host to device: data is copied at once into page-locked memory, and from there by the stream. The
// caller can reuse its memory when a call returns, and the host does not wait for the device unless it is several
// copies ahead.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// Page-locked buffers, used round-robin. For one stream and one thread.
class PinnedRing {
  public:
    explicit PinnedRing(const Stream& stream) : stream_(stream) {}

    /// to (device) = from (host), after all earlier operations on the stream.
    void send(std::byte* to, const void* from, std::size_t num_bytes);

  private:
    /// Larger copies are split: one piece is transferred while the next one is copied.
    static constexpr std::size_t piece_bytes = std::size_t{4} << 20;

    struct Turn {
        Pinned memory;
        Event sent;
        bool used = false;
    };
    void send_piece(std::byte* to, const std::byte* from, std::size_t num_bytes);

    const Stream& stream_;
    std::array<Turn, 4> turns_;
    std::size_t next_ = 0;
};

/// Arrays of one pass, concatenated so that one copy transfers them. Offsets are multiples of 16 bytes.
class Parcel {
  public:
    void clear() { bytes_.clear(); }

    /// Adds a copy of `values` and returns its offset.
    template <typename T>
    std::size_t add(std::span<const T> values) {
        const std::size_t offset = bytes_.size();
        bytes_.resize((offset + values.size_bytes() + 15) / 16 * 16);
        if (!values.empty()) std::memcpy(bytes_.data() + offset, values.data(), values.size_bytes());
        return offset;
    }

    [[nodiscard]] std::span<const std::byte> bytes() const { return bytes_; }

  private:
    std::vector<std::byte> bytes_;
};

}  // namespace longhaul::kernels::cuda
