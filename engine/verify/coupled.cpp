// Coupled verification (algorithms.md section 3): at a node of depth d the target's token is
//     y = argmax_v log q(v) + G_{pos+d}(v),
// the very draw of autoregressive decoding; a child that carries y is accepted, else y is emitted. One draw a position,
// so the text cannot depend on the drafter. (TokenSwift's published code draws once a leaf path and keeps the lucky
// one.)
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

std::int32_t CoupledVerifier::draw(const Distribution& target, std::uint64_t noise_key, std::int64_t position) {
    return gumbel_argmax(target, NoiseRow(noise_key, position));
}

Verdict CoupledVerifier::verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                                std::int64_t position) const {
    return walk(tree, [&](std::int32_t node) {
        return draw(target(node), noise_key, position + tree.depth[static_cast<std::size_t>(node)]);
    });
}

Verdict CoupledVerifier::walk(const TokenTree& tree, const TargetToken& token_after) {
    Verdict verdict;
    std::int32_t node = 0;
    for (;;) {
        verdict.next_token = token_after(node);
        const std::int32_t child = tree.find_child(node, verdict.next_token);
        if (child < 0) return verdict;
        verdict.nodes.push_back(child);
        node = child;
    }
}

}  // namespace longhaul::engine
