// KV pages: data is read back as it was stored, in the order of the calls, even if the device defers operations.
#include "tests/kernels/attention_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

class KvTest : public ContractTest {
  protected:
    KvTest() : numbers_(70) {}

    /// Keys of head 0 of layer 1, one slot.
    static std::vector<std::byte> key_at(const Device& device, const KvLayout& layout, const KvSlot& slot) {
        std::vector<std::byte> key(layout.token_bytes());
        device.kv_export(layout, slot.page, 1, 0, false, slot.slot, 1, key.data());
        return key;
    }

    Numbers numbers_;
};

KvLayout layout_of(DType dtype) {
    return {.dtype = dtype, .num_layers = 2, .num_kv_heads = 2, .head_dim = 24};
}

// Layers of one layout may have different angles, and queries others than keys.
TEST_P(KvTest, AnglesAreThoseThatALayerNames) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        KvLayout layout = layout_of(dtype);
        const Tokens tokens(numbers_, layout, 2, 2), other(numbers_, layout, 2, 2);
        const PageSet pages(*device, layout, 64);
        const std::vector<KvSlot> slots{pages.slot(0), pages.slot(1)};
        const OnDevice qkv(*device, tokens.qkv);
        PassAngles both = tokens.angles();
        both.query_cos = other.cos.data();
        both.query_sin = other.sin.data();
        const PassAngles angles[] = {tokens.angles(), other.angles(), both};
        device->begin_pass(
            {.sequences = {}, .rows = {}, .slots = slots, .angles = angles, .num_angles = layout.head_dim / 2});
        std::vector<std::vector<std::byte>> queries, keys;
        for (layout.angles = 0; layout.angles < 3; ++layout.angles) {
            const Guarded q(*device, static_cast<std::size_t>(2 * 2 * layout.head_dim) * bytes_of(layout.query_type()));
            device->rope_store(layout, 1, qkv.floats(), 2, q.data());
            queries.push_back(q.bytes());
            keys.push_back(key_at(*device, layout, slots[1]));
        }
        EXPECT_NE(queries[0], queries[1]);
        EXPECT_NE(keys[0], keys[1]);
        EXPECT_EQ(queries[2], queries[1]);
        EXPECT_EQ(keys[2], keys[0]);
        EXPECT_THROW(device->rope_store(layout, 1, qkv.floats(), 2, nullptr), std::logic_error) << "no angles 3";
    }
}

/// Of a layer that attends to the keys and values of another.
TEST_P(KvTest, WithoutKvHeadsQueriesAloneAreNormedAndRotated) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const KvLayout whole = layout_of(dtype);
        KvLayout alone = whole;
        alone.num_kv_heads = 0;
        Tokens tokens(numbers_, whole, 2, 2), queries = tokens;
        queries.width = 2 * whole.head_dim;
        for (std::int64_t i = 0; i < queries.width; ++i) queries.qkv[queries.width + i] = tokens.qkv[tokens.width + i];
        const std::vector<float> gains = numbers_.normals(whole.head_dim);
        const OnDevice gain(*device, gains);
        for (const bool is_alone : {false, true}) {
            Tokens& normed = is_alone ? queries : tokens;
            const OnDevice qkv(*device, normed.qkv);
            device->head_norm(is_alone ? alone : whole, qkv.floats(), 2, 2, {.q = gain.floats(), .k = gain.floats()},
                              1e-6F);
            device->download(normed.qkv.data(), qkv.data(), normed.qkv.size() * sizeof(float));
        }
        const PageSet pages(*device, whole, 64);
        const std::vector<KvSlot> slots{pages.slot(0), pages.slot(1)};
        const std::vector<std::byte> rotated = store(*device, alone, 1, queries, 0, slots);
        const std::vector<std::byte> untouched = key_at(*device, whole, pages.slot(9));
        EXPECT_EQ(key_at(*device, whole, slots[1]), untouched);
        EXPECT_EQ(rotated, store(*device, whole, 1, tokens, 0, slots));
        EXPECT_NE(key_at(*device, whole, slots[1]), untouched);
    }
}

/// A slot that one move fills and the next reads, and one that two moves fill.
TEST_P(KvTest, MovesHappenInTheirOrder) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const KvLayout layout = layout_of(dtype);
        const Tokens tokens(numbers_, layout, 2, 3);
        const PageSet pages(*device, layout, 128);
        const std::vector<KvSlot> slots{pages.slot(0), pages.slot(1), pages.slot(2)};
        store(*device, layout, 1, tokens, 0, slots);
        std::vector<std::vector<std::byte>> keys;
        for (const KvSlot& slot : slots) keys.push_back(key_at(*device, layout, slot));
        ASSERT_NE(keys[0], keys[1]);
        device->kv_move(layout, pages.slot(0), pages.slot(70));
        device->kv_move(layout, pages.slot(70), pages.slot(71));  // the result of the first move
        device->kv_move(layout, pages.slot(1), pages.slot(70));
        device->kv_move(layout, pages.slot(2), pages.slot(1));  // overwrites what was read before
        EXPECT_EQ(key_at(*device, layout, pages.slot(71)), keys[0]);
        EXPECT_EQ(key_at(*device, layout, pages.slot(70)), keys[1]);
        EXPECT_EQ(key_at(*device, layout, pages.slot(1)), keys[2]);
    }
}

