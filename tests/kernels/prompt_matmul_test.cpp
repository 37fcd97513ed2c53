// A GPU that leaves the matmuls of prompt rows to a library: which rows those are, and that a row's result does not
// depend on the other rows or on its place.
#include <set>

#include "kernels/cuda/block_library.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

struct Weights {
    std::int64_t outputs, inputs;
    int num_slices = 8;
};

/// A pass of `num_rows` rows, some of them prompt rows.
class Pass {
  public:
    Pass(Device& device, std::int64_t num_rows, std::int64_t first_prompt_row, std::int64_t num_prompt_rows)
        : page_(device,
                device.kv_page_bytes({.dtype = DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 2})),
          pages_{page_.data()},
          rows_(static_cast<std::size_t>(num_rows), AttentionRow{.position = 0, .in_pages = 1}) {
        sequence_ = {pages_, {}};
        device.begin_pass({.sequences = {&sequence_, 1},
                           .rows = rows_,
                           .slots = {},
                           .first_prompt_row = first_prompt_row,
                           .num_prompt_rows = num_prompt_rows});
    }

  private:
    Buffer page_;
    std::vector<std::byte*> pages_;
    AttentionSequence sequence_;
    std::vector<AttentionRow> rows_;
};

class PromptMatmul : public ContractTest {
  protected:
    void SetUp() override {
        device_ = GetParam().make(1);
        if (device_ == nullptr) GTEST_SKIP() << GetParam().name << " needs " << GetParam().needs;
    }

    [[nodiscard]] Matrix pack(const Weights& shape, DType dtype = DType::bf16) {
        values_ = rounded(Numbers(31).normals(shape.outputs * shape.inputs, 0.1F), act_type(dtype));
        const WeightRows rows{.data = values_.data(),
                              .dtype = act_type(dtype),
                              .num_rows = shape.outputs,
                              .row_stride = shape.inputs,
                              .num_columns = shape.inputs};
        return device_->pack(dtype, {&rows, 1}, shape.num_slices, shape.inputs / shape.num_slices);
    }

    /// Rows first.. of the inputs. `num_prompt_rows` of them, from `first_prompt_row` on, are prompt rows.
    [[nodiscard]] std::vector<float> product(const Matrix& w, std::int64_t first, std::int64_t num_rows,
                                             std::int64_t first_prompt_row, std::int64_t num_prompt_rows) {
        const Pass pass(*device_, num_rows, first_prompt_row, num_prompt_rows);
        const auto size = static_cast<std::ptrdiff_t>(bytes_of(act_type(w.dtype)));
        const auto x = rounded(Numbers(32).normals(70 * w.num_inputs), act_type(w.dtype));
        const std::vector<std::byte> mine(x.begin() + first * w.num_inputs * size,
                                          x.begin() + (first + num_rows) * w.num_inputs * size);
        const OnDevice inputs(*device_, mine);
        const Guarded y(*device_, static_cast<std::size_t>(num_rows * w.num_outputs) * 4);
        device_->layer_matmul(w, inputs.data(), w.num_inputs, num_rows, y.floats());
        EXPECT_TRUE(y.intact());
        return y.values();
    }
    [[nodiscard]] static std::vector<float> rows_of(const std::vector<float>& y, std::int64_t outputs,
                                                    std::int64_t first, std::int64_t count) {
        return {y.begin() + first * outputs, y.begin() + (first + count) * outputs};
    }

    std::unique_ptr<Device> device_;
    std::vector<std::byte> values_;
};

/// Slices of whole runs of 8 inputs; with runs that reach over the slices' end; and a part of a row-parallel layer.
const std::vector<Weights> shapes = {{76, 512}, {20, 80}, {12, 136, 4}};

