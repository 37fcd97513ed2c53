// Draft methods that choose between two others (`self-or-sd`): each step drafts with the one that the first rank names
// in Proposal::method (DraftChooser). Both see every token, so that either may draft next: n-grams count on, and a
// draft model that was not used catches up as after a pause in drafting (max_catching_up).
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/draft/drafter.hpp"

namespace longhaul::engine {
namespace {

/// The state of one sequence in each method. Checkpoints hold the first one's, in its own form, so that a run may go on
/// with that method alone and the other way round.
class AlternativesSequence final : public SequenceDrafter {
  public:
    explicit AlternativesSequence(std::vector<std::unique_ptr<SequenceDrafter>> methods)
        : methods_(std::move(methods)) {}

    [[nodiscard]] SequenceDrafter& of(std::size_t method) const { return *methods_[method]; }

    void begin(std::span<const std::int32_t> context) override {
        for (const auto& method : methods_) method->begin(context);
    }
    [[nodiscard]] bool lags(std::span<const std::int32_t> context) const override {
        return std::any_of(methods_.begin(), methods_.end(), [&](const auto& one) { return one->lags(context); });
    }
    void release() override {
        for (const auto& method : methods_) method->release();
    }
    DrafterState take_delta() override { return methods_.front()->take_delta(); }
    bool restore(std::span<const DrafterState> deltas, std::span<const std::int32_t> context) override {
        if (!methods_.front()->restore(deltas, context)) return false;
        for (std::size_t other = 1; other < methods_.size(); ++other) methods_[other]->begin(context);
        return true;
    }

  private:
    std::vector<std::unique_ptr<SequenceDrafter>> methods_;
};

SequenceDrafter* state_of(SequenceDrafter* sequence, std::size_t method) {
    return &static_cast<AlternativesSequence*>(sequence)->of(method);
}

class AlternativesDrafter final : public Drafter {
  public:
    explicit AlternativesDrafter(std::vector<std::unique_ptr<Drafter>> methods) : methods_(std::move(methods)) {}

    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        std::vector<std::unique_ptr<SequenceDrafter>> states;
        for (const auto& method : methods_) states.push_back(method->make_sequence(item));
        return std::make_unique<AlternativesSequence>(std::move(states));
    }

    void propose(std::span<Proposal> proposals) override {
        if (proposals.empty()) return;
        const auto method = static_cast<std::size_t>(proposals.front().method);
        std::vector<SequenceDrafter*> sequences;
        for (Proposal& proposal : proposals) {
            sequences.push_back(proposal.sequence);
            proposal.sequence = state_of(proposal.sequence, method);
        }
        methods_.at(method)->propose(proposals);
        for (std::size_t i = 0; i < proposals.size(); ++i) proposals[i].sequence = sequences[i];
    }

    void observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) override {
        for (std::size_t method = 0; method < methods_.size(); ++method) {
            std::vector<Observation> seen(observations.begin(), observations.end());
            for (Observation& one : seen) one.sequence = state_of(one.sequence, method);
            methods_[method]->observe(seen, taps);
        }
    }

    [[nodiscard]] std::int64_t max_nodes() const override {
        return largest([](const Drafter& one) { return one.max_nodes(); });
    }
    [[nodiscard]] std::int64_t max_depth() const override {
        return largest([](const Drafter& one) { return one.max_depth(); });
    }
    [[nodiscard]] std::int64_t scratch_slots(const TextSize& text) const override {
        return largest([&](const Drafter& one) { return one.scratch_slots(text); });
    }
    [[nodiscard]] bool adapts() const override {
        return std::any_of(methods_.begin(), methods_.end(), [](const auto& one) { return one->adapts(); });
    }
    [[nodiscard]] std::int64_t bytes_per_token() const override {
        std::int64_t bytes = 0;
        for (const auto& method : methods_) bytes += method->bytes_per_token();
        return bytes;
    }
    [[nodiscard]] std::int64_t bytes_per_sequence() const override {
        std::int64_t bytes = 0;
        for (const auto& method : methods_) bytes += method->bytes_per_sequence();
        return bytes;
    }

  private:
    template <typename Size>
    [[nodiscard]] std::int64_t largest(const Size& size) const {
        std::int64_t most = 0;
        for (const auto& method : methods_) most = std::max(most, size(*method));
        return most;
    }

    std::vector<std::unique_ptr<Drafter>> methods_;
};

}  // namespace

std::unique_ptr<Drafter> make_alternatives_drafter(const DraftContext& context) {
    std::vector<std::unique_ptr<Drafter>> methods;
    for (std::size_t i = 0; i < context.options.method->alternatives.size(); ++i) {
        const DraftOptions one = context.options.alternative(i);
        methods.push_back(make_drafter({one, context.target}));
        if (!methods.back()->taps().empty()) throw std::logic_error("an alternative taps hidden states");
    }
    return std::make_unique<AlternativesDrafter>(std::move(methods));
}

}  // namespace longhaul::engine
