// Matrices of 8 bits with scales, and stacks of experts: values worked out by hand, every shape of scales, any part,
// and what is refused. Whole models with them: parity_test.cpp.
#include "engine/model/stored_matrix.hpp"

#include <cmath>

#include "tests/engine/tensor_folder.hpp"

namespace longhaul::engine {
namespace {

TEST(ScaledMatrix, ElementsAreThoseOfTheFormats) {
    const TensorFolder f8(
        {{"w", {"F8_E4M3", {2, 4}, "\x38\x7e\x01\x08\xb8\xfe\x81\x80"}}, {"w_scale", {"F32", {1}, f32_bytes({1})}}});
    EXPECT_EQ(values_of(f8, 2, 4, {0, 2, 0, 4}), (std::vector<float>{1, 448, 0x1p-9F, 0x1p-6F, -1, -448, -0x1p-9F, 0}));
    const TensorFolder i8(
        {{"w", {"I8", {1, 4}, std::string("\x00\x7f\x80\xff", 4)}}, {"w_scale", {"F32", {1, 1}, f32_bytes({0.5F})}}});
    EXPECT_EQ(values_of(i8, 1, 4, {0, 1, 0, 4}), (std::vector<float>{0, 63.5F, -64, -0.5F}));
}

TEST(ScaledMatrix, NanIsNotHidden) {
    for (const char* bytes : {"\x7f\x38", "\x38\xff"}) {
        const TensorFolder folder({{"w", {"F8_E4M3", {1, 2}, bytes}}, {"w_scale", {"F32", {1}, f32_bytes({1})}}});
        values_of(folder, 1, 2, {0, 1, 0, 2}, false);
    }
    const TensorFolder scale({{"w", {"F8_E4M3", {1, 1}, "\x38"}}, {"w_scale", {"F32", {1}, f32_bytes({INFINITY})}}});
    values_of(scale, 1, 1, {0, 1, 0, 1}, false);
}

/// 300 x 200 ones times a scale of its row, or of its block of 128 x 128; of all, and of a part that begins and ends
/// within blocks.
TEST(ScaledMatrix, EveryElementHasItsScale) {
    constexpr std::int64_t rows = 300, columns = 200;
    const std::string ones(rows * columns, '\x38');
    std::vector<float> by_row, by_block;
    for (int i = 0; i < rows; ++i) by_row.push_back(static_cast<float>(1 + i));
    for (int i = 0; i < 6; ++i) by_block.push_back(static_cast<float>(10 + i));
    const TensorFolder rowwise(
        {{"w", {"F8_E4M3", {rows, columns}, ones}}, {"w_scale", {"F32", {rows, 1}, f32_bytes(by_row)}}});
    const TensorFolder blocks(
        {{"w", {"F8_E4M3", {rows, columns}, ones}}, {"w_scale_inv", {"F32", {3, 2}, f32_bytes(by_block)}}});
    for (const MatrixRange& range : {MatrixRange{0, rows, 0, columns}, MatrixRange{100, 170, 60, 139},
                                     MatrixRange{299, 1, 199, 1}, MatrixRange{5, 0, 0, 7}}) {
        const std::vector<float> of_row = values_of(rowwise, rows, columns, range);
        const std::vector<float> of_block = values_of(blocks, rows, columns, range);
        for (std::int64_t i = 0; i < range.num_rows * range.num_columns; ++i) {
            const std::int64_t row = range.first_row + i / range.num_columns;
            const std::int64_t column = range.first_column + i % range.num_columns;
            ASSERT_EQ(of_row[i], by_row[row]);
            ASSERT_EQ(of_block[i], by_block[row / 128 * 2 + column / 128]);
        }
    }
}

TEST(ScaledMatrix, RefusesWhatItCannotRead) {
    const StoredTensor w{"F8_E4M3", {2, 3}, "\x38\x38\x38\x38\x38\x38"};
    const auto complaint = [&](const std::map<std::string, StoredTensor>& others, std::int64_t rows = 2) {
        std::map<std::string, StoredTensor> all = others;
        all["w"] = w;
        return TensorFolder(all).complaint("w", rows, 3);
    };
    EXPECT_EQ(complaint({}), "w: expected scales in w_scale_inv or _scale, as elements of F8_E4M3 need, got none");
    EXPECT_EQ(complaint({{"w_scale", {"F32", {1}, f32_bytes({1})}}, {"w_scale_inv", {"F32", {1}, f32_bytes({1})}}}),
              "w: expected scales in w_scale_inv or _scale, as elements of F8_E4M3 need, got both");
    EXPECT_EQ(complaint({{"w_scale", {"F32", {3}, f32_bytes({1, 1, 1})}}}),
              "w_scale: expected scales of shape [1], [2, 1] or [1, 1], got [3]");
    EXPECT_EQ(complaint({{"w_scale", {"I8", {1}, "\x01"}}}), "w_scale: expected scales of BF16, F16 or F32, got I8");
    EXPECT_EQ(complaint({{"w_scale", {"F32", {1}, f32_bytes({1})}}, {"w_zero_point", {"I8", {1}, "\x01"}}}),
              "w_zero_point: expected none: elements times scales, got a tensor of that name");
    EXPECT_EQ(complaint({{"w_scale", {"F32", {1}, f32_bytes({1})}}}, 4),
              "w: expected shape [4, 3], as config.json says, got [2, 3]");
    const TensorFolder packed({{"w", {"I32", {1, 1}, "abcd"}}});
    EXPECT_EQ(packed.complaint("w", 1, 1), "w: expected BF16, F16 or F32, got I32");
    EXPECT_EQ(packed.complaint("v", 1, 1), "v: expected a tensor of shape [1, 1], got none of that name");
}

/// Two elements in a byte, the lower one first: every number of E2M1 twice in a row of one block.
std::string mxfp4_row() {
    std::string bytes;
    for (int i = 0; i < 16; ++i) bytes += static_cast<char>((2 * i + 1) % 16 << 4 | 2 * i % 16);
    return bytes;
}

TEST(StackedMatrices, ElementsAreThoseOfMxfp4) {
    const TensorFolder folder(
        {{"w_blocks", {"U8", {1, 1, 1, 16}, mxfp4_row()}}, {"w_scales", {"U8", {1, 1, 1}, "\x81"}}});
    const std::vector<float> e2m1 = {0, 0.5F, 1, 1.5F, 2, 3, 4, 6, 0, -0.5F, -1, -1.5F, -2, -3, -4, -6};
    const std::vector<float> values = values_of(folder, 1, 32, {0, 1, 0, 32}, true, {1, 0});
    for (std::size_t i = 0; i < 32; ++i) ASSERT_EQ(values[i], e2m1[i % 16] * 4) << i;
    const TensorFolder tiny(
        {{"w_blocks", {"U8", {1, 1, 1, 16}, mxfp4_row()}}, {"w_scales", {"U8", {1, 1, 1}, std::string(1, '\0')}}});
    EXPECT_EQ(values_of(tiny, 1, 32, {0, 1, 7, 1}, true, {1, 0}).front(), 0x6p-127F);
    const TensorFolder nan({{"w_blocks", {"U8", {1, 1, 1, 16}, mxfp4_row()}}, {"w_scales", {"U8", {1, 1, 1}, "\xff"}}});
    values_of(nan, 1, 32, {0, 1, 0, 32}, false, {1, 0});
}

/// Three matrices of 5 x 64: a scale tells which block it is of. All rows, every second one, and parts that begin and
/// end within blocks.
TEST(StackedMatrices, EveryBlockHasItsScale) {
    constexpr std::int64_t rows = 5, columns = 64;
    std::string ones(3 * rows * columns / 2, '\x22'), scales;
    for (int block = 0; block < 3 * rows * 2; ++block) scales += static_cast<char>(110 + block);
    const TensorFolder folder(
        {{"w_blocks", {"U8", {3, rows, 2, 16}, ones}}, {"w_scales", {"U8", {3, rows, 2}, scales}}});
    for (const std::int64_t index : {0, 2}) {
        for (const MatrixRange& range : {MatrixRange{0, rows, 0, columns}, MatrixRange{1, 2, 31, 2, 2},
                                         MatrixRange{0, 3, 40, 24, 2}, MatrixRange{4, 1, 63, 1}}) {
            const std::vector<float> values = values_of(folder, rows, columns, range, true, {3, index});
            for (std::int64_t i = 0; i < range.num_rows * range.num_columns; ++i) {
                const std::int64_t row = range.first_row + i / range.num_columns * range.row_step;
                const std::int64_t block = (index * rows + row) * 2 + (range.first_column + i % range.num_columns) / 32;
                ASSERT_EQ(values[i], std::ldexp(1.0F, static_cast<int>(block) - 17)) << row;
            }
        }
    }
}

/// Two matrices of 70 x 3, column by column, of numbers in this order.
TEST(StackedMatrices, FloatsAreTransposed) {
    constexpr std::int64_t rows = 70, columns = 3;
    std::vector<float> numbers;
    for (int i = 0; i < 2 * rows * columns; ++i) numbers.push_back(static_cast<float>(i));
    const TensorFolder folder({{"w", {"F32", {2, columns, rows}, f32_bytes(numbers)}}});
    for (const MatrixRange& range : {MatrixRange{0, rows, 0, columns}, MatrixRange{1, 34, 1, 2, 2}}) {
        const std::vector<float> values = values_of(folder, rows, columns, range, true, {2, 1});
        for (std::int64_t i = 0; i < range.num_rows * range.num_columns; ++i) {
            const std::int64_t row = range.first_row + i / range.num_columns * range.row_step;
            const std::int64_t column = range.first_column + i % range.num_columns;
            ASSERT_EQ(values[i], static_cast<float>((columns + column) * rows + row));
        }
    }
}

TEST(StackedMatrices, FloatsMayBeStoredByRows) {
    constexpr std::int64_t rows = 5, columns = 3;
    std::vector<float> numbers;
    for (int i = 0; i < 2 * rows * columns; ++i) numbers.push_back(static_cast<float>(i));
    const TensorFolder folder({{"w", {"F32", {2, rows, columns}, f32_bytes(numbers)}}});
    const StackPlace second{.count = 2, .index = 1, .by_rows = true};
    EXPECT_EQ(values_of(folder, rows, columns, {1, 2, 1, 2}, true, second), (std::vector<float>{19, 20, 22, 23}));
    const auto bytes = require_matrix(folder.tensors(), "w", rows, columns, second).bytes(1, 3);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()),
              f32_bytes({18, 19, 20, 21, 22, 23}));
}

