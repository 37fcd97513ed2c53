#include "engine/sampling/noise.hpp"

#include <Random123/philox.h>
#include <xxhash.h>
#include <bit>
#include <cstring>
#include <limits>
#include <string>

#include "kernels/scalar_math.hpp"

namespace longhaul::engine {
namespace {

void philox(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t lane, std::uint32_t node,
            std::uint32_t block, std::uint32_t out[4]) {
    const r123::Philox4x32::ctr_type counter{{static_cast<std::uint32_t>(position),
                                              static_cast<std::uint32_t>(purpose) << 24 | (lane & 0xffffff), node,
                                              block}};
    const r123::Philox4x32::key_type words{{static_cast<std::uint32_t>(key), static_cast<std::uint32_t>(key >> 32)}};
    const auto drawn = r123::Philox4x32{}(counter, words);
    for (int i = 0; i < 4; ++i) out[i] = drawn[static_cast<std::size_t>(i)];
}

}  // namespace

std::uint64_t noise_key(std::uint64_t seed, std::string_view item_id, std::int64_t sample) {
    std::string bytes(sizeof seed + item_id.size() + sizeof sample, '\0');
    std::memcpy(bytes.data(), &seed, sizeof seed);
    std::memcpy(bytes.data() + sizeof seed, item_id.data(), item_id.size());
    std::memcpy(bytes.data() + sizeof seed + item_id.size(), &sample, sizeof sample);
    return XXH3_64bits(bytes.data(), bytes.size());
}

std::uint32_t noise_bits(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t lane,
                         std::uint32_t node, std::uint32_t v) {
    std::uint32_t words[4];
    philox(key, position, purpose, lane, node, v / 4, words);
    return words[v % 4];
}

float gumbel_of_bits(std::uint32_t bits) {
    const auto u = static_cast<float>((static_cast<double>(bits) + 0.5) * 0x1p-32);
    if (u >= 1.0F) return -std::numeric_limits<float>::infinity();
    const double exponential = -kernels::scalar::det_log1p(-static_cast<double>(u));
    return static_cast<float>(-kernels::scalar::det_log(exponential));
}

double uniform(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t index) {
    std::uint32_t words[4];
    philox(key, position, purpose, 0, 0, index, words);
    const std::uint64_t bits = static_cast<std::uint64_t>(words[0]) << 32 | words[1];
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::uint32_t NoiseRow::bits(std::int32_t token_id) const {
    const auto v = static_cast<std::uint32_t>(token_id);
    if (v / 4 != cached_block_) {
        philox(key_, position_, purpose_, lane_, node_, v / 4, cached_);
        cached_block_ = v / 4;
    }
    return cached_[v % 4];
}

float NoiseRow::gumbel(std::int32_t token_id) const {
    return silent_ ? 0.0F : gumbel_of_bits(bits(token_id));
}

double NoiseRow::gumbel_bound(std::int32_t token_id) const {
    if (silent_) return 0;
    // u >= 2^-(z + 1) with z zeros before the first bit, and -log(-log1p(-u)) <= -log(u); the rest is f32's rounding.
    constexpr double ln2 = 0.6931471805599453;
    return (std::countl_zero(bits(token_id)) + 1) * ln2 + 1e-5;
}

}  // namespace longhaul::engine
