// Matmul: every vector device against the reference, bit for bit; the reference against double precision; and the
// guarantee behind tensor parallelism: the slices' sums give the same bits on any number of ranks.
#include <numeric>

#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

struct Shape {
    std::int64_t num_outputs;
    std::int64_t num_inputs;  // before padding
};

const std::vector<Shape> shapes = {{1, 2},   {16, 16},  {32, 16},   {32, 32},   {17, 48},
                                   {31, 50}, {64, 256}, {100, 130}, {256, 688}, {5, 1000}};
const std::vector<DType> all_types = {DType::bf16, DType::f32, DType::int8, DType::int4};

std::string name_of_type(DType dtype) {
    const char* names[] = {"bf16", "f32", "f16", "int8", "int4"};
    return names[static_cast<int>(dtype)];
}

const std::vector<std::int64_t> row_counts = {1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 13, 14, 15, 16, 24, 31, 40, 48, 49, 101};

/// A matrix, its checkpoint rows, and the part of it that a rank holds.
struct Weights {
    Weights(Numbers& numbers, Shape shape, DType source)
        : shape(shape), source(source), values(numbers.normals(shape.num_outputs * shape.num_inputs, 0.1F)) {
        if (source == DType::f16) {
            bytes.resize(values.size() * 2);
            for (std::byte& byte : bytes)
                byte = static_cast<std::byte>(numbers.below(60));  // f16 below 2^-1, with denormals
        } else {
            bytes = rounded(values, source);
        }
    }

    /// Slices first_slice.. of the 8, as a rank holds them.
    Matrix pack(Device& device, DType dtype, int first_slice = 0, int num_slices = 8) const {
        const std::int64_t slice_length = padded_inputs(shape.num_inputs) / 8;
        const std::int64_t first = std::min(first_slice * slice_length, shape.num_inputs);
        const std::int64_t end = std::min((first_slice + num_slices) * slice_length, shape.num_inputs);
        const WeightRows rows{.data = bytes.data(),
                              .dtype = source,
                              .num_rows = shape.num_outputs,
                              .row_stride = shape.num_inputs,
                              .first_column = first,
                              .num_columns = end - first};
        return device.pack(dtype, {&rows, 1}, num_slices, slice_length);
    }

    Shape shape;
    DType source;
    std::vector<float> values;
    std::vector<std::byte> bytes;
};

/// Inputs [num_rows, stride], zero-padded.
std::vector<float> inputs_of(Numbers& numbers, std::int64_t num_rows, std::int64_t num_inputs, std::int64_t stride) {
    std::vector<float> x(static_cast<std::size_t>(num_rows * stride), 0.0F);
    for (std::int64_t r = 0; r < num_rows; ++r) {
        for (std::int64_t k = 0; k < num_inputs; ++k) x[static_cast<std::size_t>(r * stride + k)] = numbers.normal();
    }
    return x;
}

Guarded product(Device& device, const Matrix& w, const std::vector<std::byte>& x, std::int64_t stride,
                std::int64_t num_rows) {
    const OnDevice inputs(device, x);
    Guarded y(device, static_cast<std::size_t>(num_rows * w.num_outputs) * 4);
    device.matmul(w, inputs.data(), stride, num_rows, y.floats());
    return y;
}

class MatmulTest : public DeviceTest {};

