// Log-probabilities of tokens under raw logits (no penalty, temperature 1, no filter), as reported by `logprobs`, `nll`
// and `loss_by_position`; used by engine/replica. Plain IEEE arithmetic in a fixed order without libm: the same bits on
// every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::engine {

/// Reported for tokens with probability 0, because JSON has no infinity.
inline constexpr double min_log_probability = -9999.0;

/// Holds scratch memory: use one object per thread.
class LogSoftmax {
  public:
    explicit LogSoftmax(std::int64_t vocab_size) : logits_(static_cast<std::size_t>(vocab_size)) {}

    /// `logits`: f32 [vocab_size]; NaN is treated as -infinity. The sum of exponentials uses 16 lanes, like the sums
    /// over rows in kernels/numerics.hpp.
    void set(std::span<const float> logits);

    /// log p, at least `min_log_probability`.
    [[nodiscard]] double operator()(std::int32_t token) const;

    /// Whether greedy decoding chooses the token: none is more probable, and of those as probable it has the lowest id.
    [[nodiscard]] bool is_best(std::int32_t token) const;

    /// The `count` most probable tokens, most probable first; ties go to the lower id. Valid until the next call.
    [[nodiscard]] std::span<const std::int32_t> best(std::int64_t count);

  private:
    std::vector<float> logits_;
    double greatest_ = 0, log_sum_ = 0;
    std::vector<std::int32_t> best_;
};

// Rows of `logprobs`, one per output token, stored as 32-bit words for checkpoints: the bits of the chosen token's f32
// log-probability, the ids of the k best tokens, then the bits of their log-probabilities.

/// Words per row; 0 without `logprobs`.
constexpr std::int64_t logprob_words(std::int64_t num_best) {
    return num_best > 0 ? 1 + 2 * num_best : 0;
}
void append_logprobs(LogSoftmax& log_softmax, std::int32_t chosen, std::int64_t num_best,
                     std::vector<std::int32_t>& rows);

struct TokenLogprob {
    std::int32_t token = 0;
    float value = 0;
};
/// Decodes a row: the chosen token first, then the k best tokens except the chosen one.
std::vector<TokenLogprob> read_logprobs(std::span<const std::int32_t> row, std::int32_t chosen);

}  // namespace longhaul::engine
