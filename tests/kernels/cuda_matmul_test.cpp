// Matmul guarantees specific to the GPU (those of all devices: matmul_test.cpp). On tensor cores its sums differ from
// the CPU's, but an element of y depends only on its own row and output, whatever kernel and tile compute it.
#include <cmath>
#include <set>

#include "kernels/cuda/matmul_split.hpp"
#include "kernels/cuda/weight_layout.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

struct Shape {
    std::int64_t num_outputs, num_inputs;
};
/// Slices of whole steps; with a remainder; too short for reads of 16 bytes; of a single step. Outputs: more than one
/// tile of 128 and less than one.
const std::vector<Shape> shapes = {{150, 512}, {70, 832}, {33, 272}, {9, 256}};

struct Problem {
    Problem(Device& device, DType dtype, Shape shape, std::int64_t num_rows, std::uint64_t seed)
        : device(device), shape(shape), num_rows(num_rows), dtype(dtype) {
        Numbers numbers(seed);
        weights = rounded(numbers.normals(shape.num_outputs * shape.num_inputs, 0.1F), act_type(dtype));
        x = rounded(numbers.normals(num_rows * shape.num_inputs), act_type(dtype));
    }

    /// Rows first.. times the first `num_outputs` outputs.
    [[nodiscard]] std::vector<float> product(std::int64_t num_outputs, std::int64_t first, std::int64_t count) const {
        return product_of({.data = weights.data(),
                           .dtype = act_type(dtype),
                           .num_rows = num_outputs,
                           .row_stride = shape.num_inputs,
                           .num_columns = shape.num_inputs},
                          8, first * shape.num_inputs, count);
    }

    /// The partial sums of rank `rank` of `ranks` for the first `count` rows.
    [[nodiscard]] std::vector<float> part(int rank, int ranks, std::int64_t count) const {
        const std::int64_t inputs = shape.num_inputs / ranks;
        return product_of({.data = weights.data(),
                           .dtype = act_type(dtype),
                           .num_rows = shape.num_outputs,
                           .row_stride = shape.num_inputs,
                           .first_column = rank * inputs,
                           .num_columns = inputs},
                          8 / ranks, rank * inputs, count);
    }

    /// `first_input`: the element of x where the first row starts.
    [[nodiscard]] std::vector<float> product_of(const WeightRows& rows, int num_slices, std::int64_t first_input,
                                                std::int64_t count) const {
        const Matrix w = device.pack(dtype, {&rows, 1}, num_slices, shape.num_inputs / 8);
        const auto first = static_cast<std::size_t>(first_input) * bytes_of(act_type(dtype));
        const auto end = static_cast<std::size_t>(count * shape.num_inputs) * bytes_of(act_type(dtype));
        const OnDevice inputs(device, std::span(x).subspan(first, std::min(end, x.size() - first)));
        const Guarded y(device, static_cast<std::size_t>(count * rows.num_rows) * 4);
        device.matmul(w, inputs.data(), shape.num_inputs, count, y.floats());
        EXPECT_TRUE(y.intact());
        return y.values();
    }

    Device& device;
    Shape shape;
    std::int64_t num_rows;
    DType dtype;
    std::vector<std::byte> weights, x;
};

class GpuMatmul : public ContractTest {};

TEST_P(GpuMatmul, ARowIsTheSameAmongAnyOthers) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::int4}) {
        for (const Shape& shape : shapes) {
            const Problem problem(*device, dtype, shape, 200, 91);
            const std::vector<float> all = problem.product(shape.num_outputs, 0, 200);
            for (const std::int64_t count : {1, 2, 7, 8, 9, 16, 17, 33, 64, 65, 129}) {
                const std::int64_t first = count % 2 == 0 ? 0 : 200 - count;
                const std::vector<float> expected(all.begin() + first * shape.num_outputs,
                                                  all.begin() + (first + count) * shape.num_outputs);
                ASSERT_EQ(problem.product(shape.num_outputs, first, count), expected)
                    << count << " rows, " << shape.num_outputs << " x " << shape.num_inputs;
            }
        }
    }
}

