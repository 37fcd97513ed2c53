// Selects the CPU kernels that this processor can run.
#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/cpu/cpu_device.hpp"
#include "kernels/cpu/kernel_table.hpp"
#include "kernels/cpu/variants.hpp"
#include "kernels/device.hpp"
#include "kernels/reference/reference_device.hpp"

namespace longhaul::kernels {
namespace {

// __builtin_cpu_supports checks cpuid and, for wide registers, whether the operating system saves them (xgetbv).
bool runs_avx2() {
    return __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
}

bool runs_avx512() {
    static const bool runs = runs_avx2() && __builtin_cpu_supports("avx512f") != 0 &&
                             __builtin_cpu_supports("avx512bw") != 0 && __builtin_cpu_supports("avx512vl") != 0 &&
                             __builtin_cpu_supports("avx512dq") != 0 && __builtin_cpu_supports("avx512vnni") != 0 &&
                             __builtin_cpu_supports("avx512bf16") != 0 && cpu::avx512_bf16_self_test();
    return runs;
}

[[noreturn]] void refuse(CpuVariant variant) {
    throw std::invalid_argument("this processor cannot run kernels " + std::string(variant_name(variant)) + " (needs " +
                                std::string(variant_flags(variant)) + ")");
}

}  // namespace

std::vector<CpuVariant> available_cpu_variants() {
    std::vector<CpuVariant> variants{CpuVariant::reference};
    if (runs_avx2()) variants.push_back(CpuVariant::avx2);
    if (runs_avx512()) variants.push_back(CpuVariant::avx512);
    return variants;
}

std::string_view variant_name(CpuVariant variant) {
    switch (variant) {
        case CpuVariant::reference:
            return "reference";
        case CpuVariant::avx2:
            return "avx2";
        case CpuVariant::avx512:
            return "avx512";
    }
    return "unknown";
}

std::string_view variant_flags(CpuVariant variant) {
    switch (variant) {
        case CpuVariant::reference:
            return "none";
        case CpuVariant::avx2:
            return "avx2 fma";
        case CpuVariant::avx512:
            return "avx512f avx512bw avx512vl avx512dq avx512_vnni avx512_bf16";
    }
    return "unknown";
}

std::unique_ptr<Device> make_cpu_device(CpuVariant variant, int threads) {
    if (threads < 1) throw std::invalid_argument("a CPU device needs at least one thread");
    const std::vector<CpuVariant> available = available_cpu_variants();
    if (std::find(available.begin(), available.end(), variant) == available.end()) refuse(variant);
    switch (variant) {
        case CpuVariant::avx2:
            return std::make_unique<cpu::CpuDevice>(*cpu::avx2_kernels(), threads);
        case CpuVariant::avx512:
            return std::make_unique<cpu::CpuDevice>(*cpu::avx512_kernels(), threads);
        case CpuVariant::reference:
            break;
    }
    return make_reference_device(threads);
}

namespace cpu {

std::unique_ptr<Device> make_emulated_avx512_device(int threads) {
    if (!runs_avx2()) refuse(CpuVariant::avx2);
    return std::make_unique<CpuDevice>(*avx512_emulated_kernels(), threads);
}

}  // namespace cpu
}  // namespace longhaul::kernels
