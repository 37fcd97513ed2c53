// Forced verification: the target's tokens are known (a continuation that the data has), so a node is accepted where it
// carries the next of them, and the token after the last accepted node is emitted. What a draft method would gain if
// the target had written that text; no distribution is looked at.
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

Decision ForcedVerifier::decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& /*target*/,
                                std::uint64_t /*noise_key*/, std::int64_t /*position*/) const {
    const auto depth = static_cast<std::size_t>(tree.depth[node]);
    const std::int32_t token = coming_[depth];
    // The last token ends the item: nothing follows it, so it is emitted, not accepted.
    return {depth + 1 < coming_.size() ? tree.find_child(node, token) : -1, token};
}

}  // namespace longhaul::engine
