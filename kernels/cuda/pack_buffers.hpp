// How weights reach the GPU: as they lie in checkpoints, a few megabytes at a time, through page-locked memory; the GPU
// puts them into its own order (pack.cu). While one piece travels the next is copied.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// One source row of a piece: on the device, from the first packed column.
struct PieceRow {
    const std::byte* data = nullptr;  ///< nullptr: zeros
    std::int64_t num_columns = 0;
    DType dtype = DType::bf16;
};

/// Memory for one piece: host and device, rows [max_rows] and then their columns, alike.
struct PieceBuffer {
    static constexpr std::int64_t max_rows = 4096;
    static constexpr std::size_t min_bytes = std::size_t{16} << 20;

    /// Ready to be filled, with room for a row of `row_bytes`.
    void open(const Stream& stream, std::size_t row_bytes);
    /// Whether `row_bytes` more find room.
    [[nodiscard]] bool has_room(std::size_t row_bytes) const {
        return num_rows < max_rows && used + padded(row_bytes) <= host.num_bytes();
    }
    /// A source row: columns first.. of `dtype`, copied; nullptr: zeros.
    void add(const std::byte* columns, std::int64_t num_columns, DType dtype);
    /// The rows on the device, behind the copy that this asks for.
    const PieceRow* send(const Stream& stream);

    static constexpr std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

    Pinned host;
    Workspace device;
    std::byte* on_device = nullptr;
    Event done;  ///< what was made of the piece
    bool in_use = false;
    std::int64_t num_rows = 0;
    std::size_t used = 0;
};

using PackBuffers = std::array<PieceBuffer, 2>;

}  // namespace longhaul::kernels::cuda