/// Moves of two layouts at a time (a target's pages and a draft model's).
TEST_P(KvTest, MovesOfTwoLayoutsDoNotMix) {
    const auto device = GetParam().make(1);
    KvLayout other = layout_of(DType::f32);
    other.num_layers = 3;
    const KvLayout layout = layout_of(DType::bf16);
    const PageSet pages(*device, layout, 64);
    const PageSet other_pages(*device, other, 64);
    const std::vector<KvSlot> slots{pages.slot(0)};
    const std::vector<KvSlot> other_slots{other_pages.slot(0)};
    store(*device, layout, 1, Tokens(numbers_, layout, 2, 1), 0, slots);
    store(*device, other, 1, Tokens(numbers_, other, 2, 1), 0, other_slots);
    device->kv_move(layout, pages.slot(0), pages.slot(5));
    device->kv_move(other, other_pages.slot(0), other_pages.slot(6));
    EXPECT_EQ(key_at(*device, layout, pages.slot(5)), key_at(*device, layout, pages.slot(0)));
    EXPECT_EQ(key_at(*device, other, other_pages.slot(6)), key_at(*device, other, other_pages.slot(0)));
}

/// The pages of a finished sequence may be freed while a move into them is still pending; other pending moves are still
/// carried out.
TEST_P(KvTest, PagesMayGoWithMovesUnderWay) {
    const auto device = GetParam().make(1);
    const KvLayout layout = layout_of(DType::bf16);
    const PageSet staying(*device, layout, 64);
    std::vector<std::vector<std::byte>> keys;
    for (int i = 0; i < 3; ++i) {
        const PageSet going(*device, layout, 64);
        const std::vector<KvSlot> slots{going.slot(0), staying.slot(0)};
        store(*device, layout, 1, Tokens(numbers_, layout, 2, 2), 0, slots);
        keys.push_back(key_at(*device, layout, staying.slot(0)));
        device->kv_move(layout, staying.slot(0), staying.slot(8 + i));
        device->kv_move(layout, going.slot(0), going.slot(9));
    }
    device->begin_pass({});
    for (int i = 0; i < 3; ++i)
        EXPECT_EQ(key_at(*device, layout, staying.slot(8 + i)), keys[static_cast<std::size_t>(i)]) << i;
}

/// A box over pages, heads and layers holds the same data as its pages one by one, and importing it restores them.
TEST_P(KvTest, BoxesAreTheirPages) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const std::int64_t head_dim : {6, 32}) {
            const KvLayout layout{.dtype = dtype, .num_layers = 3, .num_kv_heads = 3, .head_dim = head_dim};
            const PageSet pages(*device, layout, 192), copy(*device, layout, 192);
            std::vector<KvSlot> slots;
            for (std::int64_t i = 40; i < 160; ++i) slots.push_back(pages.slot(i));
            for (std::int64_t layer = 1; layer < 3; ++layer)
                store(*device, layout, layer, Tokens(numbers_, layout, 3, 120), 0, slots);
            const KvBox box{.first_layer = 1,
                            .num_layers = 2,
                            .first_head = 1,
                            .num_heads = 2,
                            .values = true,
                            .first = 50,
                            .count = 100};
            const std::size_t token = layout.token_bytes(), stride = 100 * token + 12;
            std::vector<std::byte> right(4 * stride), whole(4 * stride), back(4 * stride);
            std::byte* to = right.data();
            for (const std::int64_t layer : {1, 2}) {
                for (const std::int64_t head : {1, 2}) {
                    device->kv_export(layout, pages.pages()[0], layer, head, true, 50, 14, to);
                    device->kv_export(layout, pages.pages()[1], layer, head, true, 0, 64, to + 14 * token);
                    device->kv_export(layout, pages.pages()[2], layer, head, true, 0, 22, to + 78 * token);
                    to += stride;
                }
            }
            device->kv_export_box(layout, pages.pages(), box, whole.data(), stride);
            EXPECT_EQ(whole, right) << "head_dim " << head_dim;
            device->kv_import_box(layout, copy.pages(), box, whole.data(), stride);
            device->kv_export_box(layout, copy.pages(), box, back.data(), stride);
            EXPECT_EQ(back, right) << "head_dim " << head_dim;
        }
    }
}

