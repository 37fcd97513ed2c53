// Draft method `medusa` (the baseline of the TokenSwift paper; algorithms.md section 5): independent heads
// h_i = h0 + W_i · norm(h0) on the hidden state h0 that the verification pass left at the last accepted token. That
// pass gave the next token itself, the root; head i gives level i of the tree, every node of a level the same best
// tokens. No pass of a model drafts: a tree costs the heads and one product with the target's output head.
#include <algorithm>
#include <bit>
#include <cmath>
#include <stdexcept>

#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/draft/heads.hpp"

namespace longhaul::engine {
namespace {

class MedusaSequence final : public SequenceDrafter {
  public:
    explicit MedusaSequence(kernels::Device& device, std::int64_t width) : device_(device), width_(width) {}

    /// The state is that of the token before the last one of `context`.
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
    std::int64_t size_ = -1;  ///< of the context that it belongs to
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
    [[nodiscard]] DraftRow row_of(const Proposal& proposal, std::int64_t level) const;
    std::int32_t add_level(TokenTree& tree, std::int32_t level_begin, const Distribution& p, const DraftRow& row) const;

    Model& target_;
    const DraftHeads& heads_;
    std::vector<std::int64_t> branching_;
    std::int64_t max_nodes_;
    DraftSampler sampler_;
};

/// The states of a batch's proposals, [proposals, hidden].
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
    std::vector<DraftRow> rows;  // [level, proposal], as the heads give them
    for (std::int64_t level = 0; level < depth; ++level) {
        for (const Proposal* proposal : ready) rows.push_back(row_of(*proposal, level));
    }
    const std::vector<Distribution> drafts = sampler_.distributions(logits, rows);
    for (std::size_t i = 0; i < ready.size(); ++i) {
        ready[i]->draft_calls = 1;
        std::int32_t level_begin = 0;
        for (std::int64_t level = 0; level < std::min(ready[i]->max_depth, max_depth()); ++level) {
            const std::size_t at = level * ready.size() + i;
            level_begin = add_level(*ready[i]->tree, level_begin, drafts[at], rows[at]);
        }
    }
}

/// What is drawn from head `level`. Drafts of the sampling rules are certain: the most probable tokens, without noise.
DraftRow MedusaDrafter::row_of(const Proposal& proposal, std::int64_t level) const {
    static constexpr std::uint32_t first_lane = 0;
    DraftRow row{.context = {proposal.context, {}},
                 .sampling = *proposal.sampling,
                 .noise = proposal.noise,
                 .position = std::ssize(proposal.context) + level,
                 .lanes = {&first_lane, 1},
                 .num_draws = branching_[level],
                 .with_q = false};
    if (row.sampling.temperature == 0) row.sampling.temperature = 1;  // else a row is one token, and no tree
    if (row.noise.is_own()) row.noise.kind = Noise::Kind::silent;
    if (proposal.max_width < TreeLimits::none)
        row.num_draws =
            std::min(row.num_draws, TreeFamily{.widths = {}, .branches = true}.fan_out(level, proposal.max_width));
    return row;
}

/// Gives all nodes from `level_begin` on the same children, those that the target most likely draws there; where they
/// begin.
std::int32_t MedusaDrafter::add_level(TokenTree& tree, std::int32_t level_begin, const Distribution& p,
                                      const DraftRow& row) const {
    const std::vector<Perturbed> best = gumbel_top_k(p, row.noise.row(row.position, 0, 0), row.num_draws);
    const std::int32_t level_end = tree.num_nodes();
    for (std::int32_t parent = level_begin; parent < level_end; ++parent) {
        for (const Perturbed& draw : best) {
            if (tree.num_nodes() <= max_nodes_) tree.add(parent, p.ids[draw.place], Origin::model);
        }
    }
    return level_end;
}

}  // namespace

std::unique_ptr<Drafter> make_medusa_drafter(const DraftContext& context) {
    if (context.target == nullptr || context.options.heads == nullptr)
        throw std::logic_error("draft = medusa was given no heads or no target");
    return std::make_unique<MedusaDrafter>(context, tree_of_heads(context.options, context.options.heads->config()));
}

}  // namespace longhaul::engine
