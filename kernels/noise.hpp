// Counter-based random numbers, drawn by the host (engine/sampling/noise.hpp) and by GPU kernels with the same bits:
// Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3") of a key and a counter, and Gumbel noise
// made from its words.
#pragma once

#include <bit>
#include <cstdint>
#include <limits>

#include "kernels/host_device.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::kernels {

/// The Philox counter: a place in the stream of one key.
struct NoisePlace {
    std::int64_t position = 0;  ///< only the lower 32 bits are used
    std::uint32_t purpose = 0;  ///< 0: the target's own draw; the others are in engine/sampling/noise.hpp
    std::uint32_t node = 0;
    std::uint32_t block = 0;  ///< number of a block of four tokens: token / 4
};

struct NoiseWords {
    std::uint32_t word[4];
};

inline LONGHAUL_HOST_DEVICE NoiseWords noise_words(std::uint64_t key, const NoisePlace& place) {
    constexpr std::uint64_t multiplier0 = 0xD2511F53, multiplier1 = 0xCD9E8D57;
    constexpr std::uint32_t step0 = 0x9E3779B9, step1 = 0xBB67AE85;
    NoiseWords c{{static_cast<std::uint32_t>(place.position), place.purpose, place.node, place.block}};
    auto key0 = static_cast<std::uint32_t>(key), key1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
        const std::uint64_t product0 = multiplier0 * c.word[0], product1 = multiplier1 * c.word[2];
        c = {{static_cast<std::uint32_t>(product1 >> 32) ^ c.word[1] ^ key0, static_cast<std::uint32_t>(product1),
              static_cast<std::uint32_t>(product0 >> 32) ^ c.word[3] ^ key1, static_cast<std::uint32_t>(product0)}};
        key0 += step0;
        key1 += step1;
    }
    return c;
}

/// Gumbel noise from 32 random bits: -log(-log1p(-u)), u = (bits + 1/2) 2^-32 in f32. -inf if u rounds to 1.
inline LONGHAUL_HOST_DEVICE float gumbel_of_bits(std::uint32_t bits) {
    const auto u = static_cast<float>((static_cast<double>(bits) + 0.5) * 0x1p-32);
    if (u >= 1.0F) return -std::numeric_limits<float>::infinity();
    const double exponential = -scalar::det_log1p(-static_cast<double>(u));
    return static_cast<float>(-scalar::det_log(exponential));
}

/// Upper bound of Gumbel noise: u >= 2^-33. A search for the maximum can skip tokens that cannot reach it.
inline constexpr double max_gumbel = 22.8739;

/// Upper bound of gumbel_of_bits(bits), from the number of leading zeros.
inline LONGHAUL_HOST_DEVICE double gumbel_bound_of_bits(std::uint32_t bits) {
    // u >= 2^-(z + 1) with z leading zeros, and -log(-log1p(-u)) <= -log(u); 1e-5 covers the rounding of f32.
    constexpr double ln2 = 0.6931471805599453;
    return (leading_zeros(bits) + 1) * ln2 + 1e-5;
}

/// e to that bound without its share for rounding: a power of two.
inline double exp_gumbel_bound_of_bits(std::uint32_t bits) {
    return static_cast<double>(std::uint64_t{2} << leading_zeros(bits));
}

}  // namespace longhaul::kernels
