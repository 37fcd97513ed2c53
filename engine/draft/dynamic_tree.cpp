// Trees of EAGLE-2 (ALGORITHMS.md section 6): at each level the `width` nodes with the greatest joint probability are
// expanded, into as many children each. All children are candidates; in the end the `max_nodes` best of all levels are
// kept, a node only with its parent. With prices (DraftEconomy), those that do not pay are left out: each sequence of a
// batch then has a tree of its own size.
//
// Under the target's own noise the probability of a child is the chance that it wins there, if the target's
// log-probabilities scatter around the draft's (BeamOptions::scatter).
#include <algorithm>
#include <numeric>

#include "engine/draft/tree_growth.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {
namespace {

class DynamicGrowth final : public TreeGrowth {
  public:
    DynamicGrowth(TokenTree& tree, const Noise& noise, std::int64_t position, const BeamOptions& options,
                  const TreePrices& prices)
        : tree_(tree), noise_(noise), position_(position), options_(options), prices_(prices) {
        // Under the sampling rules drafts are certain: the most probable tokens, without noise.
        if (noise_.is_own()) noise_.kind = Noise::Kind::silent;
        if (options_.depth > 0) wanted_.push_back({tree.num_nodes() - 1, 0});
    }

    [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }
    [[nodiscard]] std::int64_t num_draws() const override { return options_.width + (scatters() ? 1 : 0); }

    void grow(std::span<Distribution> drafts) override {
        std::vector<std::int32_t> children;
        for (std::size_t i = 0; i < drafts.size(); ++i) add_children(wanted_[i].node, drafts[i], children);
        const auto more_probable = [&](std::int32_t a, std::int32_t b) {
            return tree_.probability[a] != tree_.probability[b] ? tree_.probability[a] > tree_.probability[b] : a < b;
        };
        std::sort(children.begin(), children.end(), more_probable);
        if (std::ssize(children) > options_.width) children.resize(options_.width);
        std::erase_if(children, [&](std::int32_t node) { return tree_.probability[node] < prices_.level; });
        std::sort(children.begin(), children.end());
        wanted_.clear();
        if (++depth_done_ < options_.depth) {
            for (const std::int32_t node : children) wanted_.push_back({node, 0});
        }
        if (wanted_.empty()) keep_best(more_probable);
    }

  private:
    [[nodiscard]] bool scatters() const { return options_.scatter > 0 && noise_.kind == Noise::Kind::shared; }

    void add_children(std::int32_t parent, const Distribution& p, std::vector<std::int32_t>& children) {
        const NoiseRow row = noise_.row(position_ + depth_done_, 0, parent);
        std::vector<Perturbed> draws = gumbel_top_k(p, row, num_draws());
        const std::vector<double> chances =
            scatters() ? winning_chances(draws, options_.scatter) : std::vector<double>();
        if (std::ssize(draws) > options_.width) draws.resize(options_.width);
        const auto above = static_cast<double>(tree_.probability[parent]);
        for (std::size_t i = 0; i < draws.size(); ++i) {
            const auto place = static_cast<std::size_t>(draws[i].place);
            const double chance = chances.empty() ? p.q[place] : chances[i];
            children.push_back(tree_.add(parent, p.ids[place], Origin::model, above * chance));
        }
    }

    /// Parents have indices below their children's and are at least as probable, so they are kept with them. The nodes
    /// of a level come in the order of their probabilities: a narrower tree has the first of them.
    template <typename Order>
    void keep_best(const Order& more_probable) {
        std::vector<std::int32_t> nodes(static_cast<std::size_t>(tree_.num_nodes()) - 1);
        std::iota(nodes.begin(), nodes.end(), 1);
        std::erase_if(nodes, [&](std::int32_t node) { return tree_.probability[node] < prices_.node; });
        std::sort(nodes.begin(), nodes.end(), more_probable);
        if (std::ssize(nodes) > options_.max_nodes) nodes.resize(options_.max_nodes);
        std::stable_sort(nodes.begin(), nodes.end(),
                         [&](std::int32_t a, std::int32_t b) { return tree_.depth[a] < tree_.depth[b]; });
        tree_.keep(nodes);
    }

    TokenTree& tree_;
    Noise noise_;
    std::int64_t position_;
    BeamOptions options_;
    TreePrices prices_;
    std::int64_t depth_done_ = 0;
    std::vector<Wanted> wanted_;
};

class DynamicTree final : public TreeMethod {
  public:
    explicit DynamicTree(const BeamOptions& options) : options_(options) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t max_depth, std::int64_t max_width,
                                                    const TreePrices& prices) const override {
        BeamOptions options = options_;
        options.depth = std::clamp<std::int64_t>(max_depth, 0, options.depth);
        if (max_width != TreeLimits::none) {
            options.width = std::min(options.width, max_width);
            options.max_nodes = std::min(options.max_nodes, max_width * options.depth);
        }
        return std::make_unique<DynamicGrowth>(tree, noise, position, options, prices);
    }
    [[nodiscard]] std::int64_t max_nodes() const override {
        const std::int64_t candidates = options_.width + (options_.depth - 1) * options_.width * options_.width;
        return std::min(candidates, options_.max_nodes);
    }
    [[nodiscard]] std::int64_t max_depth() const override { return options_.depth; }

  private:
    BeamOptions options_;
};

}  // namespace

std::unique_ptr<TreeMethod> make_dynamic_tree(const BeamOptions& options) {
    return std::make_unique<DynamicTree>(options);
}

}  // namespace longhaul::engine
