// KV cache and attention of the reference device.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/checks.hpp"
#include "kernels/convert.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/kv_int8.hpp"
#include "kernels/numerics.hpp"
#include "kernels/reference/reference_device.hpp"
#include "kernels/reference/reference_math.hpp"
#include "kernels/team.hpp"

namespace longhaul::kernels::reference {

std::int64_t kv_offset(const KvLayout& layout, std::int64_t layer, std::int64_t kv_head, bool values,
                       std::int64_t slot) {
    const std::int64_t block = (layer * layout.num_kv_heads + kv_head) * 2 + (values ? 1 : 0);
    return (block * KvLayout::page_tokens + slot) * static_cast<std::int64_t>(layout.token_bytes());
}

namespace {

/// Finds the keys and values that one row of an attention call reads, by absolute position.
struct RowMemory {
    const KvLayout& layout;
    std::int64_t layer;
    std::int64_t kv_head;
    const AttentionSequence& sequence;
    const AttentionRow& row;
    Bf16Order order;

    [[nodiscard]] bool in_blocks() const { return layout.dtype == DType::bf16 && order == Bf16Order::blocks; }
    /// The key (or value) at a position, token_bytes() long.
    [[nodiscard]] const std::byte* token(std::int64_t position, bool values) const {
        const bool paged = position < row.in_pages;
        const std::int64_t slot = paged ? position : row.path[position - row.in_pages];
        const std::span<std::byte* const> pages = paged ? sequence.pages : sequence.scratch_pages;
        const std::byte* page = pages[slot / KvLayout::page_tokens];
        return page + kv_offset(layout, layer, kv_head, values, slot % KvLayout::page_tokens);
    }
    [[nodiscard]] float at(std::int64_t position, bool values, std::int64_t d) const {
        return load_as_f32(token(position, values), layout.dtype, d);
    }
    [[nodiscard]] std::int32_t quantized_at(std::int64_t position, bool values, std::int64_t d) const {
        return static_cast<std::int8_t>(token(position, values)[d]);
    }
    [[nodiscard]] float scale_at(std::int64_t position, bool values) const {
        float scale;
        std::memcpy(&scale, token(position, values) + layout.head_dim, sizeof scale);
        return scale;
    }
};

/// Running softmax of one query head: maximum, sum and weighted values of the chunks merged so far.
struct Softmax {
    explicit Softmax(std::int64_t head_dim) : output(head_dim, 0.0F) {}

