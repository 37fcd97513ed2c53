// A sequence with query rows over it, filled with numbers from a seed, on one device. Shared by the attention tests.
#pragma once

#include "tests/kernels/attention_testing.hpp"

namespace longhaul::kernels::testing {

struct Case {
    DType dtype;
    std::int64_t head_dim;
    std::int64_t kv_heads;
    std::int64_t group_heads;
    std::int64_t context;  ///< tokens in pages
    std::int64_t num_rows;
    bool tree;                ///< rows are nodes of a tree over the context; else its last tokens (prefill, decode)
    std::int64_t window = 0;  ///< KvLayout::window
    bool sinks = false;       ///< one for each query head, from far below the scores to far above
    float score_cap = 0.0F;   ///< KvLayout::score_cap
};

inline std::ostream& operator<<(std::ostream& os, const Case& c) {
    return os << (c.dtype == DType::bf16  ? "bf16"
                  : c.dtype == DType::f32 ? "f32"
                                          : "int8")
              << " head_dim " << c.head_dim << ", KV heads " << c.kv_heads << " x " << c.group_heads << ", context "
              << c.context << ", " << c.num_rows << (c.tree ? " nodes" : " prompt rows") << ", window " << c.window
              << (c.sinks ? ", sinks" : "") << (c.score_cap > 0 ? ", soft cap" : "");
}

/// A tree of `num_nodes` over a context: parents (-1: the context) and, for each node, the slots of its path.
struct Tree {
    Tree(Numbers& numbers, std::int64_t num_nodes, std::int64_t num_slots) {
        // Slots are assigned in a shuffled order: results must not depend on it.
        std::vector<std::int32_t> slots(static_cast<std::size_t>(num_slots));
        for (std::size_t i = 0; i < slots.size(); ++i) slots[i] = static_cast<std::int32_t>(i);
        for (std::size_t i = slots.size(); i > 1; --i) {
            std::swap(slots[i - 1], slots[static_cast<std::size_t>(numbers.below(static_cast<std::int64_t>(i)))]);
        }
        for (std::int64_t n = 0; n < num_nodes; ++n) {
            // Half the nodes continue the previous one, which gives deep paths and branches.
            const std::int64_t parent = n == 0 ? -1 : numbers.below(2) == 0 ? n - 1 : numbers.below(n + 1) - 1;
            parents.push_back(parent);
            std::vector<std::int32_t> path;
            if (parent >= 0) path = paths[static_cast<std::size_t>(parent)];
            path.push_back(slots[static_cast<std::size_t>(n)]);
            paths.push_back(path);
            slot_of.push_back(path.back());
        }
    }

    std::vector<std::int64_t> parents;
    std::vector<std::vector<std::int32_t>> paths;
    std::vector<std::int32_t> slot_of;
};

/// The memory of one case on one device, filled, with its rows.
struct Scene {
    Scene(Device& device, const Case& c, std::uint64_t seed)
        : numbers(seed),
          layout(layout_on(device, c)),
          q_heads(c.kv_heads * c.group_heads),
          context(numbers, layout, q_heads, c.context),
          nodes(numbers, layout, q_heads, c.num_rows),
          tree(numbers, c.num_rows, c.num_rows + 70),
          pages(device, layout, c.context),
          scratch(device, layout, c.num_rows + 70) {
        for (std::int64_t head = 0; c.sinks && head < q_heads; ++head) sinks.push_back(sink_of(head, q_heads));
        std::vector<KvSlot> slots;
        for (std::int64_t i = 0; i < c.context; ++i) slots.push_back(pages.slot(i));
        const auto context_q = store(device, layout, 1, context, 0, slots);
        sequence = {pages.pages(), scratch.pages()};
        if (c.tree) {
            slots.clear();
            for (const std::int32_t slot : tree.slot_of) slots.push_back(scratch.slot(slot));
            q = store(device, layout, 1, nodes, 0, slots);
            for (const auto& path : tree.paths) {
                rows.push_back({.sequence = 0,
                                .position = c.context + static_cast<std::int64_t>(path.size()) - 1,
                                .in_pages = c.context,
                                .path = path.data()});
            }
        } else {
            const std::int64_t first = std::max<std::int64_t>(0, c.context - c.num_rows);
            q.assign(context_q.begin() +
                         first * q_heads * c.head_dim * static_cast<std::ptrdiff_t>(bytes_of(layout.query_type())),
                     context_q.end());
            for (std::int64_t p = first; p < c.context; ++p) rows.push_back({0, p, p + 1, nullptr});
        }
    }
    /// The device's preferred layout.
    static KvLayout layout_on(const Device& device, const Case& c) {
        KvLayout layout{.dtype = c.dtype,
                        .num_layers = 2,
                        .window = c.window,
                        .score_cap = c.score_cap,
                        .num_kv_heads = c.kv_heads,
                        .head_dim = c.head_dim};
        layout.pages_together = device.kv_pages_together(layout);
        return layout;
    }
    /// -30 for the first head, 30 for the last.
    static float sink_of(std::int64_t head, std::int64_t heads) {
        return -30.0F + 60.0F * static_cast<float>(head) / static_cast<float>(std::max<std::int64_t>(heads - 1, 1));
    }
    Guarded run(Device& device, DType act) const {
        return attend(device, layout, 1, {&sequence, 1}, rows, q.data(), q_heads, act, sinks);
    }

    Numbers numbers;
    KvLayout layout;
    std::int64_t q_heads;
    Tokens context;
    Tokens nodes;
    Tree tree;
    PageSet pages;
    PageSet scratch;
    AttentionSequence sequence;
    std::vector<AttentionRow> rows;
    std::vector<std::byte> q;
    std::vector<float> sinks;
};

}  // namespace longhaul::kernels::testing
