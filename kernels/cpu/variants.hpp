// CPU kernels by name, besides make_cpu_device of device.hpp: their tables, and devices for tests.
#pragma once

#include <memory>

#include "kernels/cpu/kernel_table.hpp"
#include "kernels/device.hpp"

namespace longhaul::kernels::cpu {

/// The kernels of `variant`; nullptr if the processor cannot run them, and for the reference.
const KernelTable* table_of(CpuVariant variant);

/// Both kinds of CpuVariant::avx512, which is the faster of them, emulations that need AVX2 (kernel_table.hpp), and the
/// three kinds of CpuVariant::amx_bf16.
enum class TestVariant {
    avx512_fma,
    avx512_bf16,
    avx512_emulated,
    amx_emulated,
    amx_bf16,
    amx_bf16_on_avx512,
    amx_bf16_on_avx2
};

/// nullptr if the processor cannot run it.
std::unique_ptr<Device> make_test_device(TestVariant variant, int threads);

}  // namespace longhaul::kernels::cpu