TEST_P(MatmulTest, EqualsReference) {
    constexpr std::uint64_t seed = 31;
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Numbers numbers(seed);
    Comparison comparison(GetParam());
    for (const DType dtype : all_types) {
        for (const Shape& shape : shapes) {
            const Weights weights(numbers, shape, act_type(dtype));
            const Matrix expected_w = weights.pack(*reference_, dtype);
            const Matrix w = weights.pack(*device_, dtype);
            const std::int64_t stride = padded_inputs(shape.num_inputs) + 16 * numbers.below(2);
            for (const std::int64_t num_rows : row_counts) {
                const auto x = rounded(inputs_of(numbers, num_rows, shape.num_inputs, stride), act_type(dtype));
                const Guarded expected = product(*reference_, expected_w, x, stride, num_rows);
                const Guarded actual = product(*device_, w, x, stride, num_rows);
                ASSERT_TRUE(comparison.equal(expected, actual, DType::f32))
                    << name_of_type(dtype) << " " << num_rows << " rows, " << shape.num_outputs << " x "
                    << shape.num_inputs;
            }
        }
    }
    EXPECT_GT(comparison.count(), 100'000);
}

/// Slices of many blocks, and more rows than share a pass over the weights of any variant.
TEST_P(MatmulTest, ManyInputsAndRowsEqualReference) {
    Numbers numbers(34);
    Comparison comparison(GetParam());
    for (const DType dtype : {DType::bf16, DType::int8, DType::int4}) {
        for (const Shape& shape : {Shape{40, 4700}, Shape{17, 9216}}) {
            const Weights weights(numbers, shape, DType::bf16);
            const Matrix expected_w = weights.pack(*reference_, dtype);
            const Matrix w = weights.pack(*device_, dtype);
            const std::int64_t stride = padded_inputs(shape.num_inputs);
            for (const std::int64_t num_rows : {10, 17, 47, 192, 193}) {
                const auto x = rounded(inputs_of(numbers, num_rows, shape.num_inputs, stride), DType::bf16);
                ASSERT_TRUE(comparison.equal(product(*reference_, expected_w, x, stride, num_rows),
                                             product(*device_, w, x, stride, num_rows), DType::f32))
                    << name_of_type(dtype) << " " << num_rows << " rows, " << shape.num_outputs << " x "
                    << shape.num_inputs;
            }
        }
    }
}

/// Equal bits do not show which kernel ran: inputs packed for tiles do. In row 0 all inputs are 1, in the others 0; for
/// tiles, a block of a row is together.
TEST(AmxMatmul, TilesTakeWholeBlocksOfManyRows) {
    if (!available(CpuVariant::avx2)) GTEST_SKIP() << "amx_emulated needs processor flags avx2 fma";
    const auto packs_for_tiles = [](std::int64_t num_rows, std::int64_t slice_length) {
        const std::int64_t inputs = 8 * slice_length, blocks = 8 * ((slice_length + 63) / 64);
        std::vector<std::uint16_t> rows(static_cast<std::size_t>(num_rows * inputs), 0);
        std::fill_n(rows.begin(), inputs, std::uint16_t{0x3f80});
        std::vector<std::int8_t> packed(static_cast<std::size_t>(num_rows * blocks * 64 + 64));
        std::vector<float> scales(static_cast<std::size_t>(num_rows * blocks));
        std::vector<std::int32_t> corrections(scales.size());
        cpu::amx_emulated_kernels()->int8.quantize({.rows = reinterpret_cast<const std::byte*>(rows.data()),
                                                    .row_stride = inputs,
                                                    .num_rows = num_rows,
                                                    .slice_length = slice_length,
                                                    .num_groups = inputs / 4,
                                                    .num_blocks = blocks,
                                                    .words = reinterpret_cast<std::uint32_t*>(packed.data()),
                                                    .scales = scales.data(),
                                                    .corrections = corrections.data()},
                                                   0, 1);
        return std::all_of(packed.begin(), packed.begin() + 32, [](std::int8_t q) { return q == 127; });
    };
    for (const std::int64_t num_rows : {10, 16, 20, 48, 49, 192})
        EXPECT_TRUE(packs_for_tiles(num_rows, 64)) << num_rows;
    for (const std::int64_t num_rows : {2, 9, 17, 19}) EXPECT_FALSE(packs_for_tiles(num_rows, 64)) << num_rows;
    EXPECT_TRUE(packs_for_tiles(16, 56));
    EXPECT_FALSE(packs_for_tiles(16, 48));
}

/// Calls that a device computes together: as many rows as share a pass over the weights, more, and none.
TEST_P(MatmulTest, SeveralAtOnceGiveTheBitsOfEach) {
    Numbers numbers(33);
    const std::vector<std::int64_t> rows = {1, 1, 1, 0, 7, 40, 1, 60, 2, 200, 47, 3};
    for (const DType dtype : all_types) {
        for (const Shape& shape : {Shape{32, 16}, Shape{100, 130}, Shape{256, 688}}) {
            std::vector<Matrix> matrices;
            std::vector<OnDevice> inputs;
            std::vector<Guarded> expected, actual;
            std::vector<MatmulCall> calls;
            const std::int64_t stride = padded_inputs(shape.num_inputs) + 16;
            matrices.reserve(rows.size());
            for (const std::int64_t num_rows : rows) {
                const Matrix& w = matrices.emplace_back(Weights(numbers, shape, act_type(dtype)).pack(*device_, dtype));
                const auto x = rounded(inputs_of(numbers, num_rows, shape.num_inputs, stride), act_type(dtype));
                expected.push_back(product(*device_, w, x, stride, num_rows));
                inputs.emplace_back(*device_, x);
                actual.emplace_back(*device_, static_cast<std::size_t>(num_rows * w.num_outputs) * 4);
                calls.push_back({&w, inputs.back().data(), num_rows, actual.back().floats()});
            }
            device_->matmuls(calls, stride);
            for (std::size_t i = 0; i < rows.size(); ++i) {
                ASSERT_TRUE(actual[i].intact());
                ASSERT_EQ(actual[i].values(), expected[i].values()) << name_of_type(dtype) << " call " << i;
            }
        }
    }
    device_->matmuls({}, 16);
}

TEST_P(MatmulTest, SourcesOfAllTypesPackAlike) {
    constexpr std::uint64_t seed = 32;
    Numbers numbers(seed);
    Comparison comparison(GetParam());
    for (const DType source : {DType::bf16, DType::f32, DType::f16}) {
        for (const DType dtype : all_types) {
            const Weights weights(numbers, {37, 70}, source);
            const auto x = rounded(inputs_of(numbers, 3, 70, 80), act_type(dtype));
            const Guarded expected = product(*reference_, weights.pack(*reference_, dtype), x, 80, 3);
            const Guarded actual = product(*device_, weights.pack(*device_, dtype), x, 80, 3);
            ASSERT_TRUE(comparison.equal(expected, actual, DType::f32)) << "source type " << static_cast<int>(source);
        }
    }
}

TEST_P(MatmulTest, PartsAreStackedAndPaddedWithZeros) {
    Numbers numbers(33);
    Comparison comparison(GetParam());
    const Weights first(numbers, {5, 32}, DType::bf16);
    const Weights second(numbers, {20, 32}, DType::f32);
    const std::vector<WeightRows> parts = {{first.bytes.data(), DType::bf16, 5, 32, 0, 32},
                                           {nullptr, DType::bf16, 7, 0, 0, 0},
                                           {second.bytes.data(), DType::f32, 20, 32, 0, 32}};
    const auto x = rounded(inputs_of(numbers, 2, 32, 32), DType::bf16);
    const Guarded expected = product(*reference_, reference_->pack(DType::bf16, parts, 8, 4), x, 32, 2);
    const Guarded actual = product(*device_, device_->pack(DType::bf16, parts, 8, 4), x, 32, 2);
    ASSERT_TRUE(comparison.equal(expected, actual, DType::f32));
    const std::vector<float> values = actual.values();
    for (std::size_t n = 5; n < 12; ++n) EXPECT_EQ(values[n], 0.0F);
}

TEST_P(MatmulTest, EmbedReadsThePackedTable) {
    Numbers numbers(34);
    Comparison comparison(GetParam());
    for (const DType dtype : all_types) {
        const Weights table(numbers, {77, 100}, act_type(dtype));
        const std::vector<std::int32_t> rows = {0, 76, -1, 15, 16, 17, 16, 63};
        const Guarded expected(*reference_, rows.size() * 100 * 4);
        const Guarded actual(*device_, rows.size() * 100 * 4);
        reference_->embed(table.pack(*reference_, dtype), rows, 100, expected.floats());
        device_->embed(table.pack(*device_, dtype), rows, 100, actual.floats());
        ASSERT_TRUE(comparison.equal(expected, actual, DType::f32));
        const std::vector<float> embedded = actual.values();
        EXPECT_EQ(embedded[200], 0.0F);
        const float value = dtype == DType::f32 ? table.values[7600] : bf16_to_f32(f32_to_bf16(table.values[7600]));
        // For values of 0.1 the largest in a block is below 0.4: half a step of int8 is 0.0016, of int4 0.025.
        EXPECT_NEAR(embedded[100], value, dtype == DType::int8 ? 0.0017F : dtype == DType::int4 ? 0.03F : 0.0F);
    }
}

/// Integers minus a zero point, 0 to 15 of them, times a scale for each group of 128 inputs, as GPTQ and AWQ store
/// them.
std::vector<float> quantized_before(std::int64_t zero, Numbers& numbers) {
    std::vector<float> values;
    float scale = 0.0F;
    for (std::int64_t i = 0; i < std::int64_t{40} * 512; ++i) {
        if (i % 128 == 0) scale = bf16_to_f32(f32_to_bf16(0.01F + std::abs(numbers.normal(0.01F))));
        values.push_back(static_cast<float>(numbers.below(16) - zero) * scale);
    }
    return values;
}

// With the zero points 8 and 7 all of them are in -8..7 or 7..-8; with 4 the largest one is not.
TEST_P(MatmulTest, WeightsOfFourBitsKeepTheirIntegers) {
    Numbers numbers(35);
    Comparison comparison(GetParam());
    std::vector<std::int32_t> all(40);
    std::iota(all.begin(), all.end(), 0);
    for (const std::int64_t zero : {8, 7, 4}) {
        const std::vector<float> values = quantized_before(zero, numbers);
        const auto bytes = rounded(values, DType::f32);
        const WeightRows rows{bytes.data(), DType::f32, 40, 512, 0, 512};
        const Guarded expected(*reference_, values.size() * 4), actual(*device_, values.size() * 4);
        reference_->embed(reference_->pack(DType::int4, {&rows, 1}, 8, 64), all, 512, expected.floats());
        device_->embed(device_->pack(DType::int4, {&rows, 1}, 8, 64), all, 512, actual.floats());
        ASSERT_TRUE(comparison.equal(expected, actual, DType::f32)) << zero;
        if (zero == 4) continue;
        EXPECT_EQ(actual.values(), values) << zero;
    }
}

/// Any device, including the reference.
class MatmulContract : public ContractTest {};

TEST_P(MatmulContract, SlicesAddUpToTheSameBitsOnAnyNumberOfRanks) {
    constexpr std::uint64_t seed = 41;
    Numbers numbers(seed);
    Comparison comparison(GetParam());
    const auto device = GetParam().make(2);
    for (const DType dtype : all_types) {
        const Weights weights(numbers, {50, 300}, act_type(dtype));
        const std::int64_t padded = padded_inputs(300);
        for (const std::int64_t num_rows : {1, 7}) {
            const auto x = rounded(inputs_of(numbers, num_rows, 300, padded), act_type(dtype));
            const Guarded whole = product(*device, weights.pack(*device, dtype), x, padded, num_rows);
            for (const int ranks : {2, 4, 8}) {
                std::vector<Guarded> sums;
                for (int rank = 0; rank < ranks; ++rank) {
                    const Matrix w = weights.pack(*device, dtype, rank * 8 / ranks, 8 / ranks);
                    const std::vector<std::byte> part(
                        x.begin() + rank * padded / ranks * static_cast<std::ptrdiff_t>(bytes_of(act_type(dtype))),
                        x.end());
                    sums.push_back(product(*device, w, part, padded, num_rows));
                }
                if (ranks == 8) {
                    // Negative control: added as a chain, the sums have other bits, and the comparison notices.
                    const OnDevice chain(*device, sums[0].bytes());
                    for (std::size_t rank = 1; rank < 8; ++rank) {
                        device->add(chain.floats(), sums[rank].floats(), num_rows * 50);
                    }
                    std::vector<std::byte> chain_bytes(whole.bytes().size());
                    device->download(chain_bytes.data(), chain.data(), chain_bytes.size());
                    EXPECT_NE(chain_bytes, whole.bytes());
                }
                for (std::size_t step = 1; step < sums.size(); step *= 2) {
                    for (std::size_t rank = 0; rank < sums.size(); rank += 2 * step) {
                        device->add(sums[rank].floats(), sums[rank + step].floats(), num_rows * 50);
                    }
                }
                ASSERT_TRUE(comparison.equal(whole, sums[0], DType::f32)) << ranks << " ranks";
            }
        }
    }
}

TEST_P(MatmulContract, NeitherThreadsNorOtherRowsChangeARow) {
    constexpr std::uint64_t seed = 42;
    Numbers numbers(seed);
    Comparison comparison(GetParam());
    const auto one = GetParam().make(1);
    const auto two = GetParam().make(2);
    for (const DType dtype : all_types) {
        const Weights weights(numbers, {530, 512}, act_type(dtype));
        const Matrix w_one = weights.pack(*one, dtype);
        const Matrix w_two = weights.pack(*two, dtype);
        const auto x = rounded(inputs_of(numbers, 53, 512, 512), act_type(dtype));
        const std::vector<std::byte> all = product(*two, w_two, x, 512, 53).bytes();
        for (const std::int64_t num_rows : {1, 4, 9, 25, 53}) {
            for (const std::int64_t first : {std::int64_t{0}, 53 - num_rows}) {
                const std::vector<std::byte> rows(
                    x.begin() + first * 512 * static_cast<std::ptrdiff_t>(bytes_of(act_type(dtype))), x.end());
                const std::vector<std::byte> some = product(*one, w_one, rows, 512, num_rows).bytes();
                const auto from = all.begin() + first * 530 * 4;
                ASSERT_TRUE(comparison.equal({from, from + num_rows * 530 * 4}, some, DType::f32))
                    << num_rows << " rows from " << first;
            }
        }
    }
}

TEST_P(MatmulContract, DenormalsAreFlushed) {
    const auto device = GetParam().make(1);
    // Row 0: a product below the smallest normal number. Row 1: a denormal input times 2^100.
    const std::vector<float> w = {1e-30F, 0x1p-130F};
    for (const DType dtype : {DType::bf16, DType::f32}) {
        if (dtype == DType::bf16 && GetParam().name == tensor_gpu().name) continue;  // tensor cores keep denormals
        const auto bytes = rounded(w, dtype);
        const WeightRows rows{bytes.data(), dtype, 2, 1, 0, 1};
        const Matrix matrix = device->pack(dtype, {&rows, 1}, 8, 2);
        std::vector<float> x(32, 0.0F);
        x[0] = 1e-10F;
        x[16] = 0x1p100F;
        const std::vector<float> y = product(*device, matrix, rounded(x, dtype), 16, 2).values();
        EXPECT_EQ(y[0], 0.0F);
        EXPECT_EQ(y[3], 0.0F);
        EXPECT_GT(y[2], 0.0F);
    }
}

/// Double-precision check. A sum of n rounded steps errs by at most n * 2^-24 * sum |terms| (Higham, section 3.1); n is
/// a slice's length plus 3 levels of the tree.
TEST_P(MatmulContract, SumIsRightInDoublePrecision) {
    Numbers numbers(43);
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32}) {
        const Weights weights(numbers, {40, 1000}, dtype);
        const std::int64_t padded = padded_inputs(1000);
        const auto x = rounded(inputs_of(numbers, 2, 1000, padded), dtype);
        const std::vector<float> y = product(*device, weights.pack(*device, dtype), x, padded, 2).values();
        for (std::int64_t r = 0; r < 2; ++r) {
            for (std::int64_t n = 0; n < 40; ++n) {
                double sum = 0.0;
                double magnitude = 0.0;
                for (std::int64_t k = 0; k < 1000; ++k) {
                    const double term = static_cast<double>(load_as_f32(weights.bytes.data(), dtype, n * 1000 + k)) *
                                        static_cast<double>(load_as_f32(x.data(), dtype, r * padded + k));
                    sum += term;
                    magnitude += std::abs(term);
                }
                const std::int64_t additions = padded / 8 + 3;
                const double bound = static_cast<double>(additions) * 0x1p-24 * magnitude;
                ASSERT_NEAR(y[static_cast<std::size_t>(r * 40 + n)], sum, bound);
            }
        }
    }
}

