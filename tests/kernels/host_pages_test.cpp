// KV pages in host memory: attention gives the same bits as with device memory, pass after pass, for any placement of
// the pages, including pages that the pass itself writes.
#include "tests/kernels/attention_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

constexpr std::int64_t num_layers = 3, q_heads = 2, prompt = 70, num_nodes = 4;

/// Pages of a sequence, each in device or host memory.
class MixedPages {
  public:
    template <typename IsInHostMemory>
    MixedPages(Device& device, const KvLayout& layout, int count, IsInHostMemory is_in_host_memory) {
        for (int i = 0; i < count; ++i) {
            const std::size_t bytes = device.kv_page_bytes(layout);
            buffers_.push_back(is_in_host_memory(i) ? Buffer::in_host_memory(device, bytes) : Buffer(device, bytes));
            pages.push_back(buffers_.back().data());
        }
    }
    [[nodiscard]] KvSlot slot(std::int64_t slot) const {
        return {pages[static_cast<std::size_t>(slot / KvLayout::page_tokens)],
                static_cast<std::int32_t>(slot % KvLayout::page_tokens)};
    }

    std::vector<std::byte*> pages;

  private:
    std::vector<Buffer> buffers_;
};

/// A sequence as a model computes it: in each pass, layer after layer, KV is stored and then read by attention.
class Passes {
  public:
    template <typename IsInHostMemory>
    Passes(Device& device, DType dtype, IsInHostMemory is_in_host_memory)
        : device_(device),
          layout_{.dtype = dtype, .num_layers = num_layers, .num_kv_heads = 2, .head_dim = 24},
          pages_(device, layout_, 2, is_in_host_memory),
          scratch_(device, layout_, 1, [&](int) { return is_in_host_memory(1); }) {}

    /// The attention outputs of all passes and layers.
    std::vector<std::byte> run() {
        std::vector<AttentionRow> rows;
        std::vector<KvSlot> slots;
        for (std::int64_t i = 0; i < prompt; ++i) {
            if (i % 23 == 0) rows.push_back({0, i, i + 1, nullptr});
            slots.push_back(pages_.slot(i));
        }
        pass(rows, slots);
        std::vector<std::int32_t> path;  // a chain below its root
        rows.assign(1, {0, prompt, prompt + 1, nullptr});
        slots.assign(1, pages_.slot(prompt));
        for (std::int32_t node = 1; node < num_nodes; ++node) path.push_back(node);
        for (std::int32_t node = 1; node < num_nodes; ++node) {
            rows.push_back({0, prompt + node, prompt + 1, path.data()});
            slots.push_back(scratch_.slot(node));
        }
        pass(rows, slots);
        for (std::int64_t node = 1; node < num_nodes; ++node)
            device_.kv_move(layout_, scratch_.slot(node), pages_.slot(prompt + node));
        rows.assign(1, {0, prompt + num_nodes, prompt + num_nodes + 1, nullptr});
        slots.assign(1, pages_.slot(prompt + num_nodes));
        pass(rows, slots);
        return all_;
    }

  private:
    void pass(std::span<const AttentionRow> rows, std::span<const KvSlot> slots) {
        const auto count = static_cast<std::int64_t>(slots.size());
        const std::int64_t stride = padded_inputs(q_heads * layout_.head_dim);
        const AttentionSequence sequence{pages_.pages, scratch_.pages};
        const Tokens tokens(numbers_, layout_, q_heads, num_layers * count);
        const OnDevice qkv(device_, tokens.qkv);
        const Guarded q(device_, static_cast<std::size_t>(count * q_heads * layout_.head_dim) * 4);
        std::vector<Guarded> outs;
        const PassAngles angles = tokens.angles();
        device_.begin_pass({.sequences = {&sequence, 1},
                            .rows = rows,
                            .slots = slots,
                            .angles = {&angles, 1},
                            .num_angles = tokens.half});
        for (std::int64_t layer = 0; layer < num_layers; ++layer) {
            outs.emplace_back(device_, rows.size() * static_cast<std::size_t>(stride) * 4);
            device_.rope_store(layout_, layer, qkv.floats() + layer * count * tokens.width, q_heads, q.data());
            device_.attention(layout_, layer, q.data(), q_heads, nullptr, DType::f32, outs.back().data(), stride);
        }
        for (const Guarded& out : outs) {
            const std::vector<std::byte> bytes = out.bytes();
            all_.insert(all_.end(), bytes.begin(), bytes.end());
        }
    }

