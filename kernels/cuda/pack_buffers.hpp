// Transfer of weights to the GPU: pieces of a few megabytes, as stored in the model files, go through page-locked
// memory, and the GPU converts them to its own layout (pack.cu). One piece is transferred while the next one is filled.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/runtime.hpp"

namespace longhaul::kernels::cuda {

/// One source row of a piece, in device memory, from the first packed column on.
struct PieceRow {
    const std::byte* data = nullptr;  ///< nullptr: zeros
    std::int64_t num_columns = 0;
    DType dtype = DType::bf16;
};

/// Memory for one piece on host and device, with the same layout: rows [max_rows], then their columns.
struct PieceBuffer {
    static constexpr std::int64_t max_rows = 4096;
    static constexpr std::size_t min_bytes = std::size_t{16} << 20;

    /// Makes the buffer ready to be filled, with capacity for at least one row of `row_bytes`. Waits for its last use.
    void open(const Stream& stream, std::size_t row_bytes);
    /// Whether another row of `row_bytes` fits.
    [[nodiscard]] bool has_room(std::size_t row_bytes) const {
        return num_rows < max_rows && used + padded(row_bytes) <= host.num_bytes();
    }
    /// Adds a source row: copies `num_columns` columns of `dtype`; nullptr: zeros.
    void add(const std::byte* columns, std::int64_t num_columns, DType dtype);
    /// Starts the copy to the device; returns the address of the rows there, valid for later operations on the stream.
    const PieceRow* send(const Stream& stream);

    static constexpr std::size_t padded(std::size_t bytes) { return (bytes + 15) / 16 * 16; }

    Pinned host;
    Workspace device;
    std::byte* on_device = nullptr;
    Event done;  ///< the kernel that reads the piece is complete
    bool in_use = false;
    std::int64_t num_rows = 0;
    std::size_t used = 0;
};

using PackBuffers = std::array<PieceBuffer, 2>;

}  // namespace longhaul::kernels::cuda
