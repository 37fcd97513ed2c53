// Choosing tokens on the device that computed the logits, so that rows of logits need not be copied to the host.
// Implemented by devices with memory of their own, with the arithmetic of the host's pipeline (engine/sampling). For
// devices that compute in host memory, the host chooses (Device::token_chooser).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace longhaul::kernels {

/// How to choose a token from a row of logits: penalty, temperature, top-k, top-p, min-p, eta, in this order, each on
/// the result of the one before; then the greatest sum of log weight and Gumbel noise (noise.hpp), ties to the lowest
/// token. Sums over the vocabulary as in numerics.hpp.
struct Choice {
    std::int64_t row = 0;      ///< row of the logits; with penalised tokens, a row may occur only once per call
    double temperature = 1.0;  ///< 0: choose the greatest logit
    std::int64_t top_k = 0;    ///< 0: off
    double top_p = 1.0;        ///< 1: off
    double min_p = 0.0;        ///< 0: off
    double eta = 0.0;          ///< 0: off
    std::int64_t min_keep = 1;
    float penalty = 1.0F;                       ///< divides positive logits of `penalised` tokens, multiplies others
    std::span<const std::int32_t> penalised{};  ///< no duplicates
    std::uint64_t noise_key = 0;                ///< key and place of the noise: noise.hpp
    std::int64_t position = 0;
    std::uint32_t purpose = 0, node = 0;
    bool silent = false;  ///< no noise: choose the greatest log weight
    /// Only for TokenChooser::draw: device memory that receives the row's distribution (KeptDistribution).
    std::byte* keep = nullptr;
};

/// Header of a distribution kept on the device. Behind it, f32 [vocab_size]: each token's logit after the penalty, -inf
/// if a filter removed the token. Probability: exp(log weight - greatest) / sum (numerics.hpp); log weight: logit /
/// temperature.
struct alignas(64) KeptDistribution {
    double temperature = 1;
    double greatest = 0;  ///< greatest log weight of all tokens
    double sum = 0;       ///< 0: nothing is kept, the host must process the row
    std::int64_t vocab_size = 0;

    static constexpr std::size_t num_bytes(std::int64_t vocab_size) {
        return sizeof(KeptDistribution) + (static_cast<std::size_t>(vocab_size) * sizeof(float) + 63) / 64 * 64;
    }
};

/// A token of a row, after all filters.
struct Drawn {
    std::int32_t token = -1;  ///< -1: none
    double log_weight = 0;    ///< logit / temperature
    double probability = 0;   ///< relative to the tokens that survived the filters
};
constexpr std::int64_t max_draws = 16;  ///< per row

/// Rejection sampling over the drafts of a tree node, in their order: a draft is accepted if its random number times
/// its draft probability is less than the target probability left by earlier rejections.
enum class TrialRule : std::uint8_t {
    multi_round,  ///< independent drafts: a rejection subtracts the draft's distribution from the residual
    recursive,  ///< drafts of one distribution without replacement: a rejection subtracts that distribution without the
                ///< tokens drawn before
    k_seq,      ///< independent drafts of one distribution, all with one discount (numerics.hpp)
};

struct DraftTrial {
    std::int32_t token = 0;
    const std::byte* drawn_from = nullptr;  ///< a KeptDistribution; nullptr: the draft was deterministic
    double number = 0;                      ///< 0 <= number < 1
};

/// A node of a token tree, with the row of logits that the target computed at it.
struct NodeTrials {
    Choice choice;  ///< the row and its filters; no noise
    std::span<const DraftTrial> trials;
    double number = 0;  ///< 0 <= number < 1, for the draw from the residual after all rejections
};

struct Decided {
    std::int32_t trial = -1;  ///< index of the accepted draft; -1: none
    std::int32_t token = -1;  ///< if none was accepted: the token drawn instead; -1: the host must decide
};
constexpr std::int64_t max_trials = 64;  ///< per node

/// Chooses tokens from logits in device memory. Each call runs after the operations queued before it and waits for its
/// result. Throws like Device; must be called from the same thread as Device.
class TokenChooser {
  public:
    virtual ~TokenChooser() = default;

    /// tokens[i] = the token for choices[i], from its row of `logits`: f32 [rows, stride]. Only the first `vocab_size`
    /// values of a row are used; they are unchanged afterwards. -1: the host must choose, by the same arithmetic.
    virtual void choose(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                        std::span<std::int32_t> tokens) = 0;

    /// Draws several tokens per row, with their probabilities, for draft trees. drawn [choices, 1 + count]: for each
    /// row the most probable survivor, then the `count` (at most max_draws) tokens with the greatest sums of log weight
    /// and noise in descending order: draws without replacement. Filtered tokens, and draws with noise -inf, give token
    /// -1. If the most probable one is -1, the host must process the whole row, by the same arithmetic. Temperatures
    /// must be above 0. Otherwise as `choose`.
    virtual void draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                      std::int64_t count, std::span<Drawn> drawn) = 0;

    /// decided[i] = the result of `rule` for nodes[i], by the host's arithmetic. Otherwise as `choose`.
    virtual void decide(float* logits, std::int64_t stride, std::int64_t vocab_size, TrialRule rule,
                        std::span<const NodeTrials> nodes, std::span<Decided> decided) = 0;
};

}  // namespace longhaul::kernels
