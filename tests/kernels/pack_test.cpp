// Packing apart from the numbers (those: matmul_test.cpp): listeners of the rows read, sizes, adopted memory.
#include <limits>
#include <map>
#include <mutex>

#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

/// Counts how often each byte of a part was reported, and whether all of it was reported finite.
class Counter final : public PackListener {
  public:
    Counter(const std::byte* begin, std::size_t num_bytes) : begin_(begin), reported_(num_bytes, 0) {}
    void packed(const std::byte* begin, std::size_t num_bytes, bool finite) override {
        const std::lock_guard lock(mutex_);
        for (std::size_t i = 0; i < num_bytes; ++i) ++reported_.at(static_cast<std::size_t>(begin - begin_) + i);
        finite_ = finite_ && finite;
    }
    [[nodiscard]] bool all_once() const {
        return std::all_of(reported_.begin(), reported_.end(), [](int times) { return times == 1; });
    }
    [[nodiscard]] bool finite() const { return finite_; }

  private:
    const std::byte* begin_;
    std::vector<int> reported_;
    std::mutex mutex_;
    bool finite_ = true;
};

const std::vector<DType> packed_types = {DType::bf16, DType::f32, DType::int8, DType::int4};

/// A part of 601 rows (more than a thread packs at a time), a padding part, and one of 7 rows. Columns 3..129 of each
/// row are packed.
struct Parts {
    explicit Parts(DType source) : source(source) {
        Numbers numbers(71);
        first = exactly(numbers.normals(601 * 140, 0.1F));
        second = exactly(numbers.normals(7 * 140, 0.1F));
    }
    [[nodiscard]] std::vector<std::byte> exactly(const std::vector<float>& values) const {
        std::vector<std::byte> bytes = rounded(values, source);
        bytes.resize(values.size() * bytes_of(source));
        return bytes;
    }
    void set(std::vector<std::byte>& part, std::int64_t row, std::int64_t column, float value) const {
        const std::vector<std::byte> one = exactly({value});
        std::copy(one.begin(), one.end(), part.begin() + (row * 140 + column) * static_cast<std::int64_t>(one.size()));
    }
    /// Whether each of the two parts was reported finite.
    [[nodiscard]] std::pair<bool, bool> pack(Device& device, DType dtype, bool gated = false) const {
        Counter a(first.data(), first.size()), b(second.data(), second.size());
        const auto part = [&](const std::vector<std::byte>& bytes, std::int64_t rows, Counter* listener) {
            return WeightRows{.data = listener != nullptr ? bytes.data() : nullptr,
                              .dtype = source,
                              .num_rows = rows,
                              .row_stride = 140,
                              .first_column = 3,
                              .num_columns = 127,
                              .listener = listener};
        };
        const std::vector<WeightRows> parts = {part(first, 601, &a), part(first, gated ? 32 : 5, nullptr),
                                               part(second, 7, &b)};
        const Matrix matrix = gated ? device.pack_gated(dtype, parts, 8, 16) : device.pack(dtype, parts, 8, 16);
        EXPECT_EQ(matrix.data.num_bytes(), device.packed_bytes(matrix));
        EXPECT_TRUE(a.all_once() && b.all_once());
        return {a.finite(), b.finite()};
    }

    DType source;
    std::vector<std::byte> first, second;
};

class PackContract : public ContractTest {};

TEST_P(PackContract, ListenersHearOfEveryRowOnceAndOfNan) {
    constexpr float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
    const auto device = GetParam().make(3);
    for (const DType source : {DType::bf16, DType::f32}) {
        for (const DType dtype : packed_types) {
            SCOPED_TRACE(::testing::Message() << static_cast<int>(dtype));
            Parts parts(source);
            EXPECT_EQ(parts.pack(*device, dtype), std::pair(true, true));
            parts.set(parts.first, 300, 2, nan);  // a column that is not packed
            EXPECT_EQ(parts.pack(*device, dtype), std::pair(true, true));
            parts.set(parts.second, 6, 129, -infinity);
            EXPECT_EQ(parts.pack(*device, dtype), std::pair(true, false));
            parts.set(parts.first, 600, 3, nan);
            EXPECT_EQ(parts.pack(*device, dtype), std::pair(false, false));
            EXPECT_EQ(parts.pack(*device, dtype, true), std::pair(false, false)) << "gates and ups";
        }
    }
}

TEST_P(PackContract, AdoptedWeightsGiveTheSameMatmul) {
    Numbers numbers(72);
    const auto device = GetParam().make(1);
    const auto bytes = rounded(numbers.normals(40 * 64, 0.1F), DType::bf16);
    const OnDevice x(*device, rounded(numbers.normals(64, 1.0F), DType::bf16));
    const WeightRows rows{.data = bytes.data(), .num_rows = 40, .row_stride = 64, .num_columns = 64};
    const auto product = [&](const Matrix& w) {
        const Guarded y(*device, 40 * 4);
        device->matmul(w, x.data(), 64, 1, y.floats());
        return y.values();
    };
    const Matrix own = device->pack(DType::bf16, {&rows, 1}, 8, 8);
    const auto host = make_cpu_device(CpuVariant::reference, 1);
    const Buffer packed(*host, own.data.num_bytes());
    device->download(packed.data(), own.data.data(), packed.num_bytes());
    const std::vector<float> expected = product(own);
    EXPECT_NE(expected, std::vector<float>(40));
    {
        const Matrix adopted{.dtype = own.dtype,
                             .num_outputs = own.num_outputs,
                             .num_inputs = own.num_inputs,
                             .num_slices = own.num_slices,
                             .slice_length = own.slice_length,
                             .data = device->adopt(packed.data(), packed.num_bytes())};
        EXPECT_EQ(product(adopted), expected);
    }
    std::vector<std::byte> after(packed.num_bytes());  // adopted memory still belongs to its owner
    device->download(after.data(), own.data.data(), after.size());
    EXPECT_EQ(std::memcmp(after.data(), packed.data(), after.size()), 0);
}

INSTANTIATE_TEST_SUITE_P(Devices, PackContract, ::testing::ValuesIn(all_devices()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
