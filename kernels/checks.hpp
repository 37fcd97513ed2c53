// Argument checks for all devices. A wrong call is a bug of the engine and throws std::logic_error with the name of the
// operation. User input never reaches these.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/device.hpp"

namespace longhaul::kernels {

void check_pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length);
void check_embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim);
void check_matmul(const Matrix& w, std::int64_t x_stride, std::int64_t num_rows);
/// For gated_matmul.
void check_gated(const Matrix& w, DType act, std::int64_t num_rows, std::int64_t out_stride);
void check_weighted_sums(std::span<const WeightedRow> terms, std::int64_t per_row);
void check_act_rows(const char* operation, DType act, std::int64_t num_rows, std::int64_t width,
                    std::int64_t out_stride);
/// For rope_store, whose layout may lack KV heads. `together`: the device supports interleaved pages
/// (KvLayout::pages_together > 1).
void check_rope(const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, bool together = false);
void check_layout(const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, bool together = false);
/// For a matmul whose outputs are queries, keys and values.
void check_qkv(const Matrix& w, const KvLayout& layout, std::int64_t q_heads);
void check_whole_heads(const KvLayout& layout, std::int64_t q_heads, const WholeHeads& of);
void check_rows_of_pass(const PassRows& pass, std::int64_t num_rows);
void check_pass(const PassRows& pass);
/// The angles of a layout, with those of queries.
PassAngles angles_of(const PassRows& pass, const KvLayout& layout);
void check_slots(const KvLayout& layout, std::int64_t layer, std::int64_t kv_head, std::int64_t first,
                 std::int64_t count);
void check_slot(const KvSlot& slot);
void check_range(const PositionRange& range);
/// For gather_positions.
void check_gathered(std::int64_t count, std::span<std::byte* const> to, std::int64_t first_slot);
void check_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::size_t head_stride);

}  // namespace longhaul::kernels