/// Numbers of very different magnitudes.
std::vector<float> spread(Numbers& numbers, std::int64_t count) {
    std::vector<float> values = numbers.normals(count);
    for (float& value : values) value = std::ldexp(value, static_cast<int>(numbers.below(17)) - 8);
    return values;
}

// Slices of so many steps that every place of a queue is filled again.
TEST_P(GpuMatmul, LongSlicesAreTheSameForAnyRows) {
    const auto device = GetParam().make(1);
    Problem problem(*device, DType::bf16, {9, 2048}, 70, 95);
    Numbers numbers(96);
    problem.weights = rounded(spread(numbers, 9 * 2048), DType::bf16);
    problem.x = rounded(spread(numbers, 70 * 2048), DType::bf16);
    const std::vector<float> all = problem.product(9, 0, 70);
    for (const std::int64_t count : {1, 16, 17, 33}) {
        const std::vector<float> expected(all.begin(), all.begin() + count * 9);
        ASSERT_EQ(problem.product(9, 0, count), expected) << count << " rows";
    }
}

// So many outputs that a block computes all slices of its tiles, one after the other.
TEST_P(GpuMatmul, WholeBlocksGiveTheSameAsFewRows) {
    const auto device = GetParam().make(1);
    const bool is_emulated = GetParam().name.ends_with("emulated");
    const int multiprocessors = is_emulated ? 4 : 132;
    const std::int64_t outputs = is_emulated ? 1024 : 30720;
    for (const int blocks : {multiprocessors, 2 * multiprocessors})
        EXPECT_EQ(cuda::split_of_slices(outputs / 128, 8, 8, blocks), 1);
    const Problem problem(*device, DType::bf16, {outputs, 512}, 130, 97);
    const std::vector<float> all = problem.product(outputs, 0, 130);
    for (const std::int64_t count : {1, 17, 40}) {
        const std::vector<float> expected(all.begin(), all.begin() + count * outputs);
        ASSERT_TRUE(problem.product(outputs, 0, count) == expected) << count << " rows";
    }
}

// So many tiles of outputs and rows that prompts have a kernel of their own; slices with a part of a last step.
TEST_P(GpuMatmul, PromptsGiveTheSameAsFewRows) {
    const auto device = GetParam().make(1);
    const bool is_emulated = GetParam().name.ends_with("emulated");
    const Shape shape{is_emulated ? 400 : 8590, 1600};
    const Problem problem(*device, DType::bf16, shape, 140, 98);
    const std::vector<float> all = problem.product(shape.num_outputs, 0, 140);
    for (const std::int64_t first : {0, 127, 139}) {
        const auto expected = all.begin() + first * shape.num_outputs;
        ASSERT_EQ(problem.product(shape.num_outputs, first, 1),
                  std::vector<float>(expected, expected + shape.num_outputs))
            << "row " << first;
    }
}

// Prompts whose rows do not fit into the cache are computed in parts.
TEST_P(GpuMatmul, RowsFarApartAreTheSame) {
    const auto device = GetParam().make(1);
    constexpr std::int64_t num_rows = 150, inputs = 256, far = 96 << 10;
    const Problem problem(*device, DType::bf16, {70, inputs}, num_rows, 94);
    const WeightRows rows{.data = problem.weights.data(),
                          .dtype = DType::bf16,
                          .num_rows = 70,
                          .row_stride = inputs,
                          .num_columns = inputs};
    const Matrix w = device->pack(DType::bf16, {&rows, 1}, 8, inputs / 8);
    std::vector<std::byte> x(num_rows * far * 2);
    for (std::size_t r = 0; r < num_rows; ++r)
        std::copy_n(problem.x.begin() + static_cast<std::ptrdiff_t>(r * inputs * 2), inputs * 2,
                    x.begin() + static_cast<std::ptrdiff_t>(r * far * 2));
    const OnDevice apart(*device, x);
    const Guarded y(*device, num_rows * 70 * 4);
    device->matmul(w, apart.data(), far, num_rows, y.floats());
    EXPECT_TRUE(y.intact());
    EXPECT_EQ(y.values(), problem.product(70, 0, num_rows));

    const Matrix gated = device->pack_gated(DType::bf16, {&rows, 1}, 8, inputs / 8);
    const OnDevice near(*device, problem.x);
    const Guarded active(*device, num_rows * 40 * 2), expected(*device, num_rows * 40 * 2);
    device->gated_matmul(gated, Gate::silu, apart.data(), far, num_rows, y.floats(), DType::bf16, active.data(), 40);
    device->gated_matmul(gated, Gate::silu, near.data(), inputs, num_rows, y.floats(), DType::bf16, expected.data(),
                         40);
    EXPECT_TRUE(active.intact());
    EXPECT_EQ(active.bytes(), expected.bytes());
}