TEST_P(PromptMatmul, ARowIsTheSameAmongAnyOthersAndNearOurOwn) {
    for (const Weights& shape : shapes) {
        const Matrix w = pack(shape);
        const std::vector<float> all = product(w, 0, 70, 0, 70), own = product(w, 0, 70, 0, 0);
        EXPECT_NE(all, own) << "nothing was left to the library";
        for (std::size_t i = 0; i < all.size(); ++i) ASSERT_NEAR(all[i], own[i], 1e-4F);
        for (const std::int64_t first : {0, 5}) {
            for (const std::int64_t count : {1, 16, 17, 40}) {
                EXPECT_EQ(product(w, first, count, 0, count), rows_of(all, shape.outputs, first, count))
                    << count << " rows from " << first;
            }
        }
    }
}

TEST_P(PromptMatmul, OtherRowsAreComputedAsEver) {
    const Matrix w = pack(shapes[0]);
    const std::vector<float> all = product(w, 0, 50, 0, 50), own = product(w, 0, 50, 0, 0);
    const std::vector<float> mixed = product(w, 0, 50, 9, 33);
    EXPECT_EQ(rows_of(mixed, 76, 0, 9), rows_of(own, 76, 0, 9));
    EXPECT_EQ(rows_of(mixed, 76, 9, 33), rows_of(all, 76, 9, 33));
    EXPECT_EQ(rows_of(mixed, 76, 42, 8), rows_of(own, 76, 42, 8));
}

// Weights that the library cannot take, and types whose results are exact without it.
TEST_P(PromptMatmul, OtherWeightsAreComputedAsEver) {
    for (const DType dtype : {DType::f32, DType::int8, DType::int4}) {
        const Matrix w = pack(shapes[0], dtype);
        EXPECT_EQ(product(w, 0, 20, 0, 20), product(w, 0, 20, 0, 0));
    }
    for (const Weights& odd : {Weights{7, 512}, Weights{8, 20, 2}}) {
        const Matrix w = pack(odd);
        EXPECT_EQ(product(w, 0, 20, 0, 20), product(w, 0, 20, 0, 0));
    }
    EXPECT_TRUE(device_->choices().empty());
}

// The emulated library's first algorithm adds the rows of a block in two orders.
TEST_P(PromptMatmul, AlgorithmsThatTreatRowsDifferentlyAreNotTaken) {
    static_cast<void>(product(pack(shapes[0]), 0, 5, 0, 5));
    static_cast<void>(product(pack(shapes[0]), 0, 40, 0, 40));
    static_cast<void>(product(pack(shapes[1]), 0, 5, 0, 5));
    const std::vector<std::string> choices = device_->choices();
    ASSERT_EQ(choices.size(), 2U) << "one a shape";
    EXPECT_TRUE(choices[0].starts_with("prompts times 20 x 80: ")) << choices[0];
    EXPECT_TRUE(choices[1].starts_with("prompts times 76 x 512: ")) << choices[1];
    if (GetParam().name != "cuda_cublas_emulated") return;
    EXPECT_EQ(choices[1], "prompts times 76 x 512: emulated, plain loops");
}

// The log names the algorithm of a matrix, which decides the bits.
TEST_P(PromptMatmul, EachAlgorithmHasANameOfItsOwn) {
    const cuda::Stream stream;
    const auto library = cuda::make_block_library(stream);
    for (const cuda::BlockShape& shape : {cuda::BlockShape{80, 512, 512}, {4096, 4096, 4096}, {1024, 14336, 14336}}) {
        std::set<std::string> names;
        for (int i = 0; i < library->num_algorithms(shape); ++i) names.insert(library->describe(shape, i));
        EXPECT_EQ(static_cast<int>(names.size()), library->num_algorithms(shape));
    }
}

TEST_P(PromptMatmul, RowsThatAPassHasNotAreRefused) {
    EXPECT_THROW(Pass(*device_, 4, 2, 3), std::logic_error);
    EXPECT_THROW(Pass(*device_, 4, -1, 3), std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Devices, PromptMatmul, ::testing::Values(library_gpu()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
