// Keys and values of one sequence in pages and scratch pages, for the attention tests.
#pragma once

#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {

/// Pages on one device, grouped as the layout requires.
class PageSet {
  public:
    PageSet(Device& device, const KvLayout& layout, std::int64_t num_slots) {
        const auto page_bytes = static_cast<std::int64_t>(device.kv_page_bytes(layout));
        for (std::int64_t i = 0; i * KvLayout::page_tokens < num_slots; ++i) {
            const std::int64_t in_slab = i % layout.pages_together;
            if (in_slab == 0) slabs_.emplace_back(device, static_cast<std::size_t>(layout.pages_together * page_bytes));
            pages_.push_back(slabs_.back().data() + layout.place_of_page(in_slab, page_bytes));
        }
    }
    [[nodiscard]] std::span<std::byte* const> pages() const { return pages_; }
    [[nodiscard]] KvSlot slot(std::int64_t slot) const {
        return {pages_[static_cast<std::size_t>(slot / KvLayout::page_tokens)],
                static_cast<std::int32_t>(slot % KvLayout::page_tokens)};
    }

  private:
    std::vector<Buffer> slabs_;
    std::vector<std::byte*> pages_;
};

/// Raw projections of tokens, [token, (q_heads + 2 kv_heads) * head_dim], and their rotation angles.
struct Tokens {
    Tokens(Numbers& numbers, const KvLayout& layout, std::int64_t q_heads, std::int64_t count)
        : q_heads(q_heads),
          width((q_heads + 2 * layout.num_kv_heads) * layout.head_dim),
          half(layout.head_dim / 2),
          qkv(numbers.normals(count * width)),
          cos(static_cast<std::size_t>(count * half)),
          sin(static_cast<std::size_t>(count * half)) {
        for (std::size_t i = 0; i < cos.size(); ++i) {
            const float angle = numbers.normal();
            cos[i] = std::cos(angle);
            sin[i] = std::sin(angle);
        }
    }
    /// From token `first` on.
    [[nodiscard]] PassAngles angles(std::int64_t first = 0) const {
        return {.cos = cos.data() + first * half, .sin = sin.data() + first * half};
    }

    std::int64_t q_heads;
    std::int64_t width;
    std::int64_t half;
    std::vector<float> qkv;
    std::vector<float> cos;
    std::vector<float> sin;
};

/// Stores tokens `first`.. in the slots and returns the rounded queries.
inline std::vector<std::byte> store(Device& device, const KvLayout& layout, std::int64_t layer, const Tokens& tokens,
                                    std::int64_t first, std::span<const KvSlot> slots) {
    const auto num_tokens = static_cast<std::int64_t>(slots.size());
    const Guarded q(device, static_cast<std::size_t>(num_tokens * tokens.q_heads * layout.head_dim) *
                                bytes_of(layout.query_type()));
    const OnDevice qkv(device, std::span(tokens.qkv)
                                   .subspan(static_cast<std::size_t>(first * tokens.width),
                                            static_cast<std::size_t>(num_tokens * tokens.width)));
    const PassAngles angles = tokens.angles(first);
    device.begin_pass({.sequences = {}, .rows = {}, .slots = slots, .angles = {&angles, 1}, .num_angles = tokens.half});
    device.rope_store(layout, layer, qkv.floats(), tokens.q_heads, q.data());
    EXPECT_TRUE(q.intact());
    return q.bytes();
}

/// `q`: the rows' queries, as returned by `store`. `sinks`: one per query head, or none.
inline Guarded attend(Device& device, const KvLayout& layout, std::int64_t layer,
                      std::span<const AttentionSequence> sequences, std::span<const AttentionRow> rows,
                      const std::byte* q, std::int64_t q_heads, DType act, const std::vector<float>& sinks = {}) {
    const std::int64_t width = q_heads * layout.head_dim;
    const std::int64_t stride = padded_inputs(width);
    const OnDevice queries(device,
                           std::span(q, rows.size() * static_cast<std::size_t>(width) * bytes_of(layout.query_type())));
    Guarded out(device, rows.size() * static_cast<std::size_t>(stride) * bytes_of(act));
    const OnDevice of_heads(device, sinks);
    device.begin_pass({.sequences = sequences, .rows = rows, .slots = {}});
    device.attention(layout, layer, queries.data(), q_heads, sinks.empty() ? nullptr : of_heads.floats(), act,
                     out.data(), stride);
    return out;
}

}  // namespace longhaul::kernels::testing