// If these sums were the CPU's, the other tests would not have used tensor cores.
TEST_P(GpuMatmul, TensorCoresHaveBitsOfTheirOwn) {
    const auto device = GetParam().make(1), reference = make_cpu_device(CpuVariant::reference, 2);
    for (const std::int64_t num_rows : {1, 70}) {
        const std::vector<float> own =
            Problem(*device, DType::bf16, {150, 512}, num_rows, 93).product(150, 0, num_rows);
        const std::vector<float> contract =
            Problem(*reference, DType::bf16, {150, 512}, num_rows, 93).product(150, 0, num_rows);
        EXPECT_EQ(own == contract, GetParam().name == exact_gpu().name);
        for (std::size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], contract[i], 1e-4F);
    }
}

// With few outputs, each block computes only some of the slices.
TEST_P(GpuMatmul, AnOutputIsTheSameAmongAnyOthers) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::int8}) {
        const Problem problem(*device, dtype, {600, 256}, 70, 92);
        for (const std::int64_t num_rows : {1, 12, 30, 60, 70}) {
            const std::vector<float> all = problem.product(600, 0, num_rows);
            for (const std::int64_t num_outputs : {1, 16, 130}) {
                const std::vector<float> some = problem.product(num_outputs, 0, num_rows);
                for (std::int64_t r = 0; r < num_rows; ++r) {
                    for (std::int64_t n = 0; n < num_outputs; ++n) {
                        ASSERT_EQ(some[static_cast<std::size_t>(r * num_outputs + n)],
                                  all[static_cast<std::size_t>(r * 600 + n)])
                            << "row " << r << " of " << num_rows << ", output " << n << " of " << num_outputs;
                    }
                }
            }
        }
    }
}

// As in matmul_test.cpp, for the kernels of more rows.
TEST_P(GpuMatmul, SlicesOfManyRowsAddUpOnAnyNumberOfRanks) {
    const auto device = GetParam().make(1);
    const Problem problem(*device, DType::bf16, {300, 512}, 70, 94);
    for (const std::int64_t num_rows : {40, 70}) {
        const std::vector<float> whole = problem.product(300, 0, num_rows);
        for (const int ranks : {2, 4, 8}) {
            std::vector<std::vector<float>> sums;
            for (int rank = 0; rank < ranks; ++rank) sums.push_back(problem.part(rank, ranks, num_rows));
            for (std::size_t step = 1; step < sums.size(); step *= 2) {
                for (std::size_t rank = 0; rank < sums.size(); rank += 2 * step) {
                    for (std::size_t i = 0; i < whole.size(); ++i) sums[rank][i] += sums[rank + step][i];
                }
            }
            ASSERT_EQ(sums[0], whole) << ranks << " ranks, " << num_rows << " rows";
        }
    }
}

class GpuGrids : public ContractTest {};

