// Drafts from n-gram counts, for one sequence (ALGORITHMS.md section 5): alone (draft = ngram), or as an extension
// of the trees of a model (draft = self, tokenswift).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/drafter.hpp"
#include "engine/draft/ngram_table.hpp"

namespace longhaul::engine {

struct NgramOptions {
    std::int64_t order = 4;
    std::int64_t top = 20;
    TreeShape shape;
    double min_probability = 0.04;  // smaller estimates are noise in the counts
    bool adapts = false;
};

/// Counts that all sequences of a replica have in common. What they add to a draft depends on the batch or the corpus,
/// so they are used only where drafts cannot change the text.
struct CommonNgrams {
    CommonNgrams(const NgramOptions& options, const DraftCorpus* texts);

    NgramTable sequences;                ///< of the sequences themselves, filled as they grow
    std::optional<NgramTable> corpus{};  ///< of given texts
};

class NgramSequence final : public SequenceDrafter {
  public:
    /// `common` is blended in after this sequence's own counts.
    NgramSequence(const NgramOptions& options, std::shared_ptr<CommonNgrams> common)
        : options_(options), table_(options.order, options.top), common_(std::move(common)) {}

    void begin(std::span<const std::int32_t> context) override { insert(context); }

    void insert(std::span<const std::int32_t> tokens);

    /// Adds the nodes that pay to the proposal's tree, below its leaves, down to `max_depth`: at most
    /// `shape.budget`, and `shape.width` per level. Uses TokenTree::probability of the nodes that are there.
    void propose(const Proposal& proposal, std::int64_t max_depth);

    /// Adds a chain below the root, of tokens that are accepted with a probability above `sure` each, down to
    /// `max_depth`. Returns its length.
    std::int64_t begin_with_sure(const Proposal& proposal, double sure, std::int64_t max_depth);

    /// Adds what followed the tokens of level 1, best first, down to `max_depth`: at most `shape.budget` nodes. Nodes
    /// that are there already are passed through.
    void continue_first_tokens(const Proposal& proposal, std::int64_t max_depth);

    DrafterState take_delta() override;
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override;

  private:
    /// A possible next token and the estimated probability that verification draws it.
    struct Candidate {
        std::int32_t token = 0;
        double probability = 0;
    };
    /// A node below which the tree grows, and the estimated probability that it is accepted.
    struct Start {
        std::int32_t node = 0;
        double probability = 0;
    };
    void grow(const Proposal& proposal, std::int64_t max_depth, std::span<const Start> starts);
    void share(std::span<const std::int32_t> history);
    [[nodiscard]] std::string kind() const { return "ngram/" + std::to_string(options_.order); }
    void blend(const Successors* successors, double& left);
    void estimate(std::span<const std::int32_t> context, bool alone);
    void weigh_by_noise(const Noise& noise, std::int64_t position);
    void find_candidates(const Proposal& proposal, std::int32_t node);

    NgramOptions options_;
    NgramTable table_;
    std::shared_ptr<CommonNgrams> common_;
    std::vector<std::int32_t> history_;
    std::size_t saved_ = 0;
    std::vector<Candidate> candidates_;  // of the node being expanded
    std::vector<std::int32_t> candidate_tokens_;
    std::vector<std::int32_t> suffix_;
};

/// The n-gram settings of `options`. Throws UsageError.
NgramOptions ngram_options(const DraftOptions& options);

/// N-grams below the first tokens of a tree of `depth` levels: `ngram-top` continuations in all.
NgramOptions continuations(const DraftOptions& options, std::int64_t depth);

/// N-grams that extend the trees of a model: a few nodes, where they pay; none unless the tree adapts.
NgramOptions added_ngrams(const DraftOptions& options);

}  // namespace longhaul::engine
