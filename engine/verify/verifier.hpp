// Verification rules: which draft nodes of a tree are accepted, and which token follows (ALGORITHMS.md section 3). Used
// through BatchVerifier. A verifier does not depend on the draft method.
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

/// A rule's decision at one node: the accepted child, or the token emitted if no child is accepted.
struct Decision {
    std::int32_t child = -1;  ///< -1: none
    std::int32_t token = 0;   ///< the emitted token, or that of `child`
};

/// The target's distribution after a tree node. Only called for nodes that the walk reaches.
using TargetDistribution = std::function<const Distribution&(std::int32_t node)>;

class NodeVerifier;

class Verifier {
  public:
    virtual ~Verifier() = default;
    /// Whether the rule reads Distribution::q.
    [[nodiscard]] virtual bool needs_probabilities() const = 0;
    /// Decides a whole tree. `position`: absolute position of the token after the root.
    [[nodiscard]] virtual Verdict verify(const TokenTree& tree, const TargetDistribution& target,
                                         std::uint64_t noise_key, std::int64_t position) const = 0;
    /// The rule, if it decides node by node, each by the distribution after the node's path. Other rules are given
    /// distributions whose penalties see the tokens up to the root, at every node.
    [[nodiscard]] virtual const NodeVerifier* by_node() const { return nullptr; }
};

/// A rule that walks from the root down and decides at one node at a time.
class NodeVerifier : public Verifier {
  public:
    /// The device rule equivalent to `decide` (TokenChooser::decide); nullopt: the target's token alone decides.
    [[nodiscard]] virtual std::optional<kernels::TrialRule> device_rule() const { return std::nullopt; }
    /// Decides at one node.
    [[nodiscard]] virtual Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                          std::uint64_t noise_key, std::int64_t position) const = 0;

    /// Walks from the root down until no child is accepted.
    [[nodiscard]] static Verdict walk(const std::function<Decision(std::int32_t node)>& decide_after);
    [[nodiscard]] Verdict verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                                 std::int64_t position) const final;
    [[nodiscard]] const NodeVerifier* by_node() const final { return this; }
};

/// The rule that emits the same text as autoregressive decoding (ALGORITHMS.md section 3, "coupled").
class CoupledVerifier final : public NodeVerifier {
  public:
    [[nodiscard]] bool needs_probabilities() const override { return false; }
    [[nodiscard]] Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                  std::uint64_t noise_key, std::int64_t position) const override;
    /// The decision for a target token at `node` that was already drawn.
    [[nodiscard]] static Decision of_token(const TokenTree& tree, std::int32_t node, std::int32_t token) {
        return {tree.find_child(node, token), token};
    }
};

/// Teacher forcing: the target's tokens are given.
class ForcedVerifier final : public NodeVerifier {
  public:
    /// `coming`: the tokens after the tree's root, at least one; must outlive the verifier.
    explicit ForcedVerifier(std::span<const std::int32_t> coming) : coming_(coming) {}
    [[nodiscard]] bool needs_probabilities() const override { return false; }
    /// Ignores `target` and the noise.
    [[nodiscard]] Decision decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                  std::uint64_t noise_key, std::int64_t position) const override;

  private:
    std::span<const std::int32_t> coming_;
};

std::unique_ptr<Verifier> make_verifier(VerifyRule rule);

/// Throws DraftMethodError if `rule` with the drafts of `method` would not preserve the target's distribution
/// (ALGORITHMS.md section 3, "Which drafts a rule may see"), or is not meant for them (a rule that never does, for
/// comparison).
void check_lossless(VerifyRule rule, const DraftMethod& method, std::int64_t num_models, const TreeSpec& tree = {});

/// Names of the methods (with one draft model) that `rule` may be used with.
std::vector<std::string> methods_of_rule(VerifyRule rule);

}  // namespace longhaul::engine
