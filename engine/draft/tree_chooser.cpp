#include "engine/draft/tree_chooser.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace longhaul::engine {
namespace {

// "Plain" decoding is decoding without drafts.
constexpr double slow = 0.1;          // weight of a new value in the moving averages
constexpr double max_surprise = 1.5;  // cap on measured / expected: another process may interrupt a pass
// Cap on measured / expected in the balance of losses, and the weight of a new value in the mean delay of passes.
constexpr double max_delay = 3, slow_delay = 0.02;
constexpr std::int64_t reconsider = 4;  // steps between two choices, after the first steps
// Steps at the start in which the tree is chosen anew each time, and in which only chains are tried.
constexpr std::int64_t first_steps = 32, first_trials = 6;
constexpr std::int64_t fair_trial = 10;          // steps before estimates alone can pause drafting
constexpr std::int64_t look_around = 64;         // steps between two trials of an alternative (plain, larger tree)
constexpr std::int64_t first_looks = 256;        // until this step larger trees are tried four times as often
constexpr std::int64_t clear_look_around = 256;  // between two trials of plain decoding where drafts gain much
constexpr std::int64_t plain_looks = 3;          // steps of a plain trial: the first is slower than plain decoding
constexpr double slow_share = 0.03;              // weight of a new value in the mean of what is 0 or 1 for each tree
constexpr double rare_weight = 0.2;              // weight of a new value where values are rare
constexpr double clear_gain = 1.5;               // ratio of rates from which on drafts gain much
constexpr double optimism = 0.8;                 // standard errors added to acceptance before drafts are given up
constexpr double min_gain = 1.02;                // ratio of rates at which drafting resumes after a probe
// Losses tolerated before drafting pauses: a share of the elapsed time, some plain steps, and some steps with trees.
constexpr double max_loss = 0.02, first_loss = 3, trees_of_patience = 1.5;
constexpr double lasting_credit = 500;  // cap on the elapsed time that counts for this, in plain steps
// Additional cost allowed for probes: a share of the elapsed time, and some plain steps.
constexpr double probe_share = 0.012, first_probe_loss = 3;
constexpr std::int64_t probe_steps = 3;
constexpr double longer = 1.25;  // ratio of lengths from which on drafts are worth another probe
constexpr std::int64_t first_pause = 16, longest_pause = 4096;  // steps
constexpr double node_seconds = 1e-6;                           // of drafting a node without a draft model

/// Another process that takes a processor for milliseconds says nothing about drafts, and with a small model it costs
/// more than many steps.
double without_interruption(double measured, double expected) {
    return expected > 0 ? std::min(measured, max_delay * expected) : measured;
}

}  // namespace

std::size_t Correction::size_class(std::int64_t rows) {
    // Largest number of rows of each class, after the row blocks of the kernels.
    constexpr std::array<std::int64_t, 11> max_rows{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};
    return static_cast<std::size_t>(std::lower_bound(max_rows.begin(), max_rows.end(), rows) - max_rows.begin());
}

double Correction::factor(std::int64_t rows) const {
    return all_.factor * of_size_[size_class(rows)].factor;
}

void Correction::record(std::int64_t rows, double modelled, double measured, bool rare) {
    if (modelled <= 0 || measured <= 0) return;
    const double limit = std::log(max_surprise);
    Share* of_size = &of_size_[size_class(rows)];
    // The common factor is updated last, so a rarely used size class keeps its ratio to the others.
    for (Share* share : {of_size, &all_}) {
        const double surprise = std::clamp(std::log(measured / (modelled * factor(rows))), -limit, limit);
        const double weight = rare && share == of_size ? rare_weight : slow;
        share->factor *= std::exp(std::max(weight, 1.0 / (share->seen + 2)) * surprise);
        ++share->seen;
    }
}

TreeChooser::TreeChooser(TreeFamily family, CostModel target, std::vector<CostModel> drafts)
    : family_(std::move(family)),
      target_(std::move(target)),
      drafts_(std::move(drafts)),
      acceptance_(family_),
      drafted_share_(family_.max_depth),
      reached_weight_(slow_share) {}

/// Seconds of a model's pass over `rows` rows of each sequence. CostModel covers one sequence: the cost of reading a
/// longer context is added once per sequence.
double TreeChooser::pass_seconds(const CostModel& costs, std::int64_t rows, std::int64_t context) const {
    const std::int64_t base = std::min(context, CostModel::base_context);
    const double context_cost = costs.pass_seconds(rows, context) - costs.pass_seconds(rows, base);
    return costs.pass_seconds(batch_.sequences * rows, base) + static_cast<double>(batch_.sequences) * context_cost;
}

