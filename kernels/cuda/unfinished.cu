// Operations whose files are still being written. Weak: each file takes its own away, and this one goes with the last.
#include <stdexcept>

#include "kernels/cuda/cuda_device.hpp"

namespace longhaul::kernels::cuda {
namespace {
[[noreturn]] void missing() {
    throw std::logic_error("cuda: an operation that is not written yet");
}
}  // namespace

#define LONGHAUL_WEAK __attribute__((weak))
LONGHAUL_WEAK Matrix CudaDevice::pack(DType, std::span<const WeightRows>, int, std::int64_t) {
    missing();
}
LONGHAUL_WEAK std::size_t CudaDevice::packed_bytes(const Matrix&) const {
    missing();
}
LONGHAUL_WEAK std::string_view CudaDevice::packed_layout() const {
    missing();
}
LONGHAUL_WEAK void CudaDevice::embed(const Matrix&, std::span<const std::int32_t>, std::int64_t, float*) {
    missing();
}
LONGHAUL_WEAK void CudaDevice::matmul(const Matrix&, const std::byte*, std::int64_t, std::int64_t, float*) {
    missing();
}
}  // namespace longhaul::kernels::cuda
