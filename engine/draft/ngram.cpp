// Draft method `ngram`: an n-gram table over prompt and output (Lyanna's baseline "N-gram"; TokenSwift's table,
// ALGORITHMS.md section 5). Differences: contexts of every length up to order-1 are blended (absolute discounting), and
// children are ranked with the shared Gumbel noise of their position. Verification draws argmax log q + G. Given G, the
// n-gram estimate of q predicts that draw, so trees grow in order of acceptance probability and stop where another node
// would not pay.
#include <algorithm>
#include <array>
#include <memory>
#include <queue>

#include "engine/draft/ngram_sequence.hpp"
#include "engine/error.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine {
namespace {

constexpr std::size_t max_shared_contexts = 300'000;  // bounds the shared table to about 40 MB
constexpr std::size_t max_corpus_contexts = 1'200'000;

}  // namespace

CommonNgrams::CommonNgrams(const NgramOptions& options, const DraftCorpus* texts)
    : sequences(options.order, options.top) {
    if (texts == nullptr || options.shape.budget == 0) return;
    corpus.emplace(options.order, options.top);
    for (const std::vector<std::int32_t>& text : *texts) {
        for (std::size_t end = 1; end <= text.size() && corpus->num_contexts() < max_corpus_contexts; ++end)
            corpus->insert(std::span(text).first(end));
    }
}

void NgramSequence::share(std::span<const std::int32_t> history) {
    if (common_->sequences.num_contexts() < max_shared_contexts) common_->sequences.insert(history);
}

void NgramSequence::insert(std::span<const std::int32_t> tokens) {
    for (const std::int32_t token : tokens) {
        history_.push_back(token);
        table_.insert(history_);
        share(history_);
    }
}

DrafterState NgramSequence::take_delta() {
    DrafterState delta{kind(), options_.order + 2, table_.changed_rows(history_, saved_)};
    saved_ = history_.size();
    return delta;
}

bool NgramSequence::restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) {
    for (const DrafterState& delta : deltas) {
        if (delta.kind != kind() || delta.row_width != options_.order + 2 || !table_.set_rows(delta.rows)) {
            table_ = NgramTable(options_.order, options_.top);
            return false;
        }
    }
    if (deltas.empty()) return false;
    history_.assign(context.begin(), context.end());
    saved_ = history_.size();
    for (std::size_t end = 1; end <= history_.size(); ++end) share(std::span(history_).first(end));
    return true;
}

/// Distributes part of the probability mass `left` to the successors of a context and subtracts it from `left`. Each
/// count is lowered by a constant (absolute discounting; 0.75 is usual for text); the mass this frees stays in `left`
/// for the contexts blended later.
void NgramSequence::blend(const Successors* successors, double& left) {
    if (successors == nullptr) return;
    constexpr double discount = 0.75;
    const auto total = static_cast<double>(successors->total);
    double claimed = 0;
    for (const Successor& s : successors->list()) {
        const double share = left * (static_cast<double>(s.count) - discount) / total;
        claimed += share;
        // Without a branch, so that the compiler compares several at once.
        std::size_t known = candidates_.size();
        for (std::size_t i = 0; i < candidate_tokens_.size(); ++i) known = candidate_tokens_[i] == s.token ? i : known;
        if (known == candidates_.size()) {
            candidates_.push_back({s.token, 0});
            candidate_tokens_.push_back(s.token);
        }
        candidates_[known].probability += share;
    }
    left -= claimed;
}

/// candidates_ = blended estimate of the next token: longest context first, the sequence's own counts before those of
/// all sequences and of the corpus. `alone`: uses only the sequence's own counts.
void NgramSequence::estimate(std::span<const std::int32_t> context, bool alone) {
    candidates_.clear();
    candidate_tokens_.clear();
    double left = 1.0;
    const std::size_t lengths = std::min(context.size() + 1, static_cast<std::size_t>(options_.order));
    const std::array<const NgramTable*, 3> tables{&table_, alone ? nullptr : &common_->sequences,
                                                  alone || !common_->corpus ? nullptr : &*common_->corpus};
    // All that is read is asked for before it is used.
    std::array<ContextKey, NgramTable::max_order> keys;
    for (std::size_t length = 0; length < lengths; ++length) {
        keys[length] = key_of(context.last(length));
        for (const NgramTable* table : tables) {
            if (table != nullptr) table->prefetch(keys[length]);
        }
    }
    std::array<std::array<const Successors*, 3>, NgramTable::max_order> found{};
    for (std::size_t length = lengths; length-- > 0;) {
        for (std::size_t table = 0; table < tables.size(); ++table) {
            if (tables[table] == nullptr) continue;
            found[length][table] = tables[table]->find(keys[length]);
            __builtin_prefetch(found[length][table]);
        }
    }
    for (std::size_t length = lengths; length-- > 0 && left > options_.min_probability;) {
        for (const Successors* successors : found[length]) blend(successors, left);
    }
}

