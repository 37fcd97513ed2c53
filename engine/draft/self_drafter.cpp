// Draft method `self` (ALGORITHMS.md section 6b): the target drafts for itself. A draft pass runs the target's layers,
// usually with weights of lower precision, over a part of the target's own keys and values (PartialKv). Committed
// positions belong to the target and are only read, so nothing is prefilled, followed or checkpointed for the copy. The
// keys and values of the tokens being drafted are in the sequence's scratch slots, which verification then overwrites:
// the root in slot 0, node i in slot i. Positions selected by rank are behind these (ranked_kv.hpp).
#include <algorithm>
#include <optional>
#include <stdexcept>

#include "engine/draft/model_trees.hpp"
#include "engine/draft/partial_sequence.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

PartialSequence& sequence_of(const Proposal& proposal) {
    return static_cast<PartialSequence&>(*proposal.sequence);
}

class SelfDrafter final : public Drafter, private DraftRows {
  public:
    SelfDrafter(const DraftContext& context, std::unique_ptr<TreeMethod> method)
        : method_(std::move(method)),
          trees_(context.options.models, context.target, context.options.model_temperature),
          adapts_(context.options.adapts_tree()),
          ngrams_(added_ngrams(context.options)),
          common_(std::make_shared<CommonNgrams>(ngrams_, context.options.corpus.get())),
          model_(*context.options.models.front()),
          ranker_(context.options.partial_cache, max_nodes() + 1) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        return std::make_unique<PartialSequence>(
            has_ngrams() ? std::optional(NgramSequence(ngrams_, common_)) : std::nullopt, item.prompt_tokens);
    }

    void propose(std::span<Proposal> proposals) override {
        std::vector<GrowingTree> trees;
        std::vector<KvRanker::Request> requests;
        for (Proposal& proposal : proposals) {
            const std::int64_t depth = std::min(proposal.max_depth, method_->max_depth());
            if (depth <= 0) continue;
            if (!proposal.kv->reserve_scratch(method_->max_nodes() + 1)) throw std::bad_alloc();
            PartialSequence& sequence = sequence_of(proposal);
            requests.push_back({&sequence.selected, proposal.kv, proposal.context, sequence.prompt_tokens});
            const std::int64_t sure = extends_by_ngrams(proposal) ? sequence.ngrams->begin_with_sure(
                                                                        proposal, proposal.prices.sure_ngram, depth)
                                                                  : 0;
            trees.push_back(
                {&proposal, method_->begin(*proposal.tree, proposal.noise, std::ssize(proposal.context) + sure,
                                           depth - sure, proposal.max_width, proposal.prices)});
        }
        ranker_.select(model_, requests);
        trees_.grow(std::move(trees), *this);
        for (Proposal& proposal : proposals) {
            if (!extends_by_ngrams(proposal)) continue;
            const std::int64_t depth = proposal.tree->depth.back() + ngrams_.shape.depth;
            sequence_of(proposal).ngrams->propose(proposal, std::min(proposal.text_depth, depth));
        }
    }

    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations) static_cast<PartialSequence*>(seen.sequence)->observe(seen);
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return method_->max_nodes() + ngrams_.shape.budget; }
    [[nodiscard]] std::int64_t max_depth() const override { return method_->max_depth() + ngrams_.shape.depth; }
    [[nodiscard]] std::int64_t scratch_slots(const TextSize& text) const override {
        return ranker_.scratch_slots(text);
    }
    [[nodiscard]] bool adapts() const override { return adapts_; }

  private:
    [[nodiscard]] bool has_ngrams() const { return ngrams_.shape.budget > 0; }
    /// Under the sampling rules drafts are either sampled or certain, not both in one tree.
    [[nodiscard]] bool extends_by_ngrams(const Proposal& proposal) const {
        return has_ngrams() && !proposal.noise.is_own();
    }
    void add(std::size_t /*model*/, const GrowingTree& tree, std::int32_t node, std::int32_t sequence,
             std::vector<ForwardRow>& rows) override {
        const Proposal& proposal = *tree.proposal;
        // The first pass also computes the chain of n-grams that the tree begins with, and its root.
        for (std::int32_t above = proposal.model_passes == 0 ? 0 : node; above < node; ++above)
            rows.push_back(sequence_of(proposal).draft_row(proposal, above, sequence));
        rows.push_back(sequence_of(proposal).draft_row(proposal, node, sequence));
        rows.back().wants_logits = true;
    }

    [[nodiscard]] KvView kv_of(std::size_t /*model*/, const GrowingTree& tree) const override {
        return sequence_of(*tree.proposal).view(*tree.proposal);
    }

    std::unique_ptr<TreeMethod> method_;
    ModelTrees trees_;
    bool adapts_;
    NgramOptions ngrams_;
    std::shared_ptr<CommonNgrams> common_;
    Model& model_;
    KvRanker ranker_;
};

}  // namespace

std::unique_ptr<Drafter> make_self_drafter(const DraftContext& context) {
    if (context.options.models.size() != 1) throw std::logic_error("draft = self was not given its model");
    return std::make_unique<SelfDrafter>(context, context.options.method->make_trees(context.options.shape(), 1));
}

}  // namespace longhaul::engine
