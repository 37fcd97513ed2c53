// Elements of 4 and 8 bits with scales of groups: words worked out by hand, every layout and any part of a matrix
// against a plain reading of the layout's definition, and what is refused. Whole models with them: parity_test.cpp.
#include "engine/model/grouped_matrix.hpp"

#include <functional>
#include <random>

#include "tests/engine/tensor_folder.hpp"

namespace longhaul::engine {
namespace {

std::string word_bytes(const std::vector<std::uint32_t>& words) {
    std::string bytes(words.size() * sizeof(std::uint32_t), '\0');
    std::memcpy(bytes.data(), words.data(), bytes.size());
    return bytes;
}

std::vector<float> weights_of(const TensorFolder& folder, std::int64_t rows, std::int64_t columns,
                              const MatrixRange& range, bool finite = true) {
    std::vector<float> out(static_cast<std::size_t>(range.num_rows * range.num_columns));
    EXPECT_EQ(read_as_f32(require_matrix(folder.tensors(), "w.weight", rows, columns), range, out.data()), finite);
    return out;
}

constexpr std::uint32_t counting = 0x76543210;

TEST(GroupedMatrix, GptqPacksInputsAndStoresZeroPointsLess1) {
    const TensorFolder folder({{"w.qweight", {"I32", {1, 2}, word_bytes({counting, ~counting})}},
                               {"w.qzeros", {"I32", {1, 1}, word_bytes({0x01})}},
                               {"w.scales", {"F32", {1, 2}, f32_bytes({1, 10})}}});
    EXPECT_EQ(weights_of(folder, 2, 8, {0, 2, 0, 8}),
              (std::vector<float>{-2, -1, 0, 1, 2, 3, 4, 5, 140, 130, 120, 110, 100, 90, 80, 70}));
}

// GPTQModel subtracts 1 from a whole word, so that a zero point of 0 borrows from the next one.
TEST(GroupedMatrix, ZeroPointsOfGptqMayBe0) {
    const TensorFolder folder({{"w.qweight", {"I32", {1, 8}, word_bytes(std::vector<std::uint32_t>(8, 0))}},
                               {"w.qzeros", {"I32", {1, 1}, word_bytes({0x76543210U - 0x11111111U})}},
                               {"w.scales", {"F32", {1, 8}, f32_bytes(std::vector<float>(8, 1))}}});
    EXPECT_EQ(weights_of(folder, 8, 8, {0, 8, 3, 1}), (std::vector<float>{0, -1, -2, -3, -4, -5, -6, -7}));
}

TEST(GroupedMatrix, AwqPacksOutputsInAnOrderOfItsOwn) {
    const TensorFolder folder({{"w.qweight", {"I32", {2, 1}, word_bytes({counting, 0x88888888})}},
                               {"w.qzeros", {"I32", {2, 1}, word_bytes({0, counting})}},
                               {"w.scales", {"F32", {2, 8}, f32_bytes(std::vector<float>(16, 1))}}});
    EXPECT_EQ(weights_of(folder, 8, 2, {0, 8, 0, 1}), (std::vector<float>{0, 4, 1, 5, 2, 6, 3, 7}));
    EXPECT_EQ(weights_of(folder, 8, 2, {0, 8, 1, 1}), (std::vector<float>{8, 4, 7, 3, 6, 2, 5, 1}));
}

TEST(GroupedMatrix, CompressedTensorsPacksRows) {
    const TensorFolder symmetric({{"w.weight_packed", {"I32", {1, 2}, word_bytes({counting, 0xfU})}},
                                  {"w.weight_scale", {"F32", {1, 3}, f32_bytes({1, 2, 3})}}});
    EXPECT_EQ(weights_of(symmetric, 1, 12, {0, 1, 0, 9}), (std::vector<float>{-8, -7, -6, -5, -8, -6, -4, -2, 21}));
    const TensorFolder eight({{"w.weight_packed", {"I32", {1, 2}, word_bytes({0x80ff0001, 0})}},
                              {"w.weight_scale", {"F32", {1, 1}, f32_bytes({0.5F})}}});
    EXPECT_EQ(weights_of(eight, 1, 8, {0, 1, 0, 5}), (std::vector<float>{-63.5F, -64, 63.5F, 0, -64}));
}

/// Two bytes of two elements each: 1, -6, 0.5, 3; then zeros.
const std::string four_numbers = std::string("\xf2\x51", 2) + std::string(6, '\0');

TEST(GroupedMatrix, E2m1OfNvfp4AndMxfp4) {
    const StoredTensor elements{"U8", {1, 8}, four_numbers}, scales{"F8_E4M3", {1, 1}, "\x40"};
    const MatrixRange range{0, 1, 0, 4};
    const TensorFolder divided({{"w.weight_packed", elements},
                                {"w.weight_scale", scales},
                                {"w.weight_global_scale", {"F32", {1}, f32_bytes({4})}}});
    EXPECT_EQ(weights_of(divided, 1, 16, range), (std::vector<float>{0.5F, -3, 0.25F, 1.5F}));
    const TensorFolder multiplied(
        {{"w.weight", elements}, {"w.weight_scale", scales}, {"w.weight_scale_2", {"F32", {}, f32_bytes({4})}}});
    EXPECT_EQ(weights_of(multiplied, 1, 16, range), (std::vector<float>{8, -48, 4, 24}));
    const TensorFolder powers({{"w.weight_packed", elements}, {"w.weight_scale", {"U8", {1, 1}, "\x80"}}});
    EXPECT_EQ(weights_of(powers, 1, 16, range), (std::vector<float>{2, -12, 1, 6}));
}

TEST(GroupedMatrix, NanIsNotHidden) {
    const StoredTensor elements{"U8", {1, 8}, four_numbers};
    const TensorFolder nan({{"w.weight_packed", elements}, {"w.weight_scale", {"F8_E4M3", {1, 1}, "\x7f"}}});
    weights_of(nan, 1, 16, {0, 1, 0, 16}, false);
    const TensorFolder infinite({{"w.weight_packed", {"I32", {1, 1}, word_bytes({counting})}},
                                 {"w.weight_scale", {"F32", {1, 2}, f32_bytes({1, INFINITY})}}});
    weights_of(infinite, 1, 8, {0, 1, 0, 8}, false);
    weights_of(infinite, 1, 8, {0, 1, 0, 4}, true);
}

/// A matrix of random integers, zero points and scales, whose tensors a layout's `put` fills: value `v` of `bits` at
/// place `at` of `words`, counted in integers.
struct RandomMatrix {
    RandomMatrix(std::int64_t num_rows, std::int64_t num_columns, std::int64_t num_groups, int num_bits)
        : rows(num_rows), columns(num_columns), groups(num_groups), bits(num_bits) {
        std::mt19937 random(3);
        const std::uint32_t end = 1U << bits;
        for (std::int64_t i = 0; i < rows * columns; ++i) integers.push_back(random() % end);
        for (std::int64_t i = 0; i < rows * groups; ++i) {
            zeros.push_back(1 + random() % (end - 1));
            scales.push_back(static_cast<float>(1 + random() % 100));
        }
        for (std::int64_t c = 0; c < columns; ++c) group_of.push_back(static_cast<std::int32_t>(c * groups / columns));
    }
    [[nodiscard]] float value(std::int64_t row, std::int64_t column) const {
        const std::int64_t at = row * groups + group_of[static_cast<std::size_t>(column)];
        const auto integer = static_cast<float>(integers[static_cast<std::size_t>(row * columns + column)]);
        return (integer - static_cast<float>(zeros[static_cast<std::size_t>(at)])) *
               scales[static_cast<std::size_t>(at)];
    }

