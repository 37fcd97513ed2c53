#include "kernels/checks.hpp"

#include <iterator>
#include <stdexcept>
#include <string>

namespace longhaul::kernels {
namespace {

void require(bool holds, const char* operation, const char* what) {
    if (!holds) throw std::logic_error(std::string(operation) + ": " + what);
}

std::int64_t pages_for(std::int64_t num_tokens) {
    return (num_tokens + KvLayout::page_tokens - 1) / KvLayout::page_tokens;
}

}  // namespace

void check_pack(DType dtype, std::span<const WeightRows> parts, int num_slices, std::int64_t slice_length) {
    require(dtype != DType::f16, "pack", "weights are kept as bf16, f32, int8 or int4");
    require(num_slices == 1 || num_slices == 2 || num_slices == 4 || num_slices == 8, "pack",
            "num_slices is 1, 2, 4 or 8");
    require(slice_length > 0 && slice_length % 2 == 0, "pack", "slice_length is even and positive");
    for (const WeightRows& part : parts) {
        require(part.num_rows >= 0, "pack", "negative number of rows");
        if (part.data == nullptr) continue;
        require(part.num_columns >= 0 && part.num_columns <= num_slices * slice_length, "pack",
                "more columns than the slices hold");
        require(part.first_column >= 0 && part.first_column + part.num_columns <= part.row_stride, "pack",
                "columns outside the source rows");
    }
}

void check_embed(const Matrix& table, std::span<const std::int32_t> rows, std::int64_t dim) {
    require(dim > 0 && dim <= table.num_inputs, "embed", "dim is more than the table holds");
    for (const std::int32_t row : rows) require(row < table.num_outputs, "embed", "row outside the table");
}

void check_matmul(const Matrix& w, std::int64_t x_stride, std::int64_t num_rows) {
    require(static_cast<bool>(w.data) || w.num_outputs == 0, "matmul", "matrix is not packed");
    require(x_stride >= w.num_inputs, "matmul", "x_stride is less than the padded inputs");
    require(w.dtype == DType::f32 || x_stride % 2 == 0, "matmul", "x_stride of bf16 rows is even");
    require(num_rows >= 0, "matmul", "negative number of rows");
}

void check_gated(const Matrix& w, DType act, std::int64_t num_rows, std::int64_t out_stride) {
    require(w.gated && w.num_outputs % 2 == 0, "gated_matmul", "matrix was not packed by pack_gated");
    check_act_rows("gated_matmul", act, num_rows, w.num_outputs / 2, out_stride);
}

void check_act_rows(const char* operation, DType act, std::int64_t num_rows, std::int64_t width,
                    std::int64_t out_stride) {
    require(act != DType::f16, operation, "act is bf16 or f32");
    require(num_rows >= 0 && width > 0, operation, "empty rows");
    require(out_stride >= width, operation, "out_stride is less than the width");
}

void check_rope(const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, bool together) {
    const bool known = layout.dtype == DType::bf16 || layout.dtype == DType::f32 || layout.dtype == DType::int8;
    require(known, "kv layout", "dtype is bf16, f32 or int8");
    require(layout.head_dim > 0 && layout.head_dim % 2 == 0, "kv layout", "head_dim is even");
    require(layout.pages_together == 1 || (together && layout.pages_together > 1), "kv layout",
            "pages_together must be Device::kv_pages_together");
    // A 32-bit sum holds 512 products of 16-bit and 8-bit integers (kv_int8.hpp).
    require(layout.dtype != DType::int8 || layout.head_dim <= 512, "kv layout",
            "int8 KV needs head_dim of at most 512");
    require(layer >= 0 && layer < layout.num_layers, "kv layout", "no such layer");
    require(layout.num_kv_heads == 0 || q_heads % layout.num_kv_heads == 0, "kv layout",
            "query heads are a multiple of the KV heads");
}

void check_layout(const KvLayout& layout, std::int64_t layer, std::int64_t q_heads, bool together) {
    check_rope(layout, layer, q_heads, together);
    require(layout.num_kv_heads > 0, "kv layout", "there are KV heads");
}

void check_qkv(const Matrix& w, const KvLayout& layout, std::int64_t q_heads) {
    require(!w.gated && w.num_outputs == (q_heads + 2 * layout.num_kv_heads) * layout.head_dim, "qkv_matmul",
            "matrix outputs do not match the heads");
}

void check_whole_heads(const KvLayout& layout, std::int64_t q_heads, const WholeHeads& of) {
    const bool within = of.first_q >= 0 && of.first_q + q_heads <= of.num_q && of.first_kv >= 0 &&
                        of.first_kv + layout.num_kv_heads <= of.num_kv;
    require(within, "norm over all heads", "heads outside the model's");
    require(of.q_per_norm == 0 || of.num_q % of.q_per_norm == 0, "norm over all heads", "heads not in equal parts");
}

void check_rows_of_pass(const PassRows& pass, std::int64_t num_rows) {
    require(num_rows == static_cast<std::int64_t>(pass.slots.size()), "qkv_matmul", "rows are not those of the pass");
}

namespace {

void check_row(const AttentionRow& row, std::span<const AttentionSequence> sequences) {
    require(row.sequence >= 0 && static_cast<std::size_t>(row.sequence) < sequences.size(), "attention",
            "no such sequence");
    require(row.position >= 0 && row.in_pages >= 0 && row.in_pages <= row.position + 1, "attention",
            "0 <= in_pages <= position + 1 does not hold");
    const AttentionSequence& sequence = sequences[row.sequence];
    require(pages_for(row.in_pages) <= static_cast<std::int64_t>(sequence.pages.size()), "attention",
            "the sequence has fewer pages than the row reads");
    require(row.in_pages == row.position + 1 || row.path != nullptr, "attention", "path is missing");
    for (std::int64_t i = 0; i < row.position + 1 - row.in_pages; ++i) {
        require(row.path[i] >= 0 &&
                    row.path[i] / KvLayout::page_tokens < static_cast<std::int64_t>(sequence.scratch_pages.size()),
                "attention", "scratch slot outside the scratch pages");
    }
}

}  // namespace

void check_pass(const PassRows& pass) {
    const std::int64_t num_rows = pass.rows.size();
    require(pass.first_prompt_row >= 0 && pass.num_prompt_rows >= 0 &&
                pass.first_prompt_row + pass.num_prompt_rows <= num_rows,
            "pass", "prompt rows are outside the pass");
    for (std::int64_t g = 0; g < pass.num_groups(); ++g) {
        const GroupRows group = pass.group(g);
        for (const KvSlot& slot : group.slots) {
            if (slot.page != nullptr) check_slot(slot);
        }
        require(group.slots.size() == pass.slots.size() && group.rows.size() == pass.rows.size(), "pass",
                "groups have different numbers of rows");
        for (const AttentionRow& row : group.rows) check_row(row, group.sequences);
    }
    for (const PassAngles& angles : pass.angles) {
        const bool there = pass.num_angles > 0 && angles.cos != nullptr && angles.sin != nullptr;
        require(pass.slots.empty() || there, "pass", "angles are missing");
        require((angles.query_cos == nullptr) == (angles.query_sin == nullptr), "pass",
                "angles of queries are missing");
    }
}

PassAngles angles_of(const PassRows& pass, const KvLayout& layout) {
    require(layout.angles >= 0 && layout.angles < std::ssize(pass.angles), "rope_store", "no such angles");
    PassAngles angles = pass.angles[static_cast<std::size_t>(layout.angles)];
    if (angles.query_cos == nullptr) {
        angles.query_cos = angles.cos;
        angles.query_sin = angles.sin;
    }
    return angles;
}

void check_slots(const KvLayout& layout, std::int64_t layer, std::int64_t kv_head, std::int64_t first,
                 std::int64_t count) {
    require(layer >= 0 && layer < layout.num_layers, "kv", "no such layer");
    require(kv_head >= 0 && kv_head < layout.num_kv_heads, "kv", "no such head");
    require(first >= 0 && count >= 0 && first + count <= KvLayout::page_tokens, "kv", "slots outside the page");
}

void check_slot(const KvSlot& slot) {
    require(slot.slot >= 0 && slot.slot < KvLayout::page_tokens, "kv", "slot outside the page");
}

void check_range(const PositionRange& range) {
    require(range.first >= 0 && range.count > 0 && range.count <= range.end - range.first, "rank_positions",
            "0 < count <= end - first does not hold");
    require(pages_for(range.end) <= static_cast<std::int64_t>(range.pages.size()), "rank_positions",
            "positions outside the pages");
}

void check_weighted_sums(std::span<const WeightedRow> terms, std::int64_t per_row) {
    require(per_row > 0 && static_cast<std::int64_t>(terms.size()) % per_row == 0, "weighted_sums",
            "the terms are not those of whole rows");
}

void check_gathered(std::int64_t count, std::span<std::byte* const> to, std::int64_t first_slot) {
    require(count >= 0 && first_slot >= 0 && pages_for(first_slot + count) <= static_cast<std::int64_t>(to.size()),
            "gather_positions", "slots outside the pages");
}

void check_box(const KvLayout& layout, std::span<std::byte* const> pages, const KvBox& box, std::size_t head_stride) {
    require(box.first_layer >= 0 && box.num_layers >= 0 && box.first_layer + box.num_layers <= layout.num_layers, "kv",
            "no such layers");
    require(box.first_head >= 0 && box.num_heads >= 0 && box.first_head + box.num_heads <= layout.num_kv_heads, "kv",
            "no such heads");
    require(
        box.first >= 0 && box.count >= 0 && pages_for(box.first + box.count) <= static_cast<std::int64_t>(pages.size()),
        "kv", "positions outside the pages");
    require(head_stride >= static_cast<std::size_t>(box.count) * layout.token_bytes(), "kv", "heads overlap");
}

}  // namespace longhaul::kernels
