// A simulated machine and simulated drafts for TreeChooser, on a simulated clock.
#pragma once

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "engine/draft/tree_chooser.hpp"
#include "engine/draft/tree_growth.hpp"

namespace longhaul::engine::testing {

inline TreeFamily family_of(const char* method) {
    return tree_family(find_draft_method(method), 1);
}

/// One layer, no head; `seconds` by number of rows.
inline CostModel costs_of(const std::vector<std::pair<std::int64_t, double>>& seconds) {
    std::vector<CostModel::Point> points;
    for (const auto& [rows, layer] : seconds) points.push_back({.rows = rows, .layer = layer});
    return {1, points};
}

/// Rows cost almost nothing, as if bound by weight bandwidth.
inline CostModel memory_bound(double pass) {
    return costs_of({{1, pass}, {64, 1.3 * pass}});
}
/// Each row costs as much as a pass with one row.
inline CostModel arithmetic_bound(double pass) {
    return costs_of({{1, pass}, {64, 64 * pass}});
}

struct World {
    TreeFamily family;
    CostModel target, draft;
    std::vector<double> chances;  ///< probability that the draft at this place of a level is right
    std::int64_t sequences = 1;
    std::int64_t context = CostModel::base_context;  ///< of the one sequence, where the target's cost depends on it
    CostModel believed = target;                     ///< the chooser's prior
    double draft_surprise = 1;                       ///< measured draft time / modelled draft time
    double after_drafts = 1;                         ///< slowdown of a pass that follows drafts
    double noise = 0;                                ///< of the chooser's clock: only adds time, rarely a lot
    /// > 0: each so many-th step of a sequence tries what was left of the one before, at hardly any drafting. In a
    /// batch each sequence has steps of its own for that.
    std::int64_t reuse_every = 0;
    /// < 1: the drafter knows, with this probability per level, that its draft is right, and ends the tree behind one
    /// of which it does not know it; `chances` are then those of the latter.
    double knows = 1;
    /// It works for all levels, and then leaves out those from the first one on of which it does not know it.
    bool leaves_out = false;
    bool replayed = false;        ///< the drafts are a recording's, for which no model runs
    bool adds_leftovers = false;  ///< to a tree left out whole: a node of an earlier draft
    /// Share of the trees that begin with two n-grams, and of those whose n-grams are right.
    double begins_with_ngrams = 0, ngrams_right = 0.5;
    std::int64_t ngram_rows = 0;  ///< per sequence in steps without drafts; none of them is right
    double interruption = 0;      ///< length of the pauses that other processes cause, about as long in all as the work
    TreeChooser chooser{family, believed, {draft}};
    std::mt19937 random{7}, disturbance{11};

    double clock = 0;
    std::int64_t steps = 0, drafted_steps = 0, tokens = 0, nodes = 0, levels = 0, late = 0;
    TreeLimits last{};

    [[nodiscard]] double seen(double seconds) {
        if (interruption > 0) {
            const int count = std::poisson_distribution<int>(seconds / interruption)(disturbance);
            return seconds + count * interruption;
        }
        if (noise == 0) return seconds;
        const bool interrupted = std::uniform_real_distribution<double>()(disturbance) < 0.02;
        const double more = std::abs(std::normal_distribution<double>(0, noise)(disturbance));
        return seconds * (interrupted ? 2.5 : 1 + more);
    }
    [[nodiscard]] double plain_token() const {
        return target.pass_seconds(sequences, CostModel::base_context) / static_cast<double>(sequences);
    }
    [[nodiscard]] double loss() const { return clock / (static_cast<double>(tokens) * plain_token()) - 1; }

    [[nodiscard]] bool reuses(std::int64_t sequence) const {
        return reuse_every > 0 && last.depth > 0 && (steps + sequence) % reuse_every == 1;
    }

    /// A tree whose accepted path is known. The nodes of a level are children of the accepted node above, or of the
    /// first node if none was accepted.
    std::pair<TokenTree, std::vector<std::int32_t>> grow(std::int64_t sequence) {
        TokenTree tree;
        tree.reset(0);
        std::vector<std::int32_t> accepted;
        std::int32_t parent = 0;
        if (reuses(sequence)) {
            tree.add(0, 0, Origin::resampled);
            return {tree, accepted};
        }
        const auto happens = [&](double chance) { return std::uniform_real_distribution<double>()(random) < chance; };
        std::int64_t begins = 0;
        if (begins_with_ngrams > 0 && last.depth > 0 && happens(begins_with_ngrams)) {
            const bool right = happens(ngrams_right);
            for (; begins < 2; ++begins) {  // however few levels are asked for: n-grams go on below them
                parent = tree.add(parent, 0, Origin::ngram);
                if (right) accepted.push_back(parent);
            }
        }
        bool known = true;
        for (std::int64_t level = begins; level < last.depth && known; ++level) {
            known = knows == 1 || happens(knows);
            if (leaves_out && !known) break;
            const std::int32_t first = tree.num_nodes();
            for (std::int64_t i = 0; i < family.fan_out(level, last.width); ++i)
                tree.add(parent, static_cast<std::int32_t>(i), replayed ? Origin::replay : Origin::model);
            parent = first;
            if (static_cast<std::int64_t>(accepted.size()) < level) continue;
            const double draw = knows < 1 && known ? -1 : std::uniform_real_distribution<double>()(random);
            double sum = 0;
            for (std::size_t place = 0; place < chances.size(); ++place) {
                sum += chances[place];
                if (draw >= sum || static_cast<std::int64_t>(place) >= last.width) continue;
                accepted.push_back(first + static_cast<std::int32_t>(place));
                parent = accepted.back();
                break;
            }
        }
        if (adds_leftovers && last.depth > 0 && tree.num_nodes() == 1) tree.add(0, 0, Origin::resampled);
        return {tree, accepted};
    }