/// Modelled seconds of the target's pass; the rows of a sequence need not be whole.
double TreeChooser::target_model(double mean_rows) const {
    const auto fewer = static_cast<std::int64_t>(mean_rows);
    const double share = mean_rows - static_cast<double>(fewer);
    const double seconds = pass_seconds(target_, fewer, batch_.context);
    return share > 0 ? seconds + share * (pass_seconds(target_, fewer + 1, batch_.context) - seconds) : seconds;
}

double TreeChooser::target_seconds(double mean_rows) const {
    const std::int64_t rows = std::lround(static_cast<double>(batch_.sequences) * mean_rows);
    return target_correction_.factor(rows) * target_model(mean_rows);
}

/// Seconds of the draft models for one level. With several models, each runs its own pass over its share of the rows.
double TreeChooser::level_seconds(std::int64_t rows, std::int64_t width) const {
    const auto models = std::min<std::int64_t>(static_cast<std::int64_t>(drafts_.size()), width);
    const std::int64_t context =
        family_.draft_context ? family_.draft_context(batch_.context, batch_.prompt) : batch_.context;
    double seconds = 0;
    for (std::int64_t model = 0; model < models; ++model)
        seconds += pass_seconds(drafts_[model], std::max<std::int64_t>(rows / models, 1), context);
    return seconds;
}

/// The part of the first level's drafting that is for tokens not read yet.
double TreeChooser::reading_seconds() const {
    return drafts_.empty() || not_read() == 0 ? 0 : level_seconds(1 + not_read(), 1) - level_seconds(1, 1);
}

/// Seconds to draft a level from `rows` rows per sequence, for the whole batch.
double TreeChooser::drafting_seconds(std::int64_t level, std::int64_t rows, const Candidate& tree) const {
    if (!drafts_.empty() && (!family_.by_heads || level < family_.passes))
        return level_seconds(rows, tree.limits.width);
    const double nodes = node_seconds * static_cast<double>(tree.level_nodes);
    if (!family_.by_heads) return nodes;
    const auto head_rows = [&](std::int64_t levels) {
        return levels > 0 ? target_.head_seconds(batch_.sequences * levels) : 0.0;
    };
    // The difference of two measured times may be negative.
    return nodes + std::max(head_rows(level + 1) - head_rows(level), 0.0);
}

void TreeChooser::add_level(Candidate& tree) const {
    const std::int64_t level = tree.limits.depth++;
    const std::int64_t rows = level == 0 ? 1 + not_read() : family_.one_row ? 1 : tree.level_nodes;
    tree.level_nodes = (family_.branches ? tree.level_nodes : 1) * family_.fan_out(level, tree.limits.width);
    const double drafting = drafting_seconds(level, rows, tree);
    tree.nodes += tree.level_nodes;
    tree.drafting += drafting;
    const DraftedShare::Share share = drafted_share_.expected(level);
    const double reading = level == 0 ? reading_seconds() : 0;  // is never left out
    tree.expected_nodes += share.nodes * static_cast<double>(tree.level_nodes);
    tree.expected_drafting += reading + share.passes * (drafting - reading);
}

/// The candidate of these limits, with its nodes and modelled drafting time.
TreeChooser::Candidate TreeChooser::sized(const TreeLimits& limits) const {
    Candidate tree{.limits = {.depth = 0, .width = limits.width}};
    while (tree.limits.depth < limits.depth && tree.nodes <= family_.max_nodes) add_level(tree);
    return tree;
}

double TreeChooser::draft_factor(const Candidate& tree) const {
    return draft_correction_.factor(std::lround(static_cast<double>(batch_.sequences) * tree.expected_nodes));
}

TreeChooser::Candidate TreeChooser::plain() const {
    const double verifying = verify_seconds_ * static_cast<double>(batch_.sequences);
    const Candidate alone{.seconds = target_seconds(1) + verifying};
    const Candidate with_ngrams{.tokens = 1 + ngrams_[0].tokens,
                                .seconds = target_seconds(1 + ngrams_[0].rows) + verifying};
    // N-grams that did not pay when they were last seen would be left out by now.
    return with_ngrams.rate() > alone.rate() ? with_ngrams : alone;
}

