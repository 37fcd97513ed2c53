// The avx512 variant without vdpbf16ps, amx and amx-bf16. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq
// -mavx512vnni -mprfchw -mamx-tile -mamx-int8 -mamx-bf16.
#include "kernels/cpu/amx_matmul.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/bf16_tile_attention.hpp"
#include "kernels/cpu/bf16_tiles.hpp"
#include "kernels/cpu/isa_avx512.hpp"
#include "kernels/cpu/self_test.hpp"
#include "kernels/cpu/variant.hpp"

namespace longhaul::kernels::cpu {
namespace {

constexpr KernelTable table =
    Variant<Avx512, DotBf16Fma<Avx512>, DotF32<Avx512>, DotInt8<Avx512>, DotInt4<Avx512>>::table("avx512", true);

constexpr KernelTable amx_table = with_amx<Avx512, AmxTiles>(table, "amx");
constexpr KernelTable amx_bf16_table = with_bf16_tiles<Avx512, AmxBf16Tiles, amx_table>("amx-bf16");
constexpr KernelTable emulated_bf16_tiles =
    with_bf16_tiles<Avx512, EmulatedBf16Tiles<Avx512>, table>("amx-bf16-emulated");

/// Whether a tile agrees with its emulation.
bool tiles_agree(Numbers& numbers, std::uint32_t exponent_from, std::uint32_t exponents) {
    alignas(64) std::uint32_t x[tile_rows * tile_groups], w[tile_groups * lanes];
    alignas(64) float sums[2][tile_rows * lanes];
    for (std::uint32_t& pair : x) pair = numbers.next_pair(exponent_from, exponents);
    for (std::uint32_t& pair : w) pair = numbers.next_pair(exponent_from, exponents);
    const auto multiply = [&](auto& tiles, float* to) {
        tiles.template clear<0>();
        tiles.template load_inputs<0>(reinterpret_cast<const std::byte*>(x));
        tiles.template load_weights<0>(reinterpret_cast<const std::byte*>(w), group_bytes);
        for (int i = 0; i < 3; ++i) tiles.template multiply_add<0, 0, 0>();
        tiles.template store<0>(to, lanes);
    };
    AmxBf16Tiles instruction(tile_rows);
    EmulatedBf16Tiles<Avx512> emulation(tile_rows);
    multiply(instruction, sums[0]);
    multiply(emulation, sums[1]);
    return __builtin_memcmp(sums[0], sums[1], sizeof sums[0]) == 0;
}

}  // namespace

const KernelTable* avx512_kernels() {
    return &table;
}
const KernelTable* amx_kernels() {
    return &amx_table;
}
const KernelTable* amx_bf16_kernels() {
    return &amx_bf16_table;
}
const KernelTable* amx_bf16_on_avx512_kernels() {
    return &emulated_bf16_tiles;
}

bool amx_bf16_self_test() {
    const FlushHere flush;
    Numbers numbers;
    bool agree = true;
    for (int i = 0; i < 32; ++i) {
        agree = agree && tiles_agree(numbers, 120, 12);  // sums of similar magnitude: rounding and cancellation
        agree = agree && tiles_agree(numbers, 60, 12);   // around the smallest normal number: flushing
        agree = agree && tiles_agree(numbers, 0, 130);   // denormal inputs
        agree = agree && tiles_agree(numbers, 100, 60);  // of very different magnitudes
    }
    return agree;
}

}  // namespace longhaul::kernels::cpu