    float maximum = -std::numeric_limits<float>::infinity();
    float sum = 0.0F;
    std::vector<float> output;  // [head_dim]
};

float int8_score_of(const RowMemory& memory, const std::byte* q, std::int64_t position, float scale) {
    const std::int64_t head_dim = memory.layout.head_dim;
    const auto* x = reinterpret_cast<const float*>(q);
    const QuantizationScale query = QuantizationScale::of(largest_magnitude(x, head_dim), max_quantized_query);
    std::int32_t sum = 0;
    for (std::int64_t d = 0; d < head_dim; ++d) sum += query.whole(x[d]) * memory.quantized_at(position, false, d);
    return static_cast<float>(sum) * (query.scale * scale) * memory.scale_at(position, false);
}

float score_of(const RowMemory& memory, const std::byte* q, std::int64_t position, float scale) {
    const DType dtype = memory.layout.dtype;
    if (dtype == DType::int8) return int8_score_of(memory, q, position, scale);
    if (memory.in_blocks()) {
        const float dot = sum_in_blocks(
            memory.layout.head_dim, [&](std::int64_t d) { return load_as_f32(q, dtype, d); },
            [&](std::int64_t d) { return memory.at(position, false, d); });
        return dot * scale;
    }
    float dot = 0.0F;
    for (std::int64_t i = 0; i < memory.layout.head_dim; ++i) {
        const std::int64_t d = dtype == DType::bf16 ? (i ^ 1) : i;
        dot = std::fma(load_as_f32(q, dtype, d), memory.at(position, false, d), dot);
    }
    return dot * scale;
}

/// Adds up the values from position `first` on, weighted with `p`, in integers.
void add_int8_values(const RowMemory& memory, const std::vector<float>& p, std::int64_t first,
                     std::vector<float>& output) {
    std::vector<float> weights;
    float largest = 0.0F;
    for (std::size_t i = 0; i < p.size(); ++i) {
        const float weight = p[i] * memory.scale_at(first + static_cast<std::int64_t>(i), true);
        weights.push_back(weight > 0.0F ? weight : 0.0F);
        largest = std::max(largest, weights.back());
    }
    const QuantizationScale whole = QuantizationScale::of(largest, max_quantized_query);
    for (std::size_t d = 0; d < output.size(); ++d) {
        std::int32_t sum = 0;
        for (std::size_t i = 0; i < weights.size(); ++i) {
            sum += whole.whole(weights[i]) *
                   memory.quantized_at(first + static_cast<std::int64_t>(i), true, static_cast<std::int64_t>(d));
        }
        output[d] = static_cast<float>(sum) * whole.scale;
    }
}

/// Softmax over positions first..last (first is a multiple of 512, last is in the same chunk), of which those before
/// the row's window have probability 0.
Softmax chunk_of(const RowMemory& memory, const std::byte* q, std::int64_t first, std::int64_t last) {
    const KvLayout& layout = memory.layout;
    const float scale = 1.0F / std::sqrt(static_cast<float>(layout.head_dim));
    Softmax chunk(layout.head_dim);
    std::vector<float> p;
    const std::int64_t visible = memory.row.first_visible(layout.window);
    for (std::int64_t position = first; position <= last; ++position) {
        float score = -std::numeric_limits<float>::infinity();
        if (position >= visible) score = score_of(memory, q, position, scale);
        if (position >= visible && layout.score_cap > 0) score = soft_capped(score, layout.score_cap);
        p.push_back(score);
        if (p.back() > chunk.maximum) chunk.maximum = p.back();
    }
    LaneSum denominator;
    for (std::size_t i = 0; i < p.size(); ++i) {
        p[i] = exp_of(p[i] - chunk.maximum);
        denominator.add(static_cast<std::int64_t>(i), p[i]);
        if (layout.dtype == DType::bf16) p[i] = bf16_to_f32(f32_to_bf16(p[i]));
    }
    chunk.sum = denominator.total();
    if (layout.dtype == DType::int8) {
        add_int8_values(memory, p, first, chunk.output);
        return chunk;
    }
    const std::int64_t count = p.size();
    for (std::int64_t d = 0; d < layout.head_dim; ++d) {
        const auto probability = [&](std::int64_t i) { return p[i]; };
        const auto value = [&](std::int64_t i) { return memory.at(first + i, true, d); };
        float sum = memory.in_blocks() ? sum_in_blocks(count, probability, value) : 0.0F;
        for (std::int64_t j = 0; j < (count + 1) / 2 * 2 && !memory.in_blocks(); ++j) {
            const std::int64_t i = layout.dtype == DType::bf16 ? (j ^ 1) : j;
            if (i < count) sum = std::fma(probability(i), value(i), sum);
        }
        // + 0 turns -0 into +0, because absent positions may or may not have been added with p = 0.
        chunk.output[d] = sum + 0.0F;
    }
    return chunk;
}

void merge(Softmax& left, const Softmax& right) {
    const float maximum = left.maximum > right.maximum ? left.maximum : right.maximum;
    const float a = exp_of(left.maximum - maximum);
    const float b = exp_of(right.maximum - maximum);
    left.maximum = maximum;
    left.sum = left.sum * a + right.sum * b;
    for (std::size_t d = 0; d < left.output.size(); ++d) {
        left.output[d] = left.output[d] * a + right.output[d] * b;
    }
}

/// merge() with one more position, of this score, whose value is zero.
void merge_sink(Softmax& left, float sink) {
    const float maximum = left.maximum > sink ? left.maximum : sink;
    const float a = exp_of(left.maximum - maximum);
    left.sum = left.sum * a + exp_of(sink - maximum);
    for (float& value : left.output) value *= a;
}

}  // namespace

void ReferenceDevice::attention(const KvLayout& layout, std::int64_t layer, const std::byte* q, std::int64_t q_heads,
                                const float* sinks, DType act, std::byte* out, std::int64_t out_stride) {
    check_layout(layout, layer, q_heads);
    const GroupRows group = pass().group(layout.group);
    const std::span<const AttentionRow> rows = group.rows;
    const std::int64_t head_dim = layout.head_dim;
    const std::int64_t width = q_heads * head_dim;
    check_act_rows("attention", act, rows.size(), width, out_stride);
    const auto tasks = static_cast<std::int64_t>(rows.size()) * q_heads;
    const bool worth_threads = tasks > 64;
    Team::mine().run(worth_threads ? threads_ : 1, [&](Member& member) {
        const FlushDenormals flush;
        const auto [first_task, end_task] = member.share_of(tasks);
        for (std::int64_t task = first_task; task < end_task; ++task) {
            const std::int64_t r = task / q_heads;
            const std::int64_t head = task % q_heads;
            const AttentionRow& row = rows[r];
            const RowMemory memory{layout, layer, head / (q_heads / layout.num_kv_heads), group.sequences[row.sequence],
                                   row,    order_};
            const std::byte* q_head = q + task * head_dim * bytes_of(layout.query_type());
            Softmax state(head_dim);
            const std::int64_t visible = row.first_visible(layout.window);
            for (std::int64_t first = visible / attention_chunk * attention_chunk; first <= row.position;
                 first += attention_chunk) {
                const std::int64_t last = std::min(first + attention_chunk - 1, row.position);
                merge(state, chunk_of(memory, q_head, first, last));
            }
            if (sinks != nullptr) merge_sink(state, sinks[head]);
            for (std::int64_t d = 0; d < head_dim; ++d) {
                store_rounded(out, act, r * out_stride + head * head_dim + d, state.output[d] / state.sum);
            }
        }
    });
    for (std::size_t r = 0; r < rows.size(); ++r) {
        for (std::int64_t i = width; i < out_stride; ++i) {
            store_rounded(out, act, static_cast<std::int64_t>(r) * out_stride + i, 0.0F);
        }
    }
}

namespace {

/// The query that ranks positions for a KV head: the sum of its query heads, of the query type.
std::vector<std::byte> group_query(const KvLayout& layout, const std::byte* q, std::int64_t group_heads,
                                   std::int64_t kv_head) {
    const DType dtype = layout.query_type();
    std::vector<std::byte> query(static_cast<std::size_t>(layout.head_dim) * bytes_of(dtype));
    for (std::int64_t d = 0; d < layout.head_dim; ++d) {
        float sum = 0.0F;
        for (std::int64_t g = 0; g < group_heads; ++g) {
            sum += load_as_f32(q, dtype, (kv_head * group_heads + g) * layout.head_dim + d);
        }
        store_rounded(query.data(), dtype, d, sum);
    }
    return query;
}

}  // namespace

void ReferenceDevice::rank_positions(const KvLayout& layout, std::int64_t layer, const std::byte* q,
                                     std::int64_t q_heads, const PositionRange& range, std::int32_t* positions) {
    check_layout(layout, layer, q_heads);
    check_range(range);
    const FlushDenormals flush;
    const AttentionSequence sequence{range.pages, {}};
    const AttentionRow row{.position = range.end - 1, .in_pages = range.end};
    for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
        const RowMemory memory{layout, layer, h, sequence, row, order_};
        const std::vector<std::byte> query = group_query(layout, q, q_heads / layout.num_kv_heads, h);
        std::vector<std::pair<float, std::int32_t>> ranked;
        for (std::int64_t position = range.first; position < range.end; ++position) {
            const float score = score_of(memory, query.data(), position, 1.0F);
            ranked.emplace_back(std::isnan(score) ? -std::numeric_limits<float>::infinity() : score, position);
        }
        std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
        std::int32_t* chosen = positions + h * range.count;
        for (std::int64_t i = 0; i < range.count; ++i) chosen[i] = ranked[i].second;
        std::sort(chosen, chosen + range.count);
    }
}

