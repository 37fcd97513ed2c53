// Norms, SiLU, additions, the exponential, and KV stored in and read from pages.
#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/reference/reference_math.hpp"
#include "tests/kernels/attention_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

class RowsTest : public DeviceTest {};

/// The output of `operation(device, x, out)`, with both x and out in device memory.
template <typename Operation>
Guarded output_of(Device& device, const std::vector<float>& x, std::size_t num_bytes, Operation operation) {
    const OnDevice in(device, x);
    Guarded out(device, num_bytes);
    operation(device, in.floats(), out.data());
    return out;
}

const std::vector<std::int64_t> widths = {1, 7, 8, 16, 17, 31, 64, 100, 256, 690, 2048, 5000, 9000};

TEST_P(RowsTest, NormsAndActivationsEqualReference) {
    constexpr std::uint64_t seed = 51;
    Numbers numbers(seed);
    Comparison comparison(GetParam());
    for (const DType act : {DType::bf16, DType::f32}) {
        for (const std::int64_t width : widths) {
            for (const std::int64_t num_rows : {1, 3, 17}) {
                SCOPED_TRACE(::testing::Message() << "seed " << seed << ", " << num_rows << " rows of " << width);
                const std::int64_t stride = padded_inputs(width) + 16;
                std::vector<float> gain = numbers.normals(width);
                gain[static_cast<std::size_t>(width / 2)] = 1.2e-38F;  // some of its products are flushed to zero
                std::vector<float> x = numbers.normals(num_rows * 2 * width, 8.0F);
                x[0] = 200.0F;  // beyond both ends of the exponential
                x[static_cast<std::size_t>(width)] = -200.0F;
                const std::vector<float> bias = numbers.normals(width);
                const auto size = static_cast<std::size_t>(num_rows * stride) * bytes_of(act);
                const auto equal = [&](auto operation) {
                    const Guarded expected = output_of(*reference_, x, size, operation);
                    return comparison.equal(expected, output_of(*device_, x, size, operation), act);
                };
                ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                    const OnDevice gains(device, gain);
                    device.rms_norm(in, gains.floats(), 1e-5F, num_rows, width, act, out, stride);
                })) << "rms_norm";
                for (const Gate gate : {Gate::silu, Gate::gelu, Gate::swiglu_oai}) {
                    ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                        device.gate_mul(gate, in, num_rows, width, act, out, stride);
                    })) << "gate_mul";
                }
                for (const OutputGate gate : {OutputGate::silu, OutputGate::sigmoid, OutputGate::gelu}) {
                    ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                        device.output_gate(gate, in, 2 * width, in + 1, num_rows, width, act, out, stride);
                    })) << "output_gate";
                }
                ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                    const OnDevice gains(device, gain), biases(device, bias);
                    device.layer_norm(in, gains.floats(), biases.floats(), 1e-5F, num_rows, width, act, out, stride);
                })) << "layer_norm";
                for (const Activation f :
                     {Activation::relu, Activation::relu_squared, Activation::gelu, Activation::gelu_exact}) {
                    ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                        device.activate(f, in, num_rows, width, act, out, stride);
                    })) << "activation "
                        << static_cast<int>(f);
                }
                ASSERT_TRUE(equal([&](Device& device, const float* in, std::byte* out) {
                    device.round_rows(in, num_rows, width, act, out, stride);
                })) << "round_rows";
            }
        }
    }
    EXPECT_GT(comparison.count(), 10'000);
}

