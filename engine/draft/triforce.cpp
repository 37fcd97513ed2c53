// Draft method `triforce` (TriForce, arXiv 2404.11912; a baseline of TokenSwift, ALGORITHMS.md section 5): two stages
// of speculation. A small language model drafts a few tokens; a pass of the target over a part of its keys and values
// verifies them and adds one of its own; and so on until the chain is long enough. The target's full pass then verifies
// the chain.
//
// Instead of sinks and a sliding window the small model reads the end of the text afresh (TextWindow): the keys of its
// positions are then those it was trained with.
#include <algorithm>
#include <new>
#include <stdexcept>

#include "engine/draft/lm_sequence.hpp"
#include "engine/draft/partial_sequence.hpp"
#include "engine/draft/product_tree.hpp"
#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

/// The small model's state, and what the target's draft passes read.
class TriForceSequence final : public SequenceDrafter {
  public:
    TriForceSequence(KvPool& pool, TextWindow window, std::int64_t patience, std::int64_t prompt_tokens)
        : small({&pool}, {window}, patience), partial(std::nullopt, prompt_tokens) {}

    [[nodiscard]] bool lags(std::span<const std::int32_t> context) const override { return small.lags(context); }
    void release() override {
        small.release();
        partial.release();
    }

    LmSequence small;
    PartialSequence partial;
};

/// A chain of the batch while it grows: nodes 0 to `confirmed` were verified by the target's draft passes.
struct Chain {
    Proposal* proposal;
    std::int32_t length;
    std::int32_t confirmed = 0;

    [[nodiscard]] TriForceSequence& sequence() const { return static_cast<TriForceSequence&>(*proposal->sequence); }
    [[nodiscard]] TokenTree& tree() const { return *proposal->tree; }
    [[nodiscard]] std::int32_t end() const { return tree().num_nodes() - 1; }
    /// The small model drafts as many tokens as the pass behind it can confirm, besides its own.
    [[nodiscard]] bool wants_draft(std::int64_t round) const { return round < length - confirmed - 1; }
};

class TriForceDrafter final : public Drafter {
  public:
    explicit TriForceDrafter(const DraftContext& context)
        : small_(*context.options.models.front()),
          model_(*context.options.models.back()),
          length_(context.options.shape().depth),
          pool_(make_draft_pool(small_)),
          window_(std::min(small_.config().max_positions, small_text_window)),
          ranker_(context.options.partial_cache, length_ + 1),
          small_sampler_(small_.device(), std::min(small_.config().vocab_size, model_.config().vocab_size)),
          sampler_(model_.device(), model_.config().vocab_size) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        return std::make_unique<TriForceSequence>(*pool_, window_, length_ + 2, item.prompt_tokens);
    }

    void propose(std::span<Proposal> proposals) override;
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations) {
            LmSequence& small = static_cast<TriForceSequence*>(seen.sequence)->small;
            small.accept(seen.context, seen.path);
            if (seen.max_catch_up <= 0) continue;
            small.move_on(std::ssize(seen.context));
            small.catch_up(small_, 0, seen.context, seen.max_catch_up);
        }
    }

    [[nodiscard]] std::int64_t max_nodes() const override { return length_; }
    [[nodiscard]] std::int64_t max_depth() const override { return length_; }
    [[nodiscard]] std::int64_t scratch_slots(const TextSize& text) const override {
        return ranker_.scratch_slots(text);
    }
    [[nodiscard]] std::int64_t bytes_per_sequence() const override {
        const std::int64_t pages = PagePool::pages_for(window_.max_tokens()) + PagePool::pages_for(length_);
        return pages * kernels::KvLayout::page_tokens * position_bytes(small_.kv_layouts()) +
               state_bytes(small_.device(), small_.kv_layouts(), length_);
    }

  private:
    using Chains = std::span<Chain* const>;
    [[nodiscard]] std::vector<Chain> begin_chains(std::span<Proposal> proposals);
    void draft(Chains chains);
    void verify(Chains chains);
    [[nodiscard]] DraftRow draw_after(const Chain& chain, std::int32_t node, std::vector<std::int32_t>& path) const;

    Model& small_;
    Model& model_;  ///< the target, or its copy
    std::int64_t length_;
    std::unique_ptr<KvPool> pool_;
    TextWindow window_;
    KvRanker ranker_;
    DraftSampler small_sampler_, sampler_;
};

std::vector<Chain> TriForceDrafter::begin_chains(std::span<Proposal> proposals) {
    std::vector<Chain> chains;
    std::vector<KvRanker::Request> requests;
    for (Proposal& proposal : proposals) {
        Chain chain{.proposal = &proposal, .length = 0};
        const std::int64_t size = std::ssize(proposal.context);
        LmSequence& small = chain.sequence().small;
        small.move_on(size);
        chain.length = static_cast<std::int32_t>(std::min({proposal.max_depth, length_, small.depth(size)}));
        if (chain.length <= 0) continue;
        small.begin_tree(size, chain.length, length_);
        if (!proposal.kv->reserve_scratch(length_ + 1)) throw std::bad_alloc();
        PartialSequence& partial = chain.sequence().partial;
        requests.push_back({&partial.selected, proposal.kv, proposal.context, partial.prompt_tokens});
        chains.push_back(chain);
    }
    ranker_.select(model_, requests);
    return chains;
}

