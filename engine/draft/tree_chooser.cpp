#include "engine/draft/tree_chooser.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace longhaul::engine {
namespace {

constexpr double slow = 0.1;            // share of what is new in an average
constexpr double max_surprise = 1.5;    // a pass that another process interrupted says little about rows
constexpr std::int64_t reconsider = 4;  // steps; at first, each
constexpr std::int64_t first_steps = 32, first_trials = 6;
constexpr std::int64_t fair_trial = 10;          // steps before beliefs alone decide against drafts
constexpr std::int64_t look_around = 64;         // steps between two looks at what is not chosen
constexpr std::int64_t first_looks = 256;        // steps; until then larger trees are looked at four times as often
constexpr std::int64_t clear_look_around = 256;  // at plain decoding, which is dear where drafts gain much
constexpr std::int64_t plain_looks = 2;          // steps of a look, for the first is slower than plain decoding is
constexpr double clear_gain = 1.25;
constexpr double optimism = 0.8;   // standard errors of acceptance, for drafts not to be given up yet
constexpr double min_gain = 1.02;  // for drafts to be taken up again
// Losses that are no reason to give drafts up: a share of the time, and at first some plain steps and a tree or two.
constexpr double max_loss = 0.02, first_loss = 3, trees_of_patience = 1.5;
constexpr double lasting_credit = 500;  // plain steps of the past whose time counts
// What probes may cost beside that: a share of the time, and at first some plain steps.
constexpr double probe_share = 0.012, first_probe_loss = 3;
constexpr std::int64_t probe_steps = 3;
constexpr std::int64_t first_pause = 16, longest_pause = 4096;
constexpr double node_seconds = 1e-6;  // of a draft without a model

}  // namespace

std::size_t Correction::size_class(std::int64_t rows) {
    constexpr std::array<std::int64_t, 11> most{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};  // as kernels' blocks go
    return static_cast<std::size_t>(std::lower_bound(most.begin(), most.end(), rows) - most.begin());
}

double Correction::factor(std::int64_t rows) const {
    return all_.factor * of_size_[size_class(rows)].factor;
}

void Correction::record(std::int64_t rows, double modelled, double measured) {
    if (modelled <= 0 || measured <= 0) return;
    const double limit = std::log(max_surprise);
    // What all passes have in common is learned last: a size seldom used keeps its ratio to the others.
    for (Share* share : {&of_size_[size_class(rows)], &all_}) {
        const double surprise = std::clamp(std::log(measured / (modelled * factor(rows))), -limit, limit);
        share->factor *= std::exp(std::max(slow, 1.0 / (share->seen + 2)) * surprise);
        ++share->seen;
    }
}

TreeChooser::TreeChooser(TreeFamily family, CostModel target, std::vector<CostModel> drafts)
    : family_(std::move(family)), target_(std::move(target)), drafts_(std::move(drafts)), acceptance_(family_) {}

/// A model's pass over `rows` rows of each sequence. The model knows of one sequence: what its keys and values cost,
/// all pay.
double TreeChooser::pass_seconds(const CostModel& costs, std::int64_t rows) const {
    const std::int64_t near = std::min(batch_.context, CostModel::base_context);
    const double farther = costs.pass_seconds(rows, batch_.context) - costs.pass_seconds(rows, near);
    return costs.pass_seconds(batch_.sequences * rows, near) + static_cast<double>(batch_.sequences) * farther;
}

double TreeChooser::target_seconds(std::int64_t rows) const {
    return target_correction_.factor(batch_.sequences * rows) * pass_seconds(target_, rows);
}

/// Chains of several models: each model's part of the level is a pass of its own.
double TreeChooser::level_seconds(std::int64_t rows, std::int64_t width) const {
    const auto models = std::min<std::int64_t>(static_cast<std::int64_t>(drafts_.size()), width);
    double seconds = 0;
    for (std::int64_t model = 0; model < models; ++model)
        seconds += pass_seconds(drafts_[model], std::max<std::int64_t>(rows / models, 1));
    return seconds;
}

/// Drafting `rows` rows of a level of so many nodes, for the whole batch.
double TreeChooser::drafting_seconds(std::int64_t level, std::int64_t rows, const Candidate& tree) const {
    if (!drafts_.empty()) return level_seconds(rows, tree.limits.width);
    const double nodes = node_seconds * static_cast<double>(tree.level_nodes);
    if (!family_.by_heads) return nodes;
    const auto head_rows = [&](std::int64_t levels) {
        return levels > 0 ? target_.head_seconds(batch_.sequences * levels) : 0.0;
    };
    // Of two measured times.
    return nodes + std::max(head_rows(level + 1) - head_rows(level), 0.0);
}

