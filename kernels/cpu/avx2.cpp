// The avx2 variant, and for tests the blocking of avx512 and amx on AVX2 registers. Compiled with -mavx2 -mfma
// -mprfchw.
#include "kernels/cpu/amx_matmul.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/bf16_tile_attention.hpp"
#include "kernels/cpu/bf16_tiles.hpp"
#include "kernels/cpu/isa_avx2.hpp"
#include "kernels/cpu/variant.hpp"

namespace longhaul::kernels::cpu {
namespace {

constexpr KernelTable table =
    Variant<Avx2, DotBf16Fma<Avx2>, DotF32<Avx2>, DotInt8Signed<Avx2>, DotInt4Pairs<Avx2>>::table("avx2", false);
constexpr KernelTable emulated =
    Variant<Avx2, DotBf16Emulated<Avx2>, DotF32<Avx2>, DotInt8<Avx2>, DotInt4<Avx2>>::table("avx512-emulated", true);

constexpr KernelTable emulated_amx = with_amx<Avx2, EmulatedTiles>(emulated, "amx-emulated");
constexpr KernelTable emulated_bf16_tiles = with_bf16_tiles<Avx2, EmulatedBf16Tiles<Avx2>, table>("amx-bf16-emulated");

}  // namespace

const KernelTable* avx2_kernels() {
    return &table;
}
const KernelTable* avx512_emulated_kernels() {
    return &emulated;
}
const KernelTable* amx_emulated_kernels() {
    return &emulated_amx;
}
const KernelTable* amx_bf16_on_avx2_kernels() {
    return &emulated_bf16_tiles;
}

}  // namespace longhaul::kernels::cpu