void ReferenceDevice::gather_positions(const KvLayout& layout, std::int64_t layer, std::span<std::byte* const> from,
                                       const std::int32_t* positions, std::int64_t count,
                                       std::span<std::byte* const> to, std::int64_t first_slot) {
    check_layout(layout, layer, layout.num_kv_heads);
    check_gathered(count, to, first_slot);
    constexpr std::int64_t page_tokens = KvLayout::page_tokens;
    for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
        for (std::int64_t i = 0; i < count; ++i) {
            const std::int64_t position = positions[h * count + i], slot = first_slot + i;
            for (const bool values : {false, true}) {
                std::memcpy(to[slot / page_tokens] + kv_offset(layout, layer, h, values, slot % page_tokens),
                            from[position / page_tokens] + kv_offset(layout, layer, h, values, position % page_tokens),
                            layout.token_bytes());
            }
        }
    }
}

std::size_t ReferenceDevice::kv_page_bytes(const KvLayout& layout) const {
    return kv_offset(layout, layout.num_layers, 0, false, 0);
}

namespace {

/// Converts one key or value to the layout's type, in the form described at KvLayout::token_bytes.
void store_token(const KvLayout& layout, const float* x, std::byte* to) {
    if (layout.dtype != DType::int8) {
        for (std::int64_t d = 0; d < layout.head_dim; ++d) store_rounded(to, layout.dtype, d, x[d]);
        return;
    }
    const QuantizationScale whole = QuantizationScale::of(largest_magnitude(x, layout.head_dim), max_quantized_kv);
    for (std::int64_t d = 0; d < layout.head_dim; ++d) to[d] = static_cast<std::byte>(whole.whole(x[d]));
    std::memcpy(to + layout.head_dim, &whole.scale, sizeof whole.scale);
}

}  // namespace