void TreeChooser::add_level(Candidate& tree) const {
    const std::int64_t level = tree.limits.depth++;
    const std::int64_t rows = level == 0 ? 1 + std::min(not_drafted_, max_catching_up) : tree.level_nodes;
    tree.level_nodes = (family_.branches ? tree.level_nodes : 1) * family_.fan_out(level, tree.limits.width);
    tree.nodes += tree.level_nodes;
    tree.drafting += drafting_seconds(level, rows, tree);
}

/// A tree's nodes and its drafting.
TreeChooser::Candidate TreeChooser::sized(const TreeLimits& limits) const {
    Candidate tree{.limits = {.depth = 0, .width = limits.width}};
    while (tree.limits.depth < limits.depth && tree.nodes <= family_.max_nodes) add_level(tree);
    return tree;
}

double TreeChooser::draft_factor(const Candidate& tree) const {
    return draft_correction_.factor(batch_.sequences * tree.nodes);
}

TreeChooser::Candidate TreeChooser::plain() const {
    Candidate candidate;
    candidate.seconds = target_seconds(1) + verify_seconds_ * static_cast<double>(batch_.sequences);
    return candidate;
}

TreeChooser::Candidate TreeChooser::best_tree(std::int64_t max_depth, double hope) const {
    Candidate best;
    // First trials and probes are of chains: cheap, and what a first guess is worth decides most.
    const std::size_t num_widths = paused_ || step_ <= first_trials ? 1 : family_.widths.size();
    for (std::size_t width = 0; width < num_widths; ++width) {
        const std::vector<double> chances = acceptance_.chances(width, max_depth, hope);
        Candidate tree{.limits = {.depth = 0, .width = family_.widths[width]}};
        double reached = 1;
        for (const double chance : chances) {
            add_level(tree);
            if (tree.nodes > family_.max_nodes) break;
            tree.tokens += reached *= chance;
            tree.seconds = target_seconds(1 + tree.nodes) + draft_factor(tree) * tree.drafting +
                           verify_seconds_ * tree.tokens * static_cast<double>(batch_.sequences);
            if (best.limits.depth == 0 || tree.rate() > best.rate()) best = tree;
        }
    }
    return best;
}

/// The next wider tree, or one deeper where there is none.
TreeChooser::Candidate TreeChooser::further(const Candidate& from) const {
    Candidate tree = from;
    const auto wider = std::upper_bound(family_.widths.begin(), family_.widths.end(), from.limits.width);
    if (wider != family_.widths.end() && step_ / (look_around / 4) % 2 == 0) {
        tree.limits.width = *wider;
        while (tree.limits.depth > 1 && sized(tree.limits).nodes > family_.max_nodes) --tree.limits.depth;
    } else {
        tree.limits.depth = std::min(from.limits.depth + 1, family_.max_depth);
    }
    return sized(tree.limits).nodes > family_.max_nodes ? from : tree;
}

/// What was never accepted so far down is tried little by little.
std::int64_t TreeChooser::depth_in_reach() const {
    return std::min(family_.max_depth, std::max(2 * acceptance_.deepest(), probe_depth()));
}

/// Time that went by pays for probes. They cost their drafts and what draft models have to read up.
bool TreeChooser::may_probe() const {
    if (step_ < next_probe_) return false;
    const Candidate tree = best_tree(probe_depth());
    const std::int64_t late = std::min(not_drafted_, max_catching_up);
    const double reading = drafts_.empty() ? 0 : level_seconds(1 + late, 1) - level_seconds(1, 1);
    const double others = target_seconds(1 + tree.nodes) - target_seconds(1) +
                          draft_factor(tree) * std::max(tree.drafting - reading, 0.0);
    const double cost = draft_factor(tree) * reading + static_cast<double>(probe_steps) * others;
    return lost_ + cost <= probe_share * elapsed_ + first_probe_loss * plain().seconds;
}

void TreeChooser::pause() {
    paused_ = true;
    // A great loss of great trees must not forbid the probes, which are small.
    lost_ = std::min(lost_, first_loss * plain().seconds);
    next_probe_ = step_ + pause_;
    probe_left_ = 0;
}

