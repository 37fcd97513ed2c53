// Coupled verification (ALGORITHMS.md section 3): at a node of depth d the target's token is
//     y = argmax_v log q(v) + G_{pos+d}(v),
// the same draw as in autoregressive decoding. A child that carries y is accepted; otherwise y is emitted. There is one
// draw per position, so the text cannot depend on the drafter. (TokenSwift's published code draws once per leaf path
// and keeps the longest match.)
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {

Decision CoupledVerifier::decide(const TokenTree& tree, std::int32_t node, const TargetDistribution& target,
                                 std::uint64_t noise_key, std::int64_t position) const {
    const std::int64_t at = position + tree.depth[node];
    return of_token(tree, node, gumbel_argmax(target(node), NoiseRow(noise_key, at)));
}

}  // namespace longhaul::engine