/// Quantization error on normal numbers. int8: weights and inputs each err by 1 / sqrt(12) of a step, which is a 127th
/// of the largest of 64, about 2.5 deviations: 0.6 %, together 0.8 %. int4: a step is an 8th of the largest of 32: 8 %.
TEST_P(MatmulContract, QuantizedMatmulIsNearTheExactOne) {
    Numbers numbers(44);
    const auto device = GetParam().make(1);
    const Weights weights(numbers, {200, 1000}, DType::bf16);
    const std::int64_t padded = padded_inputs(1000);
    const auto x = rounded(inputs_of(numbers, 4, 1000, padded), DType::bf16);
    const std::vector<float> exact = product(*device, weights.pack(*device, DType::bf16), x, padded, 4).values();
    for (const auto& [dtype, max_error] : {std::pair(DType::int8, 0.012), std::pair(DType::int4, 0.13)}) {
        const std::vector<float> y = product(*device, weights.pack(*device, dtype), x, padded, 4).values();
        double error = 0.0, size = 0.0;
        for (std::size_t i = 0; i < exact.size(); ++i) {
            error += std::pow(static_cast<double>(y[i] - exact[i]), 2);
            size += std::pow(static_cast<double>(exact[i]), 2);
        }
        const double relative = std::sqrt(error / size);
        RecordProperty(name_of_type(dtype), std::to_string(relative));
        EXPECT_LT(relative, max_error) << name_of_type(dtype);
        EXPECT_GT(relative, max_error / 20) << name_of_type(dtype) << ": was anything quantized?";
    }
}