    std::int64_t rows, columns, groups;
    int bits;
    std::vector<std::uint32_t> integers, zeros;  // [rows, columns], [rows, groups]
    std::vector<float> scales;                   // [rows, groups]
    std::vector<std::int32_t> group_of;
};

/// [outer, inner] integers packed along `inner`.
StoredTensor packed(std::int64_t outer, std::int64_t inner, int bits,
                    const std::function<std::uint32_t(std::int64_t, std::int64_t)>& integer) {
    const std::int64_t per_word = 32 / bits, words = (inner + per_word - 1) / per_word;
    std::vector<std::uint32_t> out(static_cast<std::size_t>(outer * words));
    for (std::int64_t o = 0; o < outer; ++o) {
        for (std::int64_t i = 0; i < inner; ++i)
            out[static_cast<std::size_t>(o * words + i / per_word)] |= integer(o, i)
                                                                       << (i % per_word * static_cast<int>(bits));
    }
    return {"I32", {outer, words}, word_bytes(out)};
}

/// The words of [outer, inner] as those of [inner, outer].
StoredTensor transposed(const StoredTensor& tensor) {
    const std::int64_t rows = tensor.shape[0], columns = tensor.shape[1];
    StoredTensor out{tensor.dtype, {columns, rows}, std::string(tensor.bytes.size(), '\0')};
    for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = 0; c < columns; ++c)
            std::memcpy(out.bytes.data() + (c * rows + r) * 4, tensor.bytes.data() + (r * columns + c) * 4, 4);
    }
    return out;
}

