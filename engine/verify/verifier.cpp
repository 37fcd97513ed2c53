#include "engine/verify/verifier.hpp"

#include "engine/error.hpp"
#include "engine/verify/sampling.hpp"

namespace longhaul::engine {

Verdict Verifier::walk(const std::function<Decision(std::int32_t node)>& decide_after) {
    Verdict verdict;
    for (std::int32_t node = 0;; node = verdict.nodes.back()) {
        const Decision decision = decide_after(node);
        verdict.next_token = decision.token;
        if (decision.child < 0) return verdict;
        verdict.nodes.push_back(decision.child);
    }
}

Verdict Verifier::verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                         std::int64_t position) const {
    return walk([&](std::int32_t node) { return decide(tree, node, target, noise_key, position); });
}

// Where rules are named: a new one is a line here, one in check_lossless, and a file beside this one.
std::unique_ptr<Verifier> make_verifier(const std::string& rule) {
    if (rule == "coupled") return std::make_unique<CoupledVerifier>();
    if (rule == "rejection" || rule == "multi-round")
        return make_sampling_verifier(make_multi_round_rule(), kernels::TrialRule::multi_round);
    if (rule == "k-seq") return make_sampling_verifier(make_k_seq_rule(), kernels::TrialRule::k_seq);
    if (rule == "recursive") return make_sampling_verifier(make_recursive_rule(), kernels::TrialRule::recursive);
    throw UsageError("verify: expected coupled, rejection, multi-round, k-seq or recursive, got '" + rule + "'");
}

/// The drafts that `rule` needs, in words; nullptr where those of `method` are.
static const char* wanted_drafts(const std::string& rule, const DraftMethod& method, std::int64_t num_models) {
    if (rule == "coupled" || method.draws == Draws::none) return nullptr;  // any tree will do; there is none
    const bool chain = method.draws == Draws::chain;
    const bool independent = chain || method.draws == Draws::independent;
    const bool without_replacement = chain || method.draws == Draws::without_replacement;
    if (rule == "rejection" && !chain) return "one sampled draft a node (draft = sd)";
    if (rule == "multi-round" && !independent) return "independent drafts (draft = sd, spectr or specinfer)";
    if (rule == "k-seq" && (!independent || num_models > 1))
        return "independent drafts of one model (draft = sd, spectr, or specinfer with one draft-model)";
    if (rule == "recursive" && !without_replacement && method.draws != Draws::certain)
        return "drafts drawn without replacement (draft = sd, rsd-c or rsd-s) or certain ones (ngram)";
    return nullptr;
}

void check_lossless(const std::string& rule, const DraftMethod& method, std::int64_t num_models) {
    const char* wanted = wanted_drafts(rule, method, num_models);
    if (wanted == nullptr) return;
    throw UsageError("verify: expected coupled with draft = " + method.name + ", got " + rule + ", which needs " +
                     wanted + "; what it emitted would not be distributed as the model");
}

}  // namespace longhaul::engine
