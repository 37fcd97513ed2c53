// The avx512 variant without vdpbf16ps, and amx. Compiled with -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512vnni
// -mprfchw -mamx-tile -mamx-int8.
#include "kernels/cpu/amx_matmul.hpp"
#include "kernels/cpu/amx_tiles.hpp"
#include "kernels/cpu/isa_avx512.hpp"
#include "kernels/cpu/variant.hpp"

namespace longhaul::kernels::cpu {
namespace {

constexpr KernelTable table =
    Variant<Avx512, DotBf16Fma<Avx512>, DotF32<Avx512>, DotInt8<Avx512>, DotInt4<Avx512>>::table("avx512", true);

constexpr KernelTable amx_table = with_amx<Avx512, AmxTiles>(table, "amx");

}  // namespace

const KernelTable* avx512_kernels() {
    return &table;
}
const KernelTable* amx_kernels() {
    return &amx_table;
}

}  // namespace longhaul::kernels::cpu
