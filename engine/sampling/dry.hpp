// DRY ("don't repeat yourself", by p-e-w; semantics of llama.cpp's sampler): lowers the logit of each token that would
// continue a repetition. If the n tokens before an earlier occurrence of a token equal the last n tokens of the
// context, the token is penalised by multiplier * base^(n - allowed length), where n is the longest such match and at
// least the allowed length. A match does not extend beyond a sequence breaker. Tokens that contain a breaker are not
// penalised.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/sampling/params.hpp"

namespace longhaul::engine {

/// Sequence breakers as tokens: each a head and its tail. A breaker within a single token has no tail.
class DryBreakers {
  public:
    /// Each sequence has at least one token; duplicates are allowed.
    explicit DryBreakers(const std::vector<std::vector<std::int32_t>>& sequences);

    /// Whether the token alone is a breaker.
    [[nodiscard]] bool is_breaker(std::int32_t token) const { return role(token) == Role::breaker; }
    /// Whether a breaker begins with the token.
    [[nodiscard]] bool is_head(std::int32_t token) const { return role(token) != Role::none; }
    /// Tails of the breakers that begin with `head`; none for a breaker without a tail.
    [[nodiscard]] std::span<const std::vector<std::int32_t>> tails(std::int32_t head) const;
    [[nodiscard]] std::int64_t max_tail() const { return max_tail_; }

  private:
    enum class Role : std::uint8_t { none, head, breaker };
    [[nodiscard]] Role role(std::int32_t token) const {
        return static_cast<std::size_t>(token) < roles_.size() ? roles_[static_cast<std::size_t>(token)] : Role::none;
    }

    std::vector<Role> roles_;  ///< by token
    std::unordered_map<std::int32_t, std::vector<std::vector<std::int32_t>>> tails_;
    std::int64_t max_tail_ = 0;
};

/// A token that DRY penalises.
struct DryPenalty {
    std::int32_t token = 0;
    float amount = 0;  ///< to subtract from its logit
};

/// Finds the penalised tokens after a context. What depends on the tokens of the sequence alone is computed once, in
/// time linear in the window, and reused for all nodes of a tree: a node costs as much as its last token has
/// occurrences in the window, times its depth.
class DryMatcher {
  public:
    /// Only tokens below `vocab_size` are penalised.
    explicit DryMatcher(std::int64_t vocab_size) : vocab_size_(static_cast<std::size_t>(vocab_size)) {}

    /// The tokens that `params` penalises after `sequence` followed by `path`; the result is valid until the next call.
    std::span<const DryPenalty> find(const SamplingParams& params, std::span<const std::int32_t> sequence,
                                     std::span<const std::int32_t> path);

  private:
    /// The context within the window: indices count from the first token of sequence_; path tokens follow.
    struct Context {
        std::span<const std::int32_t> path;
        std::int64_t begin = 0, end = 0;
    };

    /// Keeps what is known if the tokens are those of the last call.
    void set_sequence(std::span<const std::int32_t> sequence);
    void index_tokens();
    [[nodiscard]] std::int64_t sequence_size() const { return static_cast<std::int64_t>(sequence_.size()); }
    [[nodiscard]] std::int32_t at(const Context& context, std::int64_t index) const;
    void match_all(const Context& context, std::int64_t min_length);
    void match_at(const Context& context, std::int64_t last, std::int64_t min_length);
    void note(std::int32_t token, std::int64_t length);
    [[nodiscard]] std::int64_t tokens_behind_breaker(const Context& context, const DryBreakers& breakers,
                                                     std::int64_t max_length) const;

    [[nodiscard]] bool is_known(std::int32_t token) const { return static_cast<std::size_t>(token) < vocab_size_; }

    std::size_t vocab_size_;
    std::vector<std::int32_t> sequence_;  ///< the last tokens of the sequence, at most the window
    std::vector<std::int32_t> suffix_;    ///< [i]: length of the longest common suffix of sequence_[0..i] and sequence_
    bool indexed_ = false;
    std::vector<std::int32_t> newest_;    ///< [token]: its last index in sequence_; -1: none
    std::vector<std::int32_t> previous_;  ///< [i]: the index before i with the same token; -1: none
    std::vector<std::int32_t> longest_;   ///< [token]: length of its longest match in this call
    std::vector<std::int32_t> matched_;   ///< tokens with a match in this call
    std::vector<DryPenalty> penalties_;
};

}  // namespace longhaul::engine