// Zeros, the smallest and the largest numbers, NaN and infinity, extremes of either sign: the same bits everywhere.
TEST_P(MatmulTest, QuantizedExtremesEqualReference) {
    Comparison comparison(GetParam());
    const float extremes[] = {0.0F, -0.0F, 1e-38F, -1e-30F, 1e12F, -1e12F, 1.0F, -1.0F, 127.0F, -128.0F, 0.5F, 1e-3F};
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    std::vector<float> w, x;
    for (std::int64_t i = 0; i < 32 * 512; ++i) w.push_back(extremes[(i * 7 + i / 512) % 12]);
    for (std::int64_t i = 0; i < 6 * 512; ++i) x.push_back(extremes[(i * 5 + i / 96) % 12]);
    for (std::int64_t i = 0; i < 512; ++i) w[static_cast<std::size_t>(3 * 512 + i)] = i % 2 == 0 ? -0.37F : 0.37F;
    w[5 * 512 + 70] = nan;
    w[6 * 512 + 1] = infinity;
    w[7 * 512 + 9] = 3e38F;
    x[3 * 512 + 7] = -3e38F;
    x[4 * 512 + 100] = nan;
    x[5 * 512 + 511] = -infinity;
    for (std::int64_t i = 0; i < 512; ++i) x[static_cast<std::size_t>(2 * 512 + i)] = i % 4 < 2 ? -1.0F : 1.0F;
    const auto bytes = rounded(w, DType::bf16);
    const WeightRows rows{bytes.data(), DType::bf16, 32, 512, 0, 512};
    for (const DType dtype : {DType::int8, DType::int4}) {
        const auto special_named = [&](Device& device) {
            const Guarded y = product(device, device.pack(dtype, {&rows, 1}, 8, 64), rounded(x, DType::bf16), 512, 6);
            std::vector<float> values = y.values();
            for (float& value : values) {  // all NaN bits count as equal, and `equal` takes only finite values
                if (std::isnan(value)) value = 12345.0F;
                if (std::isinf(value)) value = std::copysign(54321.0F, value);
            }
            return values;
        };
        const std::vector<float> expected = special_named(*reference_);
        const auto finite = std::count_if(expected.begin(), expected.end(),
                                          [](float value) { return value != 12345.0F && std::abs(value) != 54321.0F; });
        EXPECT_GT(finite, 6 * 32 / 3);
        EXPECT_LT(finite, 6 * 32);
        ASSERT_TRUE(
            comparison.equal(rounded(expected, DType::f32), rounded(special_named(*device_), DType::f32), DType::f32))
            << name_of_type(dtype);
    }
}

