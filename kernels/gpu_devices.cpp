#include "kernels/gpu_devices.hpp"

#include <stdexcept>
#include <string>

#if defined(LONGHAUL_WITH_CUDA)
#include "kernels/cuda/block_library.hpp"
#include "kernels/cuda/cuda_device.hpp"
#include "kernels/cuda/links.hpp"
#endif

namespace longhaul::kernels {

#if defined(LONGHAUL_WITH_CUDA)

bool built_for_gpus() {
    return true;
}

int num_gpus() {
    return cuda::num_gpus();
}

std::string gpu_generation(int gpu) {
    if (gpu >= num_gpus()) return "";
    const cuda::GpuProperties properties = cuda::properties_of(gpu);
    return "sm_" + std::to_string(properties.major) + std::to_string(properties.minor);
}

std::string gpu_library(int gpu) {
    if (gpu >= num_gpus()) return "";
    return cuda::block_library_version() + " on " + std::to_string(cuda::properties_of(gpu).multiprocessors) +
           " multiprocessors";
}

static cuda::Arithmetic arithmetic_of(GpuArithmetic arithmetic) {
    switch (arithmetic) {
        case GpuArithmetic::exact:
            return cuda::Arithmetic::exact;
        case GpuArithmetic::tensor:
            return cuda::Arithmetic::tensor;
        case GpuArithmetic::library:
            return cuda::Arithmetic::library;
    }
    throw std::logic_error("no such arithmetic");
}

bool built_with_nccl() {
    return cuda::built_with_links();
}

/// The driver's reason: there is no GPU, there is no driver, or it is older than the CUDA version of the build.
static std::string why_no_gpu() {
    try {
        cuda::use_gpu(0);
    } catch (const DeviceError& error) {
        return std::string(": ") + error.what();
    }
    return "";
}

std::unique_ptr<Device> make_gpu_device(GpuArithmetic arithmetic, int gpu, GpuLaunches launches, SumOrder order) {
    const int found = num_gpus();
    if (gpu < 0 || gpu >= found) {
        throw std::invalid_argument("expected GPU " + std::to_string(gpu) + ", got " + std::to_string(found) +
                                    " that the driver shows this process (nvidia-smi, CUDA_VISIBLE_DEVICES)" +
                                    (found == 0 ? why_no_gpu() : ""));
    }
    return std::make_unique<cuda::CudaDevice>(
        arithmetic_of(arithmetic), gpu,
        launches == GpuLaunches::graphs ? cuda::GraphPolicy{} : cuda::GraphPolicy::none(), order);
}

#else

bool built_for_gpus() {
    return false;
}

int num_gpus() {
    return 0;
}

std::string gpu_generation(int /*gpu*/) {
    return "";
}

std::string gpu_library(int /*gpu*/) {
    return "";
}

bool built_with_nccl() {
    return false;
}

std::unique_ptr<Device> make_gpu_device(GpuArithmetic /*arithmetic*/, int /*gpu*/, GpuLaunches /*launches*/,
                                        SumOrder /*order*/) {
    throw std::invalid_argument("this program was built without GPU kernels; configure it with -DLONGHAUL_CUDA=ON");
}

#endif

}  // namespace longhaul::kernels
