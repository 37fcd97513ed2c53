// The first GPU of this machine. Without one the tests fail, with the driver's reason.
#include "kernels/gpu_devices.hpp"
#include "tests/engine/device_cases.hpp"

namespace longhaul::engine::testing {

std::vector<DeviceCase> gpu_cases() {
    const auto maker = [](kernels::GpuArithmetic arithmetic) {
        return [arithmetic]() -> std::unique_ptr<kernels::Device> { return kernels::make_gpu_device(arithmetic, 0); };
    };
    const auto with_library = [maker]() -> std::unique_ptr<kernels::Device> {
        try {
            return maker(kernels::GpuArithmetic::library)();
        } catch (const kernels::DeviceError&) {  // the library is not installed
            return nullptr;
        }
    };
    return {{"cuda_exact", maker(kernels::GpuArithmetic::exact), true, 4, 40},
            {"cuda", maker(kernels::GpuArithmetic::tensor), false, 4, 40},
            {"cuda_cublas", with_library, false, 4, 40, false}};
}

}  // namespace longhaul::engine::testing