double TreeChooser::node_price() const {
    return batch_.sequences > 0 ? target_seconds(2) / target_seconds(1) - 1 : 0;
}

TreeChooser::Candidate TreeChooser::best_tree(std::int64_t max_depth, double hope) const {
    Candidate best;
    // First trials and probes use chains: they are cheap, and the acceptance of the first guess matters most.
    const std::size_t num_widths = paused_ || step_ <= first_trials ? 1 : family_.widths.size();
    for (std::size_t width = 0; width < num_widths; ++width) {
        const std::vector<double> chances = acceptance_.chances(width, max_depth, hope);
        Candidate tree{.limits = {.depth = 0, .width = family_.widths[width]}};
        tree.tokens += ngrams_[1].tokens;
        double reached = reached_share_;
        for (const double chance : chances) {
            add_level(tree);
            if (tree.nodes > family_.max_nodes) break;
            tree.tokens += reached *= chance;
            tree.seconds = target_seconds(1 + tree.expected_nodes + ngrams_[1].rows) +
                           draft_factor(tree) * tree.expected_drafting +
                           verify_seconds_ * tree.tokens * static_cast<double>(batch_.sequences);
            if (best.limits.depth == 0 || tree.rate() > best.rate()) best = tree;
        }
    }
    return best;
}

/// The next wider tree or the next deeper one, alternating; the deeper one if none is wider.
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

/// Maximum depth to consider: twice the deepest path accepted so far, but at least probe_depth().
std::int64_t TreeChooser::depth_in_reach() const {
    return std::min(family_.max_depth, std::max(2 * acceptance_.deepest(), probe_depth()));
}

/// Whether the elapsed time covers the cost of a probe: its drafts, and the tokens that draft models must catch up on.
bool TreeChooser::may_probe() const {
    // The longer the text, the more drafts gain; and so do fewer sequences.
    const bool grown = static_cast<double>(batch_.context) >= longer * static_cast<double>(probed_.context);
    const bool fewer = 2 * batch_.sequences <= probed_.sequences;
    if (step_ < next_probe_ && !grown && !fewer) return false;
    const Candidate tree = best_tree(probe_depth());
    const double reading = reading_seconds();
    const double others = target_seconds(1 + tree.expected_nodes) - target_seconds(1) +
                          draft_factor(tree) * std::max(tree.expected_drafting - reading, 0.0);
    const double cost = draft_factor(tree) * reading + static_cast<double>(probe_steps) * others;
    return lost_ + cost <= probe_share * elapsed_ + first_probe_loss * plain().seconds;
}

/// A large loss with large trees must not prevent probes, which are small, nor that of many probes another attempt.
void TreeChooser::cap_losses() {
    lost_ = std::min(lost_, first_loss * plain().seconds);
}

void TreeChooser::pause() {
    paused_ = true;
    probed_ = batch_;
    cap_losses();
    next_probe_ = step_ + pause_;
    probe_left_ = 0;
}

/// Seconds that drafts may lose in total before drafting pauses, whatever the estimates say.
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
            probed_ = batch_;
            acceptance_.doubt();
            reached_weight_ = rare_weight;
        }
        --probe_left_;
        return best_tree(probe_depth()).limits;
    }
    if (chosen_.limits.depth == 0 || step_ < first_steps || step_ % reconsider == 0) {
        chosen_ = best_tree(depth_in_reach());
        // Estimates alone do not pause drafting before it was tried for some steps.
        const bool hopeless = step_ > fair_trial && best_tree(depth_in_reach(), optimism).rate() < plain().rate();
        if (hopeless || lost_ > patience()) {
            pause();
            return nothing;
        }
    }
    // Steps without drafts, to measure plain decoding.
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

/// Levels that the drafter worked for. A pass drafts one; heads draft all that were asked for. Recordings take none.
std::int64_t TreeChooser::levels_drafted(const TokenTree& tree, std::int64_t model_passes) const {
    if (family_.by_heads) return model_passes > 0 ? limits_.depth : 0;
    std::int64_t levels = model_passes;
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node)
        if (tree.origin[node] == Origin::replay) levels = std::max<std::int64_t>(levels, tree.depth[node]);
    return levels;
}

