// Layout of keys and values in a page on the GPU:
//   page   [layer, kv_head, {keys, values}] blocks
//   block  rows [64 slots][row_bytes], followed for int8 by the scales f32 [64 slots]
//   row    head_dim elements, padded with zeros to a multiple of 16 bytes (bf16: of 32, one step of a tensor core)
// The keys of a head and page are contiguous (16 KB for 128 dimensions of bf16) and read in 16-byte pieces, a row has
// the layout that ldmatrix expects in shared memory, and a checkpoint copies its part of a page at once. Padding is
// zeroed by the allocation and never written.
#pragma once

#include <cstdint>

#include "kernels/device.hpp"
#include "kernels/host_device.hpp"

namespace longhaul::kernels::cuda {

struct KvShape {
    explicit KvShape(const KvLayout& layout)
        : head_dim(static_cast<int>(layout.head_dim)),
          num_kv_heads(static_cast<int>(layout.num_kv_heads)),
          row_bytes(row_bytes_of(layout)),
          block_bytes(static_cast<int>(KvLayout::page_tokens) * (row_bytes + (layout.dtype == DType::int8 ? 4 : 0))) {}

    int head_dim;
    int num_kv_heads;
    int row_bytes;    ///< stride between slots
    int block_bytes;  ///< keys (or values) of one head

    /// Byte offset in a page of the keys (or values) of a head.
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t block(std::int64_t layer, std::int64_t kv_head, bool values) const {
        return ((layer * num_kv_heads + kv_head) * 2 + (values ? 1 : 0)) * block_bytes;
    }
    /// Byte offset of the scales in a block; int8 only.
    [[nodiscard]] LONGHAUL_HOST_DEVICE int scales() const {
        return static_cast<int>(KvLayout::page_tokens) * row_bytes;
    }

  private:
    static int row_bytes_of(const KvLayout& layout) {
        const int elements = static_cast<int>(layout.head_dim);
        const int bytes = layout.dtype == DType::int8 ? elements : elements * static_cast<int>(bytes_of(layout.dtype));
        const int unit = layout.dtype == DType::bf16 ? 32 : 16;
        return (bytes + unit - 1) / unit * unit;
    }
};

}  // namespace longhaul::kernels::cuda
