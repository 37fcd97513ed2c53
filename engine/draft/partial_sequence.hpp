// The state of one sequence for drafters whose passes read a part of the target's own keys and values (self,
// tokenswift): what they read, and n-grams beside it.
#pragma once

#include <optional>
#include <utility>

#include "engine/draft/ngram_sequence.hpp"
#include "engine/draft/ranked_kv.hpp"

namespace longhaul::engine {

class PartialSequence final : public SequenceDrafter {
  public:
    PartialSequence(std::optional<NgramSequence> with_ngrams, std::int64_t num_prompt)
        : ngrams(std::move(with_ngrams)), prompt_tokens(num_prompt) {}

    void begin(std::span<const std::int32_t> context) override {
        if (ngrams) ngrams->begin(context);
    }
    void release() override { selected = {}; }
    DrafterState take_delta() override { return ngrams ? ngrams->take_delta() : DrafterState{}; }
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override {
        return ngrams && ngrams->restore(deltas, context);
    }
    void observe(const Observation& seen) {
        if (ngrams) ngrams->insert(seen.context.last(seen.num_new));
    }

    /// The row of draft node `node` (0: the root), which reads the selected positions and the nodes above it in `path`.
    /// Its keys and values are stored in scratch slot `node`.
    [[nodiscard]] ForwardRow draft_row(const Proposal& proposal, std::int32_t node, std::int32_t sequence) const {
        ForwardRow row;
        row.token_id = proposal.tree->token[node];
        row.position = std::ssize(proposal.context) - 1 + proposal.tree->depth[node];
        row.sequence = sequence;
        row.in_pages = selected.kv.num_slots;
        row.path = proposal.tree->path_to(node);
        row.path.insert(row.path.begin(), 0);
        row.place = {KvPlace::In::scratch, node};
        return row;
    }
    [[nodiscard]] KvView view(const Proposal& proposal) const {
        return {selected.kv.pages, proposal.kv->scratch_pages(), proposal.kv->view().more_groups};
    }

    std::optional<NgramSequence> ngrams;
    std::int64_t prompt_tokens;
    SelectedKv selected;
};

}  // namespace longhaul::engine
