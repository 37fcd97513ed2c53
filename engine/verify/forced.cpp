// Forced verification: the target's tokens are given (a continuation in the data). A node is accepted if it carries the
// next of them; the token after the last accepted node is emitted. This measures what a draft method would gain if the
// target had generated that text. No distribution is read.
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

Decision ForcedVerifier::decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& /*target*/,
                                std::uint64_t /*noise_key*/, std::int64_t /*position*/) const {
    const auto depth = static_cast<std::size_t>(tree.depth[node]);
    const std::int32_t token = coming_[depth];
    // The last token ends the item, so it is emitted instead of accepted.
    return {depth + 1 < coming_.size() ? tree.find_child(node, token) : -1, token};
}

}  // namespace longhaul::engine
