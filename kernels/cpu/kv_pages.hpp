// Layout of keys and values in a slab of the CPU devices, in elements (used by cpu_kv.cpp and cpu_attention.cpp):
//   slab    [layer, kv_head, {keys, values}, page]: the parts of KvLayout::pages_together pages are interleaved
//   keys    bf16, int8 [slot/16][dim/2][16 slots][2 dims]    f32 [slot/16][dim][16 slots]
//   values  bf16, int8 [dim/16][slot/2][16 dims][2 slots]    f32 [dim/16][slot][16 dims]
// The dims of values are padded to 16 with zeros. For int8 the scales, f32 [slot], follow keys and values.
// Both have the weight layout of kernel_table.hpp: keys with tokens as outputs, values with dimensions as outputs.
#pragma once

#include <cstdint>

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels::cpu {

class KvPages {
  public:
    explicit KvPages(const KvLayout& layout)
        : layout_(layout),
          element_bytes_(layout.dtype == DType::f32    ? 4
                         : layout.dtype == DType::bf16 ? 2
                                                       : 1),
          scales_(layout.dtype == DType::int8 ? page_tokens * 4 : 0),
          padded_dim_((layout.head_dim + lanes - 1) / lanes * lanes) {}

    [[nodiscard]] std::int64_t padded_dim() const { return padded_dim_; }
    [[nodiscard]] std::int64_t element_bytes() const { return element_bytes_; }
    [[nodiscard]] bool has_scales() const { return scales_ > 0; }
    /// Elements of one (layer, head) and page. Pages are interleaved only if keys and values have the same size.
    [[nodiscard]] std::int64_t keys_elements() const { return page_tokens * layout_.head_dim + scales_; }
    [[nodiscard]] std::int64_t values_elements() const { return page_tokens * padded_dim_ + scales_; }
    [[nodiscard]] std::int64_t head_elements() const { return keys_elements() + values_elements(); }
    /// From the start of the page to the keys of one head.
    [[nodiscard]] std::int64_t head(std::int64_t layer, std::int64_t kv_head) const {
        return (layer * layout_.num_kv_heads + kv_head) * head_elements() * layout_.pages_together;
    }
    /// From the keys to the values of the same head.
    [[nodiscard]] std::int64_t values() const { return keys_elements() * layout_.pages_together; }
    [[nodiscard]] std::int64_t elements() const { return layout_.num_layers * layout_.num_kv_heads * head_elements(); }

    /// Index of dimension `dim` of the key (value) in `slot`, from the start of the head's keys.
    [[nodiscard]] std::int64_t key(std::int64_t slot, std::int64_t dim) const {
        if (element_bytes_ == 4) return ((slot / lanes) * layout_.head_dim + dim) * lanes + slot % lanes;
        return ((slot / lanes) * (layout_.head_dim / 2) + dim / 2) * 2 * lanes + slot % lanes * 2 + dim % 2;
    }
    [[nodiscard]] std::int64_t value(std::int64_t slot, std::int64_t dim) const {
        const std::int64_t at = element_bytes_ != 4 ? ((dim / lanes) * (page_tokens / 2) + slot / 2) * 2 * lanes +
                                                          dim % lanes * 2 + slot % 2
                                                    : ((dim / lanes) * page_tokens + slot) * lanes + dim % lanes;
        return values() + at;
    }
    /// Byte offset of the scale of a key (value) from the start of the head's keys; int8 only.
    [[nodiscard]] std::int64_t scale_at(bool is_value, std::int64_t slot) const {
        return (is_value ? values() + page_tokens * padded_dim_ : page_tokens * layout_.head_dim) + slot * 4;
    }

  private:
    KvLayout layout_;
    std::int64_t element_bytes_;
    std::int64_t scales_;  ///< bytes of the scales of the keys (values) of one head and page
    std::int64_t padded_dim_;
};

/// An attention job over the keys and values of one layer; the caller sets queries, scale and output.
inline AttentionJob attention_job(const KvLayout& layout, std::int64_t layer, std::int64_t q_heads) {
    const KvPages pages(layout);
    const std::int64_t element = pages.element_bytes();
    return {.bf16 = layout.dtype == DType::bf16,
            .int8 = layout.dtype == DType::int8,
            .head_dim = layout.head_dim,
            .padded_dim = pages.padded_dim(),
            .group_heads = q_heads / layout.num_kv_heads,
            .q_heads = q_heads,
            .keys_offset = pages.head(layer, 0) * element,
            .part_bytes = pages.values_elements() * element,
            .head_stride = pages.head(0, 1) * element,
            .values_offset = pages.values() * element,
            .scale = 1.0F,
            .score_cap = layout.score_cap,
            .q = nullptr,
            .sinks = nullptr,
            .act_bf16 = false,
            .out = nullptr,
            .out_stride = 0};
}

}  // namespace longhaul::kernels::cpu
