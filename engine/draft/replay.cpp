// Draft method `replay`: proposes the recorded output of an earlier run, with a chosen probability that a guess is
// right. For benchmarks and tests of verification.
#include <algorithm>
#include <cmath>
#include <functional>
#include <stdexcept>
#include <vector>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {
namespace {

class ReplaySequence final : public SequenceDrafter {
  public:
    ReplaySequence(std::vector<std::int32_t> recorded, std::int64_t prompt_tokens, double accept,
                   const TreeShape& shape)
        : recorded_(std::move(recorded)), prompt_tokens_(prompt_tokens), accept_(accept), shape_(shape) {}

    void propose(const Proposal& proposal) const {
        const std::span<const std::int32_t> context = proposal.context;
        TokenTree& tree = *proposal.tree;
        const auto first = static_cast<std::int64_t>(context.size()) - prompt_tokens_;
        const std::int64_t left = static_cast<std::int64_t>(recorded_.size()) - first;
        const std::int64_t depth = std::min({proposal.max_depth, shape_.depth, left});
        std::int64_t nodes = shape_.budget;
        std::int32_t parent = 0;
        bool right = true;
        for (std::int64_t level = 0; level < depth && nodes > 0; ++level) {
            const std::int32_t truth = recorded_[first + level];
            const std::int64_t width = std::min({shape_.width, proposal.max_width, nodes});
            const std::int64_t position = static_cast<std::int64_t>(context.size()) + level;
            const std::int64_t place =
                right ? place_of_truth(NoiseRow(proposal.noise.key, position, Purpose::draft), width) : width;
            const std::int32_t first_child = tree.num_nodes();
            for (std::int64_t i = 0; i < width; ++i) {
                // Wrong guesses are distinct ids near the true one.
                const auto wrong = static_cast<std::int32_t>(truth > i ? truth - 1 - i : truth + 1 + i);
                tree.add(parent, i == place ? truth : wrong, Origin::replay, i == place ? 1.0 : 0.0);
            }
            right = place < width;
            parent = first_child + static_cast<std::int32_t>(right ? place : 0);
            nodes -= width;
        }
    }

  private:
    /// Index of the node among `width` that gets the true token; `width` if none does.
    [[nodiscard]] std::int64_t place_of_truth(const NoiseRow& noise, std::int64_t width) const {
        std::int64_t place = 0;
        // A Gumbel value is below -log(-log a) with probability a.
        while (place < width && !is_right(noise.gumbel(static_cast<std::int32_t>(place)))) ++place;
        return place;
    }
    [[nodiscard]] bool is_right(float gumbel) const;

    std::vector<std::int32_t> recorded_;
    std::int64_t prompt_tokens_;
    double accept_;
    TreeShape shape_;
};

bool ReplaySequence::is_right(float gumbel) const {
    if (accept_ >= 1) return true;
    if (accept_ <= 0) return false;
    return static_cast<double>(gumbel) < -std::log(-std::log(accept_));
}

class ReplayDrafter final : public Drafter {
  public:
    ReplayDrafter(const DraftOptions& options, const TreeShape& shape)
        : recorded_(options.recorded), accept_(options.replay_accept), shape_(shape) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        return std::make_unique<ReplaySequence>(recorded_(item.id, item.sample), item.prompt_tokens, accept_, shape_);
    }
    void propose(std::span<Proposal> proposals) override {
        for (Proposal& proposal : proposals) {
            static_cast<const ReplaySequence*>(proposal.sequence)->propose(proposal);
        }
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return shape_.budget; }
    [[nodiscard]] std::int64_t max_depth() const override { return shape_.depth; }

  private:
    std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_;
    double accept_;
    TreeShape shape_;
};

}  // namespace

std::unique_ptr<Drafter> make_replay_drafter(const DraftContext& context) {
    const DraftOptions& options = context.options;
    if (!options.recorded) throw std::logic_error("draft = replay needs what was recorded");
    return std::make_unique<ReplayDrafter>(options, options.shape());
}

}  // namespace longhaul::engine
