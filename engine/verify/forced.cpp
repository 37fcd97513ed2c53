// Forced verification: the target's tokens are known (a continuation that the data has), so a node is accepted where it
// carries the next of them, and the token after the last accepted node is emitted. What a draft method would gain if
// the target had written that text; no distribution is looked at.
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

Verdict ForcedVerifier::verify(const TokenTree& tree, const TargetDistribution&, std::uint64_t, std::int64_t) const {
    Verdict verdict;
    std::int32_t node = 0;
    for (std::size_t depth = 0;; ++depth) {
        verdict.next_token = coming_[depth];
        // The last token ends the item: nothing follows it, so it is emitted, not accepted.
        const std::int32_t child = depth + 1 < coming_.size() ? tree.find_child(node, verdict.next_token) : -1;
        if (child < 0) return verdict;
        verdict.nodes.push_back(child);
        node = child;
    }
}

}  // namespace longhaul::engine
