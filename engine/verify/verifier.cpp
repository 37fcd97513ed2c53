#include "engine/verify/verifier.hpp"

#include <stdexcept>

#include "engine/error.hpp"
#include "engine/verify/sampling.hpp"

namespace longhaul::engine {

Verdict NodeVerifier::walk(const std::function<Decision(std::int32_t node)>& decide_after) {
    Verdict verdict;
    for (std::int32_t node = 0;; node = verdict.nodes.back()) {
        const Decision decision = decide_after(node);
        verdict.next_token = decision.token;
        if (decision.child < 0) return verdict;
        verdict.nodes.push_back(decision.child);
    }
}

Verdict NodeVerifier::verify(const TokenTree& tree, const TargetDistribution& target, std::uint64_t noise_key,
                             std::int64_t position) const {
    return walk([&](std::int32_t node) { return decide(tree, node, target, noise_key, position); });
}

// A new rule needs a value of VerifyRule, a case here and in may_verify, and a file in this folder.
std::unique_ptr<Verifier> make_published_tokenswift();

std::unique_ptr<Verifier> make_verifier(VerifyRule rule) {
    switch (rule) {
        case VerifyRule::coupled:
            return std::make_unique<CoupledVerifier>();
        case VerifyRule::rejection:
        case VerifyRule::multi_round:
            return make_sampling_verifier(make_multi_round_rule(), kernels::TrialRule::multi_round);
        case VerifyRule::k_seq:
            return make_sampling_verifier(make_k_seq_rule(), kernels::TrialRule::k_seq);
        case VerifyRule::recursive:
            return make_sampling_verifier(make_recursive_rule(), kernels::TrialRule::recursive);
        case VerifyRule::tokenswift_paper:
            return make_published_tokenswift();
    }
    throw std::logic_error("no such verification rule");
}

/// How the drafts of a node are drawn in trees of `spec`: one draft without replacement is a chain's.
static Draws draws_in(const DraftMethod& method, const TreeSpec& spec) {
    if (method.draws != Draws::without_replacement || spec.is_auto()) return method.draws;
    const TreeShape shape = spec.is_given() ? spec.shape() : parse_tree_shape(method.default_tree);
    return shape.is_chain() ? Draws::chain : method.draws;
}

/// Whether `rule` preserves the target's distribution with the drafts of `method`, or was published for them.
static bool may_verify(VerifyRule rule, const DraftMethod& method, std::int64_t num_models, const TreeSpec& tree) {
    if (!method.drafts()) return true;                                         // there is nothing to verify
    if (method.chooses_method() && rule != VerifyRule::coupled) return false;  // measured time decides the drafts
    const Draws draws = draws_in(method, tree);
    const bool independent = draws == Draws::chain || draws == Draws::independent;
    switch (rule) {
        case VerifyRule::coupled:
            return true;
        case VerifyRule::rejection:
            return draws == Draws::chain;
        case VerifyRule::multi_round:
            return independent;
        case VerifyRule::k_seq:
            return independent && num_models <= 1;
        case VerifyRule::recursive:
            return method.draws != Draws::independent;
        case VerifyRule::tokenswift_paper:
            return method.copies_target && method.chained_heads;
    }
    return false;
}

/// The drafts that `rule` needs, in words.
static const char* wanted_drafts(VerifyRule rule) {
    switch (rule) {
        case VerifyRule::coupled:
            return "any drafts";
        case VerifyRule::rejection:
            return "chains, with one sampled draft per node";
        case VerifyRule::multi_round:
            return "independent drafts";
        case VerifyRule::k_seq:
            return "independent drafts of one model";
        case VerifyRule::recursive:
            return "drafts drawn without replacement or certain ones";
        case VerifyRule::tokenswift_paper:
            return "the drafts it was published with";
    }
    return "";
}

std::vector<std::string> methods_of_rule(VerifyRule rule) {
    std::vector<std::string> names;
    for (const DraftMethod& method : draft_methods()) {
        if (method.drafts() && may_verify(rule, method, 1, {})) names.push_back(method.name);
    }
    return names;
}

/// "coupled, multi-round or k-seq"
static std::string lossless_rules(const DraftMethod& method, std::int64_t num_models, const TreeSpec& tree) {
    std::string rules, last;
    for (const std::string_view name : VerifyRule::names) {
        const VerifyRule rule(name);
        if (!rule.is_lossless() || !may_verify(rule, method, num_models, tree)) continue;
        if (!last.empty()) rules += (rules.empty() ? "" : ", ") + last;
        last = name;
    }
    return rules.empty() ? last : rules + " or " + last;
}

void check_lossless(VerifyRule rule, const DraftMethod& method, std::int64_t num_models, const TreeSpec& tree) {
    if (may_verify(rule, method, num_models, tree)) return;
    std::string names;
    for (const std::string& name : methods_of_rule(rule)) names += (names.empty() ? "" : ", ") + name;
    const char* why = rule.is_lossless() ? "; the output would not follow the model's distribution" : "";
    throw DraftMethodError("verify: expected " + lossless_rules(method, num_models, tree) +
                           " with draft = " + method.name + ", got " + rule.name() + ", which needs " +
                           wanted_drafts(rule) + " (draft = " + names + ")" + why);
}

}  // namespace longhaul::engine
