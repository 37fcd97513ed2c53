// Draft method `tokenswift` (TokenSwift; algorithms.md section 5): one pass of the target over the root, which reads a
// part of the target's keys and values, gives the first level of the tree; chained heads on its hidden state give one
// level each, h_i = h_(i-1) + W_i · norm(h_(i-1)). Below each first token, n-grams that followed it before are added.
#include <algorithm>
#include <new>
#include <stdexcept>
#include <vector>

#include "engine/draft/heads.hpp"
#include "engine/draft/partial_sequence.hpp"
#include "engine/draft/product_tree.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

PartialSequence& sequence_of(const Proposal& proposal) {
    return static_cast<PartialSequence&>(*proposal.sequence);
}

class TokenSwiftDrafter final : public Drafter {
  public:
    TokenSwiftDrafter(const DraftContext& context, const TreeShape& shape)
        : target_(*context.target),
          heads_(*context.options.heads),
          branching_(shape.branching),
          product_nodes_(shape.max_nodes()),
          ngrams_(continuations(context.options, shape.depth)),
          common_(std::make_shared<CommonNgrams>(ngrams_, context.options.corpus.get())),
          ranker_(context.options.partial_cache, max_nodes() + 1),
          sampler_(target_.device(), target_.config().vocab_size) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        return std::make_unique<PartialSequence>(
            ngrams_.shape.budget > 0 ? std::optional(NgramSequence(ngrams_, common_)) : std::nullopt,
            item.prompt_tokens);
    }

    void propose(std::span<Proposal> proposals) override;

    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations) static_cast<PartialSequence*>(seen.sequence)->observe(seen);
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return product_nodes_ + ngrams_.shape.budget; }
    [[nodiscard]] std::int64_t max_depth() const override { return std::ssize(branching_); }
    [[nodiscard]] std::int64_t scratch_slots(const TextSize& text) const override {
        return ranker_.scratch_slots(text);
    }

  private:
    [[nodiscard]] Logits level_logits(std::span<Proposal* const> ready, std::int64_t depth);

    Model& target_;
    const DraftHeads& heads_;
    std::vector<std::int64_t> branching_;
    std::int64_t product_nodes_;
    NgramOptions ngrams_;
    std::shared_ptr<CommonNgrams> common_;
    KvRanker ranker_;
    DraftSampler sampler_;
};

/// Logits [level, proposal] of the first `depth` levels: one pass over the roots, then the heads.
Logits TokenSwiftDrafter::level_logits(std::span<Proposal* const> ready, std::int64_t depth) {
    std::vector<KvRanker::Request> requests;
    for (Proposal* proposal : ready) {
        PartialSequence& sequence = sequence_of(*proposal);
        if (!proposal->kv->reserve_scratch(1)) throw std::bad_alloc();
        requests.push_back({&sequence.selected, proposal->kv, proposal->context, sequence.prompt_tokens});
    }
    ranker_.select(target_, requests);
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> all;
    for (const Proposal* proposal : ready) {
        all.push_back(static_cast<std::int32_t>(rows.size()));
        rows.push_back(sequence_of(*proposal).draft_row(*proposal, 0, all.back()));
        views.push_back(sequence_of(*proposal).view(*proposal));
    }
    const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = all}, {.at = Tap::At::normed_hidden, .rows = all}};
    const PassResult pass = target_.forward({.rows = rows, .sequences = views, .taps = taps});
    static const Norm none;
    return target_.logits(chained_heads(target_, heads_, pass.taps[0], pass.taps[1], depth - 1), &none);
}

void TokenSwiftDrafter::propose(std::span<Proposal> proposals) {
    std::vector<Proposal*> ready;
    std::int64_t depth = 0;
    for (Proposal& proposal : proposals) {
        const std::int64_t levels = std::min(proposal.max_depth, max_depth());
        if (levels <= 0) continue;
        ready.push_back(&proposal);
        depth = std::max(depth, levels);
    }
    if (ready.empty()) return;
    Logits logits = level_logits(ready, depth);
    std::vector<DraftRow> rows;
    for (std::int64_t level = 0; level < depth; ++level) {
        for (const Proposal* proposal : ready) rows.push_back(product_row(*proposal, level, branching_));
    }
    const std::vector<Distribution> drafts = sampler_.distributions(logits, rows);
    for (std::size_t i = 0; i < ready.size(); ++i) {
        Proposal& proposal = *ready[i];
        std::int32_t level_begin = 0;
        for (std::int64_t level = 0; level < std::min(proposal.max_depth, max_depth()); ++level) {
            const std::size_t at = static_cast<std::size_t>(level) * ready.size() + i;
            level_begin = add_product_level(*proposal.tree, level_begin, drafts[at], rows[at], product_nodes_);
        }
        if (auto& ngrams = sequence_of(proposal).ngrams)
            ngrams->continue_first_tokens(proposal, std::min(proposal.max_depth, max_depth()));
        proposal.draft_calls = 1;
    }
}

}  // namespace

std::unique_ptr<Drafter> make_tokenswift_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.heads == nullptr)
        throw std::logic_error("draft = tokenswift was given no heads or no target");
    return std::make_unique<TokenSwiftDrafter>(context,
                                               tree_of_heads(context.options, context.options.heads->config()));
}

}  // namespace longhaul::engine
