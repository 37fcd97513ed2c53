// Products of the GPU beyond what all devices promise (matmul_test.cpp): on tensor cores their sums are others than the
// CPU's, but a number of y depends on its own row and output alone, whatever kernel and tile it is computed in.
#include <set>

#include "kernels/cuda/weight_layout.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

struct Shape {
    std::int64_t num_outputs, num_inputs;
};
/// Slices of whole steps; with a rest; too short for reads of 16 bytes; of one step. Outputs of several tiles of 128,
/// of one, and of none that is whole.
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
        const WeightRows rows{.data = weights.data(),
                              .dtype = act_type(dtype),
                              .num_rows = num_outputs,
                              .row_stride = shape.num_inputs,
                              .num_columns = shape.num_inputs};
        const Matrix w = device.pack(dtype, {&rows, 1}, 8, shape.num_inputs / 8);
        const auto row_bytes = shape.num_inputs * static_cast<std::int64_t>(bytes_of(act_type(dtype)));
        const OnDevice inputs(device, std::span(x).subspan(static_cast<std::size_t>(first * row_bytes),
                                                           static_cast<std::size_t>(count * row_bytes)));
        const Guarded y(device, static_cast<std::size_t>(count * num_outputs) * 4);
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

class GpuProducts : public ContractTest {};

TEST_P(GpuProducts, ARowIsTheSameAmongAnyOthers) {
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

// Were the sums those of the CPU, the other tests would not have seen tensor cores.
TEST(GpuNumerics, TensorCoresHaveBitsOfTheirOwn) {
    const auto gpu = tensor_gpu().make(1), exact = exact_gpu().make(1);
    if (gpu == nullptr || exact == nullptr) GTEST_SKIP() << tensor_gpu().name << " needs " << tensor_gpu().needs;
    for (const std::int64_t num_rows : {1, 70}) {
        const std::vector<float> own = Problem(*gpu, DType::bf16, {150, 512}, num_rows, 93).product(150, 0, num_rows);
        const std::vector<float> contract =
            Problem(*exact, DType::bf16, {150, 512}, num_rows, 93).product(150, 0, num_rows);
        EXPECT_NE(own, contract);
        for (std::size_t i = 0; i < own.size(); ++i) ASSERT_NEAR(own[i], contract[i], 1e-4F);
    }
}

// Few outputs are computed by blocks that hold some of the slices each.
TEST_P(GpuProducts, AnOutputIsTheSameAmongAnyOthers) {
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

INSTANTIATE_TEST_SUITE_P(Devices, GpuProducts, ::testing::Values(tensor_gpu(), exact_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
