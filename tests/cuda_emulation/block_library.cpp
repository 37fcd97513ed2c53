// BlockLibrary for emulated GPUs: plain loops with their own order of sums. The algorithm it offers first is one that
// must be rejected: its sums depend on the position of a row in the block.
#include "kernels/cuda/block_library.hpp"
#include "kernels/convert.hpp"
#include "tests/cuda_emulation/cuda_emulation.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::int64_t rows_per_call = 16;  // small, so that small tests fill several blocks

float sum_of(const std::uint16_t* w, const std::uint16_t* x, std::int64_t inputs, bool descending) {
    float sum = 0.0F;
    for (std::int64_t i = 0; i < inputs; ++i) {
        const std::int64_t k = descending ? inputs - 1 - i : i;
        sum = __fmaf_rn(bf16_to_f32(w[k]), bf16_to_f32(x[k]), sum);
    }
    return sum;
}

class EmulatedLibrary final : public BlockLibrary {
  public:
    explicit EmulatedLibrary(const Stream& stream) : stream_(stream) {}

    [[nodiscard]] std::int64_t block_rows() const override { return rows_per_call; }
    [[nodiscard]] int num_algorithms(const BlockShape& /*shape*/) override { return 2; }
    [[nodiscard]] std::string describe(const BlockShape& /*shape*/, int algorithm) override {
        return algorithm == 0 ? "uneven loops" : "plain loops";
    }
    void multiply(const BlockShape& shape, int algorithm, const std::byte* w, const std::byte* x, float* y) override {
        emulation::ask(stream_.native(), [=] {
            for (std::int64_t r = 0; r < rows_per_call; ++r) {
                const auto* const row = reinterpret_cast<const std::uint16_t*>(x) + r * shape.x_stride;
                for (std::int64_t n = 0; n < shape.outputs; ++n) {
                    const auto* const weights = reinterpret_cast<const std::uint16_t*>(w) + n * shape.inputs;
                    y[r * shape.outputs + n] = sum_of(weights, row, shape.inputs, algorithm == 0 && r % 2 == 1);
                }
            }
        });
    }

  private:
    const Stream& stream_;
};

}  // namespace

std::unique_ptr<BlockLibrary> make_block_library(const Stream& stream) {
    return std::make_unique<EmulatedLibrary>(stream);
}

std::string block_library_version() {
    return "emulated";
}

}  // namespace longhaul::kernels::cuda
