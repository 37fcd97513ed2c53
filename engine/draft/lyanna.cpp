// Draft method `lyanna` (ALGORITHMS.md section 6): a draft layer continues the target's hidden state by itself, without
// the tokens between, so one chain of states serves every branch of the tree. Each branch adds its tokens' info to the
// chain's logits (token_info.hpp). What a rejected token leaves of a chain drafts again: its remaining levels, with the
// info of the token that was emitted, make a small tree at no further pass of the layer (re-sampling).
//
// Row i of a chain, from 0, estimates the state that gives the token i + 1 places behind its root.
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "engine/draft/layer_drafter.hpp"

namespace longhaul::engine {
namespace {

class LyannaSequence;

/// A chain to make: below the last computed pair of a sequence, which is at `position`.
struct ChainPlan {
    LyannaSequence* sequence;
    std::int64_t position;
    std::int64_t depth;
    std::vector<std::int32_t> rows{};  ///< out: by level, in the states of all chains
};

class LyannaSequence final : public LayerSequence {
  public:
    using LayerSequence::LayerSequence;

    /// Where drafts decide the text, what is known of the last chain outlives its states: they come again
    /// (`lost_chain`).
    void release() override {
        LayerSequence::release();
        chain_ = {};
        if (!one_text()) forget_chain();
    }
    DrafterState take_delta() override {
        if (!one_text()) return LayerSequence::take_delta();
        return {.kind = kind(),
                .row_width = 2,
                .rows = {static_cast<std::int32_t>(chain_root_), static_cast<std::int32_t>(chain_depth_)}};
    }
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override {
        if (!one_text()) return LayerSequence::restore(deltas, context);
        for (const DrafterState& delta : deltas) {
            // Without the layer's fingerprint: written before checkpoints held its keys and values.
            const bool known_kind = delta.kind == kind() || delta.kind == "lyanna";
            if (!known_kind || delta.rows.size() != 2) return false;
            chain_root_ = delta.rows[0];
            chain_depth_ = delta.rows[1];
            if (chain_root_ < 0 || chain_root_ > std::ssize(context)) return false;
        }
        return true;
    }

    [[nodiscard]] std::int64_t max_copied(std::span<const std::int32_t> context) const override {
        const std::int64_t most = LayerSequence::max_copied(context);
        return has_lost_chain() ? std::min(most, chain_root_ - 2) : most;
    }

    bool keep_prefix(std::int64_t count) override {
        forget_chain();
        return LayerSequence::keep_prefix(count);
    }

    /// The chain that was made when the text had `root` tokens, the root included.
    void set_chain(std::int64_t root, HiddenStates chain) {
        chain_root_ = root;
        chain_depth_ = chain.num_rows();
        chain_ = std::move(chain);
    }
    void forget_chain() { set_chain(0, {}); }
    [[nodiscard]] const HiddenStates& chain() const { return chain_; }
    /// The first level of the chain that says something about the next token of a text of `size` tokens.
    [[nodiscard]] std::int64_t next_level(std::int64_t size) const { return size - chain_root_; }
    /// The chain whose states an interruption has lost; nullopt: there is none.
    [[nodiscard]] std::optional<ChainPlan> lost_chain() {
        if (!has_lost_chain()) return {};
        return ChainPlan{this, chain_root_ - 2, chain_depth_};
    }

  protected:
    [[nodiscard]] std::int64_t first_lost() const override {
        return has_lost_chain() ? std::min(known(), chain_root_ - 2) : known();
    }

  private:
    [[nodiscard]] bool has_lost_chain() const {
        return chain_.num_rows() == 0 && chain_root_ >= 2 && chain_depth_ >= 1;
    }

    std::int64_t chain_root_ = 0, chain_depth_ = 0;  ///< 0: there is no chain
    HiddenStates chain_;
};

/// A tree of what is left of an earlier chain.
struct Resampling {
    Proposal* proposal;
    LyannaSequence* sequence;
    std::int64_t levels;
    TokenTree tree{};
};

class LyannaDrafter final : public LayerDrafter {
  public:
    /// `resampled`: shape of the tree of re-sampled levels, which adds at most its budget of nodes to a regular one.
    LyannaDrafter(const DraftContext& context, const TreeShape& regular, const TreeShape& resampled)
        : LayerDrafter(context),
          method_(tree_method(regular, regular.max_nodes())),
          resample_method_(tree_method(resampled, TreeLimits::none)),
          max_resampled_(resampled.max_nodes()),
          resample_(context.options.resample),
          threshold_(context.options.resample_threshold) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<LyannaSequence>(pool_, kind_, one_text_);
    }
    void propose(std::span<Proposal> proposals) override;

