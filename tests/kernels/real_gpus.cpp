// The first GPU of this machine, as devices under test. Without a GPU their tests fail, with the driver's reason.
#include "kernels/cuda/cuda_device.hpp"
#include "tests/kernels/eager_graphs.hpp"
#include "tests/kernels/kernels_testing.hpp"

namespace longhaul::kernels::testing {
namespace {

DeviceCase real(std::string name, cuda::Arithmetic arithmetic) {
    return {std::move(name), "an NVIDIA GPU", [arithmetic](int /*threads*/) -> std::unique_ptr<Device> {
                return std::make_unique<cuda::CudaDevice>(arithmetic, 0, eager_graphs);
            }};
}

}  // namespace

DeviceCase exact_gpu() {
    return real("cuda_exact", cuda::Arithmetic::exact);
}
DeviceCase tensor_gpu() {
    return real("cuda", cuda::Arithmetic::tensor);
}
DeviceCase older_gpu() {
    return {"cuda_sm80", "the emulation", [](int /*threads*/) { return nullptr; }};
}
DeviceCase library_gpu() {
    DeviceCase device = real("cuda_cublas", cuda::Arithmetic::library);
    device.needs += " and cuBLASLt";
    device.make = [make = device.make](int threads) -> std::unique_ptr<Device> {
        cuda::use_gpu(0);
        try {
            return make(threads);
        } catch (const DeviceError&) {
            return nullptr;
        }
    };
    return device;
}

}  // namespace longhaul::kernels::testing
