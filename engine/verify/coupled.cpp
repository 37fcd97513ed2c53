// Coupled verification (algorithms.md section 3): at a node of depth d the target's token is
//     y = argmax_v log q(v) + G_{pos+d}(v),
// the very draw of autoregressive decoding; a child that carries y is accepted, else y is emitted. One draw a position,
// so the text cannot depend on the drafter. (TokenSwift's published code draws once a leaf path and keeps the lucky
// one.)
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

Decision CoupledVerifier::decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                 std::uint64_t noise_key, std::int64_t position) const {
    const std::int64_t at = position + tree.depth[node];
    return of_token(tree, node, gumbel_argmax(target(node), NoiseRow(noise_key, at)));
}

}  // namespace longhaul::engine