/// Against double precision: a mean far from zero must not cancel the variance.
TEST_P(RowsTest, LayerNormIsAccurate) {
    Numbers numbers(53);
    constexpr std::int64_t width = 777;
    std::vector<float> x = numbers.normals(width);
    for (float& value : x) value += 100.0F;
    const std::vector<float> gain = numbers.normals(width);
    const std::vector<float> bias = numbers.normals(width);
    double mean = 0;
    for (const float value : x) mean += static_cast<double>(value) / width;
    double variance = 0;
    for (const float value : x) variance += (value - mean) * (value - mean) / width;
    const OnDevice row(*device_, x), gains(*device_, gain), biases(*device_, bias);
    device_->layer_norm(row.floats(), gains.floats(), biases.floats(), 1e-5F, 1, width, DType::f32, row.data(),
                        width);  // in place: the bias shows that it was added
    std::vector<float> out(width);
    device_->download(out.data(), row.data(), width * 4);
    for (std::size_t i = 0; i < width; ++i) {
        const double expected = (x[i] - mean) / std::sqrt(variance + 1e-5) * gain[i] + bias[i];
        ASSERT_NEAR(out[i], expected, 2e-4) << i;
    }
}

TEST_P(RowsTest, ReluKeepsNanAndDropsWhatIsBelowZero) {
    constexpr float inf = std::numeric_limits<float>::infinity();
    const std::vector<float> x = {-1.0F, 0.0F, 2.5F, std::nanf(""), inf, -inf, -1e-30F, 3.0F, -7.0F};
    const auto relu = [&](Activation f) {
        std::vector<float> out = output_of(*device_, x, 16 * 4, [&](Device& device, const float* in, std::byte* to) {
                                     device.activate(f, in, 1, 9, DType::f32, to, 16);
                                 }).values();
        EXPECT_TRUE(std::isnan(out[3]));
        out[3] = 0;
        return out;
    };
    EXPECT_EQ(relu(Activation::relu), (std::vector<float>{0, 0, 2.5F, 0, inf, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0}));
    EXPECT_EQ(relu(Activation::relu_squared),
              (std::vector<float>{0, 0, 6.25F, 0, inf, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0}));
}

TEST_P(RowsTest, GeluKeepsNanAndSignsOfZeros) {
    const std::vector<float> x = {0.0F, -0.0F, std::nanf(""), 1e-40F, -1e30F, 1e30F, -30.0F, 30.0F};
    for (const Activation f : {Activation::gelu, Activation::gelu_exact}) {
        const auto of = [&](Device& device) {
            return output_of(device, x, 16 * 4,
                             [&](Device& on, const float* in, std::byte* to) {
                                 on.activate(f, in, 1, 8, DType::f32, to, 16);
                             })
                .values();
        };
        const std::vector<float> out = of(*device_), expected = of(*reference_);
        EXPECT_TRUE(std::isnan(out[2]));
        for (const std::size_t i : {0, 1, 3, 4, 5, 6, 7}) {
            EXPECT_EQ(out[i], expected[i]) << x[i];
            EXPECT_EQ(std::signbit(out[i]), std::signbit(expected[i])) << x[i];
        }
        EXPECT_EQ(out[5], 1e30F);
        EXPECT_NEAR(out[6], 0.0F, 1e-36F);
        EXPECT_EQ(out[7], 30.0F);
    }
}

