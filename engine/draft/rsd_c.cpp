// RSD-C, recursive speculative decoding with a constant branching factor per level (paper, Algorithm 3): the children
// of a node are drawn without replacement by Gumbel-top-k and stay in draw order.
#include <algorithm>

#include "engine/draft/tree_growth.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {
namespace {

class RsdCGrowth final : public TreeGrowth {
  public:
    RsdCGrowth(TokenTree& tree, const Noise& noise, std::int64_t position, std::vector<std::int64_t> branching)
        : tree_(tree), noise_(noise), position_(position), branching_(std::move(branching)) {
        if (!branching_.empty()) wanted_.push_back({tree.num_nodes() - 1, 0});
    }

    [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }

    [[nodiscard]] std::int64_t num_draws() const override { return branching_[level_]; }

    void grow(std::span<Distribution> drafts) override {
        std::vector<Wanted> next;
        for (std::size_t i = 0; i < drafts.size(); ++i) {
            const std::int32_t parent = wanted_[i].node;
            const std::int32_t kept = keep_draft(tree_, noise_, drafts[i]);
            const Distribution& p = kept < 0 ? drafts[i] : tree_.drafts.back();
            const NoiseRow row = noise_.row(position_ + static_cast<std::int64_t>(level_), 0, parent);
            for (const Perturbed& draw : gumbel_top_k(p, row, branching_[level_])) {
                const auto place = static_cast<std::size_t>(draw.place);
                next.push_back({add_draw(tree_, parent, p.ids[place], p.q[place], kept), 0});
            }
        }
        ++level_;
        if (level_ == branching_.size()) next.clear();
        wanted_ = std::move(next);
    }

  private:
    TokenTree& tree_;
    Noise noise_;
    std::int64_t position_;
    std::vector<std::int64_t> branching_;
    std::size_t level_ = 0;
    std::vector<Wanted> wanted_;
};

class RsdC final : public TreeMethod {
  public:
    explicit RsdC(std::vector<std::int64_t> branching) : branching_(std::move(branching)) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t max_depth, std::int64_t max_width,
                                                    const TreePrices& /*prices*/) const override {
        std::vector<std::int64_t> branching = branching_;
        branching.resize(std::clamp<std::int64_t>(max_depth, 0, this->max_depth()));
        const TreeFamily limits{.widths = {}, .branches = true};
        for (std::size_t level = 0; max_width < TreeLimits::none && level < branching.size(); ++level)
            branching[level] = std::min(branching[level], limits.fan_out(static_cast<std::int64_t>(level), max_width));
        return std::make_unique<RsdCGrowth>(tree, noise, position, std::move(branching));
    }
    [[nodiscard]] std::int64_t max_nodes() const override {
        std::int64_t nodes = 0;
        std::int64_t level = 1;
        for (const std::int64_t b : branching_) nodes += level *= b;
        return nodes;
    }
    [[nodiscard]] std::int64_t max_depth() const override { return static_cast<std::int64_t>(branching_.size()); }

  private:
    std::vector<std::int64_t> branching_;
};

}  // namespace

std::unique_ptr<TreeMethod> make_rsd_c(std::vector<std::int64_t> branching) {
    return std::make_unique<RsdC>(std::move(branching));
}

}  // namespace longhaul::engine
