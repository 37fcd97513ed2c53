// Fused operations: they give the bits of the two separate operations on the same device.
#include <limits>

#include "tests/kernels/attention_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

/// Processors with 1 thread, and with 3, whose shares end inside matrices; GPUs.
class FusedContract : public ContractTest {
  protected:
    template <typename Check>
    static void on_devices(Check check) {
        const bool is_gpu = GetParam().name.starts_with("cuda");
        for (const int threads : is_gpu ? std::vector{1} : std::vector{1, 3}) {
            SCOPED_TRACE(::testing::Message() << threads << " threads");
            check(*GetParam().make(threads));
        }
    }
};

/// With shapes that matter to processors alone.
class FusedOnProcessors : public FusedContract {};

const std::vector<DType> weight_types = {DType::bf16, DType::f32, DType::int8, DType::int4};
const std::vector<std::int64_t> row_counts = {
    1, 2, 3, 4, 5, 7, 8, 13, 16, 24, 49, 101};  // the last two: 2 and 3 passes (96 inputs are no whole blocks)

/// bf16 rows of a weight matrix with 96 inputs.
class Weights {
  public:
    Weights(Numbers& numbers, std::int64_t num_rows)
        : num_rows_(num_rows), bytes_(rounded(numbers.normals(num_rows * inputs, 0.3F), DType::bf16)) {}
    static constexpr std::int64_t inputs = 96;

    [[nodiscard]] Matrix pack(Device& device, DType dtype) const {
        const WeightRows all = rows();
        return device.pack(dtype, {&all, 1}, 8, inputs / 8);
    }
    [[nodiscard]] Matrix pack_gated(Device& device, DType dtype) const {
        const WeightRows all = rows();
        return device.pack_gated(dtype, {&all, 1}, 8, inputs / 8);
    }

  private:
    [[nodiscard]] WeightRows rows() const {
        return {.data = bytes_.data(), .num_rows = num_rows_, .row_stride = inputs, .num_columns = inputs};
    }
    std::int64_t num_rows_;
    std::vector<std::byte> bytes_;
};

/// A pass of which some rows are prompt rows.
class PassOfPrompts {
  public:
    PassOfPrompts(Device& device, std::int64_t num_rows, std::int64_t first_prompt_row, std::int64_t num_prompt_rows)
        : device_(device),
          page_(device,
                device.kv_page_bytes({.dtype = DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 2})),
          pages_{page_.data()},
          rows_(static_cast<std::size_t>(num_rows), AttentionRow{.position = 0, .in_pages = 1}),
          first_(first_prompt_row),
          count_(num_prompt_rows) {
        sequence_ = {pages_, {}};
    }
    void begin() const {
        device_.begin_pass({.sequences = {&sequence_, 1},
                            .rows = rows_,
                            .slots = {},
                            .first_prompt_row = first_,
                            .num_prompt_rows = count_});
    }

  private:
    Device& device_;
    Buffer page_;
    std::vector<std::byte*> pages_;
    AttentionSequence sequence_;
    std::vector<AttentionRow> rows_;
    std::int64_t first_, count_;
};

