// The GPU kernels emulated on the host (tests/cuda_emulation/cuda_emulation.hpp), behind memory that the host cannot
// access.
#include "kernels/cuda/cuda_device.hpp"
#include "tests/engine/device_cases.hpp"
#include "tests/engine/remote_device.hpp"
#include "tests/kernels/eager_graphs.hpp"

namespace longhaul::engine::testing {

std::vector<DeviceCase> gpu_cases() {
    const auto maker = [](kernels::cuda::Arithmetic arithmetic, const kernels::cuda::GraphPolicy& policy) {
        return [arithmetic, policy] {
            return std::make_unique<RemoteDevice>(std::make_unique<kernels::cuda::CudaDevice>(arithmetic, 0, policy));
        };
    };
    return {
        {"cuda_exact_emulated", maker(kernels::cuda::Arithmetic::exact, kernels::testing::eager_graphs), true, 2, 8},
        {"cuda_emulated", maker(kernels::cuda::Arithmetic::tensor, {}), false, 2, 8},
        {"cuda_cublas_emulated", maker(kernels::cuda::Arithmetic::library, {}), false, 2, 8, false}};
}

}  // namespace longhaul::engine::testing
