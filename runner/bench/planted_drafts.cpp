#include "runner/bench/planted_drafts.hpp"

#include <algorithm>
#include <cmath>
#include <memory>
#include <span>
#include <stdexcept>

#include "engine/draft/tree_growth.hpp"

namespace longhaul::runner {
namespace {

using engine::TreeGrowth;

class PlantedGrowth final : public TreeGrowth {
  public:
    PlantedGrowth(std::unique_ptr<TreeGrowth> inner, engine::TokenTree& tree, PlantedText& text, std::int64_t position)
        : inner_(std::move(inner)), tree_(tree), text_(text), position_(position) {}

    [[nodiscard]] std::span<const Wanted> wanted() const override { return inner_->wanted(); }
    [[nodiscard]] std::int64_t num_draws() const override { return inner_->num_draws(); }
    [[nodiscard]] std::span<const std::uint32_t> lanes_of(std::size_t wanted) const override {
        return inner_->lanes_of(wanted);
    }
    void grow(std::span<engine::Distribution> drafts) override {
        inner_->grow(drafts);
        if (inner_->wanted().empty()) plant(tree_, text_, position_);
    }

  private:
    std::unique_ptr<TreeGrowth> inner_;
    engine::TokenTree& tree_;
    PlantedText& text_;
    std::int64_t position_;
};

class PlantedTrees final : public engine::TreeMethod {
  public:
    PlantedTrees(std::unique_ptr<TreeMethod> inner, PlantedText& text) : inner_(std::move(inner)), text_(text) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(engine::TokenTree& tree, const engine::Noise& noise,
                                                    std::int64_t position, std::int64_t max_depth,
                                                    std::int64_t max_width,
                                                    const engine::TreePrices& prices) const override {
        return std::make_unique<PlantedGrowth>(inner_->begin(tree, noise, position, max_depth, max_width, prices), tree,
                                               text_, position);
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return inner_->max_nodes(); }
    [[nodiscard]] std::int64_t max_depth() const override { return inner_->max_depth(); }

  private:
    std::unique_ptr<TreeMethod> inner_;
    PlantedText& text_;
};

// A row of the registry has plain functions, which cannot carry a text.
const engine::DraftMethod* planted_method = nullptr;
PlantedText* planted_text = nullptr;

/// Depth to which the next tree is right: at least d in the share accept^d of all trees, at most `max_depth`.
std::int64_t next_depth(PlantedText& text, std::int64_t max_depth) {
    constexpr double golden_ratio = 0.6180339887498949;  // its multiples modulo 1 are even from the first on
    double whole = 0;
    const double place = std::modf((static_cast<double>(text.trees++) + 0.5) * golden_ratio, &whole);
    std::int64_t depth = 0;
    for (double share = text.accept; depth < max_depth && place < share; share *= text.accept) ++depth;
    return depth;
}

}  // namespace

void plant(engine::TokenTree& tree, PlantedText& text, std::int64_t position) {
    const std::int64_t first = position - text.prompt_tokens;
    const std::int64_t left = std::ssize(text.tokens) - first;
    const std::int64_t deepest = *std::max_element(tree.depth.begin(), tree.depth.end());
    const std::int64_t depth = next_depth(text, std::min(deepest, left));
    std::vector<bool> right(tree.token.size());
    const auto end =
        static_cast<std::int32_t>(std::find(tree.depth.begin(), tree.depth.end(), depth) - tree.depth.begin());
    for (const std::int32_t node : tree.path_to(end)) right[node] = true;
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
        const std::int64_t at = first + tree.depth[node] - 1;
        if (at >= std::ssize(text.tokens)) continue;
        const std::int32_t truth = text.tokens[at];
        if (right[node]) {
            tree.token[node] = truth;
        } else if (tree.token[node] == truth) {
            tree.token[node] = truth > 0 ? truth - 1 : truth + 1;
        }
    }
}

PlantedMethod::PlantedMethod(const engine::DraftMethod& method, PlantedText& text) : row_(method) {
    if (planted_method != nullptr) throw std::logic_error("another PlantedMethod lives");
    planted_method = &method;
    planted_text = &text;
    row_.make_trees = [](const engine::TreeShape& shape, std::int64_t num_models) {
        return std::unique_ptr<engine::TreeMethod>(
            std::make_unique<PlantedTrees>(planted_method->make_trees(shape, num_models), *planted_text));
    };
}

PlantedMethod::~PlantedMethod() {
    planted_method = nullptr;
    planted_text = nullptr;
}

}  // namespace longhaul::runner