/// Against double precision. Far below zero the relative error is that of x^2, rounded, in an exponent of up to 87:
/// half an ulp of it is 4e-6; what is smaller than a normal number is flushed.
TEST_P(RowsTest, ExactGeluIsAccurate) {
    constexpr std::int64_t width = 20'001;
    std::vector<float> x(width);
    for (std::int64_t i = 0; i < width; ++i) x[static_cast<std::size_t>(i)] = static_cast<float>(i - 10'000) / 700.0F;
    const OnDevice in(*device_, x);
    Guarded to(*device_, (width + 15) / 16 * 64);
    device_->activate(Activation::gelu_exact, in.floats(), 1, width, DType::f32, to.data(), (width + 15) / 16 * 16);
    const std::vector<float> out = to.values();
    for (std::size_t i = 0; i < width; ++i) {
        const double exact = 0.5 * x[i] * std::erfc(-x[i] / std::sqrt(2.0));
        ASSERT_NEAR(out[i], exact, std::max(2.4e-7, 6e-8 * std::fabs(x[i]))) << x[i];
        ASSERT_NEAR(out[i], exact, std::max(1e-36, std::fabs(exact) * 6e-6)) << x[i];
    }
}

/// Beyond the limits, and what is no number: gates in the first half, ups in the second.
TEST_P(RowsTest, LimitsOfSwigluOai) {
    constexpr float inf = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
    const std::vector<float> x = {7, 9, inf, -inf, nan, 0, 7,   7,    7,   -0.0F,  //
                                  1, 1, 1,   1,    1,   1, inf, -inf, nan, -1e30F};
    const std::vector<float> out = output_of(*device_, x, 16 * 4, [](Device& device, const float* in, std::byte* to) {
                                       device.gate_mul(Gate::swiglu_oai, in, 1, 10, DType::f32, to, 16);
                                   }).values();
    const float seven = static_cast<float>(7 / (1 + std::exp(-1.702 * 7)));
    EXPECT_FLOAT_EQ(out[0], 2 * seven);
    EXPECT_EQ(out[1], out[0]);
    EXPECT_EQ(out[2], out[0]);
    EXPECT_EQ(out[3], -inf) << "the exponential is bounded, as with the other gates";
    EXPECT_TRUE(std::isnan(out[4]));
    EXPECT_EQ(out[5], 0);
    EXPECT_FLOAT_EQ(out[6], 8 * seven);
    EXPECT_FLOAT_EQ(out[7], -6 * seven);
    EXPECT_TRUE(std::isnan(out[8]));
    EXPECT_EQ(out[9], 0);
}

TEST_P(RowsTest, AdditionsAndGatherEqualReference) {
    Numbers numbers(52);
    Comparison comparison(GetParam());
    for (const std::int64_t width : {1, 33, 5000}) {
        const std::vector<float> x = numbers.normals(30 * width);
        const std::vector<float> y = numbers.normals(30 * width);
        const std::vector<std::int32_t> rows = {29, 0, 7, 7};
        const auto sums = [&](Device& device) {
            Guarded sum(device, x.size() * 4);
            device.upload(sum.data(), x.data(), x.size() * 4);
            const OnDevice addend(device, y);
            device.add(sum.floats(), addend.floats(), 30 * width);
            device.add_bias(sum.floats(), addend.floats(), 30, width);
            return sum;
        };
        const auto gathered = [&](Device& device, const Guarded& from) {
            Guarded out(device, rows.size() * static_cast<std::size_t>(width) * 4);
            device.gather(from.floats(), rows, width, out.floats());
            return out;
        };
        const auto gathered_by_list = [&](Device& device, const Guarded& from) {
            Guarded out(device, rows.size() * static_cast<std::size_t>(width) * 4);
            const OnDevice list(device, rows);
            device.gather_listed(from.floats(), reinterpret_cast<const std::int32_t*>(list.data()), std::ssize(rows),
                                 width, out.floats());
            return out;
        };
        std::vector<std::int32_t> columns;  // every third one, the last first
        for (std::int64_t i = width - 1; i >= 0; i -= 3) columns.push_back(static_cast<std::int32_t>(i));
        const auto added_in_columns = [&](Device& device, const Guarded& to) {
            const OnDevice addend(device, y), at(device, columns);
            const auto* places = reinterpret_cast<const std::int32_t*>(at.data());
            device.add_columns(to.floats(), width, addend.floats(), width, places, 30, std::ssize(columns));
        };
        const Guarded expected = sums(*reference_);
        const Guarded actual = sums(*device_);
        ASSERT_TRUE(comparison.equal(expected, actual, DType::f32));
        added_in_columns(*reference_, expected);
        added_in_columns(*device_, actual);
        ASSERT_TRUE(comparison.equal(expected, actual, DType::f32));
        ASSERT_TRUE(comparison.equal(gathered(*reference_, expected), gathered(*device_, actual), DType::f32));
        ASSERT_TRUE(comparison.equal(gathered(*reference_, expected), gathered_by_list(*device_, actual), DType::f32));
    }
}

TEST_P(RowsTest, WeightedSumsEqualReference) {
    Numbers numbers(55);
    Comparison comparison(GetParam());
    for (const std::int64_t width : {1, 33, 5000}) {
        const std::vector<float> x = numbers.normals(12 * width);
        for (const std::int64_t per_row : {1, 2, 8}) {
            const std::vector<float> weights = numbers.normals(5 * per_row);
            std::vector<WeightedRow> terms;
            for (std::size_t i = 0; i < weights.size(); ++i)
                terms.push_back({.row = static_cast<std::int32_t>(7 * i % 12), .weight = weights[i]});
            const auto sums = [&](Device& device) {
                return output_of(device, x, 5 * width * 4, [&](Device& on, const float* in, std::byte* out) {
                    on.weighted_sums(in, terms, per_row, width, reinterpret_cast<float*>(out));
                });
            };
            ASSERT_TRUE(comparison.equal(sums(*reference_), sums(*device_), DType::f32));
        }
    }
    EXPECT_THROW(device_->weighted_sums(nullptr, std::vector<WeightedRow>(3), 2, 4, nullptr), std::logic_error);
}

/// Not fused multiply-adds, and not in another order.
TEST_P(RowsTest, WeightedSumsRoundEveryProductAndSum) {
    constexpr float third = 0x1.555556p-2F;
    const std::vector<float> x = {third, -1.0F, 0x1p24F, 1.0F};
    const std::vector<WeightedRow> terms = {{2, 1.0F}, {3, 1.0F}, {2, -1.0F}, {0, third}, {0, -third}, {1, 0.0F}};
    const std::vector<float> out = output_of(*device_, x, 2 * 4, [&](Device& on, const float* in, std::byte* to) {
                                       on.weighted_sums(in, terms, 3, 1, reinterpret_cast<float*>(to));
                                   }).values();
    EXPECT_EQ(out, (std::vector<float>{0, 0}));
}

TEST_P(RowsTest, CopiesWithinItsMemoryFollowWhatWasCalledBefore) {
    const std::vector<float> x = Numbers(54).normals(1001);
    const OnDevice from(*device_, x);
    Guarded to(*device_, 999 * 4);
    device_->add(from.floats(), from.floats(), 1001);
    device_->copy_within(to.data(), from.data() + 4, 999 * 4);
    device_->copy_within(to.data(), from.data(), 0);
    ASSERT_TRUE(to.intact());
    const std::vector<float> copied = to.values();
    for (std::size_t i = 0; i < copied.size(); ++i) ASSERT_EQ(copied[i], 2 * x[i + 1]) << i;
}

/// Every float that silu can meet, in steps, through the device: up = 1 and gate = x give x / (1 + exp(-x)).
TEST_P(RowsTest, ExponentialEqualsReferenceEverywhere) {
    Comparison comparison(GetParam());
    constexpr std::int64_t width = 1 << 12;
    std::vector<float> x(2 * width, 1.0F);
    const auto silu = [](Device& device, const float* in, std::byte* out) {
        device.gate_mul(Gate::silu, in, 1, width, DType::f32, out, width);
    };
    std::uint32_t bits = 0;
    for (int block = 0; block < 64; ++block) {
        for (std::int64_t i = 0; i < width; ++i, bits += 16127) {
            const auto value = std::bit_cast<float>(bits);
            x[static_cast<std::size_t>(i)] = std::isfinite(value) ? value : 0.5F;
        }
        // Below -87 the exponential is 0, above 88 that of 88: both ends and their neighbours.
        std::ranges::copy(std::array{87.0F, std::nextafter(87.0F, 0.0F), std::nextafter(87.0F, 88.0F), -88.0F,
                                     std::nextafter(-88.0F, -89.0F), 0x1p127F, -0x1p127F, -0.0F},
                          x.begin() + block);
        ASSERT_TRUE(comparison.equal(output_of(*reference_, x, width * 4, silu),
                                     output_of(*device_, x, width * 4, silu), DType::f32))
            << "before bits " << bits;
    }
}

/// Values stay, and each head has a mean square of 1 before its gain.
TEST_P(RowsTest, HeadNormEqualsReference) {
    Comparison comparison(GetParam());
    for (const std::int64_t dim : {2, 24, 64, 128}) {
        Numbers numbers(66 + static_cast<std::uint64_t>(dim));
        const KvLayout layout{.dtype = DType::f32, .num_layers = 1, .num_kv_heads = 2, .head_dim = dim};
        constexpr std::int64_t num_rows = 5, q_heads = 6, num_heads = q_heads + 4;
        const std::vector<float> x = numbers.normals(num_rows * num_heads * dim, 3.0F);
        const std::vector<float> q_gain = numbers.normals(dim), k_gain = numbers.normals(dim);
        const std::vector<float> v_gain = numbers.normals(dim);
        const auto normed = [&](Device& device, bool values) {
            Guarded qkv(device, x.size() * sizeof(float));
            device.upload(qkv.data(), x.data(), x.size() * sizeof(float));
            const OnDevice of_q(device, q_gain), of_k(device, k_gain), of_v(device, v_gain);
            device.head_norm(layout, reinterpret_cast<float*>(qkv.data()), num_rows, q_heads,
                             {of_q.floats(), of_k.floats(), values ? of_v.floats() : nullptr}, 1e-6F);
            return qkv;
        };
        const Guarded expected = normed(*reference_, false), with_values = normed(*reference_, true);
        ASSERT_TRUE(comparison.equal(expected, normed(*device_, false), DType::f32)) << dim;
        ASSERT_TRUE(comparison.equal(with_values, normed(*device_, true), DType::f32)) << dim;
        const std::vector<float> without = expected.values(), result = with_values.values();
        for (std::size_t i = 0; i < x.size(); ++i) {
            const std::size_t head = i / static_cast<std::size_t>(dim) % num_heads,
                              d = i % static_cast<std::size_t>(dim);
            const bool is_value = head >= q_heads + 2;
            ASSERT_EQ(without[i], is_value ? x[i] : result[i]);
            double squares = 0;
            for (std::size_t k = i - d; k < i - d + static_cast<std::size_t>(dim); ++k) squares += double{x[k]} * x[k];
            const double gain = head < q_heads ? q_gain[d] : is_value ? v_gain[d] : k_gain[d];
            // Results are of the size of a few units, and a sum of 128 squares has a relative error below 1e-6.
            ASSERT_NEAR(result[i], x[i] / std::sqrt(squares / static_cast<double>(dim) + 1e-6) * gain, 1e-5);
        }
    }
}

/// The heads of a model on one rank, and on two that have the same KV heads: the same bits, and a mean square of 1
/// before the gains.
TEST_P(RowsTest, WholeNormEqualsReferenceOnAnyNumberOfRanks) {
    Comparison comparison(GetParam());
    constexpr std::int64_t num_rows = 3, num_q = 20, num_kv = 1, num_sums = num_rows * (num_q + num_kv);
    struct Case {
        std::int64_t dim, q_per_norm;
    };
    for (const Case& one : {Case{2, 0}, Case{24, 0}, Case{128, 0}, Case{24, 10}, Case{16, 1}}) {
        const std::int64_t dim = one.dim, q_per_norm = one.q_per_norm;
        Numbers numbers(68 + static_cast<std::uint64_t>(dim));
        const KvLayout layout{.dtype = DType::f32, .num_layers = 1, .num_kv_heads = num_kv, .head_dim = dim};
        const std::vector<float> x = numbers.normals(num_rows * (num_q + 2) * dim, 3.0F);
        const std::vector<float> q_gain = numbers.normals(num_q * dim), k_gain = numbers.normals(dim);
        /// What a rank of `heads` query heads has.
        const auto part_of = [&](std::int64_t first, std::int64_t heads) {
            std::vector<float> part;
            for (std::int64_t r = 0; r < num_rows; ++r) {
                const auto row = x.begin() + r * (num_q + 2) * dim;
                part.insert(part.end(), row + first * dim, row + (first + heads) * dim);
                part.insert(part.end(), row + num_q * dim, row + (num_q + 2) * dim);
            }
            return part;
        };
        const auto sums_of = [&](Device& device, std::int64_t first, std::int64_t heads) {
            const OnDevice qkv(device, part_of(first, heads));
            Guarded sums(device, num_sums * 4);
            const WholeHeads of{.num_q = num_q, .num_kv = num_kv, .first_q = first, .counts_kv = first == 0};
            device.head_squares(layout, qkv.floats(), num_rows, heads, of, sums.floats());
            return sums;
        };
        const auto normed = [&](Device& device, std::int64_t first, std::int64_t heads, const Guarded& sums) {
            const std::vector<float> part = part_of(first, heads);
            Guarded qkv(device, part.size() * 4);
            device.upload(qkv.data(), part.data(), part.size() * 4);
            const std::vector<float> own_gain(q_gain.begin() + first * dim, q_gain.end());
            const OnDevice of_q(device, own_gain), of_k(device, k_gain);
            device.whole_norm(layout, qkv.floats(), num_rows, heads,
                              {.num_q = num_q, .num_kv = num_kv, .first_q = first, .q_per_norm = q_per_norm},
                              sums.floats(), of_q.floats(), of_k.floats(), 1e-6F);
            return qkv;
        };
        const Guarded expected_sums = sums_of(*reference_, 0, num_q), sums = sums_of(*device_, 0, num_q);
        ASSERT_TRUE(comparison.equal(expected_sums, sums, DType::f32)) << dim;
        const Guarded expected = normed(*reference_, 0, num_q, expected_sums);
        const Guarded whole = normed(*device_, 0, num_q, sums);
        ASSERT_TRUE(comparison.equal(expected, whole, DType::f32)) << dim;

        const Guarded both = sums_of(*device_, 0, 8), rest = sums_of(*device_, 8, 12);
        device_->add(both.floats(), rest.floats(), num_sums);
        ASSERT_TRUE(comparison.equal(expected_sums, both, DType::f32)) << dim;
        const std::vector<float> all = whole.values(), part = normed(*device_, 8, 12, both).values();
        for (std::int64_t r = 0; r < num_rows; ++r) {
            ASSERT_TRUE(std::equal(part.begin() + r * 14 * dim, part.begin() + (r + 1) * 14 * dim,
                                   all.begin() + (r * 22 + 8) * dim));
        }
        double squares = 0;
        for (std::int64_t i = 0; i < num_q * dim; ++i) {
            const double before_gain = all[static_cast<std::size_t>(i)] / q_gain[static_cast<std::size_t>(i)];
            squares += before_gain * before_gain;
        }
        ASSERT_NEAR(squares / static_cast<double>(num_q * dim), 1.0, 1e-4);
    }
}

TEST_P(RowsTest, ScaleEqualsReference) {
    Comparison comparison(GetParam());
    for (const std::int64_t count : {1, 15, 3000}) {
        const std::vector<float> x = Numbers(67).normals(count);
        const auto scaled = [&](Device& device) {
            Guarded copy(device, x.size() * sizeof(float));
            device.upload(copy.data(), x.data(), x.size() * sizeof(float));
            device.scale(reinterpret_cast<float*>(copy.data()), 61.9677F, count);
            return copy;
        };
        ASSERT_TRUE(comparison.equal(scaled(*reference_), scaled(*device_), DType::f32)) << count;
    }
}

TEST_P(RowsTest, SoftCapEqualsReferenceAndTanh) {
    Comparison comparison(GetParam());
    constexpr float infinity = std::numeric_limits<float>::infinity();
    for (const std::int64_t count : {1, 15, 3000}) {
        std::vector<float> x = Numbers(68).normals(count, 40.0F);
        const float ends[] = {0.0F, -0.0F, 1e-40F, 3000.0F, -3000.0F, infinity, -infinity};
        for (std::size_t i = 0; i < std::size(ends) && i < x.size(); ++i) x[i] = ends[i];
        const auto capped = [&](Device& device) {
            Guarded copy(device, x.size() * sizeof(float));
            device.upload(copy.data(), x.data(), x.size() * sizeof(float));
            device.soft_cap(reinterpret_cast<float*>(copy.data()), 30.0F, count);
            return copy;
        };
        const Guarded expected = capped(*reference_);
        ASSERT_TRUE(comparison.equal(expected, capped(*device_), DType::f32)) << count;
        const std::vector<float> result = expected.values();
        for (std::size_t i = 0; i < x.size(); ++i) ASSERT_NEAR(result[i], 30.0 * std::tanh(x[i] / 30.0), 1e-5) << x[i];
    }
}

TEST_P(RowsTest, RopeMoveExportImportEqualReference) {
    Comparison comparison(GetParam());
    std::uint64_t seed = 60;
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const std::int64_t head_dim : {2, 18, 64, 128}) {
            const KvLayout layout{.dtype = dtype, .num_layers = 2, .num_kv_heads = 3, .head_dim = head_dim};
            std::vector<std::vector<std::byte>> exported;
            ++seed;
            for (Device* device : {reference_.get(), device_.get()}) {
                Numbers numbers(seed);
                const Tokens tokens(numbers, layout, 6, 70);
                const PageSet pages(*device, layout, 128);
                std::vector<KvSlot> slots;
                for (std::int64_t i = 0; i < 70; ++i) slots.push_back(pages.slot((i * 37) % 128));
                slots[3].page = nullptr;  // not stored
                std::vector<std::byte> out = store(*device, layout, 1, tokens, 0, slots);
                for (std::int32_t i = 0; i < 20; ++i) device->kv_move(layout, pages.slot(3 * i), pages.slot(127 - i));
                const PageSet copy(*device, layout, 128);
                std::vector<std::byte> part(31 * layout.token_bytes());
                for (std::int64_t head = 0; head < 3; ++head) {
                    for (const bool values : {false, true}) {
                        for (std::size_t page = 0; page < 2; ++page) {
                            device->kv_export(layout, pages.pages()[page], 1, head, values, 33, 31, part.data());
                            out.insert(out.end(), part.begin(), part.end());
                            device->kv_import(layout, copy.pages()[page], 0, head, values, 5, 31, part.data());
                            device->kv_export(layout, copy.pages()[page], 0, head, values, 5, 31, part.data());
                            out.insert(out.end(), part.begin(), part.end());
                        }
                    }
                }
                exported.push_back(out);
            }
            if (dtype == DType::int8) {
                ASSERT_EQ(exported[0], exported[1]) << "head_dim " << head_dim << ", seed " << seed;
                continue;
            }
            ASSERT_TRUE(comparison.equal(exported[0], exported[1], dtype))
                << "head_dim " << head_dim << ", seed " << seed;
        }
    }
}