/// e^G of a token's noise G; within a factor of two where it is far below `matters`, for no logarithm then.
double exp_noise(const NoiseRow& row, std::int32_t token, double matters) {
    const double bound = row.exp_gumbel_bound(token);
    if (bound < 0.02 * matters) return bound / 2;
    return kernels::scalar::det_exp(static_cast<double>(row.gumbel(token)));
}

/// Sets the probability of each candidate to that of being the draw argmax log q + G, with the estimate in place of q.
/// The draw is the token with the smallest E / q, E = exp(-G). The tokens not listed have the total mass `rest`; the
/// smallest E / q among them is exponentially distributed with that rate. Without shared noise the estimates keep their
/// proportions.
void NgramSequence::weigh_by_noise(const Noise& noise, std::int64_t position) {
    double listed = 0;
    for (const Candidate& c : candidates_) listed += c.probability;
    const double rest = std::max(1.0 - listed, 0.05);
    double sum = 0;
    double best = 0;
    const bool known = noise.kind == Noise::Kind::shared;
    const NoiseRow row = noise.row(position, 0, 0);
    for (Candidate& c : candidates_) {
        if (known) c.probability *= exp_noise(row, c.token, best / c.probability);
        best = std::max(best, c.probability);
        sum += c.probability;
    }
    const double listed_wins = known ? kernels::scalar::det_exp(-rest / best) : 1.0 - rest;
    for (Candidate& c : candidates_) c.probability *= listed_wins / sum;
}

/// candidates_ = tokens that may follow `node` of the proposal's tree.
void NgramSequence::find_candidates(const Proposal& proposal, std::int32_t node) {
    const std::span<const std::int32_t> context = proposal.context;
    const TokenTree& tree = *proposal.tree;
    const auto keep = std::min(context.size(), static_cast<std::size_t>(options_.order) - 1);
    suffix_.assign(context.end() - static_cast<std::ptrdiff_t>(keep), context.end());
    for (const std::int32_t above : tree.path_to(node)) suffix_.push_back(tree.token[above]);
    // Counts of other sequences depend on the batch: used only where drafts cannot change the text.
    estimate(suffix_, proposal.noise.is_own());
    if (!candidates_.empty()) weigh_by_noise(proposal.noise, std::ssize(context) + tree.depth[node]);
}

std::int64_t NgramSequence::begin_with_sure(const Proposal& proposal, double sure, std::int64_t max_depth) {
    TokenTree& tree = *proposal.tree;
    std::int32_t node = 0;
    while (tree.depth[node] < max_depth) {
        find_candidates(proposal, node);
        const auto best =
            std::max_element(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
                return a.probability != b.probability ? a.probability < b.probability : a.token > b.token;
            });
        if (best == candidates_.end() || best->probability <= sure) break;
        const auto above = static_cast<double>(tree.probability[node]);
        node = tree.add(node, best->token, Origin::ngram, above * best->probability);
    }
    return tree.depth[node];
}

void NgramSequence::propose(const Proposal& proposal, std::int64_t max_depth) {
    const TokenTree& tree = *proposal.tree;
    // Where a model drafted a child, it knows more than the counts.
    std::vector<bool> has_child(tree.token.size(), false);
    for (std::size_t node = 1; node < has_child.size(); ++node) has_child[tree.parent[node]] = true;
    std::vector<Start> starts;
    for (std::size_t node = 0; node < has_child.size(); ++node) {
        if (!has_child[node])
            starts.push_back({static_cast<std::int32_t>(node), static_cast<double>(tree.probability[node])});
    }
    grow(proposal, max_depth, starts);
}

void NgramSequence::continue_first_tokens(const Proposal& proposal, std::int64_t max_depth) {
    TokenTree& tree = *proposal.tree;
    std::vector<Start> starts;
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
        if (tree.depth[node] != 1) continue;
        starts.push_back({node, 1.0});
        tree.by_ngram[node] = table_.find(std::span(&tree.token[node], 1)) != nullptr;  // n-grams begin with it
    }
    grow(proposal, max_depth, starts);
}