void expect_every_part(const RandomMatrix& matrix, const std::map<std::string, StoredTensor>& tensors) {
    const TensorFolder folder(tensors);
    const std::int64_t rows = matrix.rows, columns = matrix.columns;
    for (const MatrixRange& range :
         {MatrixRange{0, rows, 0, columns}, MatrixRange{3, rows - 5, 5, columns - 9},
          MatrixRange{rows - 1, 1, columns - 1, 1}, MatrixRange{1, rows / 3, 2, 3, 2}, MatrixRange{5, 0, 0, 7}}) {
        const std::vector<float> values = weights_of(folder, rows, columns, range);
        for (std::int64_t i = 0; i < range.num_rows * range.num_columns; ++i) {
            const std::int64_t row = range.first_row + i / range.num_columns * range.row_step;
            const std::int64_t column = range.first_column + i % range.num_columns;
            ASSERT_EQ(values[static_cast<std::size_t>(i)], matrix.value(row, column)) << row << ", " << column;
        }
    }
}

// More rows than those whose words are copied together: 16 of GPTQ, 128 of AWQ.
TEST(GroupedMatrix, EveryPartOfEveryLayout) {
    for (const int bits : {4, 8}) {
        RandomMatrix m(bits == 4 ? 280 : 300, 48, 6, bits);
        const auto at = [](std::int64_t index) { return static_cast<std::size_t>(index); };
        const auto by_row = [&](std::int64_t r, std::int64_t c) { return m.integers[at(r * m.columns + c)]; };
        std::vector<float> scales_by_group;
        for (std::int64_t g = 0; g < m.groups; ++g) {
            for (std::int64_t r = 0; r < m.rows; ++r) scales_by_group.push_back(m.scales[at(r * m.groups + g)]);
        }
        const StoredTensor group_scales{"F32", {m.groups, m.rows}, f32_bytes(scales_by_group)};
        SCOPED_TRACE(bits);
        const auto zeros_by_row = [&](std::int64_t g, std::int64_t r) { return m.zeros[at(r * m.groups + g)]; };
        const auto zeros_less_1 = [&](std::int64_t g, std::int64_t r) { return m.zeros[at(r * m.groups + g)] - 1; };
        {
            SCOPED_TRACE("compressed-tensors");
            expect_every_part(m, {{"w.weight_packed", packed(m.rows, m.columns, bits, by_row)},
                                  {"w.weight_zero_point", transposed(packed(m.groups, m.rows, bits, zeros_by_row))},
                                  {"w.weight_scale", {"F32", {m.rows, m.groups}, f32_bytes(m.scales)}}});
        }
        std::map<std::string, StoredTensor> gptq = {{"w.qweight", transposed(packed(m.rows, m.columns, bits, by_row))},
                                                    {"w.qzeros", packed(m.groups, m.rows, bits, zeros_less_1)},
                                                    {"w.scales", group_scales}};
        {
            SCOPED_TRACE("GPTQ");
            expect_every_part(m, gptq);
        }
        if (bits == 4) {
            SCOPED_TRACE("AWQ");
            constexpr std::int64_t order[] = {0, 2, 4, 6, 1, 3, 5, 7};
            const auto place = [&](std::int64_t r) { return r / 8 * 8 + order[r % 8]; };
            const auto by_column = [&](std::int64_t c, std::int64_t r) { return by_row(place(r), c); };
            const auto zeros = [&](std::int64_t g, std::int64_t r) { return zeros_by_row(g, place(r)); };
            expect_every_part(m, {{"w.qweight", packed(m.columns, m.rows, bits, by_column)},
                                  {"w.qzeros", packed(m.groups, m.rows, bits, zeros)},
                                  {"w.scales", group_scales}});
        }
        SCOPED_TRACE("GPTQ with act-order");
        std::shuffle(m.group_of.begin(), m.group_of.end(), std::mt19937(4));
        std::string bytes(m.group_of.size() * 4, '\0');
        std::memcpy(bytes.data(), m.group_of.data(), bytes.size());
        gptq["w.g_idx"] = {"I32", {m.columns}, bytes};
        expect_every_part(m, gptq);
    }
}

