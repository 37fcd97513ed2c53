// Draft method `lyanna` (algorithms.md section 6): a draft layer continues the target's hidden state by itself, without
// the tokens between, so one chain of states serves every branch of the tree. Each branch adds its tokens' info to the
// chain's logits (token_info.hpp). What a rejected token leaves of a chain drafts again: its remaining levels, with the
// info of the token that was emitted, make a small tree at no further pass of the layer (re-sampling).
//
// Row i of a chain, from 0, estimates the state that gives the token i + 1 places behind its root.
#include <algorithm>
#include <deque>
#include <stdexcept>

#include "engine/draft/layer_drafter.hpp"

namespace longhaul::engine {
namespace {

constexpr const char* state_kind = "lyanna";

class LyannaSequence final : public LayerSequence {
  public:
    using LayerSequence::LayerSequence;

    /// Where drafts decide the text, the place of the last chain outlives its states: they come again (`lost_chain`).
    void release() override {
        LayerSequence::release();
        set_chain(one_text() ? chain_root_ : 0, {});
    }
    DrafterState take_delta() override {
        if (!one_text()) return {};
        return {.kind = state_kind, .row_width = 1, .rows = {static_cast<std::int32_t>(chain_root_)}};
    }
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override {
        if (!one_text()) return false;
        for (const DrafterState& delta : deltas) {
            if (delta.kind != state_kind || delta.rows.size() != 1) return false;
            chain_root_ = delta.rows.front();
            if (chain_root_ < 0 || chain_root_ > std::ssize(context)) return false;
        }
        return true;
    }
    [[nodiscard]] bool restores_exactly() const override { return true; }

    /// The chain that was made when the text had `root` tokens, the root included.
    void set_chain(std::int64_t root, HiddenStates chain) {
        chain_root_ = root;
        chain_ = std::move(chain);
    }
    void forget_chain() { set_chain(0, {}); }
    [[nodiscard]] const HiddenStates& chain() const { return chain_; }
    /// The first level of the chain that says something about the next token of a text of `size` tokens.
    [[nodiscard]] std::int64_t next_level(std::int64_t size) const { return size - chain_root_; }
    /// Position of the pair that a lost chain began from; -1: none is lost.
    [[nodiscard]] std::int64_t lost_chain() const { return chain_.num_rows() == 0 ? chain_root_ - 2 : -1; }

  private:
    std::int64_t chain_root_ = 0;  ///< 0: there is no chain
    HiddenStates chain_;
};

/// A chain to make: below the last computed pair of a sequence, which is at `position`.
struct ChainPlan {
    LyannaSequence* sequence;
    std::int64_t position;
    std::int64_t depth;
    std::vector<std::int32_t> rows{};  ///< out: by level, in the states of all chains
};

class LyannaDrafter final : public LayerDrafter {
  public:
    /// `small`: shape of the tree of re-sampled levels, which adds at most its budget of nodes to a regular one.
    LyannaDrafter(const DraftContext& context, const TreeShape& regular, const TreeShape& small)
        : LayerDrafter(context),
          method_(tree_method(regular, regular.max_nodes())),
          small_method_(tree_method(small, TreeLimits::none)),
          max_resampled_(small.max_nodes()),
          resample_(context.options.resample),
          threshold_(context.options.resample_threshold) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<LyannaSequence>(pool_, one_text_);
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
    void grow_all(std::vector<LayerTree> trees, const Logits& logits);

    static std::unique_ptr<TreeMethod> tree_method(const TreeShape& shape, std::int64_t max_nodes) {
        return make_dynamic_tree(
            {.width = shape.width, .depth = shape.depth, .max_nodes = max_nodes, .scatter = layer_scatter});
    }

