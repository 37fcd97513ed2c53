// Attention on tensor cores: close to the reference, with other bits, and identical to itself however the work is
// split. (PathContract in attention_test.cpp runs on it, too.)
#include <cmath>

#include "tests/kernels/attention_scene.hpp"

namespace longhaul::kernels::testing {
namespace {

class TensorAttention : public ContractTest {};

/// RMS of the differences, relative to the RMS of the expected values.
double relative_error(const std::vector<float>& expected, const std::vector<float>& actual) {
    double error = 0.0;
    double size = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
        error += std::pow(static_cast<double>(expected[i]) - static_cast<double>(actual[i]), 2);
        size += std::pow(static_cast<double>(expected[i]), 2);
    }
    return std::sqrt(error / size);
}

/// Both round p to bf16, relative to different maxima: each weight is off by up to 2^-9, in either direction. With
/// int8, the device alone does, and it rounds queries likewise, which moves scores (of about 1) and so the weights.
TEST_P(TensorAttention, IsNearTheReference) {
    const auto reference = make_cpu_device(CpuVariant::reference, 2);
    const auto device = GetParam().make(1);
    std::uint64_t seed = 500;
    for (const Case& c : {Case{DType::bf16, 128, 2, 4, 1100, 1, true},
                          Case{DType::bf16, 128, 1, 4, 700, 20, true},
                          Case{DType::bf16, 64, 1, 8, 530, 9, false},
                          Case{DType::bf16, 40, 2, 5, 1025, 3, true},
                          Case{DType::bf16, 2, 1, 50, 70, 2, true},
                          Case{DType::bf16, 144, 1, 2, 600, 12, true},
                          Case{DType::bf16, 256, 1, 1, 130, 70, false},
                          Case{DType::bf16, 96, 1, 6, 90, 90, false},
                          Case{DType::bf16, 264, 1, 1, 130, 3, true},
                          Case{DType::int8, 128, 2, 4, 1100, 1, true},
                          Case{DType::int8, 128, 1, 4, 700, 20, true},
                          Case{DType::int8, 64, 1, 8, 530, 9, false},
                          Case{DType::int8, 40, 2, 5, 1025, 3, true},
                          Case{DType::int8, 2, 1, 50, 70, 2, true},
                          Case{DType::int8, 144, 1, 2, 600, 12, true},
                          Case{DType::int8, 256, 1, 1, 130, 70, false},
                          Case{DType::int8, 96, 1, 6, 400, 90, false, 70},
                          Case{DType::bf16, 64, 1, 8, 600, 3, true, 0, true},
                          Case{DType::bf16, 64, 2, 4, 900, 70, false, 128, true},
                          Case{DType::bf16, 20, 1, 8, 5000, 1, true, 0, true},  // 40 entries to merge
                          Case{DType::int8, 64, 1, 8, 600, 3, true, 0, true}}) {
        SCOPED_TRACE(::testing::Message() << c << ", seed " << ++seed);
        const Guarded expected = Scene(*reference, c, seed).run(*reference, DType::f32);
        const Guarded actual = Scene(*device, c, seed).run(*device, DType::f32);
        EXPECT_TRUE(actual.intact());
        const double bound = c.dtype == DType::int8 ? 0x1p-8 : 0x1p-9;
        EXPECT_LT(relative_error(expected.values(), actual.values()), bound);
    }
}

/// Its weight is 2 to a difference that is 0 but for rounding, all others are 2^-infinity. A GPU's instruction for 2^x
/// is off by up to 2^-22, and the division by the sum of the weights is rounded.
TEST_P(TensorAttention, RowsThatSeeOnePositionGetItsValue) {
    const auto device = GetParam().make(1);
    for (const std::int64_t num_rows : {1, 40, 150}) {
        const Case c{DType::bf16, 128, 2, 4, 300, num_rows, false, 1};
        const Scene scene(*device, c, 603);
        const std::vector<float> outputs = scene.run(*device, DType::f32).values();
        std::size_t at = 0;
        for (std::int64_t token = c.context - num_rows; token < c.context; ++token) {
            for (std::int64_t head = 0; head < scene.q_heads; ++head) {
                const std::int64_t row = scene.q_heads + c.kv_heads + head / c.group_heads;
                const auto first = static_cast<std::size_t>(token * scene.context.width + row * c.head_dim);
                for (std::size_t d = first; d < first + static_cast<std::size_t>(c.head_dim); ++d, ++at) {
                    const float expected = bf16_to_f32(f32_to_bf16(scene.context.qkv[d]));
                    ASSERT_NEAR(outputs[at], expected, 0x1p-21F * std::abs(expected)) << num_rows << " rows, " << at;
                }
            }
        }
        EXPECT_EQ(outputs.size(), at);
    }
}

/// The rows of a tree together fill tiles of 64 queries; a single row uses tiles of 16. Three spans of one KV head: two
/// tiles of them are enough for the four multiprocessors of the emulated GPU, so each block computes a span; one tile
/// is not, so each computes a chunk.
void expect_rows_together_to_equal_rows_alone(const DeviceCase& which, DType dtype, bool tree, std::int64_t window) {
    Comparison comparison(which);
    const auto device = which.make(1);
    const Case c{dtype, 32, 1, 2, 3000, 40, tree, window};
    SCOPED_TRACE(::testing::Message() << c);
    const Scene scene(*device, c, 600);
    const std::vector<std::byte> together = scene.run(*device, DType::f32).bytes();
    const auto out_bytes = static_cast<std::ptrdiff_t>(together.size() / scene.rows.size());
    const auto q_bytes = static_cast<std::ptrdiff_t>(scene.q.size() / scene.rows.size());
    for (std::size_t r = 0; r < scene.rows.size(); r += 13) {
        const auto i = static_cast<std::ptrdiff_t>(r);
        const Guarded alone = attend(*device, scene.layout, 1, {&scene.sequence, 1}, {&scene.rows[r], 1},
                                     scene.q.data() + i * q_bytes, scene.q_heads, DType::f32);
        ASSERT_TRUE(comparison.equal({together.begin() + i * out_bytes, together.begin() + (i + 1) * out_bytes},
                                     alone.bytes(), DType::f32))
            << "row " << r;
    }
}

TEST_P(TensorAttention, RowsOfATreeTogetherEqualRowsAlone) {
    for (const DType dtype : {DType::bf16, DType::int8}) {
        for (const std::int64_t window : {0, 1500})
            expect_rows_together_to_equal_rows_alone(GetParam(), dtype, true, window);
    }
}
TEST_P(TensorAttention, RowsOfAChunkTogetherEqualRowsAlone) {
    for (const DType dtype : {DType::bf16, DType::int8}) {
        for (const std::int64_t window : {0, 1500})
            expect_rows_together_to_equal_rows_alone(GetParam(), dtype, false, window);
    }
}

/// Half of the rows, in another order: tiles hold other rows.
void expect_half_to_equal_all(const DeviceCase& which, DType dtype) {
    Comparison comparison(which);
    const auto device = which.make(1);
    const Case c{dtype, 64, 1, 3, 500, 48, true};  // paths cross the end of a chunk
    SCOPED_TRACE(::testing::Message() << c);
    const Scene scene(*device, c, 601);
    const std::vector<std::byte> all = scene.run(*device, DType::f32).bytes();
    const auto out_bytes = static_cast<std::ptrdiff_t>(all.size() / scene.rows.size());
    const auto q_bytes = static_cast<std::ptrdiff_t>(scene.q.size() / scene.rows.size());
    std::vector<AttentionRow> rows;
    std::vector<std::byte> q;
    std::vector<std::byte> expected;
    for (std::ptrdiff_t i = c.num_rows - 1; i >= 0; i -= 2) {
        rows.push_back(scene.rows[static_cast<std::size_t>(i)]);
        q.insert(q.end(), scene.q.begin() + i * q_bytes, scene.q.begin() + (i + 1) * q_bytes);
        expected.insert(expected.end(), all.begin() + i * out_bytes, all.begin() + (i + 1) * out_bytes);
    }
    const Guarded some =
        attend(*device, scene.layout, 1, {&scene.sequence, 1}, rows, q.data(), scene.q_heads, DType::f32);
    ASSERT_TRUE(comparison.equal(expected, some.bytes(), DType::f32));
}
TEST_P(TensorAttention, CompanyInATileDoesNotMatter) {
    for (const DType dtype : {DType::bf16, DType::int8}) expect_half_to_equal_all(GetParam(), dtype);
}

bool is_emulated(const DeviceCase& which) {
    return which.name.ends_with("emulated");
}

/// Compares with kernels for fewer queries: those of a GPU without wgmma, or (there is no such GPU) for three rows at a
/// time, of which some are enough.
void expect_same_as_smaller_tiles(const DeviceCase& which, Comparison& comparison, const Case& c, std::uint64_t seed) {
    const auto device = which.make(1);
    const Scene scene(*device, c, seed);
    const std::vector<std::byte> all = scene.run(*device, DType::f32).bytes();
    if (is_emulated(which)) {
        const auto older = older_gpu().make(1);
        ASSERT_TRUE(comparison.equal(Scene(*older, c, seed).run(*older, DType::f32).bytes(), all, DType::f32));
        return;
    }
    const std::size_t count = scene.rows.size(), q_bytes = scene.q.size() / count, out_bytes = all.size() / count;
    for (std::size_t first = 0; first + 3 <= count; first += count / 13) {
        const std::vector<std::byte> some =
            attend(*device, scene.layout, 1, {&scene.sequence, 1}, {scene.rows.data() + first, 3},
                   scene.q.data() + first * q_bytes, scene.q_heads, DType::f32)
                .bytes();
        const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first * out_bytes);
        ASSERT_TRUE(comparison.equal({begin, begin + std::ssize(some)}, some, DType::f32)) << "row " << first;
    }
}