    /// As max_tree_nodes plans it.
    [[nodiscard]] std::int64_t max_nodes() const override {
        const std::int64_t regular = method_->max_nodes();
        return resample_ == Resample::off     ? regular
               : resample_ == Resample::fused ? regular + max_resampled_
                                              : std::max(regular, max_resampled_);
    }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth(); }

  protected:
    void read(std::span<const PendingPairs> chunks) override;

  private:
    [[nodiscard]] std::int64_t levels_left(const Proposal& proposal) const;
    [[nodiscard]] HiddenStates make_chains(std::span<ChainPlan> plans, const HiddenStates& first);
    [[nodiscard]] HiddenStates next_level(std::span<ChainPlan> plans, const HiddenStates& states, std::int64_t level);
    void keep_chains(std::span<const ChainPlan> plans, const HiddenStates& all);
    void grow_all(std::vector<LayerTree> trees, const Logits& logits);

    static std::unique_ptr<TreeMethod> tree_method(const TreeShape& shape, std::int64_t max_nodes) {
        return make_dynamic_tree(
            {.width = shape.width, .depth = shape.depth, .max_nodes = max_nodes, .scatter = layer_scatter});
    }

    std::unique_ptr<TreeMethod> method_, resample_method_;
    std::int64_t max_resampled_;
    Resample resample_;
    std::int64_t threshold_;
};

/// Levels of the last chain that the small tree has; 0: there is none.
std::int64_t LyannaDrafter::levels_left(const Proposal& proposal) const {
    const auto& sequence = static_cast<const LyannaSequence&>(*proposal.sequence);
    if (resample_ == Resample::off || sequence.chain().num_rows() == 0) return 0;
    const std::int64_t used = sequence.next_level(std::ssize(proposal.context));
    const std::int64_t left = sequence.chain().num_rows() - used;
    if (used < 1 || left <= threshold_) return 0;
    return std::min({left, proposal.max_depth, resample_method_->max_depth()});
}

/// Output of the layer for level `level` (from 1) of the chains that have it. `states`: the level above it.
HiddenStates LyannaDrafter::next_level(std::span<ChainPlan> plans, const HiddenStates& states, std::int64_t level) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> from;
    std::int32_t above = 0;
    for (const ChainPlan& plan : plans) {
        if (plan.depth < level) continue;
        if (plan.depth > level) {
            const KvSequence& kv = plan.sequence->kv();
            rows.push_back(tree_row(0, kv.committed() - 1, row_range(0, level), std::ssize(views)));
            rows.back().position = plan.position + level;
            views.push_back(kv.view());
            from.push_back(above);
        }
        ++above;
    }
    return layer_.forward_states(rows, views, gathered(states, from));
}

/// The states of all chains, f32 [levels of all chains, hidden]. `first`: their first level. Collective.
HiddenStates LyannaDrafter::make_chains(std::span<ChainPlan> plans, const HiddenStates& first) {
    std::int64_t total = 0, depth = 0;
    for (const ChainPlan& plan : plans) {
        total += plan.depth;
        depth = std::max(depth, plan.depth);
        plan.sequence->reserve(0, plan.depth - 1);
    }
    HiddenStates all = target_.hidden_states(total), next;
    std::int32_t row = 0;
    for (std::int64_t level = 0; level < depth; ++level) {
        if (level > 0) next = next_level(plans, level == 1 ? first : next, level);
        const HiddenStates& states = level == 0 ? first : next;
        copy_rows(states, 0, states.num_rows(), all, row);
        for (ChainPlan& plan : plans) {
            if (plan.depth > level) plan.rows.push_back(row++);
        }
    }
    return all;
}

/// A chain that an interruption has lost comes again when the pairs up to its root are there.
void LyannaDrafter::read(std::span<const PendingPairs> chunks) {
    std::vector<PendingPairs> up_to_chain, rest;
    std::vector<ChainPlan> plans;
    for (const PendingPairs& chunk : chunks) {
        std::optional<ChainPlan> lost = static_cast<LyannaSequence*>(chunk.sequence)->lost_chain();
        const std::int64_t needed = lost ? lost->position + 1 - chunk.sequence->first_pending() : 0;
        if (needed < 1 || needed > chunk.count) {
            rest.push_back(chunk);
            continue;
        }
        lost->depth = std::min(lost->depth, max_depth());
        plans.push_back(std::move(*lost));
        up_to_chain.push_back({chunk.sequence, chunk.context, needed});
        if (needed < chunk.count) rest.push_back({chunk.sequence, chunk.context, chunk.count - needed});
    }
    if (!plans.empty()) {
        const HiddenStates first = compute(up_to_chain);
        const HiddenStates all = make_chains(plans, first);
        keep_chains(plans, all);
    }
    if (!rest.empty()) static_cast<void>(compute(rest));
}