/// Pages of which keys and values differ in size are not grouped.
TEST_P(KvTest, OddHeadsStandAlone) {
    const auto device = GetParam().make(1);
    EXPECT_EQ(device->kv_pages_together(layout_of(DType::bf16)), 1);
    KvLayout layout = layout_of(DType::bf16);
    layout.pages_together = 2;
    const Buffer pages(*device, 2 * device->kv_page_bytes(layout));
    const std::vector<KvSlot> slots{{pages.data(), 0}};
    EXPECT_THROW(store(*device, layout, 1, Tokens(numbers_, layout, 2, 1), 0, slots), std::logic_error);
}

/// Attention on the CPU variants reads runs of 128 KB of a head; the reference uses single pages.
TEST(KvPages, StandTogetherOnTheProcessor) {
    const auto on = [](CpuVariant variant, DType dtype, std::int64_t head_dim) {
        const KvLayout layout{.dtype = dtype, .num_layers = 2, .num_kv_heads = 4, .head_dim = head_dim};
        return make_cpu_device(variant, 1)->kv_pages_together(layout);
    };
    EXPECT_EQ(on(CpuVariant::avx2, DType::bf16, 64), 8);
    EXPECT_EQ(on(CpuVariant::avx2, DType::bf16, 128), 4);
    EXPECT_EQ(on(CpuVariant::avx2, DType::f32, 64), 4);
    EXPECT_EQ(on(CpuVariant::avx2, DType::int8, 64), 8) << "a power of two: 15 would cut chunks in pieces";
    EXPECT_EQ(on(CpuVariant::avx2, DType::bf16, 1024), 1);
    EXPECT_EQ(on(CpuVariant::reference, DType::bf16, 64), 1);
}

/// Grouped (interleaved) pages hold the same data as single pages, whatever is written to their neighbours.
TEST_P(KvTest, PagesTogetherAreAsPagesAlone) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        KvLayout alone{.dtype = dtype, .num_layers = 3, .num_kv_heads = 2, .head_dim = 32}, together = alone;
        together.pages_together = device->kv_pages_together(alone);
        const std::int64_t count = 64 * (together.pages_together + 2);  // more than a slab
        const PageSet pages(*device, alone, count), neighbours(*device, together, count);
        KvBox box{.num_layers = 3, .num_heads = 2, .count = count};
        const std::size_t stride = box.bytes(alone) / 6;
        for (const bool values : {false, true}) {
            box.values = values;
            const std::vector<float> numbers = numbers_.normals(static_cast<std::int64_t>(box.bytes(alone) / 4) + 1);
            std::vector<std::byte> in(box.bytes(alone)), out(in.size());
            std::memcpy(in.data(), numbers.data(), in.size());
            device->kv_import_box(alone, pages.pages(), box, in.data(), stride);
            device->kv_import_box(together, neighbours.pages(), box, in.data(), stride);
            device->kv_export_box(together, neighbours.pages(), box, out.data(), stride);
            EXPECT_TRUE(in == out) << "values " << values;
        }
        device->kv_move(alone, pages.slot(1), pages.slot(count - 1));
        device->kv_move(together, neighbours.slot(1), neighbours.slot(count - 1));
        for (const bool values : {false, true}) {
            box.values = values;
            std::vector<std::byte> right(box.bytes(alone)), out(right.size());
            device->kv_export_box(alone, pages.pages(), box, right.data(), stride);
            device->kv_export_box(together, neighbours.pages(), box, out.data(), stride);
            EXPECT_TRUE(out == right) << "values " << values;
        }
    }
}

/// More than a device stages at a time.
TEST_P(KvTest, LargeBoxesGoInParts) {
    const auto device = GetParam().make(1);
    const KvLayout layout{.dtype = DType::f32, .num_layers = 1, .num_kv_heads = 2, .head_dim = 512};
    const std::int64_t count = 64 * 130;  // 16.25 MiB per head
    const PageSet pages(*device, layout, count);
    const KvBox box{.num_heads = 2, .count = count};
    std::vector<std::byte> in(box.bytes(layout)), out(in.size());
    for (std::size_t i = 0; i < in.size(); i += 4) std::memcpy(&in[i], &i, 4);
    device->kv_import_box(layout, pages.pages(), box, in.data(), in.size() / 2);
    device->kv_export_box(layout, pages.pages(), box, out.data(), in.size() / 2);
    EXPECT_TRUE(in == out);
    KvLayout one = layout;
    one.num_kv_heads = 1;
    EXPECT_THROW(device->kv_export_box(one, pages.pages(), box, out.data(), in.size() / 2), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Devices, KvTest, ::testing::ValuesIn(all_devices()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