/// Grows the tree best first: the candidate with the highest acceptance probability (the product along its path)
/// becomes the next node.
void NgramSequence::grow(const Proposal& proposal, std::int64_t max_depth, std::span<const Start> starts) {
    const std::span<const std::int32_t> context = proposal.context;
    TokenTree& tree = *proposal.tree;
    const double min_probability = std::max(proposal.min_probability, options_.min_probability);
    struct Open {
        double probability;
        std::int32_t parent, token;
        bool operator<(const Open& other) const {
            return probability != other.probability ? probability < other.probability
                   : parent != other.parent         ? parent > other.parent
                                                    : token > other.token;
        }
    };
    const std::int64_t max_nodes = tree.num_nodes() - 1 + options_.shape.budget;
    std::priority_queue<Open> open;
    std::vector<std::int64_t> level_width(static_cast<std::size_t>(max_depth) + 1, 0);

    const auto expand = [&](std::int32_t node, double probability) {
        if (tree.depth[node] >= max_depth || probability < min_probability) return;
        find_candidates(proposal, node);
        for (const Candidate& c : candidates_) {
            if (c.probability * probability >= min_probability) open.push({c.probability * probability, node, c.token});
        }
    };

    for (const Start& start : starts) expand(start.node, start.probability);
    while (!open.empty() && tree.num_nodes() <= max_nodes) {
        const Open next = open.top();
        open.pop();
        if (const std::int32_t known = tree.find_child(next.parent, next.token); known >= 0) {
            tree.by_ngram[known] = true;
            expand(known, next.probability);
            continue;
        }
        auto& width = level_width[static_cast<std::size_t>(tree.depth[next.parent]) + 1];
        if (width >= options_.shape.width) continue;
        ++width;
        expand(tree.add(next.parent, next.token, Origin::ngram, next.probability), next.probability);
    }
    sort_by_level(tree);
}

namespace {

class NgramDrafter final : public Drafter {
  public:
    NgramDrafter(const NgramOptions& options, const DraftCorpus* corpus)
        : options_(options), common_(std::make_shared<CommonNgrams>(options, corpus)) {}
    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& /*item*/) override {
        return std::make_unique<NgramSequence>(options_, common_);
    }
    void propose(std::span<Proposal> proposals) override {
        for (Proposal& proposal : proposals) {
            static_cast<NgramSequence*>(proposal.sequence)
                ->propose(proposal, std::min(proposal.max_depth, max_depth()));
        }
    }
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> /*taps*/) override {
        for (const Observation& seen : observations)
            static_cast<NgramSequence*>(seen.sequence)->insert(seen.context.last(seen.num_new));
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return options_.shape.budget; }
    [[nodiscard]] std::int64_t max_depth() const override { return options_.shape.depth; }
    [[nodiscard]] bool adapts() const override { return options_.adapts; }

  private:
    NgramOptions options_;
    std::shared_ptr<CommonNgrams> common_;
};

}  // namespace

NgramOptions ngram_options(const DraftOptions& options) {
    if (options.ngram_order < 1 || options.ngram_order > 16) {
        throw UsageError("ngram-order: expected 1 to 16, got " + std::to_string(options.ngram_order));
    }
    if (options.ngram_top < 0 || options.ngram_top > 1024) {
        throw UsageError("ngram-top: expected 0 to 1024, got " + std::to_string(options.ngram_top));
    }
    NgramOptions ngram;
    ngram.order = options.ngram_order;
    ngram.top = options.ngram_top;
    return ngram;
}

NgramOptions added_ngrams(const DraftOptions& options) {
    NgramOptions ngrams = ngram_options(options);
    const bool some = ngrams.top > 0 && options.adapts_tree();
    ngrams.shape = some ? TreeShape{.width = 2, .depth = 8, .budget = 12, .branching = {}}
                        : TreeShape{.width = 0, .depth = 0, .budget = 0, .branching = {}};
    return ngrams;
}

NgramOptions continuations(const DraftOptions& options, std::int64_t depth) {
    NgramOptions ngrams = ngram_options(options);
    ngrams.shape = {.width = TreeLimits::none, .depth = depth, .budget = ngrams.top * (depth - 1), .branching = {}};
    return ngrams;
}

std::unique_ptr<Drafter> make_ngram_drafter(const DraftContext& context) {
    const DraftOptions& options = context.options;
    NgramOptions ngram = ngram_options(options);
    if (ngram.top == 0) return make_plain_drafter(context);  // an empty table proposes nothing
    ngram.shape = options.shape();
    ngram.adapts = options.adapts_tree();
    return std::make_unique<NgramDrafter>(ngram, options.corpus.get());
}

}  // namespace longhaul::engine
