// RSD-S, recursive speculative decoding by stochastic beam search (paper, Algorithms 8 and 9; ALGORITHMS.md section 4
// corrects their misprints): each level keeps the nodes with the `width` largest truncated Gumbel values psi over all
// parents. This samples whole sequences without replacement. The token of a child depends only on its earlier siblings,
// so verification is the same as for RSD-C.
#include <algorithm>
#include <limits>

#include "engine/draft/tree_growth.hpp"
#include "engine/sampling/pipeline.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine {
namespace {

using kernels::scalar::det_exp;
using kernels::scalar::det_log;
using kernels::scalar::det_log1p;

/// log(1 - e^x), x <= 0.
double log1mexp(double x) {
    // Near 0 the subtraction would cancel; three terms of the series are exact to 1e-12 there.
    if (x > -1e-4) return det_log(-x * (1.0 + x * (0.5 + x * (1.0 / 6))));
    return det_log1p(-det_exp(x));
}

/// Truncates the Gumbel value `perturbed` to at most `bound` (the parent's psi). Keeps the order of the siblings;
/// `greatest` is the largest value among them.
double truncate(double perturbed, double greatest, double bound) {
    const double w = bound - perturbed + log1mexp(perturbed - greatest);
    return bound - std::max(0.0, w) - det_log1p(det_exp(w < 0 ? w : -w));
}

struct Candidate {
    double psi = 0, perturbed = 0, log_p = 0, probability = 0;
    std::size_t parent = 0;  ///< index into level_
    std::int32_t token = 0;

    /// Descending psi. The perturbed value breaks ties that come from rounding.
    bool operator<(const Candidate& other) const {
        if (psi != other.psi) return psi > other.psi;
        if (perturbed != other.perturbed) return perturbed > other.perturbed;
        return parent != other.parent ? parent < other.parent : token < other.token;
    }
};

class RsdSGrowth final : public TreeGrowth {
  public:
    /// `beams.depth`: of this tree.
    RsdSGrowth(TokenTree& tree, const Noise& noise, std::int64_t position, const BeamOptions& beams,
               double min_probability)
        : tree_(tree), noise_(noise), position_(position), beams_(beams), min_probability_(min_probability) {
        if (noise.is_own()) beams_.scatter = 0;
        if (beams_.depth > 0) {
            wanted_.push_back({tree.num_nodes() - 1, 0});
            level_.push_back({});
        }
    }

    [[nodiscard]] std::span<const Wanted> wanted() const override { return wanted_; }

    [[nodiscard]] std::int64_t num_draws() const override { return beams_.width + (beams_.scatter > 0 ? 1 : 0); }

    void grow(std::span<Distribution> drafts) override {
        std::vector<Candidate> candidates;
        for (std::size_t i = 0; i < drafts.size(); ++i) add_candidates(drafts[i], i, candidates);
        std::sort(candidates.begin(), candidates.end());
        const std::int64_t width = std::min(beams_.width, beams_.max_nodes - (tree_.num_nodes() - 1));
        if (std::ssize(candidates) > width) candidates.resize(width);
        add_nodes(drafts, candidates);
        const bool full = tree_.num_nodes() > beams_.max_nodes;
        if (++depth_done_ >= beams_.depth || full || !pays()) wanted_.clear();
    }

  private:
    struct Beam {
        double phi = 0, psi = 0;
    };

    /// Whether some node of the lowest level is probable enough for another level below it.
    [[nodiscard]] bool pays() const {
        return std::any_of(wanted_.begin(), wanted_.end(), [&](const Wanted& wanted) {
            return beams_.scatter == 0 || static_cast<double>(tree_.probability[wanted.node]) >= min_probability_;
        });
    }

    /// Adds the best children of a parent, at most `width`: the level keeps no more.
    void add_candidates(const Distribution& p, std::size_t parent, std::vector<Candidate>& candidates) const {
        const Beam& beam = level_[parent];
        const NoiseRow row = noise_.row(position_ + depth_done_, 0, wanted_[parent].node);
        std::vector<Perturbed> draws = gumbel_top_k(p, row, num_draws());
        if (draws.empty()) return;
        const std::vector<double> accepted =
            beams_.scatter == 0 ? std::vector<double>() : winning_chances(draws, beams_.scatter);
        if (std::ssize(draws) > beams_.width) draws.resize(beams_.width);
        const std::size_t best = most_probable(p);
        // log p = log weight + log_scale, also accurate where p underflows to 0.
        const double log_scale = det_log(p.q[best]) - p.log_weights[best];
        const double greatest = beam.phi + (draws.front().score + log_scale);
        for (std::size_t i = 0; i < draws.size(); ++i) {
            const Perturbed& draw = draws[i];
            const auto place = static_cast<std::size_t>(draw.place);
            const double perturbed = beam.phi + (draw.score + log_scale);
            candidates.push_back({.psi = truncate(perturbed, greatest, beam.psi),
                                  .perturbed = perturbed,
                                  .log_p = p.log_weights[place] + log_scale,
                                  .probability = accepted.empty() ? p.q[place] : accepted[i],
                                  .parent = parent,
                                  .token = p.ids[place]});
        }
    }

    void add_nodes(std::span<Distribution> drafts, std::span<const Candidate> chosen) {
        std::vector<std::int32_t> kept(drafts.size(), -1);
        std::vector<Wanted> next;
        std::vector<Beam> beams;
        for (const Candidate& c : chosen) {
            if (kept[c.parent] < 0) kept[c.parent] = keep_draft(tree_, noise_, drafts[c.parent]);
            next.push_back({add_draw(tree_, wanted_[c.parent].node, c.token, c.probability, kept[c.parent]), 0});
            beams.push_back({.phi = level_[c.parent].phi + c.log_p, .psi = c.psi});
        }
        wanted_ = std::move(next);
        level_ = std::move(beams);
    }

    TokenTree& tree_;
    Noise noise_;
    std::int64_t position_;
    BeamOptions beams_;
    double min_probability_;
    std::int64_t depth_done_ = 0;
    std::vector<Wanted> wanted_;
    std::vector<Beam> level_;  ///< one per entry of wanted_
};

class RsdS final : public TreeMethod {
  public:
    explicit RsdS(const BeamOptions& beams) : beams_(beams) {}

    [[nodiscard]] std::unique_ptr<TreeGrowth> begin(TokenTree& tree, const Noise& noise, std::int64_t position,
                                                    std::int64_t max_depth, std::int64_t max_width,
                                                    const TreePrices& prices) const override {
        BeamOptions beams = beams_;
        beams.width = std::min(max_width, beams.width);
        beams.depth = std::clamp<std::int64_t>(max_depth, 0, beams.depth);
        return std::make_unique<RsdSGrowth>(tree, noise, position, beams, prices.level);
    }
    [[nodiscard]] std::int64_t max_nodes() const override {
        return std::min(beams_.width * beams_.depth, beams_.max_nodes);
    }
    [[nodiscard]] std::int64_t max_depth() const override { return beams_.depth; }

  private:
    BeamOptions beams_;
};

}  // namespace

std::vector<double> winning_chances(std::span<const Perturbed> draws, double scatter) {
    std::vector<double> chances;
    double sum = 0;
    for (const Perturbed& draw : draws)
        sum += chances.emplace_back(det_exp((draw.score - draws.front().score) / scatter));
    for (double& chance : chances) chance /= sum;
    return chances;
}

std::unique_ptr<TreeMethod> make_rsd_s(const BeamOptions& beams) {
    return std::make_unique<RsdS>(beams);
}

}  // namespace longhaul::engine
