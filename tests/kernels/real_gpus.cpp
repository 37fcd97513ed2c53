// The first GPU of this machine, as devices under test.
#include "kernels/gpu_devices.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

DeviceCase real(std::string name, GpuArithmetic arithmetic) {
    return {std::move(name), "an NVIDIA GPU",
            [arithmetic](int /*threads*/) { return num_gpus() > 0 ? make_gpu_device(arithmetic, 0) : nullptr; }};
}

}  // namespace

DeviceCase exact_gpu() {
    return real("cuda_exact", GpuArithmetic::exact);
}
DeviceCase tensor_gpu() {
    return real("cuda", GpuArithmetic::tensor);
}
DeviceCase library_gpu() {
    DeviceCase device = real("cuda_cublas", GpuArithmetic::library);
    device.needs += " and cuBLASLt";
    device.make = [make = device.make](int threads) -> std::unique_ptr<Device> {
        try {
            return make(threads);
        } catch (const DeviceError&) {
            return nullptr;
        }
    };
    return device;
}

}  // namespace longhaul::kernels::testing