/// bf16: NaN and infinity stay in their rows and outputs, also beside the zeros at the end of a block.
TEST_P(MatmulTest, BrokenValuesEqualReference) {
    Numbers numbers(45);
    Comparison comparison(GetParam());
    const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    for (const std::int64_t num_inputs : {80, 256, 400}) {
        Weights weights(numbers, {40, num_inputs}, DType::f32);
        weights.values[static_cast<std::size_t>(3 * num_inputs)] = nan;
        weights.values[static_cast<std::size_t>(20 * num_inputs - 1)] = infinity;
        weights.values[static_cast<std::size_t>(21 * num_inputs + num_inputs / 2)] = -3e38F;
        weights.bytes = rounded(weights.values, DType::f32);
        std::vector<float> x = inputs_of(numbers, 35, num_inputs, num_inputs);
        x[static_cast<std::size_t>(2 * num_inputs - 1)] = nan;
        x[static_cast<std::size_t>(17 * num_inputs + num_inputs / 8)] = infinity;
        x[static_cast<std::size_t>(34 * num_inputs + num_inputs / 2)] = 3e38F;
        const auto named = [&](Device& device) {
            std::vector<float> values =
                product(device, weights.pack(device, DType::bf16), rounded(x, DType::bf16), num_inputs, 35).values();
            for (float& value : values) {
                if (std::isnan(value)) value = 12345.0F;
                if (std::isinf(value)) value = std::copysign(54321.0F, value);
            }
            return values;
        };
        const std::vector<float> expected = named(*reference_);
        EXPECT_GT(std::count(expected.begin(), expected.end(), 12345.0F), 40 + 32);
        EXPECT_LT(std::count(expected.begin(), expected.end(), 12345.0F), 4 * 40 + 4 * 32);
        ASSERT_TRUE(comparison.equal(rounded(expected, DType::f32), rounded(named(*device_), DType::f32), DType::f32))
            << num_inputs << " inputs";
    }
}

