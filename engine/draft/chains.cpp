// Trees of independently drawn chains: SD (Leviathan et al., Chen et al.), SpecTr, and SpecInfer with one or several
// draft models (ALGORITHMS.md section 4).
#include <algorithm>

#include "engine/draft/tree_growth.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {

std::int32_t keep_draft(TokenTree& tree, const Noise& noise, Distribution& drafted) {
    if (!noise.is_own()) return -1;
    tree.sampled = true;
    tree.drafts.push_back(std::move(drafted));
    return static_cast<std::int32_t>(tree.drafts.size()) - 1;
}

std::int32_t add_draw(TokenTree& tree, std::int32_t parent, std::int32_t token, double probability,
                      std::int32_t draft) {
    std::int32_t child = tree.find_child(parent, token);
    if (child < 0) {
        const double above = static_cast<double>(tree.probability[parent]);
        child = tree.add(parent, token, Origin::model, above * probability);
    }
    if (draft >= 0) tree.trials.push_back({parent, child, draft});
    return child;
}

namespace {

class ChainsGrowth final : public TreeGrowth {
  public:
    ChainsGrowth(TokenTree& tree, const Noise& noise, std::int64_t position, std::int64_t depth,
                 std::int64_t num_chains, std::int64_t num_models)
        : tree_(tree),
          noise_(noise),
          position_(position),
          depth_(depth),
          num_models_(num_models),
          ends_(static_cast<std::size_t>(num_chains), tree.num_nodes() - 1) {
        want();
    }

    [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }

    [[nodiscard]] std::int64_t num_draws() const override { return 1; }
    [[nodiscard]] std::span<const std::uint32_t> lanes_of(std::size_t wanted) const override { return lanes_[wanted]; }

    void grow(std::span<Distribution> drafts) override {
        std::vector<std::int32_t> kept(drafts.size());
        for (std::size_t i = 0; i < drafts.size(); ++i) kept[i] = keep_draft(tree_, noise_, drafts[i]);
        const auto draft_of = [&](std::size_t i) -> const Distribution& {
            return kept[i] < 0 ? drafts[i] : tree_.drafts[kept[i]];
        };
        for (std::size_t chain = 0; chain < ends_.size(); ++chain) {
            const std::size_t from = source_of(chain);
            const Distribution& p = draft_of(from);
            const NoiseRow row = noise_.row(position_ + level_, static_cast<std::uint32_t>(chain), ends_[chain]);
            const std::int32_t token = gumbel_argmax(p, row);
            ends_[chain] = add_draw(tree_, ends_[chain], token, p.probability(token), kept[from]);
        }
        ++level_;
        want();
    }

  private:
    [[nodiscard]] Wanted wanted_by(std::size_t chain) const {
        return {ends_[chain], static_cast<std::int32_t>(static_cast<std::int64_t>(chain) % num_models_)};
    }
    [[nodiscard]] std::size_t source_of(std::size_t chain) const {
        return static_cast<std::size_t>(std::find(wanted_.begin(), wanted_.end(), wanted_by(chain)) - wanted_.begin());
    }
    void want() {
        wanted_.clear();
        if (level_ >= depth_) return;
        for (std::size_t chain = 0; chain < ends_.size(); ++chain) {
            if (source_of(chain) == wanted_.size()) wanted_.push_back(wanted_by(chain));
        }
        std::sort(wanted_.begin(), wanted_.end(), [](const Wanted& a, const Wanted& b) {
            return a.model != b.model ? a.model < b.model : a.node < b.node;
        });
        lanes_.assign(wanted_.size(), {});
        for (std::size_t chain = 0; chain < ends_.size(); ++chain)
            lanes_[source_of(chain)].push_back(static_cast<std::uint32_t>(chain));
    }

    TokenTree& tree_;
    Noise noise_;
    std::int64_t position_, depth_, num_models_;
    std::int64_t level_ = 0;
    std::vector<std::int32_t> ends_;  ///< last node of each chain
    std::vector<Wanted> wanted_;
    std::vector<std::vector<std::uint32_t>> lanes_;  ///< for each entry of wanted_: the chains that continue there
};

class Chains final : public TreeMethod {
  public:
    Chains(std::int64_t num_chains, std::int64_t length, std::int64_t num_models)
        : num_chains_(num_chains), length_(length), num_models_(num_models) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t max_depth, std::int64_t max_width,
                                                    const TreePrices& /*prices*/) const override {
        return std::make_unique<ChainsGrowth>(tree, noise, position, std::clamp<std::int64_t>(max_depth, 0, length_),
                                              std::min(max_width, num_chains_), num_models_);
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return num_chains_ * length_; }
    [[nodiscard]] std::int64_t max_depth() const override { return length_; }

  private:
    std::int64_t num_chains_, length_, num_models_;
};

}  // namespace

std::unique_ptr<TreeMethod> make_chains(std::int64_t num_chains, std::int64_t length, std::int64_t num_models) {
    return std::make_unique<Chains>(num_chains, length, num_models);
}

}  // namespace longhaul::engine