INSTANTIATE_TEST_SUITE_P(Devices, RowsTest, ::testing::ValuesIn(exact_devices()), name_of);

/// Against the C library in double precision, over the range that the kernels use.
TEST(Exponential, IsAccurateToABitMoreThanOneUlp) {
    double worst = 0.0;
    for (float x = -87.0F; x < 88.0F; x += 0.00037F) {
        const double exact = std::exp(static_cast<double>(x));
        const auto value = static_cast<float>(exact);
        const double ulp = std::nextafter(value, std::numeric_limits<float>::infinity()) - value;
        worst = std::max(worst, std::abs(static_cast<double>(reference::exp_of(x)) - exact) / ulp);
    }
    std::printf("exp: at most %.3f ulp\n", worst);
    EXPECT_LT(worst, 1.1);  // half for the sum 1 + r + r^2 q, half for the rounding of r, a little for the polynomial
    EXPECT_EQ(reference::exp_of(0.0F), 1.0F);
    EXPECT_EQ(reference::exp_of(-0.0F), 1.0F);
    EXPECT_EQ(reference::exp_of(-std::numeric_limits<float>::infinity()), 0.0F);
    EXPECT_EQ(reference::exp_of(-87.5F), 0.0F);
    EXPECT_EQ(reference::exp_of(100.0F), reference::exp_of(88.0F));
    EXPECT_TRUE(std::isnan(reference::exp_of(std::nanf(""))));
}

