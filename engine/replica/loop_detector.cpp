#include "engine/replica/loop_detector.hpp"

#include <algorithm>

namespace longhaul::engine {

/// Base of the polynomial hash modulo 2^64. Odd, so that no token loses its influence on the low bits; the multiplier
/// of Knuth's generator MMIX.
constexpr std::uint64_t base = 6364136223846793005U;

/// Spreads a token over 64 bits, because tokens are small numbers (the finalizer of MurmurHash3).
static std::uint64_t spread(std::int32_t token) {
    auto x = static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) + 1;
    x = (x ^ x >> 33U) * 0xFF51AFD7ED558CCDU;
    x = (x ^ x >> 33U) * 0xC4CEB9FE1A85EC53U;
    return x ^ x >> 33U;
}

LoopDetector::LoopDetector(std::int64_t length) : length_(std::max<std::int64_t>(length, 1)) {
    std::uint64_t power = base;  // leaving_factor_ = base^length
    for (auto bits = static_cast<std::uint64_t>(length_); bits > 0; bits >>= 1U, power *= power) {
        if ((bits & 1U) != 0) leaving_factor_ *= power;
    }
}

bool LoopDetector::equal_windows(std::int64_t end, std::int64_t other) const {
    const auto before = [&](std::int64_t at) { return tokens_.begin() + static_cast<std::ptrdiff_t>(at - length_); };
    return std::equal(before(end), before(end) + static_cast<std::ptrdiff_t>(length_), before(other));
}

bool LoopDetector::push(std::int32_t token) {
    tokens_.push_back(token);
    const auto end = static_cast<std::int64_t>(tokens_.size());
    hash_ = hash_ * base + spread(token);
    if (end > length_) hash_ -= leaving_factor_ * spread(tokens_[static_cast<std::size_t>(end - length_ - 1)]);
    if (end < length_) return false;
    const auto [first, last] = ends_.equal_range(hash_);
    const bool loops = std::any_of(first, last, [&](const auto& entry) { return equal_windows(end, entry.second); });
    ends_.emplace(hash_, end);
    recent_.push_back(hash_);
    if (static_cast<std::int64_t>(recent_.size()) > length_) {
        const auto [oldest, behind] = ends_.equal_range(recent_.front());
        ends_.erase(std::find_if(oldest, behind, [&](const auto& entry) { return entry.second == end - length_; }));
        recent_.pop_front();
    }
    return loops;
}

}  // namespace longhaul::engine
