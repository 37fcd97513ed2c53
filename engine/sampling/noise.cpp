#include "engine/sampling/noise.hpp"

#include <xxhash.h>
#include <cstring>
#include <string>

namespace longhaul::engine {
namespace {

std::uint32_t purpose_word(Purpose purpose, std::uint32_t lane) {
    return static_cast<std::uint32_t>(purpose) << 24 | (lane & 0xffffff);
}

kernels::NoiseWords words_of(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t lane,
                             std::uint32_t node, std::uint32_t block) {
    return kernels::noise_words(
        key, {.position = position, .purpose = purpose_word(purpose, lane), .node = node, .block = block});
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
    return words_of(key, position, purpose, lane, node, v / 4).word[v % 4];
}

double uniform(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t index) {
    const kernels::NoiseWords words = words_of(key, position, purpose, 0, 0, index);
    const std::uint64_t bits = static_cast<std::uint64_t>(words.word[0]) << 32 | words.word[1];
    return static_cast<double>(bits >> 11) * 0x1p-53;
}

std::uint32_t NoiseRow::bits(std::int32_t token_id) const {
    const auto v = static_cast<std::uint32_t>(token_id);
    if (v / 4 != cached_block_) {
        cached_ = words_of(key_, position_, purpose_, lane_, node_, v / 4);
        cached_block_ = v / 4;
    }
    return cached_.word[v % 4];
}

std::uint32_t NoiseRow::purpose() const {
    return purpose_word(purpose_, lane_);
}

float NoiseRow::gumbel(std::int32_t token_id) const {
    return silent_ ? 0.0F : kernels::gumbel_of_bits(bits(token_id));
}

double NoiseRow::exp_gumbel_bound(std::int32_t token_id) const {
    return silent_ ? 1 : kernels::exp_gumbel_bound_of_bits(bits(token_id));
}

double NoiseRow::gumbel_bound(std::int32_t token_id) const {
    return silent_ ? 0 : kernels::gumbel_bound_of_bits(bits(token_id));
}

}  // namespace longhaul::engine