// A grid has at most 65,535 blocks in all dimensions but the first. The rows repeat three minimal ones.
TEST_P(GpuGrids, RowsMayBeMoreThanAGridIsHigh) {
    constexpr std::int64_t num_rows = 65'537;
    const auto device = GetParam().make(1);
    const std::vector<float> values = {1.0F, 0.5F, -2.0F, 0.25F, 4.0F, -1.0F};
    const std::vector<std::byte> bytes = rounded(values, DType::bf16);
    const WeightRows rows{bytes.data(), DType::bf16, 3, 2, 0, 2};
    std::vector<std::int32_t> turns(num_rows);
    for (std::size_t r = 0; r < turns.size(); ++r) turns[r] = static_cast<std::int32_t>(r % 3);
    const Matrix table = device->pack(DType::bf16, {&rows, 1}, 1, 2);
    const Guarded embedded(*device, num_rows * 2 * 4), x(*device, num_rows * 2 * 2);
    device->embed(table, turns, 2, embedded.floats());
    device->round_rows(embedded.floats(), num_rows, 2, DType::bf16, x.data(), 2);
    for (const DType dtype : {DType::bf16, DType::int8}) {
        const Matrix w = device->pack(dtype, {&rows, 1}, 1, 2);
        const Guarded y(*device, num_rows * 3 * 4);
        device->matmul(w, x.data(), 2, num_rows, y.floats());
        const std::vector<float> products = y.values();
        for (std::size_t i = 0; i < products.size(); ++i) {
            const std::size_t row = i / 3 % 3 * 2, output = i % 3 * 2;
            const float expected = values[row] * values[output] + values[row + 1] * values[output + 1];
            ASSERT_NEAR(products[i], expected, 0.1F) << "row " << i / 3;
            ASSERT_EQ(products[i], products[i % 9]);
        }
    }
}

TEST_P(GpuMatmul, HaveACeiling) {
    EXPECT_GT(GetParam().make(1)->measure_peak_flops(), 0.0);
}

// An A100 has 108 multiprocessors, an H100 132.
TEST(SplitOfSlices, UnloadsTheBusiestMultiprocessor) {
    using cuda::split_of_slices;
    EXPECT_EQ(split_of_slices(128, 8, 8, 108), 2) << "20 multiprocessors would compute two tiles, the others one";
    EXPECT_EQ(split_of_slices(128, 8, 8, 132), 1) << "one tile each: smaller parts would not end earlier";
    EXPECT_EQ(split_of_slices(64, 8, 8, 132), 2);
    EXPECT_EQ(split_of_slices(33, 8, 8, 132), 4);
    EXPECT_EQ(split_of_slices(1, 8, 8, 132), 8);
    EXPECT_EQ(split_of_slices(160, 8, 8, 132), 2);
    EXPECT_EQ(split_of_slices(10'000, 8, 8, 132), 1);
    EXPECT_EQ(split_of_slices(10'000, 8, 4, 132), 2) << "a block has at most four slices";
    EXPECT_EQ(split_of_slices(1, 1, 8, 132), 1) << "a slice is not divided";
    EXPECT_EQ(split_of_slices(2, 2, 4, 132), 2);
}

TEST(WeightLayout, EachWeightHasAPlaceOfItsOwn) {
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8, DType::int4}) {
        const Matrix matrix{
            .dtype = dtype, .num_outputs = 37, .num_inputs = 2 * 70, .num_slices = 2, .slice_length = 70, .data = {}};
        const auto layout = cuda::WeightLayout::of(matrix);
        const std::int64_t size = dtype == DType::f32 ? 4 : dtype == DType::bf16 ? 2 : 1;
        std::set<std::pair<std::int64_t, bool>> places;
        std::set<std::int64_t> scales;
        for (std::int64_t n = 0; n < 37; ++n) {
            for (std::int64_t k = 0; k < 140; ++k) {
                const std::int64_t byte = layout.byte_of(n, k / 70, k % 70);
                EXPECT_EQ(byte % size, 0);
                EXPECT_LE(byte + size, layout.scales_offset());
                const bool upper_half = dtype == DType::int4 && k % 70 % 8 >= 4;
                EXPECT_TRUE(places.emplace(byte, upper_half).second) << n << ", " << k;
            }
            if (!is_quantized(dtype)) continue;
            for (std::int64_t block = 0; block < 2 * quantized_blocks(dtype, 70); ++block) {
                const std::int64_t count = quantized_blocks(dtype, 70);
                const std::int64_t byte = layout.scale_of(n, block / count, block % count);
                EXPECT_GE(byte, layout.scales_offset());
                EXPECT_LE(byte + 2, layout.num_bytes());
                EXPECT_TRUE(scales.insert(byte).second) << n << ", block " << block;
            }
        }
    }
}

// Kernels that both arithmetics share, and those of tensor cores.
INSTANTIATE_TEST_SUITE_P(Devices, GpuGrids, ::testing::Values(tensor_gpu()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, GpuMatmul, ::testing::Values(tensor_gpu(), older_gpu(), exact_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
