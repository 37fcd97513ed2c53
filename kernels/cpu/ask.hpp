// Memory asked for before it is used: other cores hold what they have just written or read, and to take a line from
// one behind another third cache lasts 250 ns and more.
#pragma once

#include <cstdint>

namespace longhaul::kernels::cpu {

/// Asks for the elements that follow those at `x` by 2 KB: products leave half of a row in the cache of another core
/// (Zen 5, 16 rows: SiLU 0.76 of its time, rotation 0.91).
[[gnu::always_inline]] inline void ask_for_elements(const float* x) {
    __builtin_prefetch(x + 512, 0, 3);
}

/// Asks for lines that will be written: whoever read the last ones there may hold them, and stores cannot wait so long
/// (Zen 5: sums of 8 to 24 rows 2 to 4 % of a product, packed inputs of 16 rows 0.5 %).
[[gnu::always_inline]] inline void claim(const void* to, std::int64_t num_bytes) {
    constexpr std::int64_t line_bytes = 64;
    for (std::int64_t i = 0; i < num_bytes; i += line_bytes) __builtin_prefetch(static_cast<const char*>(to) + i, 1, 3);
}

}  // namespace longhaul::kernels::cpu