void expect_same_bits_of_warpgroups(const DeviceCase& which, std::span<const Case> cases) {
    Comparison comparison(which);
    std::uint64_t seed = 700;
    for (const Case& c : cases) {
        SCOPED_TRACE(::testing::Message() << c << ", seed " << ++seed);
        ASSERT_NO_FATAL_FAILURE(expect_same_as_smaller_tiles(which, comparison, c, seed));
    }
}

/// Prompts and trees of one to several tiles of 128 queries, whose pages end in and between chunks and spans, and which
/// some rows do not see, or only from a page on that is not the first of a chunk. With so many KV heads, there are
/// enough units for such tiles on a GPU.
TEST_P(TensorAttention, WarpgroupsGiveTheSameBits) {
    std::vector<Case> cases = {{DType::bf16, 128, 2, 4, 700, 64, false},      {DType::bf16, 128, 2, 4, 2300, 40, true},
                               {DType::bf16, 128, 2, 3, 500, 43, false, 250}, {DType::bf16, 64, 2, 8, 1030, 32, false},
                               {DType::bf16, 64, 2, 4, 3100, 32, true, 1500}, {DType::bf16, 96, 2, 7, 513, 30, false},
                               {DType::bf16, 40, 2, 5, 448, 90, false}};
    if (!is_emulated(GetParam())) {
        for (Case& c : cases) c.kv_heads = 24;
    }
    expect_same_bits_of_warpgroups(GetParam(), cases);
}