void ReferenceDevice::rope_store(const KvLayout& layout, std::int64_t layer, const float* qkv, std::int64_t q_heads,
                                 std::byte* q_out) {
    check_rope(layout, layer, q_heads);
    const std::span<const KvSlot> slots = pass().group(layout.group).slots;
    const PassAngles angles = angles_of(pass(), layout);
    const FlushDenormals flush;
    const std::int64_t head_dim = layout.head_dim;
    const std::int64_t half = head_dim / 2;
    std::vector<float> rotated(head_dim);
    for (std::size_t r = 0; r < slots.size(); ++r) {
        const std::int64_t row = r;
        const auto rotate = [&](const float* x, const float* cos, const float* sin) {
            const float *c = cos + row * half, *s = sin + row * half;
            for (std::int64_t i = 0; i < half; ++i) {
                rotated[i] = x[i] * c[i] - x[i + half] * s[i];
                rotated[i + half] = x[i + half] * c[i] + x[i] * s[i];
            }
        };
        const float* x = qkv + row * (q_heads + 2 * layout.num_kv_heads) * head_dim;
        for (std::int64_t h = 0; h < q_heads; ++h) {
            rotate(x + h * head_dim, angles.query_cos, angles.query_sin);
            for (std::int64_t d = 0; d < head_dim; ++d) {
                store_rounded(q_out, layout.query_type(), (row * q_heads + h) * head_dim + d, rotated[d]);
            }
        }
        if (slots[r].page == nullptr) continue;
        const float* keys = x + q_heads * head_dim;
        const float* values = keys + layout.num_kv_heads * head_dim;
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            rotate(keys + h * head_dim, angles.cos, angles.sin);
            store_token(layout, rotated.data(), slots[r].page + kv_offset(layout, layer, h, false, slots[r].slot));
            store_token(layout, values + h * head_dim,
                        slots[r].page + kv_offset(layout, layer, h, true, slots[r].slot));
        }
    }
}

void ReferenceDevice::kv_move(const KvLayout& layout, KvSlot from, KvSlot to) {
    check_slot(from);
    check_slot(to);
    for (std::int64_t layer = 0; layer < layout.num_layers; ++layer) {
        for (std::int64_t h = 0; h < layout.num_kv_heads; ++h) {
            for (const bool values : {false, true}) {
                std::memmove(to.page + kv_offset(layout, layer, h, values, to.slot),
                             from.page + kv_offset(layout, layer, h, values, from.slot), layout.token_bytes());
            }
        }
    }
}

void ReferenceDevice::kv_export(const KvLayout& layout, const std::byte* page, std::int64_t layer, std::int64_t kv_head,
                                bool values, std::int64_t first, std::int64_t count, std::byte* to_host) const {
    check_slots(layout, layer, kv_head, first, count);
    std::memcpy(to_host, page + kv_offset(layout, layer, kv_head, values, first),
                static_cast<std::size_t>(count) * layout.token_bytes());
}

void ReferenceDevice::kv_import(const KvLayout& layout, std::byte* page, std::int64_t layer, std::int64_t kv_head,
                                bool values, std::int64_t first, std::int64_t count, const std::byte* from_host) {
    check_slots(layout, layer, kv_head, first, count);
    std::memcpy(page + kv_offset(layout, layer, kv_head, values, first), from_host,
                static_cast<std::size_t>(count) * layout.token_bytes());
}

}  // namespace longhaul::kernels::reference
