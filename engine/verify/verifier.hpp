// Verification rules: which drafts of a tree the target keeps, and which token follows. A verifier does not know who
// drafted.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/sampling/distribution.hpp"
#include "engine/token_tree.hpp"
#include "engine/verify/rule.hpp"
#include "kernels/token_chooser.hpp"

namespace longhaul::engine {

/// Accepted nodes below the root, in order, and the token emitted after the last of them.
struct Verdict {
    std::vector<std::int32_t> nodes;
    std::int32_t next_token = 0;
};

/// What a rule says after one node: the child that is accepted, or the token that is emitted instead of all of them.
struct Decision {
    std::int32_t child = -1;  ///< -1: none
    std::int32_t token = 0;   ///< where there is no child
};

/// The target's distribution after a node of the tree; evaluated only where the rule walks.
using TargetDistribution = std::function<const Distribution&(std::int32_t node)>;

class Verifier {
  public:
    virtual ~Verifier() = default;
    /// Whether it reads Distribution::q.
    [[nodiscard]] virtual bool needs_probabilities() const = 0;
    /// How a device decides as `decide` does (TokenChooser::decide); nullopt: the target's token alone says it.
    [[nodiscard]] virtual std::optional<kernels::TrialRule> device_rule() const { return std::nullopt; }
    /// `position`: absolute position of the token that follows the root.
    [[nodiscard]] virtual Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                          std::uint64_t noise_key, std::int64_t position) const = 0;

    /// From the root down, as far as children are accepted.
    [[nodiscard]] static Verdict walk(const std::function<Decision(std::int32_t node)>& decide_after);
    [[nodiscard]] Verdict verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                                 std::int64_t position) const;
};

/// The rule that emits autoregressive decoding's own text (algorithms.md section 3, "coupled").
class CoupledVerifier final : public Verifier {
  public:
    [[nodiscard]] bool needs_probabilities() const override { return false; }
    [[nodiscard]] Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                  std::uint64_t noise_key, std::int64_t position) const override;
    /// The rule where somebody drew the target's token after `node` already.
    [[nodiscard]] static Decision of_token(const TokenTree& tree, std::int32_t node, std::int32_t token) {
        return {tree.find_child(node, token), token};
    }
};

/// The rule where the target's tokens are given.
class ForcedVerifier final : public Verifier {
  public:
    /// `coming`: the tokens that follow the tree's root; at least one, and they must outlive it.
    explicit ForcedVerifier(std::span<const std::int32_t> coming) : coming_(coming) {}
    [[nodiscard]] bool needs_probabilities() const override { return false; }
    /// Looks at neither `target` nor the noise.
    [[nodiscard]] Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                  std::uint64_t noise_key, std::int64_t position) const override;

  private:
    std::span<const std::int32_t> coming_;
};

std::unique_ptr<Verifier> make_verifier(VerifyRule rule);

/// Throws UsageError where what `rule` emits from the drafts of `method` would not be distributed as the target
/// (algorithms.md section 3, "Which drafts a rule may see").
void check_lossless(VerifyRule rule, const DraftMethod& method, std::int64_t num_models);

/// Names of the methods, with one draft model, whose drafts `rule` may see.
std::vector<std::string> lossless_methods(VerifyRule rule);

}  // namespace longhaul::engine
