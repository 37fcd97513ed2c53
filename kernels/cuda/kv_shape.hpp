// Where keys and values stand in a page of the GPU:
//   page   [layer, kv_head, {keys, values}] blocks
//   block  rows [64 slots][row_bytes], behind them for int8 the scales f32 [64 slots]
//   row    head_dim elements, then zeros up to a multiple of 16 bytes (bf16: of 32, which is one step of a tensor core)
// So the keys of a head and page are one run of memory (16 KB for 128 dimensions of bf16) that is read in 16-byte
// pieces, a row is what ldmatrix wants to find in shared memory, and what a checkpoint takes of a page is one copy.
// Padding is zero from allocation on and never written.
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
    int row_bytes;    ///< from one slot to the next
    int block_bytes;  ///< of the keys (values) of one head

    /// Byte of a page where the keys (values) of a head begin.
    [[nodiscard]] LONGHAUL_HOST_DEVICE std::int64_t block(std::int64_t layer, std::int64_t kv_head, bool values) const {
        return ((layer * num_kv_heads + kv_head) * 2 + (values ? 1 : 0)) * block_bytes;
    }
    /// Byte of a block where the scales begin; int8 only.
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
