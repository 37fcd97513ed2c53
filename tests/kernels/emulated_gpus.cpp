// The GPU kernels emulated on the host (tests/cuda_emulation/cuda_emulation.hpp), as devices under test.
#include "kernels/cuda/cuda_device.hpp"
#include "tests/kernels/eager_graphs.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

DeviceCase emulated(std::string name, cuda::Arithmetic arithmetic, int gpu = 0) {
    return {std::move(name), "nothing", [arithmetic, gpu](int /*threads*/) -> std::unique_ptr<Device> {
                return std::make_unique<cuda::CudaDevice>(arithmetic, gpu, eager_graphs);
            }};
}

}  // namespace

DeviceCase exact_gpu() {
    return emulated("cuda_exact_emulated", cuda::Arithmetic::exact);
}
DeviceCase tensor_gpu() {
    return emulated("cuda_emulated", cuda::Arithmetic::tensor);
}
DeviceCase older_gpu() {
    return emulated("cuda_sm80_emulated", cuda::Arithmetic::tensor, 1);
}
DeviceCase library_gpu() {
    return emulated("cuda_cublas_emulated", cuda::Arithmetic::library);
}

}  // namespace longhaul::kernels::testing
