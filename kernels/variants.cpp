// Selects the CPU kernels that this processor can run.
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

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
    return runs_avx2() && __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
           __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
           __builtin_cpu_supports("avx512vnni") != 0;
}

bool runs_avx512_bf16() {
    static const bool runs = runs_avx512() && __builtin_cpu_supports("avx512bf16") != 0 && cpu::avx512_bf16_self_test();
    return runs;
}

// Bits of cpuid that clang 14 has no names for.
constexpr unsigned amx_bf16 = 1U << 22, amx_tile = 1U << 24, amx_int8 = 1U << 25;

bool has_tiles(unsigned kind) {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 && (edx & amx_tile) != 0 && (edx & kind) != 0;
}

/// Whether the operating system lets this process use tile registers, for which it must ask (Linux: arch_prctl).
bool may_use_tiles() {
    constexpr int request_permission = 0x1023, tile_data = 18;
    return syscall(SYS_arch_prctl, request_permission, tile_data) == 0;
}

bool runs_amx() {
    static const bool runs = runs_avx512() && has_tiles(amx_int8) && may_use_tiles();
    return runs;
}

bool runs_amx_bf16() {
    static const bool runs = runs_amx() && has_tiles(amx_bf16) && cpu::amx_bf16_self_test();
    return runs;
}

const cpu::KernelTable* amx_bf16_table() {
    if (runs_amx_bf16()) return cpu::amx_bf16_kernels();
    if (runs_avx512()) return cpu::amx_bf16_on_avx512_kernels();
    return runs_avx2() ? cpu::amx_bf16_on_avx2_kernels() : nullptr;
}

/// The faster of both for bf16. vdpbf16ps multiplies twice as many numbers as a fused multiply-add, but takes four
/// times as long on Granite Rapids (on registers alone, two cores: 224 and 467 GFLOP/s) and, by the peak measured with
/// it, on Emerald Rapids. Cooper Lake, which had it first, was not measured.
const cpu::KernelTable& avx512_table() {
    const bool slow = __builtin_cpu_is("intel") != 0 && __builtin_cpu_is("cooperlake") == 0;
    return !slow && runs_avx512_bf16() ? *cpu::avx512_bf16_kernels() : *cpu::avx512_kernels();
}

[[noreturn]] void refuse(CpuVariant variant) {
    const std::string system = variant == CpuVariant::amx ? ", and Linux 5.16 or newer that permits AMX" : "";
    throw std::invalid_argument("this processor cannot run kernels " + std::string(variant_name(variant)) + " (needs " +
                                std::string(variant_flags(variant)) + system + ")");
}

}  // namespace

std::vector<CpuVariant> available_cpu_variants() {
    std::vector<CpuVariant> variants{CpuVariant::reference};
    if (runs_avx2()) variants.push_back(CpuVariant::avx2);
    if (runs_avx512()) variants.push_back(CpuVariant::avx512);
    if (runs_amx()) variants.push_back(CpuVariant::amx);
    return variants;
}

bool can_run(CpuVariant variant) {
    return variant == CpuVariant::reference || cpu::table_of(variant) != nullptr;
}

bool has_bf16_tiles() {
    return runs_amx_bf16();
}

std::string_view variant_name(CpuVariant variant) {
    switch (variant) {
        case CpuVariant::reference:
            return "reference";
        case CpuVariant::avx2:
            return "avx2";
        case CpuVariant::avx512:
            return "avx512";
        case CpuVariant::amx:
            return "amx";
        case CpuVariant::amx_bf16:
            return "amx-bf16";
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
            return "avx512f avx512bw avx512vl avx512dq avx512_vnni";
        case CpuVariant::amx:
            return "avx512f avx512bw avx512vl avx512dq avx512_vnni amx_tile amx_int8";
        case CpuVariant::amx_bf16:
            return "avx2 fma, fast with avx512_vnni amx_tile amx_int8 amx_bf16";
    }
    return "unknown";
}

std::unique_ptr<Device> make_cpu_device(CpuVariant variant, int threads) {
    if (threads < 1) throw std::invalid_argument("a CPU device needs at least one thread");
    if (variant == CpuVariant::reference) return make_reference_device(threads);
    const cpu::KernelTable* const table = cpu::table_of(variant);
    if (table == nullptr) refuse(variant);
    return std::make_unique<cpu::CpuDevice>(*table, threads);
}

namespace cpu {

const KernelTable* table_of(CpuVariant variant) {
    switch (variant) {
        case CpuVariant::reference:
            return nullptr;
        case CpuVariant::avx2:
            return runs_avx2() ? avx2_kernels() : nullptr;
        case CpuVariant::avx512:
            return runs_avx512() ? &avx512_table() : nullptr;
        case CpuVariant::amx:
            return runs_amx() ? amx_kernels() : nullptr;
        case CpuVariant::amx_bf16:
            return amx_bf16_table();
    }
    return nullptr;
}

std::unique_ptr<Device> make_test_device(TestVariant variant, int threads) {
    const auto device_if = [&](bool runs, const KernelTable* table) -> std::unique_ptr<Device> {
        return runs ? std::make_unique<CpuDevice>(*table, threads) : nullptr;
    };
    switch (variant) {
        case TestVariant::avx512_fma:
            return device_if(runs_avx512(), avx512_kernels());
        case TestVariant::avx512_bf16:
            return device_if(runs_avx512_bf16(), avx512_bf16_kernels());
        case TestVariant::avx512_emulated:
            return device_if(runs_avx2(), avx512_emulated_kernels());
        case TestVariant::amx_emulated:
            return device_if(runs_avx2(), amx_emulated_kernels());
        case TestVariant::amx_bf16:
            return device_if(runs_amx_bf16(), amx_bf16_kernels());
        case TestVariant::amx_bf16_on_avx512:
            return device_if(runs_avx512(), amx_bf16_on_avx512_kernels());
        case TestVariant::amx_bf16_on_avx2:
            return device_if(runs_avx2(), amx_bf16_on_avx2_kernels());
    }
    return nullptr;
}

}  // namespace cpu
}  // namespace longhaul::kernels