/// Equal bits on all devices would not show that the orders differ: these are the ones that numerics.hpp states.
TEST(Bf16Order, BlocksAddEvenAndOddElementsApart) {
    const auto sum_of = [](Bf16Order order, std::int64_t big, std::int64_t small) {
        const auto device = make_reference_device(1, order);
        std::vector<float> w(512, 0.0F);
        w[0] = 1.0F;
        w[static_cast<std::size_t>(big)] = 0x1p30F;
        w[static_cast<std::size_t>(small)] = -0x1p30F;
        const auto bytes = rounded(w, DType::bf16);
        const WeightRows rows{bytes.data(), DType::bf16, 1, 512, 0, 512};
        const auto x = rounded(std::vector<float>(512, 1.0F), DType::bf16);
        return product(*device, device->pack(DType::bf16, {&rows, 1}, 8, 64), x, 512, 1).values().front();
    };
    // The 1 of input 0 is lost where a large number is added to it before its opposite is.
    EXPECT_EQ(sum_of(Bf16Order::pairs, 3, 5), 0.0F);
    EXPECT_EQ(sum_of(Bf16Order::blocks, 3, 5), 1.0F);  // both in the sum of the odd elements
    EXPECT_EQ(sum_of(Bf16Order::pairs, 2, 5), 0.0F);
    EXPECT_EQ(sum_of(Bf16Order::blocks, 2, 5), 0.0F);
    EXPECT_EQ(sum_of(Bf16Order::pairs, 34, 36), 0.0F);
    EXPECT_EQ(sum_of(Bf16Order::blocks, 34, 36), 1.0F);  // both in the next block
    EXPECT_EQ(sum_of(Bf16Order::blocks, 34, 70), 0.0F);  // in the next slice
}

INSTANTIATE_TEST_SUITE_P(Devices, MatmulTest, ::testing::ValuesIn(exact_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, MatmulTest, ::testing::ValuesIn(devices_in_blocks()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, MatmulContract, ::testing::ValuesIn(all_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, MatmulContract, ::testing::ValuesIn(devices_in_blocks()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