TEST(GroupedMatrix, RefusesWhatItCannotRead) {
    const std::map<std::string, StoredTensor> gptq = {
        {"w.qweight", {"I32", {1, 8}, word_bytes(std::vector<std::uint32_t>(8))}},
        {"w.qzeros", {"I32", {2, 1}, word_bytes({0, 0})}},
        {"w.scales", {"F32", {2, 8}, f32_bytes(std::vector<float>(16, 1))}}};
    const auto complaint = [&](const std::string& name, const StoredTensor* tensor, std::int64_t rows = 8,
                               std::int64_t columns = 8) {
        std::map<std::string, StoredTensor> all = gptq;
        all.erase(name);
        if (tensor != nullptr) all[name] = *tensor;
        return TensorFolder(all).complaint("w.weight", rows, columns);
    };
    const StoredTensor floats{"F32", {1, 8}, f32_bytes(std::vector<float>(8, 1))};
    EXPECT_EQ(complaint("", nullptr), "(none)");
    EXPECT_EQ(complaint("w.qweight", &floats), "w.qweight: expected I32, got F32");
    EXPECT_EQ(complaint("", nullptr, 8, 12),
              "w.qweight: expected shape [1, 8] or [3, 8] (GPTQ of 4 or 8 bits) or [12, 1] (AWQ), as config.json says, "
              "got [1, 8]");
    EXPECT_EQ(complaint("w.qzeros", nullptr), "w.qzeros: expected a tensor of that name, got none");
    EXPECT_EQ(complaint("w.qzeros", &floats), "w.qzeros: expected shape [2, 1], as config.json says, got [1, 8]");
    EXPECT_EQ(complaint("w.scales", nullptr), "w.scales: expected a tensor of that name, got none");
    const StoredTensor three{"F32", {3, 8}, f32_bytes(std::vector<float>(24, 1))}, integers{"I8", {2, 4}, "abcdefgh"};
    EXPECT_EQ(complaint("w.scales", &three), "w.scales: expected groups of one size, got 3 of 8 inputs");
    EXPECT_EQ(complaint("w.scales", &integers), "w.scales: expected scales of BF16, F16 or F32, got I8");
    const StoredTensor flat{"F32", {8}, f32_bytes(std::vector<float>(8, 1))};
    EXPECT_EQ(complaint("w.scales", &flat), "w.scales: expected scales of shape [groups, 8], got [8]");
    EXPECT_EQ(complaint("w.g_idx", &flat), "w.g_idx: expected I32, got F32");
    const StoredTensor matrix{"F32", {8, 8}, f32_bytes(std::vector<float>(64, 1))};
    std::map<std::string, StoredTensor> both = gptq;
    both["w.weight"] = matrix;
    EXPECT_EQ(TensorFolder(both).complaint("w.weight", 8, 8),
              "w.qweight: expected only one of w.qweight and w.weight, got both");

    const StoredTensor elements{"U8", {1, 8}, four_numbers}, scales{"F8_E4M3", {1, 1}, "\x40"};
    const auto of_e2m1 = [&](const std::string& name, const StoredTensor& tensor, std::int64_t columns = 16) {
        return TensorFolder({{"w.weight_packed", elements}, {"w.weight_scale", scales}, {name, tensor}})
            .complaint("w.weight", 1, columns);
    };
    EXPECT_EQ(of_e2m1("v", flat), "(none)");
    EXPECT_EQ(of_e2m1("v", flat, 32), "w.weight_packed: expected shape [1, 16], as config.json says, got [1, 8]");
    EXPECT_EQ(of_e2m1("w.weight_global_scale", flat), "w.weight_global_scale: expected one F32, got F32 of shape [8]");
    EXPECT_EQ(
        of_e2m1("w.pre_quant_scale", flat),
        "w.pre_quant_scale: expected no scales of inputs, as ModelOpt's AWQ has them, got a tensor of that name; use "
        "the model's unquantized folder");
    EXPECT_EQ(of_e2m1("w.weight_zero_point", flat),
              "w.weight_zero_point: expected none: elements of E2M1 times scales, got a tensor of that name");
    EXPECT_EQ(of_e2m1("w.weight", flat),
              "w.weight_packed: expected only one of w.weight_packed and w.weight, got both");
}