/// Whole spans, several of them.
TEST_P(TensorAttention, WarpgroupsGiveTheSameBitsInPrompts) {
    std::vector<Case> cases;
    for (const std::int64_t head_dim : {64, 128}) {
        for (const std::int64_t window : {0, 1000}) {
            cases.push_back(is_emulated(GetParam()) ? Case{DType::bf16, head_dim, 1, 4, 2200, 35, false, window}
                                                    : Case{DType::bf16, head_dim, 8, 4, 4200, 350, false, window});
        }
    }
    expect_same_bits_of_warpgroups(GetParam(), cases);
}

/// Needs more shared memory than a block has on the smallest GPU.
TEST_P(TensorAttention, HeadsThatAreTooWideAreRefused) {
    const auto device = GetParam().make(1);
    for (const auto& [dtype, widest] : {std::pair{DType::f32, std::int64_t{512}}, {DType::bf16, 640}}) {
        EXPECT_EQ(device->max_head_dim(dtype), widest);
        const Scene taken(*device, {dtype, widest, 1, 1, 3, 1, true}, 602);
        EXPECT_NO_THROW(static_cast<void>(taken.run(*device, DType::f32)));
        const Scene refused(*device, {dtype, widest + 32, 1, 1, 3, 1, true}, 602);
        EXPECT_THROW(static_cast<void>(refused.run(*device, DType::f32)), std::logic_error);
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, TensorAttention, ::testing::Values(tensor_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
