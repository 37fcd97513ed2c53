#include "engine/draft/drafter.hpp"

#include <algorithm>

#include "engine/draft/ngram_sequence.hpp"

namespace longhaul::engine {
namespace {

/// No drafts: every step is one target pass and one token.
class PlainDrafter final : public Drafter {
  public:
    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem&) override {
        return std::make_unique<SequenceDrafter>();
    }
    void propose(std::span<Proposal>) override {}
    [[nodiscard]] std::int64_t max_nodes() const override { return 0; }
    [[nodiscard]] std::int64_t max_depth() const override { return 0; }
};

}  // namespace

std::int64_t Observation::row_before_root() const {
    if (first_position < 0) return num_rows == 0 ? -1 : first_row + (path.empty() ? 0 : path.back());
    const std::int64_t wanted = static_cast<std::int64_t>(context.size()) - 2 - first_position;
    return wanted >= 0 && wanted < num_rows ? first_row + wanted : -1;
}

std::unique_ptr<Drafter> make_plain_drafter(const DraftContext& /*context*/) {
    return std::make_unique<PlainDrafter>();
}

std::int64_t max_tree_nodes(const DraftOptions& options, const TreeShape& shape) {
    if (options.method->chained_heads) return shape.max_nodes() + continuations(options, shape.depth).shape.budget;
    if (options.method->copies_target && options.method->has_ngrams)
        return shape.max_nodes() + added_ngrams(options).shape.budget;
    if (options.method->chains_states && options.resample != Resample::off) {
        const std::int64_t small = options.resample_tree.shape().max_nodes();
        return options.resample == Resample::fused ? shape.max_nodes() + small : std::max(shape.max_nodes(), small);
    }
    return shape.max_nodes();
}

std::unique_ptr<Drafter> make_drafter(const DraftContext& context) {
    return context.options.method->make(context);
}

}  // namespace longhaul::engine