    void step(std::optional<TreeLimits> fixed = {}) {
        last = chooser.choose({.sequences = sequences, .context = context});
        if (fixed) last = *fixed;
        TreeChooser::Step taken{.sequences = sequences};
        std::int64_t drafted_levels = 0, drafting = 0;
        for (std::int64_t i = 0; i < sequences; ++i) {
            const auto [tree, accepted] = grow(i);
            const std::int64_t begins = tree.ngram_chain();
            const std::int64_t passes = reuses(i) ? 0 : leaves_out ? last.depth - begins : tree.depth.back() - begins;
            chooser.verified(tree, accepted, false, replayed ? 0 : passes);
            drafted_levels = std::max(drafted_levels, passes);
            drafting += reuses(i) ? 0 : 1;
            taken.ngram_rows += begins;
            taken.ngram_tokens += std::min(begins, std::ssize(accepted));
            taken.rows += tree.num_nodes();
            taken.tokens += static_cast<std::int64_t>(accepted.size()) + 1;
        }
        for (std::int64_t level = 0; level < drafted_levels; ++level) {
            const std::int64_t unread = family.follows_text ? std::min<std::int64_t>(late, 128) : 0;
            const std::int64_t rows = level == 0 ? 1 + unread : last.width;
            taken.draft_seconds += draft_surprise * draft.pass_seconds(drafting * rows, CostModel::base_context);
        }
        if (drafting < sequences)
            taken.draft_seconds += 0.05 * draft.pass_seconds(sequences - drafting, CostModel::base_context);
        if (last.depth == 0) taken.rows += taken.ngram_rows = ngram_rows * sequences;
        taken.forward_seconds = target.pass_seconds(taken.rows, context);
        if (last.depth > 0 || late == 0) taken.forward_seconds *= after_drafts;
        late = last.depth > 0 ? 0 : late + 1;
        clock += taken.draft_seconds + taken.forward_seconds;
        taken.draft_seconds = seen(taken.draft_seconds);
        taken.forward_seconds = seen(taken.forward_seconds);
        chooser.record(taken);
        tokens += taken.tokens;
        nodes += taken.rows - sequences;
        ++steps;
        drafted_steps += last.depth > 0 ? 1 : 0;
        levels += last.depth;
    }
    /// Steps with the same limits throughout.
    void run_fixed(int count, const TreeLimits& limits) {
        for (int i = 0; i < count; ++i) step(limits);
    }
    void run(int count) {
        for (int i = 0; i < count; ++i) step();
    }
    void forget() { clock = 0, steps = 0, drafted_steps = 0, tokens = 0, nodes = 0, levels = 0; }

    /// Tokens per second of a fixed tree with the same acceptance at each level.
    [[nodiscard]] double fixed_rate(TreeLimits tree) const {
        double chance = 0;
        for (std::size_t i = 0; i < chances.size() && static_cast<std::int64_t>(i) < tree.width; ++i)
            chance += chances[i];
        double expected = 1, reached = 1, seconds = 0;
        for (std::int64_t level = 0; level < tree.depth; ++level) {
            expected += reached *= chance;
            seconds +=
                draft_surprise * draft.pass_seconds(sequences * (level == 0 ? 1 : tree.width), CostModel::base_context);
        }
        seconds += target.pass_seconds(sequences * (1 + tree.width * tree.depth), CostModel::base_context);
        return static_cast<double>(sequences) * expected / seconds;
    }
    [[nodiscard]] double best_fixed_rate() const {
        double best = 1 / plain_token();
        for (const std::int64_t width : family.widths) {
            for (std::int64_t depth = 1; depth <= family.max_depth && width * depth <= family.max_nodes; ++depth)
                best = std::max(best, fixed_rate({.depth = depth, .width = width}));
        }
        return best;
    }
    [[nodiscard]] double rate() const { return static_cast<double>(tokens) / clock; }
};

}  // namespace longhaul::engine::testing