TEST(StackedMatrices, RefusesWhatItCannotRead) {
    const StoredTensor blocks{"U8", {1, 1, 1, 16}, mxfp4_row()}, scales{"U8", {1, 1, 1}, "\x7f"};
    EXPECT_EQ(TensorFolder({{"w_blocks", blocks}}).complaint("w", 1, 32, {1, 0}),
              "w_scales: expected a tensor of shape [1, 1, 1], got none of that name");
    EXPECT_EQ(
        TensorFolder({{"w_blocks", blocks}, {"w_scales", {"I8", {1, 1, 1}, "\x7f"}}}).complaint("w", 1, 32, {1, 0}),
        "w_scales: expected U8, got I8");
    EXPECT_EQ(TensorFolder({{"w_blocks", blocks}, {"w_scales", scales}}).complaint("w", 1, 40, {1, 0}),
              "w_blocks: expected rows of whole blocks of 32, got rows of 40, as config.json says");
    EXPECT_EQ(TensorFolder({{"w_blocks", blocks}, {"w_scales", scales}}).complaint("w", 1, 32, {2, 0}),
              "w_blocks: expected shape [2, 1, 1, 16], as config.json says, got [1, 1, 1, 16]");
    EXPECT_EQ(TensorFolder({{"w", {"F32", {1, 1, 2}, f32_bytes({1, 2})}}}).complaint("w", 1, 2, {1, 0}),
              "w: expected shape [1, 2, 1], as config.json says, got [1, 1, 2]");
    EXPECT_EQ(TensorFolder({{"v", scales}}).complaint("w", 1, 2, {1, 0}),
              "w: expected a tensor of that name, or w_blocks and w_scales, got neither");
    EXPECT_EQ(TensorFolder({{"w_scales", scales}}).complaint("w", 1, 32, {1, 0}),
              "w_blocks: expected a tensor of shape [1, 1, 1, 16], got none of that name");
}

}  // namespace
}  // namespace longhaul::engine