    std::unique_ptr<TreeMethod> method_, small_method_;
    std::int64_t max_resampled_;
    Resample resample_;
    std::int64_t threshold_;
};

/// Levels of the last chain that the small tree has; 0: there is none.
std::int64_t LyannaDrafter::levels_left(const Proposal& proposal) const {
    const auto& sequence = static_cast<const LyannaSequence&>(*proposal.sequence);
    if (resample_ == Resample::off || sequence.chain().num_rows() == 0) return 0;
    const std::int64_t used = sequence.next_level(std::ssize(proposal.context));
    // Where drafts decide the text, a chain that came again after an interruption may be longer than it was.
    const std::int64_t depth = one_text_ ? max_depth() : sequence.chain().num_rows();
    if (used < 1 || depth - used <= threshold_) return 0;
    const std::int64_t levels = std::min(sequence.chain().num_rows() - used, proposal.max_depth);
    return std::clamp<std::int64_t>(levels, 0, small_method_->max_depth());
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
            rows.push_back(tree_row(0, kv.committed() - 1, numbers(0, level), std::ssize(views)));
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
        target_.device().gather(states.data(), numbers(0, states.num_rows()), all.width(),
                                all.data() + row * all.width());
        for (ChainPlan& plan : plans) {
            if (plan.depth > level) plan.rows.push_back(row++);
        }
    }
    return all;
}

/// A chain that an interruption has lost comes again when the pairs up to its root are there.
void LyannaDrafter::read(std::span<const PendingPairs> chunks) {
    std::vector<PendingPairs> until, rest;
    std::vector<ChainPlan> plans;
    for (const PendingPairs& chunk : chunks) {
        auto& sequence = static_cast<LyannaSequence&>(*chunk.sequence);
        const std::int64_t needed = sequence.lost_chain() + 1 - sequence.first_pending();
        if (needed < 1 || needed > chunk.count) {
            rest.push_back(chunk);
            continue;
        }
        until.push_back({chunk.sequence, chunk.context, needed});
        plans.push_back({&sequence, sequence.lost_chain(), max_depth()});
        if (needed < chunk.count) rest.push_back({chunk.sequence, chunk.context, chunk.count - needed});
    }
    if (!until.empty()) {
        const HiddenStates first = compute(until);
        const HiddenStates all = make_chains(plans, first);
        for (const ChainPlan& plan : plans) plan.sequence->set_chain(plan.position + 2, gathered(all, plan.rows));
    }
    if (!rest.empty()) static_cast<void>(compute(rest));
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

void LyannaDrafter::propose(std::span<Proposal> proposals) {
    std::vector<PendingPairs> pairs;
    std::vector<ChainPlan> plans;
    std::vector<std::pair<Proposal*, std::int64_t>> regular, again;  // with the levels of their trees
    for (Proposal& proposal : proposals) {
        auto& sequence = static_cast<LyannaSequence&>(*proposal.sequence);
        if (const std::int64_t levels = levels_left(proposal); levels > 0) {
            again.emplace_back(&proposal, levels);
            if (resample_ == Resample::separate) continue;
        }
        const std::int64_t depth = std::min(proposal.max_depth, max_depth());
        if (depth <= 0 || !sequence.is_ready(proposal.context)) continue;
        pairs.push_back({&sequence, proposal.context, sequence.num_pending()});
        plans.push_back({&sequence, std::ssize(proposal.context) - 2, depth});
        regular.emplace_back(&proposal, depth);
        proposal.draft_calls = depth;
    }
    if (regular.empty() && again.empty()) return;

    HiddenStates chains;
    if (!regular.empty()) {
        const HiddenStates first = compute(pairs);
        chains = make_chains(plans, first);
    }
    // One product with the output head for all chains, and for what is left of earlier ones.
    std::int64_t num_rows = chains.num_rows();
    for (const auto& [proposal, levels] : again) num_rows += levels;
    HiddenStates states = target_.hidden_states(num_rows);
    std::int64_t row = 0;
    const auto append = [&](const HiddenStates& from, std::int64_t first, std::int64_t count) {
        target_.device().gather(from.data(), numbers(first, first + count), states.width(),
                                states.data() + row * states.width());
        row += count;
        return numbers(row - count, row);
    };
    std::vector<LayerTree> trees;
    const auto add_tree = [&](Proposal& proposal, TokenTree& tree, const TreeMethod& method, std::int64_t depth,
                              std::vector<std::int32_t> levels) {
        LayerTree& added = trees.emplace_back();
        added.proposal = &proposal;
        added.tree = &tree;
        added.growth = method.begin(tree, proposal.noise, std::ssize(proposal.context), depth, proposal.max_width);
        added.levels = std::move(levels);
    };
    if (!regular.empty()) static_cast<void>(append(chains, 0, chains.num_rows()));
    for (std::size_t i = 0; i < regular.size(); ++i) {
        const auto [proposal, depth] = regular[i];
        add_tree(*proposal, *proposal->tree, *method_, depth, plans[i].rows);
    }
    std::deque<TokenTree> small;
    for (const auto& [proposal, levels] : again) {
        const auto& sequence = static_cast<const LyannaSequence&>(*proposal->sequence);
        small.emplace_back().reset(proposal->context.back());
        add_tree(*proposal, small.back(), *small_method_, levels,
                 append(sequence.chain(), sequence.next_level(std::ssize(proposal->context)), levels));
    }
    grow_all(std::move(trees), layer_.logits(states));

    for (std::size_t i = 0; i < again.size(); ++i) {
        again[i].first->tree->merge(small[i], Origin::resampled, max_resampled_);
        static_cast<LyannaSequence&>(*again[i].first->sequence).forget_chain();
    }
    for (const ChainPlan& plan : plans) plan.sequence->set_chain(plan.position + 2, gathered(chains, plan.rows));
}

}  // namespace

std::unique_ptr<Drafter> make_lyanna_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.layer == nullptr)
        throw std::logic_error("draft = lyanna was given no layer or no target");
    return std::make_unique<LyannaDrafter>(context, context.options.shape(), context.options.resample_tree.shape());
}

}  // namespace longhaul::engine