    Device& device_;
    KvLayout layout_;
    MixedPages pages_, scratch_;
    Numbers numbers_{90};
    std::vector<std::byte> all_;
};

/// In each layer, positions are gathered into the second page after the queries, and then attended to; like the pass
/// that ranks positions. The attention outputs.
template <typename IsInHostMemory>
std::vector<std::byte> attend_to_gathered(Device& device, DType dtype, IsInHostMemory is_in_host_memory) {
    const KvLayout layout{.dtype = dtype, .num_layers = num_layers, .num_kv_heads = 2, .head_dim = 24};
    const MixedPages text(device, layout, 2, [](int) { return false; });
    const MixedPages selected(device, layout, 2, is_in_host_memory);
    Numbers numbers(91);
    std::vector<KvSlot> slots;
    for (std::int64_t i = 0; i < 128; ++i) slots.push_back(text.slot(i));
    for (std::int64_t i = 0; i < 64; ++i) slots.push_back(selected.slot(i));
    for (std::int64_t layer = 0; layer < num_layers; ++layer)
        store(device, layout, layer, Tokens(numbers, layout, q_heads, 192), 0, slots);
    std::vector<std::int32_t> positions(2 * 64);
    for (std::size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<std::int32_t>((i * 37) % 128);
    const OnDevice list(device, std::as_bytes(std::span(positions)));
    const AttentionSequence sequence{selected.pages, {}};
    const std::vector<AttentionRow> rows{{0, 127, 128, nullptr}};
    const std::vector<KvSlot> nowhere(1);
    const Tokens token(numbers, layout, q_heads, num_layers);
    const OnDevice qkv(device, token.qkv);
    const Guarded q(device, static_cast<std::size_t>(q_heads * layout.head_dim) * 4);
    const std::int64_t stride = padded_inputs(q_heads * layout.head_dim);
    std::vector<std::byte> all;
    const PassAngles angles = token.angles();
    device.begin_pass({.sequences = {&sequence, 1},
                       .rows = rows,
                       .slots = nowhere,
                       .angles = {&angles, 1},
                       .num_angles = token.half});
    for (std::int64_t layer = 0; layer < num_layers; ++layer) {
        const Guarded out(device, static_cast<std::size_t>(stride) * 4);
        device.rope_store(layout, layer, qkv.floats() + layer * token.width, q_heads, q.data());
        device.gather_positions(layout, layer, text.pages, reinterpret_cast<const std::int32_t*>(list.data()), 64,
                                selected.pages, 64);
        device.attention(layout, layer, q.data(), q_heads, nullptr, DType::f32, out.data(), stride);
        const std::vector<std::byte> bytes = out.bytes();
        all.insert(all.end(), bytes.begin(), bytes.end());
    }
    return all;
}

class HostPagesTest : public ContractTest {};

TEST_P(HostPagesTest, AttentionSeesWhatThePassGathers) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::int8}) {
        const std::vector<std::byte> near = attend_to_gathered(*device, dtype, [](int) { return false; });
        EXPECT_EQ(attend_to_gathered(*device, dtype, [](int page) { return page == 1; }), near);
        EXPECT_EQ(attend_to_gathered(*device, dtype, [](int) { return true; }), near);
    }
}

TEST_P(HostPagesTest, AttentionIsThatOverNearPages) {
    const auto device = GetParam().make(1);
    ASSERT_TRUE(device->can_use_host_memory());
    for (const DType dtype : {DType::bf16, DType::int8}) {
        const std::vector<std::byte> near = Passes(*device, dtype, [](int) { return false; }).run();
        EXPECT_EQ(Passes(*device, dtype, [](int page) { return page == 0; }).run(), near) << "the first page";
        EXPECT_EQ(Passes(*device, dtype, [](int) { return true; }).run(), near) << "all, and scratch";
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, HostPagesTest, ::testing::Values(exact_gpu(), tensor_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