TEST(Conversions, RoundToNearestEvenAndKeepSpecialValues) {
    EXPECT_EQ(f32_to_bf16(1.0F), 0x3f80);
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f808000U)), 0x3f80);  // tie to even
    EXPECT_EQ(f32_to_bf16(std::bit_cast<float>(0x3f818000U)), 0x3f82);
    EXPECT_EQ(f32_to_bf16(std::numeric_limits<float>::infinity()), 0x7f80);
    EXPECT_TRUE(std::isnan(bf16_to_f32(f32_to_bf16(std::bit_cast<float>(0x7f800001U)))));
    EXPECT_EQ(f16_to_f32(0x3c00), 1.0F);
    EXPECT_EQ(f16_to_f32(0xc000), -2.0F);
    EXPECT_EQ(f16_to_f32(0x0001), 0x1p-24F);
    EXPECT_EQ(f16_to_f32(0x03ff), 1023 * 0x1p-24F);
    EXPECT_EQ(f16_to_f32(0x7bff), 65504.0F);
    EXPECT_TRUE(std::isinf(f16_to_f32(0xfc00)));
    EXPECT_TRUE(std::isnan(f16_to_f32(0x7e01)));
}

TEST(Buffers, MoveAndBigMemory) {
    const auto device = make_cpu_device(CpuVariant::reference, 1);
    Buffer big(*device, (std::size_t{9} << 20) + 5);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(big.data()) % 64, 0U);
    EXPECT_EQ(big.data()[(std::size_t{9} << 20) + 4], std::byte{0});
    Buffer other = std::move(big);
    EXPECT_FALSE(static_cast<bool>(big));  // NOLINT(bugprone-use-after-move): the state after a move is promised
    EXPECT_TRUE(static_cast<bool>(other));
    other = Buffer();
    EXPECT_FALSE(static_cast<bool>(other));
}

TEST(Checks, WrongCallsAreLogicErrors) {
    const auto device = make_cpu_device(CpuVariant::reference, 1);
    const std::vector<std::byte> row(64);
    const WeightRows rows{row.data(), DType::bf16, 1, 16, 0, 16};
    EXPECT_THROW(device->pack(DType::bf16, {&rows, 1}, 8, 3), std::logic_error);
    EXPECT_THROW(device->pack(DType::f16, {&rows, 1}, 8, 2), std::logic_error);
    const Matrix w = device->pack(DType::bf16, {&rows, 1}, 8, 2);
    float y = 0.0F;
    EXPECT_THROW(device->matmul(w, row.data(), 15, 1, &y), std::logic_error);
    EXPECT_THROW(make_cpu_device(CpuVariant::reference, 0), std::invalid_argument);
    const std::vector<CpuVariant> runs = available_cpu_variants();
    for (const CpuVariant variant : {CpuVariant::avx2, CpuVariant::avx512, CpuVariant::amx}) {
        if (std::find(runs.begin(), runs.end(), variant) != runs.end()) continue;
        EXPECT_THROW(make_cpu_device(variant, 1), std::invalid_argument);
    }
}

}  // namespace
}  // namespace longhaul::kernels::testing