void TreeChooser::verified(const TokenTree& tree, std::span<const std::int32_t> accepted, bool ended,
                           std::int64_t model_passes) {
    if (limits_.depth == 0) return;
    const std::int64_t levels = levels_drafted(tree, model_passes);
    drafted_share_.count(tree, levels);
    if (levels == 0 && tree.is_all_from(Origin::resampled)) return;
    const bool reached = levels > 0 && acceptance_.record(tree, accepted, ended, limits_);
    reached_share_ += reached_weight_ * ((reached ? 1 : 0) - reached_share_);
    reached_weight_ = std::max(slow_share, reached_weight_ / (1 + reached_weight_));
}

/// Updates the cost corrections and the balance of losses from a measured step.
void TreeChooser::weigh(const Step& step, double seconds) {
    const double rows = std::max(static_cast<double>(step.rows) / static_cast<double>(batch_.sequences), 1.0);
    const double forward = without_interruption(step.forward_seconds, target_seconds(rows));
    // Draft models fill the CPU caches with their own data, so a first pass without drafts is slower than plain
    // decoding.
    const bool lone = limits_.depth == 0 && drafted_before_ && step_ >= first_steps;
    if (!lone) {
        delay_ += slow_delay * (forward / target_seconds(rows) - delay_);
        target_correction_.record(step.rows, target_model(rows), step.forward_seconds, limits_.depth == 0 && !paused_);
    }
    const auto tokens = static_cast<double>(std::max<std::int64_t>(step.tokens, 1));
    const double verify = step.verify_seconds / tokens;
    verify_seconds_ +=
        (verify_seconds_ == 0 ? 1 : slow) * (std::min(verify, 3 * verify_seconds_ + 1e-3) - verify_seconds_);
    elapsed_ += seconds;
    NgramGain& gain = ngrams_[limits_.depth > 0 ? 1 : 0];
    const auto sequences = static_cast<double>(batch_.sequences);
    gain.rows += slow * (static_cast<double>(step.ngram_rows) / sequences - gain.rows);
    gain.tokens += slow * (static_cast<double>(step.ngram_tokens) / sequences - gain.tokens);
    if (limits_.depth == 0) return;
    const Candidate tree = sized({.depth = drafted_share_.levels_in_step(), .width = limits_.width});
    // As if all sequences had drafted: sizes stay comparable where some only try what was left of earlier drafts.
    const std::int64_t nodes = std::lround(sequences * drafted_share_.nodes_per_tree());
    const double drafting = without_interruption(step.draft_seconds, draft_correction_.factor(nodes) * tree.drafting);
    draft_correction_.record(nodes, tree.drafting, step.draft_seconds);
    const double worth = delay_ * tokens / plain().rate() / sequences;
    lost_ = std::max(0.0, lost_ + drafting + forward + step.verify_seconds - worth);
    if (lost_ == 0) pause_ = first_pause;
}

void TreeChooser::learn_drafted_share() {
    std::vector<std::int64_t> asked;
    Candidate tree{.limits = {.depth = 0, .width = limits_.width}};
    while (tree.limits.depth < limits_.depth) {
        add_level(tree);
        asked.push_back(tree.level_nodes);
    }
    drafted_share_.end_step(asked);
}

void TreeChooser::end_probe() {
    if (best_tree(depth_in_reach()).rate() > min_gain * plain().rate()) {
        paused_ = false;
        chosen_ = {};
        cap_losses();
        return;
    }
    if (step_ < next_probe_) return;  // an additional probe, for another context or batch
    pause_ = std::min(2 * pause_, longest_pause);
    next_probe_ = step_ + pause_;
}

// Times of the other method's passes are not recorded: beside another model's drafts, and in other sizes, they made
// this method's drafts pause where they paid.
void TreeChooser::pass_over(const Step& step) {
    if (step.sequences == 0) return;
    if (step.measured) elapsed_ += step.draft_seconds + step.forward_seconds + step.verify_seconds;
    drafted_before_ = true;
    not_drafted_ += step.tokens / step.sequences;
    --next_probe_;
}

void TreeChooser::record(const Step& step) {
    if (batch_.sequences == 0) return;
    if (step.measured && step.sequences == batch_.sequences)
        weigh(step, step.draft_seconds + step.forward_seconds + step.verify_seconds);
    learn_drafted_share();
    drafted_before_ = limits_.depth > 0;
    not_drafted_ = limits_.depth > 0 ? 0 : not_drafted_ + step.tokens / batch_.sequences;
    if (paused_ && limits_.depth > 0 && probe_left_ == 0) end_probe();
}

}  // namespace longhaul::engine