/// Seconds that drafts may have cost more than they brought before they are given up, whatever is believed of them.
double TreeChooser::patience() const {
    return max_loss * std::min(elapsed_, lasting_credit * plain().seconds) + first_loss * plain().seconds +
           trees_of_patience * chosen_.seconds;
}

TreeLimits TreeChooser::next_trees() {
    const TreeLimits nothing{.depth = 0, .width = 0};
    if (paused_) {
        if (probe_left_ == 0) {
            if (!may_probe()) return nothing;
            probe_left_ = probe_steps;
            acceptance_.doubt();
        }
        --probe_left_;
        return best_tree(probe_depth()).limits;
    }
    if (chosen_.limits.depth == 0 || step_ < first_steps || step_ % reconsider == 0) {
        chosen_ = best_tree(depth_in_reach());
        // Beliefs and modelled prices alone do not decide against drafts that hardly anybody tried.
        const bool hopeless = step_ > fair_trial && best_tree(depth_in_reach(), optimism).rate() < plain().rate();
        if (hopeless || lost_ > patience()) {
            pause();
            return nothing;
        }
    }
    // What a pass without drafts takes has to be known, too.
    const bool clear = chosen_.rate() > clear_gain * plain().rate();
    const bool first_look = clear ? step_ == 24 : step_ == 3 || step_ == 12;
    const bool look = step_ >= first_steps && step_ % (clear ? clear_look_around : look_around) < plain_looks;
    if (first_look || look) return nothing;
    const std::int64_t every = step_ < first_looks ? look_around / 4 : look_around;
    if (step_ % every == every / 2) return further(chosen_).limits;
    return chosen_.limits;
}

TreeLimits TreeChooser::choose(const Batch& batch) {
    if (batch.sequences == 0) {
        batch_.sequences = 0;
        return limits_ = {.depth = 0, .width = 0};
    }
    ++step_;
    if (batch.sequences != batch_.sequences) chosen_ = {};
    batch_ = batch;
    return limits_ = next_trees();
}

void TreeChooser::verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended) {
    if (limits_.depth > 0) acceptance_.record(tree, accepted, ended, limits_.width);
}

/// What the step says about prices, and whether its drafts paid.
void TreeChooser::weigh(const Step& step, double seconds) {
    const std::int64_t rows = std::max<std::int64_t>(step.rows / batch_.sequences, 1);
    // Draft models leave the caches full of their own: one pass without drafts among others is not plain decoding.
    const bool lone = limits_.depth == 0 && drafted_before_ && step_ >= first_steps;
    if (!lone) target_correction_.record(step.rows, pass_seconds(target_, rows), step.forward_seconds);
    const auto tokens = static_cast<double>(std::max<std::int64_t>(step.tokens, 1));
    const double verify = step.verify_seconds / tokens;
    verify_seconds_ +=
        (verify_seconds_ == 0 ? 1 : slow) * (std::min(verify, 3 * verify_seconds_ + 1e-3) - verify_seconds_);
    elapsed_ += seconds;
    if (limits_.depth == 0) return;
    const Candidate tree = sized(limits_);
    draft_correction_.record(batch_.sequences * tree.nodes, tree.drafting, step.draft_seconds);
    const double worth = tokens * plain().seconds / static_cast<double>(batch_.sequences);
    lost_ = std::max(0.0, lost_ + seconds - worth);
    if (lost_ == 0) pause_ = first_pause;
}

void TreeChooser::end_probe() {
    if (best_tree(depth_in_reach()).rate() > min_gain * plain().rate()) {
        paused_ = false;
        chosen_ = {};
        return;
    }
    pause_ = std::min(2 * pause_, longest_pause);
    next_probe_ = step_ + pause_;
}

void TreeChooser::record(const Step& step) {
    if (batch_.sequences == 0) return;
    if (step.measured && step.sequences == batch_.sequences)
        weigh(step, step.draft_seconds + step.forward_seconds + step.verify_seconds);
    drafted_before_ = limits_.depth > 0;
    not_drafted_ = limits_.depth > 0 ? 0 : not_drafted_ + step.tokens / batch_.sequences;
    if (paused_ && limits_.depth > 0 && probe_left_ == 0) end_probe();
}

}  // namespace longhaul::engine
