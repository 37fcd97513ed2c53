// Draft method `medusa` (the baseline of the TokenSwift paper; ALGORITHMS.md section 5): independent heads
// h_i = h0 + W_i · norm(h0) on the hidden state h0 of the verification pass at the last accepted token. That pass
// already gave the next token, the root of the tree. Head i gives the tokens of level i: all nodes of a level get the
// same children. No model runs to draft: a tree costs the heads and one matmul with the target's output head.
#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "engine/draft/heads.hpp"
#include "engine/draft/product_tree.hpp"

namespace longhaul::engine {
namespace {

class MedusaSequence final : public SequenceDrafter {
  public:
    explicit MedusaSequence(kernels::Device& device, std::int64_t width) : device_(device), width_(width) {}

    /// Whether it holds the hidden state for `context`: that of the second-to-last token.
    [[nodiscard]] bool has_state(std::span<const std::int32_t> context) const {
        return state_ && size_ == static_cast<std::int64_t>(context.size());
    }
    [[nodiscard]] const float* state() const { return state_.as<float>(); }

    void keep(const HiddenStates& states, std::int64_t row, std::span<const std::int32_t> context) {
        allocate();
        const auto from = static_cast<std::int32_t>(row);
        device_.gather(states.data(), std::span(&from, 1), width_, state_.as<float>());
        size_ = static_cast<std::int64_t>(context.size());
    }

    [[nodiscard]] std::int64_t missing_states(std::span<const std::int32_t> context) const override {
        return has_state(context) || context.size() < 2 ? 0 : 1;
    }

    void release() override { size_ = -1; }

    DrafterState take_delta() override {
        DrafterState delta{.kind = "medusa", .row_width = 1, .rows = {static_cast<std::int32_t>(size_)}};
        if (size_ < 0) return delta;
        NamedTensor& tensor = delta.tensors.emplace_back("state", std::vector{width_}, std::vector<std::int32_t>{});
        tensor.words.resize(width_);
        device_.download(tensor.words.data(), state_.data(), tensor.words.size() * sizeof(float));
        return delta;
    }

    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override {
        if (deltas.empty()) return false;
        const DrafterState& last = deltas.back();
        const std::vector<std::int32_t> size{static_cast<std::int32_t>(context.size())};
        if (last.kind != "medusa" || last.rows != size || last.tensors.size() != 1) return false;
        const NamedTensor& tensor = last.tensors.front();
        if (tensor.shape != std::vector{width_}) return false;
        const auto finite = [](std::int32_t word) { return std::isfinite(std::bit_cast<float>(word)); };
        if (!std::all_of(tensor.words.begin(), tensor.words.end(), finite)) return false;
        allocate();
        device_.upload(state_.data(), tensor.words.data(), tensor.words.size() * sizeof(float));
        size_ = size.front();
        return true;
    }

  private:
    void allocate() {
        if (!state_) state_ = kernels::Buffer(device_, static_cast<std::size_t>(width_) * sizeof(float));
    }

    kernels::Device& device_;
    std::int64_t width_;
    kernels::Buffer state_;   ///< f32 [hidden]
    std::int64_t size_ = -1;  ///< tokens of the context that the state belongs to; -1: no state
};

class MedusaDrafter final : public Drafter {
  public:
    MedusaDrafter(const DraftContext& context, const TreeShape& shape)
        : target_(*context.target),
          heads_(*context.options.heads),
          branching_(shape.branching),
          max_nodes_(shape.max_nodes()),
          sampler_(target_.device(), target_.config().vocab_size) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem&) override {
        return std::make_unique<MedusaSequence>(target_.device(), target_.config().hidden_size);
    }

    [[nodiscard]] std::vector<Tap> taps() const override { return {{.at = Tap::At::last_hidden, .rows = {}}}; }

    void observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) override {
        for (const Observation& seen : observations) {
            const std::int64_t row = seen.row_before_root();
            if (row >= 0) static_cast<MedusaSequence*>(seen.sequence)->keep(taps.front(), row, seen.context);
        }
    }

    void propose(std::span<Proposal> proposals) override;

    [[nodiscard]] std::int64_t max_nodes() const override { return max_nodes_; }
    [[nodiscard]] std::int64_t max_depth() const override { return static_cast<std::int64_t>(branching_.size()); }

  private:
    [[nodiscard]] HiddenStates states_of(std::span<Proposal* const> proposals);

    Model& target_;
    const DraftHeads& heads_;
    std::vector<std::int64_t> branching_;
    std::int64_t max_nodes_;
    DraftSampler sampler_;
};

/// The hidden states of the proposals' sequences, [proposals, hidden].
HiddenStates MedusaDrafter::states_of(std::span<Proposal* const> proposals) {
    const std::int64_t width = target_.config().hidden_size;
    HiddenStates states = target_.hidden_states(std::ssize(proposals));
    for (std::size_t i = 0; i < proposals.size(); ++i) {
        static constexpr std::int32_t first = 0;
        const auto* sequence = static_cast<const MedusaSequence*>(proposals[i]->sequence);
        target_.device().gather(sequence->state(), std::span(&first, 1), width, states.data() + i * width);
    }
    return states;
}

void MedusaDrafter::propose(std::span<Proposal> proposals) {
    std::vector<Proposal*> ready;
    std::int64_t depth = 0;
    for (Proposal& proposal : proposals) {
        if (!static_cast<const MedusaSequence*>(proposal.sequence)->has_state(proposal.context)) continue;
        ready.push_back(&proposal);
        depth = std::max(depth, std::min(proposal.max_depth, max_depth()));
    }
    if (depth <= 0) return;
    static const Norm none;
    Logits logits = target_.logits(independent_heads(target_, heads_, states_of(ready), depth), &none);
    std::vector<DraftRow> rows;  // [level, proposal], the row order of independent_heads
    for (std::int64_t level = 0; level < depth; ++level) {
        for (const Proposal* proposal : ready) rows.push_back(product_row(*proposal, level, branching_));
    }
    const std::vector<Distribution> drafts = sampler_.distributions(logits, rows);
    for (std::size_t i = 0; i < ready.size(); ++i) {
        ready[i]->model_passes = 1;
        std::int32_t level_begin = 0;
        for (std::int64_t level = 0; level < std::min(ready[i]->max_depth, max_depth()); ++level) {
            const std::size_t at = level * ready.size() + i;
            level_begin = add_product_level(*ready[i]->tree, level_begin, drafts[at], rows[at], max_nodes_);
        }
    }
}

}  // namespace

std::unique_ptr<Drafter> make_medusa_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.heads == nullptr)
        throw std::logic_error("draft = medusa was given no heads or no target");
    return std::make_unique<MedusaDrafter>(context, tree_of_heads(context.options, context.options.heads->config()));
}

}  // namespace longhaul::engine
