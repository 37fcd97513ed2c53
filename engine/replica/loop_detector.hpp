// Finds the token at which a growing text repeats itself: the job key `stop-loops`. analysis/longhaul_analysis/
// repetition.py has the same definition; tests/data/loops.json tests both.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

namespace longhaul::engine {

/// A text has a loop of L tokens if its last L tokens equal the L tokens that end p tokens earlier, for some period p
/// from 1 to L: after the first period, L tokens repeat what stands p tokens before them. So each token of the period
/// occurs at least twice, and a period of more than L tokens is no loop.
///
/// The result depends on the tokens alone. A push takes constant time on average: the windows of L tokens that end at
/// most L tokens back are found by a rolling hash, and equal hashes are compared token by token.
class LoopDetector {
  public:
    /// `length`: L, at least 1.
    explicit LoopDetector(std::int64_t length);

    /// Appends a token of the output. True if the text now ends in a loop.
    bool push(std::int32_t token);

  private:
    /// Whether the windows of `length_` tokens that end before `end` and before `other` are equal.
    [[nodiscard]] bool equal_windows(std::int64_t end, std::int64_t other) const;

    std::int64_t length_;
    std::uint64_t leaving_factor_ = 1;  ///< factor of the window's oldest token in its hash
    std::uint64_t hash_ = 0;            ///< of the last `length_` tokens
    std::vector<std::int32_t> tokens_;
    std::deque<std::uint64_t> recent_;                           ///< hashes of the last `length_` windows
    std::unordered_multimap<std::uint64_t, std::int64_t> ends_;  ///< of the same windows: hash -> end
};

}  // namespace longhaul::engine