TEST(GroupedMatrix, TheLastGroupMayBeShorter) {
    const std::string words = word_bytes({~0U, ~0U, ~0U, ~0U}), two = f32_bytes({1, 2});
    const TensorFolder odd({{"w.weight_packed", {"I32", {1, 4}, words}}, {"w.weight_scale", {"F32", {1, 2}, two}}});
    std::vector<float> expected(16, 7);
    expected.resize(25, 14);
    EXPECT_EQ(weights_of(odd, 1, 25, {0, 1, 0, 25}), expected);
    EXPECT_EQ(odd.complaint("w.weight", 1, 28),
              "w.weight_scale: expected groups of one size, got 2 of 28 inputs, of 14 or of 16");
    const std::string six = f32_bytes({1, 2, 3, 4, 5, 6});
    const TensorFolder equal({{"w.weight_packed", {"I32", {1, 4}, words}}, {"w.weight_scale", {"F32", {1, 6}, six}}});
    EXPECT_EQ(weights_of(equal, 1, 30, {0, 1, 4, 2}), (std::vector<float>{7, 14})) << "groups of 5";
}

TEST(GroupedMatrix, GroupsOfMinus1AreInOrder) {
    const TensorFolder folder({{"w.weight_packed", {"I32", {1, 1}, word_bytes({~0U})}},
                               {"w.weight_scale", {"F32", {1, 2}, f32_bytes({1, 2})}},
                               {"w.weight_g_idx", {"I32", {8}, word_bytes(std::vector<std::uint32_t>(8, ~0U))}}});
    EXPECT_EQ(weights_of(folder, 1, 8, {0, 1, 0, 8}), (std::vector<float>{7, 7, 7, 7, 14, 14, 14, 14}));
}

TEST(GroupedMatrix, RefusesGroupsThatDoNotExist) {
    for (const std::int32_t group : {2, -1}) {
        std::vector<std::uint32_t> groups(8, 0);
        groups[5] = static_cast<std::uint32_t>(group);
        const TensorFolder folder({{"w.qweight", {"I32", {1, 8}, word_bytes(std::vector<std::uint32_t>(8))}},
                                   {"w.qzeros", {"I32", {2, 1}, word_bytes({0, 0})}},
                                   {"w.scales", {"F32", {2, 8}, f32_bytes(std::vector<float>(16, 1))}},
                                   {"w.g_idx", {"I32", {8}, word_bytes(groups)}}});
        std::vector<float> out(64);
        const MatrixView view = require_matrix(folder.tensors(), "w.weight", 8, 8);
        EXPECT_THROW(check_groups(view.groups), InputError) << group;
        EXPECT_THROW(read_as_f32(view, {0, 8, 0, 8}, out.data()), InputError) << group;
        EXPECT_TRUE(read_as_f32(view, {0, 8, 0, 5}, out.data()));
    }
}

}  // namespace
}  // namespace longhaul::engine