/// The most probable token after a node, or the one that wins under the target's noise. Under the sampling rules drafts
/// are certain, as those of heads are. `path` must outlive the row.
DraftRow TriForceDrafter::draw_after(const Chain& chain, std::int32_t node, std::vector<std::int32_t>& path) const {
    static constexpr std::uint32_t first_lane = 0;
    path = chain.tree().path_to(node);
    for (std::int32_t& at : path) at = chain.tree().token[at];
    const Proposal& proposal = *chain.proposal;
    DraftRow row{.context = {proposal.context, path},
                 .sampling = *proposal.sampling,
                 .noise = proposal.noise,
                 .position = std::ssize(proposal.context) + std::ssize(path),
                 .node = node,
                 .lanes = {&first_lane, 1},
                 .num_draws = 1,
                 .with_q = false};
    if (row.sampling.temperature == 0) row.sampling.temperature = 1;
    if (row.noise.is_own()) row.noise.kind = Noise::Kind::silent;
    return row;
}

std::int32_t token_of(const Distribution& p, const DraftRow& row) {
    return gumbel_argmax(p, row.noise.row(row.position, 0, 0));
}

/// A pass of the small model: one more token at the end of each chain.
void TriForceDrafter::draft(Chains chains) {
    if (chains.empty()) return;
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<DraftRow> draws;
    std::vector<std::vector<std::int32_t>> paths(chains.size());
    for (std::size_t i = 0; i < chains.size(); ++i) {
        const Chain& chain = *chains[i];
        chain.sequence().small.add_rows(0, chain.proposal->context, chain.tree(), chain.end(),
                                        static_cast<std::int32_t>(i), rows);
        views.push_back(chain.sequence().small.view(0));
        draws.push_back(draw_after(chain, chain.end(), paths[i]));
    }
    PassResult result = small_.forward({.rows = rows, .sequences = views});
    const std::vector<Distribution> drafts = small_sampler_.distributions(result.logits, draws);
    for (std::size_t i = 0; i < chains.size(); ++i) {
        const Chain& chain = *chains[i];
        chain.sequence().small.computed(0, chain.proposal->context, chain.tree(), chain.end());
        chain.tree().add(chain.end(), token_of(drafts[i], draws[i]), Origin::model);
    }
}

/// A pass of the target over a part of its keys and values: confirms the small model's tokens as far as it agrees, and
/// adds its own.
void TriForceDrafter::verify(Chains chains) {
    std::vector<ForwardRow> rows;
    std::vector<KvView> views;
    std::vector<DraftRow> draws;
    std::vector<std::vector<std::int32_t>> paths;
    paths.reserve(chains.size() * static_cast<std::size_t>(small_drafts_per_pass + 1));  // the draws point into it
    for (std::size_t i = 0; i < chains.size(); ++i) {
        const Chain& chain = *chains[i];
        for (std::int32_t node = chain.confirmed; node <= chain.end(); ++node) {
            rows.push_back(chain.sequence().partial.draft_row(*chain.proposal, node, static_cast<std::int32_t>(i)));
            rows.back().wants_logits = true;
            draws.push_back(draw_after(chain, node, paths.emplace_back()));
        }
        views.push_back(chain.sequence().partial.view(*chain.proposal));
    }
    PassResult result = model_.forward({.rows = rows, .sequences = views});
    const std::vector<Distribution> drawn = sampler_.distributions(result.logits, draws);
    std::size_t row = 0;
    for (Chain* chain : chains) {
        const std::size_t first = row;
        const std::int32_t end = chain->end();
        row += static_cast<std::size_t>(end - chain->confirmed) + 1;
        for (std::size_t at = first;; ++at) {
            const std::int32_t token = token_of(drawn[at], draws[at]);
            const std::int32_t next = chain->confirmed + 1;
            const bool agrees = next <= end && chain->tree().token[next] == token;
            chain->confirmed = next;
            if (agrees) continue;
            chain->tree().cut(next);
            chain->sequence().small.forget_from(next);
            chain->tree().add(next - 1, token, Origin::model);
            break;
        }
        ++chain->proposal->model_passes;
    }
}

void TriForceDrafter::propose(std::span<Proposal> proposals) {
    std::vector<Chain> chains = begin_chains(proposals);
    std::vector<Chain*> growing;
    for (Chain& chain : chains) growing.push_back(&chain);
    while (!growing.empty()) {
        for (std::int64_t round = 0; round < small_drafts_per_pass; ++round) {
            std::vector<Chain*> drafting;
            std::copy_if(growing.begin(), growing.end(), std::back_inserter(drafting),
                         [&](const Chain* chain) { return chain->wants_draft(round); });
            draft(drafting);
        }
        verify(growing);
        std::erase_if(growing, [](const Chain* chain) { return chain->confirmed >= chain->length; });
    }
}

}  // namespace

std::unique_ptr<Drafter> make_triforce_drafter(const DraftContext& context) {
    if (context.options.models.size() != 2)
        throw std::logic_error("draft = triforce needs a small model and the target");
    return std::make_unique<TriForceDrafter>(context);
}

}  // namespace longhaul::engine
