#include "engine/verify/batch_verifier.hpp"

#include "engine/verify/sampling.hpp"

namespace longhaul::engine {

BatchVerifier::BatchVerifier(VerifyRule rule, kernels::Device& device, std::int64_t vocab_size)
    : device_(device), rule_(make_verifier(rule)), pipeline_({}, vocab_size) {}

std::vector<Verdict> BatchVerifier::verify(std::span<const TreeToVerify> trees, Logits& logits) {
    const std::vector<NodeDecisions> decisions = decide_on_device(trees, logits);
    std::vector<Verdict> verdicts;
    for (std::size_t i = 0; i < trees.size(); ++i) verdicts.push_back(walk(trees[i], decisions[i], logits));
    return verdicts;
}

/// Tokens of the path from below the root down to `node`, inclusive.
static std::vector<std::int32_t> path_tokens(const TokenTree& tree, std::int32_t node) {
    std::vector<std::int32_t> path = tree.path_to(node);
    for (std::int32_t& at : path) at = tree.token[at];
    return path;
}

static std::int64_t position_of(const TreeToVerify& asked) {
    return std::ssize(asked.context);
}

Verdict BatchVerifier::walk(const TreeToVerify& asked, const NodeDecisions& decisions, Logits& logits) {
    pipeline_.set_params(*asked.sampling);
    const NodeVerifier* by_node = rule_->by_node();
    const auto target = [&](std::int32_t node) -> const Distribution& {
        std::vector<std::int32_t> path;
        if (by_node != nullptr || asked.sampling->constraint != nullptr) path = path_tokens(*asked.tree, node);
        return pipeline_.apply(logits.row(asked.first_row + node), {asked.context, path}, rule_->needs_probabilities());
    };
    if (!asked.forced.empty())
        return ForcedVerifier(asked.forced).verify(*asked.tree, target, asked.noise_key, position_of(asked));
    if (by_node == nullptr) return rule_->verify(*asked.tree, target, asked.noise_key, position_of(asked));
    return NodeVerifier::walk([&](std::int32_t node) {
        if (decisions[node]) return *decisions[node];
        fetch_drafts(*asked.tree, node);
        return by_node->decide(*asked.tree, node, target, asked.noise_key, position_of(asked));
    });
}

/// Copies the draft distributions of a node's trials from device to host memory, if the device kept them.
void BatchVerifier::fetch_drafts(TokenTree& tree, std::int32_t node) const {
    for (const Trial& trial : tree.trials) {
        Distribution& draft = tree.drafts[trial.draft];
        if (trial.parent == node && draft.kept != nullptr) draft = kept_distribution(device_, draft.kept);
    }
}

std::vector<BatchVerifier::NodeDecisions> BatchVerifier::decide_on_device(std::span<const TreeToVerify> trees,
                                                                          Logits& logits) {
    std::vector<NodeDecisions> decisions;
    for (const TreeToVerify& asked : trees) decisions.emplace_back(asked.tree->token.size());
    const NodeVerifier* by_node = rule_->by_node();
    if (by_node == nullptr || !logits.can_choose()) return decisions;
    if (!rule_->needs_probabilities()) {
        choose_tokens(trees, logits, decisions);
    } else if (const auto rule = by_node->device_rule()) {
        decide_nodes(trees, logits, *rule, decisions);
    }
    penalised_.clear();
    return decisions;
}

/// Whether a device may decide the tree.
static bool fits_device(const TreeToVerify& asked) {
    const std::int64_t depth = *std::max_element(asked.tree->depth.begin(), asked.tree->depth.end());
    return asked.forced.empty() && LogitsPipeline::fits_device(*asked.sampling, std::ssize(asked.context), depth);
}

/// Calls tell(node, choice) for every node of a tree, with the choice for the node's logits row. Does nothing for trees
/// that the host decides.
template <typename Tell>
void BatchVerifier::each_choice(const TreeToVerify& asked, const Tell& tell) {
    if (!fits_device(asked)) return;
    pipeline_.set_params(*asked.sampling);
    for (std::int32_t node = 0; node < asked.tree->num_nodes(); ++node) {
        const std::vector<std::int32_t> path = path_tokens(*asked.tree, node);
        const NoiseRow noise(asked.noise_key, position_of(asked) + asked.tree->depth[node]);
        kernels::Choice choice = pipeline_.choice({asked.context, path}, noise, penalised_.emplace_back());
        choice.row = asked.first_row + node;
        tell(node, choice);
    }
}

/// The coupled rule on the device: the target's token at each node follows from its logits and the shared noise alone.
void BatchVerifier::choose_tokens(std::span<const TreeToVerify> trees, Logits& logits,
                                  std::vector<NodeDecisions>& decisions) {
    std::vector<kernels::Choice> choices;
    for (const TreeToVerify& asked : trees)
        each_choice(asked, [&](std::int32_t /*node*/, const kernels::Choice& choice) { choices.push_back(choice); });
    const std::vector<std::int32_t> tokens = logits.choose(choices);
    auto next = tokens.begin();
    for (std::size_t i = 0; i < trees.size(); ++i) {
        if (!fits_device(trees[i])) continue;
        for (std::int32_t node = 0; node < trees[i].tree->num_nodes(); ++node, ++next)
            if (*next >= 0) decisions[i][node] = CoupledVerifier::of_token(*trees[i].tree, node, *next);
    }
}

/// A sampling rule on the device, at every node whose trials the device can decide.
void BatchVerifier::decide_nodes(std::span<const TreeToVerify> trees, Logits& logits, kernels::TrialRule rule,
                                 std::vector<NodeDecisions>& decisions) {
    struct Asked {
        std::size_t tree;
        std::int32_t node;
        DeviceTrials trials;
    };
    std::deque<Asked> asked;  // `nodes` point into it
    std::vector<kernels::NodeTrials> nodes;
    for (std::size_t i = 0; i < trees.size(); ++i) {
        each_choice(trees[i], [&](std::int32_t node, const kernels::Choice& choice) {
            auto found = device_trials(*trees[i].tree, node, trees[i].noise_key, position_of(trees[i]));
            if (!found || std::ssize(found->trials) > kernels::max_trials) return;
            const DeviceTrials& trials = asked.emplace_back(Asked{i, node, std::move(*found)}).trials;
            nodes.push_back({.choice = choice, .trials = trials.trials, .number = trials.number});
        });
    }
    const std::vector<kernels::Decided> decided = logits.decide(rule, nodes);
    for (std::size_t i = 0; i < asked.size(); ++i) {
        std::optional<Decision>& decision = decisions[asked[i].tree][asked[i].node];
        if (decided[i].trial >= 0) {
            const std::int32_t child = asked[i].trials.children[decided[i].trial];
            decision = {child, trees[asked[i].tree].tree->token[child]};
        } else if (decided[i].token >= 0) {
            decision = {-1, decided[i].token};
        }
    }
}

}  // namespace longhaul::engine
