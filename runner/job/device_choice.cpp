#include "runner/job/device_choice.hpp"

#include <algorithm>

#include "engine/error.hpp"
#include "kernels/gpu_devices.hpp"
#include "kernels/numerics.hpp"
#include "runner/host/message_text.hpp"

namespace longhaul::runner {
namespace {

const std::vector<std::string> cpu_kernels{"auto", "reference", "avx2", "avx512", "amx", "amx-bf16"};
const std::string amx_bf16{kernels::variant_name(kernels::CpuVariant::amx_bf16)};
const std::vector<std::string> gpu_kernels{"auto", "cuda", "cuda-exact", "cuda-cublas"};

bool is_of(const std::string& kernels, const std::vector<std::string>& device) {
    return kernels != "auto" && std::find(device.begin(), device.end(), kernels) != device.end();
}

[[noreturn]] void refuse(const Settings& settings, const char* key, const std::string& expected, const std::string& got,
                         const std::string& fix) {
    throw UsageError(InputError::format(settings.origins.of(key), key, expected, "'" + got + "'", fix));
}

std::unique_ptr<kernels::Device> make_cpu_device(const Settings& settings, int threads) {
    const std::vector<kernels::CpuVariant> variants = kernels::available_cpu_variants();
    std::vector<std::string> names;
    for (const kernels::CpuVariant variant : variants) {
        names.emplace_back(kernels::variant_name(variant));
        if (settings.kernels == names.back()) return kernels::make_cpu_device(variant, threads);
    }
    if (settings.kernels == "auto" && !variants.empty()) return kernels::make_cpu_device(variants.back(), threads);
    if (settings.kernels == amx_bf16 && kernels::can_run(kernels::CpuVariant::amx_bf16))
        return kernels::make_cpu_device(kernels::CpuVariant::amx_bf16, threads);
    names.insert(names.begin(), "auto");
    refuse(settings, "kernels", list_words(names), settings.kernels,
           settings.kernels == "amx" ? "needs a processor with amx_int8, and Linux 5.16 or newer that permits it"
                                     : "this processor cannot run it");
}

/// Description of the cuBLAS library if kernels = cuda-cublas; "" for other kernels or without a GPU. Throws UsageError
/// if the library cannot be loaded.
std::string library_of(const Settings& settings, int gpu) {
    if (settings.kernels != "cuda-cublas") return "";
    try {
        return kernels::gpu_library(gpu);
    } catch (const kernels::DeviceError& error) {
        refuse(settings, "kernels", "auto, cuda or cuda-exact", settings.kernels, error.what());
    }
}

kernels::GpuArithmetic arithmetic_of(const std::string& kernels) {
    if (kernels == "cuda-exact") return kernels::GpuArithmetic::exact;
    return kernels == "cuda-cublas" ? kernels::GpuArithmetic::library : kernels::GpuArithmetic::tensor;
}

}  // namespace

Gpus gpus_here() {
    return {.built = kernels::built_for_gpus(), .visible = kernels::num_gpus(), .nccl = kernels::built_with_nccl()};
}

const std::vector<std::string>& kernels_of_device(const std::string& device) {
    return device == "cuda" ? gpu_kernels : cpu_kernels;
}

int gpu_of(int node_rank) {
    return node_rank % std::max(kernels::num_gpus(), 1);
}

std::string resolved_device(const std::string& device, const std::string& kernels, const Gpus& gpus) {
    if (!device.empty() && device != "auto") return device;
    if (is_of(kernels, gpu_kernels)) return "cuda";
    return gpus.visible > 0 && !is_of(kernels, cpu_kernels) ? "cuda" : "cpu";
}

std::string device_kind(const Settings& settings, const std::string& generation, const std::string& library) {
    const bool by_nccl = settings.all_reduce == "nccl", by_cublas = settings.kernels == "cuda-cublas";
    if (settings.kernels == "cuda-exact" && !by_nccl) return "cpu";
    if (settings.device == "cpu" && settings.kernels == amx_bf16)
        return std::string(kind_in_blocks) + ", tile numerics " + std::to_string(kernels::tile_numerics_version);
    if (settings.device != "cuda" || generation.empty()) return settings.device;
    std::string kind = "cuda-exact " + generation;
    if (settings.kernels != "cuda-exact")
        kind = "cuda " + generation + ", tensor numerics " + std::to_string(kernels::tensor_numerics_version);
    if (by_cublas) kind += ", " + library;
    if (by_nccl) kind += ", sums by NCCL";
    if (by_cublas || by_nccl) kind += ", tensor-parallel " + std::to_string(settings.tensor_parallel);
    return kind;
}

std::string device_kind(const Settings& settings, int gpu) {
    return device_kind(settings, kernels::gpu_generation(gpu), library_of(settings, gpu));
}

std::string faster_kernels(const Settings& settings, bool has_bf16_tiles) {
    const bool by_choice = settings.kernels != "auto" && settings.kernels != "amx";
    if (!has_bf16_tiles || by_choice || settings.device != "cpu" || settings.precision != "bf16") return "";
    return "here kernels = amx-bf16 reads prompts several times as fast, computes batches faster and single tokens a "
           "little more slowly, with a text of its own";
}

void check_device(const Settings& settings, const Gpus& gpus) {
    if (settings.device != "cuda") return;
    const bool by_kernels = is_of(settings.kernels, gpu_kernels);
    const char* key = by_kernels ? "kernels" : "device";
    const std::string expected = by_kernels ? list_words(cpu_kernels) : "auto or cpu";
    const std::string& got = by_kernels ? settings.kernels : settings.device;
    if (!gpus.built)
        refuse(settings, key, expected, got,
               "this program was built without GPU kernels: configure it with -DLONGHAUL_CUDA=ON");
    if (gpus.visible == 0)
        refuse(settings, key, expected, got,
               "the driver shows this process no GPU: see nvidia-smi and CUDA_VISIBLE_DEVICES, under Slurm request one "
               "(--gpus-per-node)");
    if (settings.all_reduce == "nccl" && !gpus.nccl)
        refuse(settings, "all-reduce", "ordered", settings.all_reduce,
               "this program was built without NCCL: configure it where nccl.h is");
}

std::unique_ptr<kernels::Device> make_device(const Settings& settings, int threads, int node_rank) {
    if (settings.device != "cuda") return make_cpu_device(settings, threads);
    check_device(settings, gpus_here());
    static_cast<void>(library_of(settings, gpu_of(node_rank)));
    return kernels::make_gpu_device(
        arithmetic_of(settings.kernels), gpu_of(node_rank), kernels::GpuLaunches::graphs,
        settings.all_reduce == "nccl" ? kernels::SumOrder::library : kernels::SumOrder::fixed);
}

}  // namespace longhaul::runner