/// Gate and up rows that fill blocks of 16, that span several pieces of work, and that do neither.
TEST_P(FusedOnProcessors, GatedMatmulIsMatmulThroughSilu) {
    Comparison comparison(GetParam());
    on_devices([&](Device& device) {
        Numbers numbers(81);
        int number = 0;
        for (const DType dtype : weight_types) {
            const DType act = act_type(dtype);
            for (const std::int64_t width : {1, 16, 49, 208, 400}) {
                const Gate gate = static_cast<Gate>(number++ % num_gates);
                const Weights weights(numbers, 2 * width);
                const Matrix plain = weights.pack(device, dtype), gated = weights.pack_gated(device, dtype);
                EXPECT_EQ(gated.data.num_bytes(), device.packed_bytes(gated));
                for (const std::int64_t num_rows : row_counts) {
                    if (num_rows > 24 && width < 400) continue;
                    const std::int64_t stride = width + width % 3 * 16;
                    const OnDevice x(device, rounded(numbers.normals(num_rows * Weights::inputs), act));
                    const Buffer sums(device, static_cast<std::size_t>(num_rows * 2 * width) * 4);
                    const auto size = static_cast<std::size_t>(num_rows * stride) * bytes_of(act);
                    Guarded expected(device, size), actual(device, size);
                    device.layer_matmul(plain, x.data(), Weights::inputs, num_rows, sums.as<float>());
                    device.gate_mul(gate, sums.as<float>(), num_rows, width, act, expected.data(), stride);
                    device.gated_matmul(gated, gate, x.data(), Weights::inputs, num_rows, sums.as<float>(), act,
                                        actual.data(), stride);
                    ASSERT_TRUE(comparison.equal(expected, actual, act))
                        << "type " << static_cast<int>(dtype) << ", " << num_rows << " rows of " << width;
                }
            }
        }
    });
    EXPECT_GT(comparison.count(), 500'000);
}

/// Inputs that fill blocks, and more rows than share a pass over the weights.
TEST_P(FusedOnProcessors, GatedMatmulOfWholeBlocks) {
    constexpr std::int64_t inputs = 1024, width = 208;
    Comparison comparison(GetParam());
    on_devices([&](Device& device) {
        Numbers numbers(86);
        const auto bytes = rounded(numbers.normals(2 * width * inputs, 0.1F), DType::bf16);
        const WeightRows rows{.data = bytes.data(), .num_rows = 2 * width, .row_stride = inputs, .num_columns = inputs};
        for (const DType dtype : {DType::bf16, DType::int8, DType::int4}) {
            const Matrix plain = device.pack(dtype, {&rows, 1}, 8, inputs / 8);
            const Matrix gated = device.pack_gated(dtype, {&rows, 1}, 8, inputs / 8);
            for (const std::int64_t num_rows : {15, 48, 192, 250}) {
                const OnDevice x(device, rounded(numbers.normals(num_rows * inputs), DType::bf16));
                const Buffer sums(device, static_cast<std::size_t>(num_rows * 2 * width) * 4);
                const auto size = static_cast<std::size_t>(num_rows * width) * 2;
                Guarded expected(device, size), actual(device, size);
                device.layer_matmul(plain, x.data(), inputs, num_rows, sums.as<float>());
                device.gate_mul(Gate::silu, sums.as<float>(), num_rows, width, DType::bf16, expected.data(), width);
                device.gated_matmul(gated, Gate::silu, x.data(), inputs, num_rows, sums.as<float>(), DType::bf16,
                                    actual.data(), width);
                ASSERT_TRUE(comparison.equal(expected, actual, DType::bf16))
                    << "type " << static_cast<int>(dtype) << ", " << num_rows << " rows";
            }
        }
    });
}

/// The matmul after a gated matmul packs its inputs in parts, as the threads wrote them.
TEST_P(FusedOnProcessors, MatmulOfGatedRowsIsAsBefore) {
    Comparison comparison(GetParam());
    on_devices([&](Device& device) {
        Numbers numbers(85);
        constexpr std::int64_t width = 704;
        for (const DType dtype : weight_types) {
            const DType act = act_type(dtype);
            const Weights weights(numbers, 2 * width);
            const Matrix gated = weights.pack_gated(device, dtype);
            const auto down_bytes = rounded(numbers.normals(40 * width, 0.3F), DType::bf16);
            const WeightRows rows{.data = down_bytes.data(), .num_rows = 40, .row_stride = width, .num_columns = width};
            const Matrix down = device.pack(dtype, {&rows, 1}, 8, width / 8);
            for (const std::int64_t num_rows : {3, 8, 16, 25, 60}) {
                const OnDevice x(device, rounded(numbers.normals(num_rows * Weights::inputs), act));
                const Buffer sums(device, static_cast<std::size_t>(num_rows * 2 * width) * 4);
                const auto act_bytes = static_cast<std::size_t>(num_rows * width) * bytes_of(act);
                const Buffer active(device, act_bytes), elsewhere(device, act_bytes);
                device.gated_matmul(gated, Gate::silu, x.data(), Weights::inputs, num_rows, sums.as<float>(), act,
                                    active.data(), width);
                std::vector<std::byte> copy(act_bytes);
                device.download(copy.data(), active.data(), act_bytes);
                device.upload(elsewhere.data(), copy.data(), act_bytes);
                const auto y_bytes = static_cast<std::size_t>(num_rows * 40) * 4;
                Guarded expected(device, y_bytes), actual(device, y_bytes);
                device.layer_matmul(down, elsewhere.data(), width, num_rows, expected.floats());
                device.layer_matmul(down, active.data(), width, num_rows, actual.floats());
                ASSERT_TRUE(comparison.equal(expected, actual, DType::f32)) << num_rows << " rows";
            }
        }
    });
}

/// Heads that fill blocks of 16 outputs or pairs of them, heads that do neither, and one that is too large.
TEST_P(FusedContract, QkvMatmulIsMatmulRotatedAndStored) {
    on_devices([&](Device& device) {
        Numbers numbers(82);
        for (const DType kv : {DType::bf16, DType::f32, DType::int8}) {
            for (const std::int64_t head_dim : {6, 16, 32, 48, 64, 256, 544}) {
                if (kv == DType::int8 && head_dim > 512) continue;
                KvLayout layout{.dtype = kv, .num_layers = 2, .num_kv_heads = 3, .head_dim = head_dim};
                layout.pages_together = device.kv_pages_together(layout);
                for (const std::int64_t num_rows : {1, 5, head_dim > 64 ? 20 : 70}) {
                    const Tokens tokens(numbers, layout, 6, num_rows);
                    const DType dtype = kv == DType::f32 ? DType::f32 : num_rows == 5 ? DType::int8 : DType::bf16;
                    const Matrix w = Weights(numbers, tokens.width).pack(device, dtype);
                    const OnDevice x(device, rounded(numbers.normals(num_rows * Weights::inputs), act_type(dtype)));
                    const Buffer sums(device, static_cast<std::size_t>(num_rows * tokens.width) * 4);
                    const auto q_bytes =
                        static_cast<std::size_t>(num_rows * 6 * head_dim) * bytes_of(layout.query_type());
                    const auto result = [&](auto operation) {
                        const PageSet pages(device, layout, 128);
                        std::vector<KvSlot> slots;
                        for (std::int64_t i = 0; i < num_rows; ++i) slots.push_back(pages.slot(i * 37 % 128));
                        if (num_rows > 3) slots[3].page = nullptr;  // not stored
                        const Guarded q(device, q_bytes);
                        PassAngles angles = tokens.angles();
                        angles.query_cos = tokens.sin.data();  // others
                        angles.query_sin = tokens.cos.data();
                        device.begin_pass({.sequences = {},
                                           .rows = {},
                                           .slots = slots,
                                           .angles = {&angles, 1},
                                           .num_angles = tokens.half});
                        operation(q.data());
                        EXPECT_TRUE(q.intact());
                        std::vector<std::byte> all = q.bytes(), page(64 * layout.token_bytes());
                        for (std::int64_t i = 0; i < 12; ++i) {
                            device.kv_export(layout, pages.pages()[static_cast<std::size_t>(i / 6)], 1, i % 3,
                                             i / 3 % 2 == 1, 0, 64, page.data());
                            all.insert(all.end(), page.begin(), page.end());
                        }
                        return all;
                    };
                    const auto expected = result([&](std::byte* q) {
                        device.layer_matmul(w, x.data(), Weights::inputs, num_rows, sums.as<float>());
                        device.rope_store(layout, 1, sums.as<float>(), 6, q);
                    });
                    const auto actual = result([&](std::byte* q) {
                        device.qkv_matmul(w, x.data(), Weights::inputs, num_rows, sums.as<float>(), layout, 1, 6, q);
                    });
                    ASSERT_EQ(expected, actual) << num_rows << " rows, heads of " << head_dim;
                }
            }
        }
    });
}

TEST_P(FusedContract, SumWithItsNormIsTheSumThenTheNorm) {
    Comparison comparison(GetParam());
    on_devices([&](Device& device) {
        Numbers numbers(83);
        for (const DType act : {DType::bf16, DType::f32}) {
            for (const std::int64_t width : {1, 17, 64, 2048, 5000, 9000}) {
                for (const std::int64_t num_rows : {1, 3, 17}) {
                    const std::int64_t stride = width + 16;
                    const std::vector<float> x = numbers.normals(num_rows * width);
                    const OnDevice y(device, numbers.normals(num_rows * width)), gain(device, numbers.normals(width));
                    const auto size = static_cast<std::size_t>(num_rows * stride) * bytes_of(act);
                    Guarded sums(device, x.size() * 4), expected(device, size), actual(device, size);
                    const OnDevice together(device, x);
                    device.upload(sums.data(), x.data(), x.size() * 4);
                    device.add(together.floats(), y.floats(), num_rows * width);
                    device.rms_norm(together.floats(), gain.floats(), 1e-5F, num_rows, width, act, expected.data(),
                                    stride);
                    device.add_rms_norm(sums.floats(), y.floats(), gain.floats(), 1e-5F, num_rows, width, act,
                                        actual.data(), stride);
                    ASSERT_TRUE(comparison.equal(expected, actual, act)) << num_rows << " rows of " << width;
                    std::vector<std::byte> added(x.size() * 4);
                    device.download(added.data(), together.data(), added.size());
                    EXPECT_TRUE(sums.intact());
                    ASSERT_EQ(sums.bytes(), added) << num_rows << " rows of " << width;
                }
            }
        }
    });
}

/// A gated matrix is refused by all other operations, and gated_matmul refuses all other matrices.
TEST_P(FusedContract, MatricesOfGatesAreNotTakenForOthers) {
    Numbers numbers(84);
    const auto device = GetParam().make(1);
    const Matrix plain = Weights(numbers, 32).pack(*device, DType::bf16);
    const OnDevice x(*device, rounded(numbers.normals(Weights::inputs), DType::bf16));
    const Buffer sums(*device, 32 * 4), out(*device, 16 * 2);
    EXPECT_THROW(device->gated_matmul(plain, Gate::silu, x.data(), Weights::inputs, 1, sums.as<float>(), DType::bf16,
                                      out.data(), 16),
                 std::logic_error);
    const Matrix gated = Weights(numbers, 32).pack_gated(*device, DType::bf16);
    const KvLayout layout{.dtype = DType::bf16, .num_layers = 1, .num_kv_heads = 1, .head_dim = 8};
    EXPECT_THROW(device->qkv_matmul(gated, x.data(), Weights::inputs, 1, sums.as<float>(), layout, 0, 2, out.data()),
                 std::logic_error);
    if (GetParam().name == "reference") return;  // it keeps the rows in their original order
    EXPECT_THROW(device->matmul(gated, x.data(), Weights::inputs, 1, sums.as<float>()), std::logic_error);
}

std::vector<DeviceCase> processors() {
    std::vector<DeviceCase> devices = exact_devices();
    devices.back() = device_case(CpuVariant::reference);
    const std::vector<DeviceCase> in_blocks = devices_in_blocks();
    devices.insert(devices.end(), in_blocks.begin(), in_blocks.end());
    return devices;
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedContract, ::testing::ValuesIn(all_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, FusedContract, ::testing::ValuesIn(devices_in_blocks()), name_of);
INSTANTIATE_TEST_SUITE_P(Devices, FusedOnProcessors, ::testing::ValuesIn(processors()), name_of);

/// A GPU: gates in tiles of 16 outputs for few and many rows, in blocks that compute all slices or a part of them, and
/// in rows that a library multiplies.
class FusedOnGpus : public ContractTest {};

/// Rows of which some have gates that are 0, tiny, huge or not finite: the division of an activation needs scaling
/// then.
std::vector<float> rows_of_all_sizes(Numbers& numbers, std::int64_t num_rows, std::int64_t width) {
    std::vector<float> rows = numbers.normals(num_rows * width);
    const float infinity = std::numeric_limits<float>::infinity();
    const float factors[] = {1.0F, 30.0F, 1e4F, 0.0F, 1e-30F, 1e-37F, 1e36F, infinity};
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const auto row = static_cast<std::int64_t>(i) / width;
        if (row % 3 == 0) rows[i] *= factors[row / 3 % std::ssize(factors)];
    }
    return rows;
}

/// Of so many outputs that a block computes all slices of its tiles and applies the gates itself.
TEST_P(FusedOnGpus, WholeBlocksGateTheirOutputs) {
    const auto device = GetParam().make(1);
    device->begin_pass({});
    Numbers numbers(87);
    const std::int64_t width = GetParam().name.ends_with("emulated") ? 512 : 15360;
    const Weights weights(numbers, 2 * width);
    const Matrix plain = weights.pack(*device, DType::bf16), gated = weights.pack_gated(*device, DType::bf16);
    for (const std::int64_t num_rows : {17, 40, 140}) {
        const OnDevice x(*device,
                         rounded(rows_of_all_sizes(numbers, num_rows, Weights::inputs), act_type(DType::bf16)));
        const auto sums_size = static_cast<std::size_t>(num_rows * 2 * width) * 4;
        const Buffer sums(*device, sums_size), scratch(*device, sums_size);
        device->layer_matmul(plain, x.data(), Weights::inputs, num_rows, sums.as<float>());
        for (const auto& [gate, act] : {std::pair{Gate::silu, DType::bf16}, std::pair{Gate::gelu, DType::f32},
                                        std::pair{Gate::swiglu_oai, DType::bf16}}) {
            const auto size = static_cast<std::size_t>(num_rows * width) * bytes_of(act);
            Guarded expected(*device, size), actual(*device, size);
            device->gate_mul(gate, sums.as<float>(), num_rows, width, act, expected.data(), width);
            device->gated_matmul(gated, gate, x.data(), Weights::inputs, num_rows, scratch.as<float>(), act,
                                 actual.data(), width);
            EXPECT_TRUE(actual.intact());
            EXPECT_TRUE(expected.bytes() == actual.bytes()) << num_rows << " rows";
        }
    }
}

TEST_P(FusedOnGpus, GatedMatmulIsMatmulThroughItsGate) {
    Comparison comparison(GetParam());
    const auto device = GetParam().make(1);
    Numbers numbers(86);
    const PassOfPrompts pass(*device, 150, 20, 100);
    for (const DType dtype : weight_types) {
        const DType act = act_type(dtype);
        for (const std::int64_t width : {3, 64, 140}) {
            const Gate gate = static_cast<Gate>(width % num_gates);
            const Weights weights(numbers, 2 * width);
            const Matrix plain = weights.pack(*device, dtype), gated = weights.pack_gated(*device, dtype);
            for (const std::int64_t num_rows : {1, 9, 17, 40, 150}) {
                const bool of_pass = num_rows == 150;
                const std::int64_t stride = width + width % 3 * 16;
                const OnDevice x(*device, rounded(numbers.normals(num_rows * Weights::inputs), act));
                const Buffer sums(*device, static_cast<std::size_t>(num_rows * 2 * width) * 4);
                const auto size = static_cast<std::size_t>(num_rows * stride) * bytes_of(act);
                Guarded expected(*device, size), actual(*device, size);
                if (!of_pass) device->begin_pass({});
                if (of_pass) pass.begin();
                device->layer_matmul(plain, x.data(), Weights::inputs, num_rows, sums.as<float>());
                device->gate_mul(gate, sums.as<float>(), num_rows, width, act, expected.data(), stride);
                device->gated_matmul(gated, gate, x.data(), Weights::inputs, num_rows, sums.as<float>(), act,
                                     actual.data(), stride);
                EXPECT_TRUE(actual.intact());
                ASSERT_TRUE(comparison.equal(expected, actual, act))
                    << "type " << static_cast<int>(dtype) << ", " << num_rows << " rows of " << width;
            }
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, FusedOnGpus, ::testing::Values(exact_gpu(), tensor_gpu(), older_gpu(), library_gpu()),
                         name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