/// Keeps the chains, which are in `all`, for re-sampling.
void LyannaDrafter::keep_chains(std::span<const ChainPlan> plans, const HiddenStates& all) {
    for (const ChainPlan& plan : plans) plan.sequence->set_chain(plan.position + 2, gathered(all, plan.rows));
}

/// Grows the trees to their end, a level of each at a time.
void LyannaDrafter::grow_all(std::vector<LayerTree> trees, const Logits& logits) {
    static const TokenColumns none;
    while (!trees.empty()) {
        std::vector<std::int32_t> rows, tokens;
        for (const LayerTree& tree : trees) {
            for (const TreeGrowth::Wanted& wanted : tree.growth->wanted()) {
                rows.push_back(tree.levels[tree.tree->depth[wanted.node]]);
                tokens.push_back(tree.tree->token[wanted.node]);
            }
        }
        TokenInfo* const info = layer_.token_info();
        Logits level = info != nullptr ? info->added(logits, rows, tokens) : logits.with_added(rows, nullptr, none);
        grow(trees, level);
        std::erase_if(trees, [](const LayerTree& tree) { return tree.is_complete(); });
    }
}

/// A tree of `method` over levels of a chain, which costs no further pass of the layer. `rows`: by level, in the logits
/// of all chains.
LayerTree tree_over(Proposal& proposal, TokenTree& tree, const TreeMethod& method, std::vector<std::int32_t> rows) {
    return {.proposal = &proposal,
            .tree = &tree,
            .growth = method.begin(tree, proposal.noise, std::ssize(proposal.context), std::ssize(rows),
                                   proposal.max_width, {.node = proposal.prices.node}),
            .levels = std::move(rows)};
}

void LyannaDrafter::propose(std::span<Proposal> proposals) {
    std::vector<PendingPairs> pairs;
    std::vector<ChainPlan> plans;
    std::vector<Proposal*> regular;
    std::vector<Resampling> resampled;
    std::int64_t num_left = 0;
    for (Proposal& proposal : proposals) {
        auto& sequence = static_cast<LyannaSequence&>(*proposal.sequence);
        if (const std::int64_t levels = levels_left(proposal); levels > 0) {
            resampled.push_back({&proposal, &sequence, levels});
            num_left += levels;
            if (resample_ == Resample::separate) continue;
        }
        const std::int64_t depth = std::min(proposal.max_depth, max_depth());
        if (depth <= 0 || !sequence.is_ready(proposal.context)) continue;
        pairs.push_back({&sequence, proposal.context, sequence.num_pending()});
        plans.push_back({&sequence, std::ssize(proposal.context) - 2, depth});
        regular.push_back(&proposal);
        proposal.model_passes = depth;
    }
    if (regular.empty() && resampled.empty()) return;

    HiddenStates chains;
    if (!regular.empty()) {
        const HiddenStates first = compute(pairs);
        chains = make_chains(plans, first);
    }
    // One product with the output head for all chains, and for what is left of earlier ones.
    const HiddenStates states = target_.hidden_states(chains.num_rows() + num_left);
    copy_rows(chains, 0, chains.num_rows(), states, 0);
    std::vector<LayerTree> trees;
    for (std::size_t i = 0; i < regular.size(); ++i)
        trees.push_back(tree_over(*regular[i], *regular[i]->tree, *method_, plans[i].rows));
    std::int64_t row = chains.num_rows();
    for (Resampling& one : resampled) {
        copy_rows(one.sequence->chain(), one.sequence->next_level(std::ssize(one.proposal->context)), one.levels,
                  states, row);
        one.tree.reset(one.proposal->context.back());
        trees.push_back(tree_over(*one.proposal, one.tree, *resample_method_, row_range(row, row + one.levels)));
        row += one.levels;
    }
    grow_all(std::move(trees), layer_.logits(states));
    for (const Resampling& one : resampled) {
        one.proposal->tree->merge(one.tree, Origin::resampled, max_resampled_);
        one.sequence->forget_chain();
    }
    keep_chains(plans, chains);
}

}  // namespace

std::unique_ptr<Drafter> make_lyanna_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.layer == nullptr)
        throw std::logic_error("draft = lyanna was given no layer or no target");
    return std::make_unique<LyannaDrafter>(context, context.options.shape(), context.options.resample_tree.shape());
}

}  // namespace longhaul::engine
