// Choosing tokens where the logits are: a device that has memory of its own chooses there, by the arithmetic of the
// host's pipeline, so that rows of logits need not come to the host. Devices that compute in the host's memory leave it
// to the host (Device::token_chooser).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace longhaul::kernels {

/// How a token is to be chosen from a row of logits: penalty, temperature, top-k, top-p, min-p, eta, in this order,
/// each over what the one before left; then the greatest sum of log weight and Gumbel noise (noise.hpp), the lowest
/// token at ties. Sums over tokens as numerics.hpp states.
struct Choice {
    std::int64_t row = 0;      ///< of the logits; of one call none twice, where tokens are penalised
    double temperature = 1.0;  ///< 0: the greatest logit
    std::int64_t top_k = 0;    ///< 0: off
    double top_p = 1.0;        ///< 1: off
    double min_p = 0.0;        ///< 0: off
    double eta = 0.0;          ///< 0: off
    std::int64_t min_keep = 1;
    float penalty = 1.0F;                       ///< divides logits above 0 and multiplies the others, of these tokens:
    std::span<const std::int32_t> penalised{};  ///< none twice
    std::uint64_t noise_key = 0;                ///< of the noise, as its place: noise.hpp
    std::int64_t position = 0;
    std::uint32_t purpose = 0, node = 0;
    bool silent = false;  ///< no noise: the greatest log weights win
    /// For TokenChooser::draw alone: device memory where it leaves the row's distribution (KeptDistribution).
    std::byte* keep = nullptr;
};

/// The head of a distribution that a device keeps; behind it, f32 [vocab_size], each token's logit, penalised, and
/// -inf where a filter took the token away. A probability: exp(log weight - greatest) / sum (numerics.hpp), a log
/// weight being logit / temperature.
struct alignas(64) KeptDistribution {
    double temperature = 1;
    double greatest = 0;  ///< log weight, of all tokens
    double sum = 0;       ///< 0: nothing is kept here, the row was the host's to find out
    std::int64_t vocab_size = 0;

    static constexpr std::size_t num_bytes(std::int64_t vocab_size) {
        return sizeof(KeptDistribution) + (static_cast<std::size_t>(vocab_size) * sizeof(float) + 63) / 64 * 64;
    }
};

/// A token of a row, after all filters.
struct Drawn {
    std::int32_t token = -1;  ///< -1: there is none
    double log_weight = 0;    ///< its logit over the temperature
    double probability = 0;   ///< among the survivors
};
constexpr std::int64_t max_draws = 16;  ///< of a row

/// Rejection sampling over the drafts of a tree's node, in their order: a draft is accepted where its random number
/// times its probability is less than what earlier rejections left of the target's.
enum class TrialRule : std::uint8_t {
    multi_round,  ///< independent drafts: a rejected one takes its distribution away from what is left
    recursive,    ///< all of one distribution, without replacement: it takes away what of that was left before it
    k_seq,        ///< independent drafts of one distribution, all with one discount (numerics.hpp)
};

struct DraftTrial {
    std::int32_t token = 0;
    const std::byte* drawn_from = nullptr;  ///< a KeptDistribution; nullptr: the draft was certain
    double number = 0;                      ///< 0 <= number < 1
};

/// A node of a tree, with the row of logits that the target gave after it.
struct NodeTrials {
    Choice choice;  ///< of the row: its filters; there is no noise
    std::span<const DraftTrial> trials;
    double number = 0;  ///< 0 <= number < 1, of the draw from what all rejections left
};

struct Decided {
    std::int32_t trial = -1;  ///< the accepted one; -1: none
    std::int32_t token = -1;  ///< where there is none: what was drawn instead; -1: that is the host's to find out
};
constexpr std::int64_t max_trials = 64;  ///< of a node

/// Chooses from logits in the memory of its device, after the operations that the device was given before; each call
/// waits for its result. Throws as Device does, and is called by the same thread.
class TokenChooser {
  public:
    virtual ~TokenChooser() = default;

    /// tokens[i] = what choices[i] says of its row of `logits` (f32 [rows, stride], of which the first `vocab_size` of
    /// a row count; they are as before when this is done); -1 where that is the host's to find out, by the same
    /// arithmetic.
    virtual void choose(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                        std::span<std::int32_t> tokens) = 0;

    /// Several tokens of a row, with their probabilities: what draft trees are made of. drawn [choices, 1 + count]: of
    /// each row the most probable survivor, then the `count` (at most max_draws) greatest sums of log weight and noise
    /// in descending order: draws without replacement. Tokens of no survivor, and draws of noise -inf, are none. Where
    /// the most probable one is none, all of the row is the host's to find out, by the same arithmetic. Temperatures
    /// above 0. Otherwise as `choose`.
    virtual void draw(float* logits, std::int64_t stride, std::int64_t vocab_size, std::span<const Choice> choices,
                      std::int64_t count, std::span<Drawn> drawn) = 0;

    /// decided[i] = what `rule` says of nodes[i], by the host's arithmetic. Otherwise as `choose`.
    virtual void decide(float* logits, std::int64_t stride, std::int64_t vocab_size, TrialRule rule,
                        std::span<const NodeTrials> nodes, std::span<Decided> decided) = 0;
};

}  // namespace longhaul::kernels
