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

/// Asks for `num_lines` lines of code from here on, as data. What runs from the first cache alone for long is the
/// oldest that the second one knows; weights stream through that, and what it lets go the first one has to let go, too,
/// where it is included in it (so we think; Zen 5, cores that share no third cache: a layer of 13 or 14 rows takes 1.0
/// to 1.2 % less, of 8, 10 and 12 rows 0.5 to 0.7, of 7 hardly less).
[[gnu::always_inline]] inline void keep_code(int num_lines) {
    constexpr int line_bytes = 64;
    const char* here = nullptr;
    asm volatile("lea 0(%%rip), %0" : "=r"(here));
#pragma GCC unroll 1
    for (int i = 0; i < num_lines; ++i) __builtin_prefetch(here + i * line_bytes, 0, 3);
}

}  // namespace longhaul::kernels::cpu
