// Draft method `tokenswift` (TokenSwift; ALGORITHMS.md section 5): a pass of the target over the root, which reads a
// part of the target's keys and values, gives the first level of the tree; chained heads on its hidden state give one
// level each, h_i = h_(i-1) + W_i · norm(h_(i-1)). Below each first token, n-grams that followed it before are added.
//
// Beyond the paper: the pass may have weights of lower precision, and there may be several (`draft-passes`), each for
// the token that the one before found most likely; the heads follow the last one.
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

SamplingParams without_filters(const SamplingParams& sampling) {
    SamplingParams kept = sampling;
    const SamplingParams defaults;
    kept.top_k = defaults.top_k;
    kept.top_p = defaults.top_p;
    kept.min_p = defaults.min_p;
    kept.eta = defaults.eta;
    kept.min_keep = defaults.min_keep;
    return kept;
}

class TokenSwiftDrafter final : public Drafter {
  public:
    TokenSwiftDrafter(const DraftContext& context, const TreeShape& shape)
        : target_(*context.target),
          model_(*context.options.models.front()),
          passes_(context.options.passes),
          before_filters_(context.options.before_filters),
          heads_(*context.options.heads),
          branching_(shape.branching),
          product_nodes_(shape.max_nodes()),
          adapts_(context.options.adapts_tree()),
          ngrams_(continuations(context.options, shape.depth)),
          common_(std::make_shared<CommonNgrams>(ngrams_, context.options.corpus.get())),
          ranker_(context.options.partial_cache, max_nodes() + 1),
          sampler_(model_.device(), model_.config().vocab_size) {}

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
    [[nodiscard]] bool adapts() const override { return adapts_; }

  private:
    [[nodiscard]] std::int64_t depth_of(const Proposal& proposal) const {
        return std::min(proposal.max_depth, max_depth());
    }
    using Proposals = std::span<Proposal* const>;
    [[nodiscard]] Logits pass_logits(Proposals ready, std::int64_t pass, std::int64_t num_heads);
    void add_levels(Proposals ready, std::int64_t first, std::int64_t end, Logits& logits);

    Model& target_;
    Model& model_;  ///< drafts: the target, or its copy
    std::int64_t passes_;
    bool before_filters_;  ///< DraftOptions::before_filters
    const DraftHeads& heads_;
    std::vector<std::int64_t> branching_;
    std::int64_t product_nodes_;
    bool adapts_;
    NgramOptions ngrams_;
    std::shared_ptr<CommonNgrams> common_;
    KvRanker ranker_;
    DraftSampler sampler_;
};

/// Logits after the node of each tree that the earlier passes ended with (0: the root): [1 + num_heads, proposal], the
/// model's own and those of the first heads.
Logits TokenSwiftDrafter::pass_logits(Proposals ready, std::int64_t pass, std::int64_t num_heads) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<std::int32_t> all;
    for (const Proposal* proposal : ready) {
        all.push_back(static_cast<std::int32_t>(rows.size()));
        rows.push_back(sequence_of(*proposal).draft_row(*proposal, static_cast<std::int32_t>(pass), all.back()));
        rows.back().wants_logits = num_heads == 0;
        views.push_back(sequence_of(*proposal).view(*proposal));
    }
    if (num_heads == 0) return model_.forward({.rows = rows, .sequences = views}).logits;
    const std::vector<Tap> taps{{.at = Tap::At::last_hidden, .rows = all}, {.at = Tap::At::normed_hidden, .rows = all}};
    const PassResult result = model_.forward({.rows = rows, .sequences = views, .taps = taps});
    static const Norm none;
    // The heads have the target's precision, whatever that of the copy.
    return model_.logits(chained_heads(target_, heads_, result.taps[0], result.taps[1], num_heads), &none);
}

/// Adds the levels from `first` on to all trees: the row of a level and a proposal is (level - first) * proposals + its
/// place.
void TokenSwiftDrafter::add_levels(Proposals ready, std::int64_t first, std::int64_t end, Logits& logits) {
    std::vector<DraftRow> rows;
    for (std::int64_t level = first; level < end; ++level) {
        for (const Proposal* proposal : ready) {
            rows.push_back(product_row(*proposal, level, branching_, passes_));
            if (before_filters_) rows.back().sampling = without_filters(rows.back().sampling);
        }
    }
    const std::vector<Distribution> drafts = sampler_.distributions(logits, rows);
    for (std::size_t i = 0; i < ready.size(); ++i) {
        Proposal& proposal = *ready[i];
        auto level_begin = static_cast<std::int32_t>(first);  // the levels above are a chain
        for (std::int64_t level = first; level < std::min(end, depth_of(proposal)); ++level) {
            const std::size_t at = static_cast<std::size_t>(level - first) * ready.size() + i;
            level_begin = add_product_level(*proposal.tree, level_begin, drafts[at], rows[at], product_nodes_);
        }
        ++proposal.model_passes;
    }
}

void TokenSwiftDrafter::propose(std::span<Proposal> proposals) {
    std::vector<Proposal*> ready;
    std::vector<KvRanker::Request> requests;
    for (Proposal& proposal : proposals) {
        if (depth_of(proposal) <= 0) continue;
        PartialSequence& sequence = sequence_of(proposal);
        if (!proposal.kv->reserve_scratch(passes_)) throw std::bad_alloc();
        requests.push_back({&sequence.selected, proposal.kv, proposal.context, sequence.prompt_tokens});
        ready.push_back(&proposal);
    }
    ranker_.select(model_, requests);
    const std::vector<Proposal*> drafting = ready;
    for (std::int64_t pass = 0; pass < passes_ && !ready.empty(); ++pass) {
        std::int64_t depth = 0;
        for (const Proposal* proposal : ready) depth = std::max(depth, depth_of(*proposal));
        const std::int64_t end = pass + 1 == passes_ ? depth : pass + 1;
        Logits logits = pass_logits(ready, pass, end - pass - 1);
        add_levels(ready, pass, end, logits);
        std::erase_if(ready, [&](const Proposal* proposal) { return depth_of(*proposal) <= pass + 1; });
    }
    for (Proposal* proposal : drafting) {
        if (auto& ngrams = sequence_of(*proposal).ngrams) ngrams->continue_first_tokens(*proposal, depth_of(*proposal));
    }
}

}  // namespace

std::unique_ptr<Drafter> make_tokenswift_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.models.size() != 1 || context.options.heads == nullptr)
        throw std::logic_error("draft = tokenswift was given no heads or no model");
    return std::make_unique<TokenSwiftDrafter>(context,
                                               tree_of_heads(context.options, context.options.heads->config()));
}

}  // namespace longhaul::engine
