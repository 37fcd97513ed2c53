#include "engine/sampling/pipeline.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>
#include <limits>
#include <numeric>
#include <utility>

#include "engine/sampling/sum_over_tokens.hpp"
#include "kernels/exp_nonpositive.hpp"
#include "kernels/flush_denormals.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine {
LogitsPipeline::LogitsPipeline(const SamplingParams& params, std::int64_t vocab_size)
    : logits_(static_cast<std::size_t>(vocab_size)),
      seen_(static_cast<std::size_t>(vocab_size), 0),
      output_counts_(vocab_size),
      dry_(vocab_size) {
    set_params(params);
}

void LogitsPipeline::set_params(const SamplingParams& params) {
    params_ = params;
    params_.min_keep = std::max<std::int64_t>(params_.min_keep, 1);
}

template <typename Take>
void LogitsPipeline::for_penalised(const NodeContext& context, Take take) {
    if (params_.repetition_penalty == 1.0 || params_.penalty_window <= 0) return;
    ++call_;
    const auto take_once = [&](std::int32_t token) {
        const auto v = static_cast<std::size_t>(token);
        if (token < 0 || v >= logits_.size() || seen_[v] == call_) return;
        seen_[v] = call_;
        take(token);
    };
    auto window = static_cast<std::size_t>(params_.penalty_window);
    const std::size_t from_path = std::min(window, context.path.size());
    for (const std::int32_t token : context.path.last(from_path)) take_once(token);
    window -= from_path;
    for (const std::int32_t token : context.sequence.last(std::min(window, context.sequence.size()))) take_once(token);
}

void LogitsPipeline::add_biases(const NodeContext& context) {
    const auto add = [&](std::int32_t token, float bias) {
        if (token >= 0 && static_cast<std::size_t>(token) < logits_.size())
            logits_[static_cast<std::size_t>(token)] += bias;
    };
    for (const TokenBias& of : params_.biases) add(of.token, of.bias);
    if (std::ssize(context.sequence) + std::ssize(context.path) >= params_.prompt_tokens + params_.min_tokens) return;
    for (const std::int32_t token : params_.ends) add(token, -std::numeric_limits<float>::infinity());
}

void LogitsPipeline::keep_allowed(const NodeContext& context) {
    if (params_.constraint == nullptr) return;
    constexpr float impossible = -std::numeric_limits<float>::infinity();
    const auto prompt = static_cast<std::size_t>(params_.prompt_tokens);
    const auto output = context.sequence.subspan(std::min(prompt, context.sequence.size()));
    const AllowedTokens& allowed = params_.constraint->allowed(output, context.path);
    if (allowed.end && std::cmp_equal(allowed.count, logits_.size())) return;  // all
    // A draft that no allowed output goes on with is never accepted.
    if (!allowed.end && !allowed.any_but(params_.ends)) return;
    std::vector<float> ends;
    for (const std::int32_t token : params_.ends)
        ends.push_back(allowed.end && static_cast<std::size_t>(token) < logits_.size() ? logits_[token] : impossible);
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        if (v >= allowed.tokens.size() || !allowed.tokens[v]) logits_[v] = impossible;
    }
    for (std::size_t i = 0; i < ends.size(); ++i) {
        if (static_cast<std::size_t>(params_.ends[i]) < logits_.size()) logits_[params_.ends[i]] = ends[i];
    }
}

void LogitsPipeline::penalise(const NodeContext& context) {
    const auto theta = static_cast<float>(params_.repetition_penalty);
    for_penalised(context, [&](std::int32_t token) {
        float& logit = logits_[token];
        const float penalised = logit > 0 ? logit / theta : logit * theta;
        logit = std::min(penalised, std::numeric_limits<float>::max());  // a penalty below 1 may overflow
    });
}

void LogitsPipeline::penalise_output(const NodeContext& context) {
    const OutputPenalties& penalties = params_.output;
    if (!penalties.is_on()) return;
    const auto prompt = static_cast<std::size_t>(params_.prompt_tokens);
    const auto output = context.sequence.subspan(std::min(prompt, context.sequence.size()));
    output_counts_.each(output, context.path, [&](std::int32_t token, std::int32_t count) {
        logits_[static_cast<std::size_t>(token)] -=
            static_cast<float>(penalties.presence + penalties.frequency * count);
    });
}

void LogitsPipeline::penalise_repeats(const NodeContext& context) {
    for (const DryPenalty& penalty : dry_.find(params_, context.sequence, context.path)) {
        const auto v = static_cast<std::size_t>(penalty.token);
        if (v < logits_.size()) logits_[v] -= penalty.amount;
    }
}

kernels::Choice LogitsPipeline::choice(const NodeContext& context, const NoiseRow& noise,
                                       std::vector<std::int32_t>& penalised) {
    penalised.clear();
    for_penalised(context, [&](std::int32_t token) { penalised.push_back(token); });
    return {.row = 0,
            .temperature = params_.temperature,
            .top_k = params_.top_k,
            .top_p = params_.top_p,
            .min_p = params_.min_p,
            .eta = params_.eta,
            .min_keep = params_.min_keep,
            .penalty = static_cast<float>(params_.repetition_penalty),
            .penalised = penalised,
            .noise_key = noise.key(),
            .position = noise.position(),
            .purpose = noise.purpose(),
            .node = noise.node(),
            .silent = noise.is_silent(),
            .keep = nullptr};
}

void LogitsPipeline::keep_top_k() {
    const auto k = static_cast<std::size_t>(std::max(params_.top_k, params_.min_keep));
    if (params_.top_k <= 0 || k >= out_.ids.size()) return;
    const auto better = [&](std::int32_t a, std::int32_t b) {
        const double la = out_.log_weights[a];
        const double lb = out_.log_weights[b];
        return la != lb ? la > lb : a < b;
    };
    order_.resize(out_.ids.size());
    std::iota(order_.begin(), order_.end(), 0);
    std::nth_element(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k), order_.end(), better);
    std::sort(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(k));
    for (std::size_t i = 0; i < k; ++i) {  // order_ is ascending: entries only move to lower indices
        const auto from = static_cast<std::size_t>(order_[i]);
        out_.ids[i] = out_.ids[from];
        out_.log_weights[i] = out_.log_weights[from];
    }
    out_.ids.resize(k);
    out_.log_weights.resize(k);
}

void LogitsPipeline::weigh(double greatest) {
    out_.q.resize(out_.ids.size());
    for (std::size_t i = 0; i < out_.q.size(); ++i)
        out_.q[i] = kernels::scalar::exp_nonpositive(out_.log_weights[i] - greatest);
}

void LogitsPipeline::renormalise() {
    const double sum = sum_over_tokens(out_.ids, [&](std::size_t i) { return out_.q[i]; });
    for (double& q : out_.q) q /= sum;
}

template <typename Keep>
void LogitsPipeline::keep_if(Keep keep) {
    std::size_t kept = 0;
    for (const double q : out_.q) kept += keep(q) ? 1 : 0;
    const std::size_t min_kept = std::min(static_cast<std::size_t>(params_.min_keep), out_.q.size());
    // Tokens above `floor` always stay, as do the first ties_allowed tokens equal to it.
    double floor = std::numeric_limits<double>::infinity();
    std::size_t ties_allowed = 0;
    if (kept < min_kept) {
        std::vector<double> sorted(out_.q);
        std::nth_element(sorted.begin(), sorted.begin() + static_cast<std::ptrdiff_t>(min_kept - 1), sorted.end(),
                         std::greater<>());
        floor = sorted[min_kept - 1];
        ties_allowed = min_kept - static_cast<std::size_t>(
                                      std::count_if(out_.q.begin(), out_.q.end(), [&](double q) { return q > floor; }));
    }
    std::size_t to = 0;
    for (std::size_t i = 0; i < out_.q.size(); ++i) {
        bool stays = keep(out_.q[i]) || out_.q[i] > floor;
        if (!stays && out_.q[i] == floor && ties_allowed > 0) {
            stays = true;
            --ties_allowed;
        }
        if (!stays) continue;
        out_.ids[to] = out_.ids[i];
        out_.log_weights[to] = out_.log_weights[i];
        out_.q[to] = out_.q[i];
        ++to;
    }
    if (to == out_.q.size()) return;
    out_.ids.resize(to);
    out_.log_weights.resize(to);
    out_.q.resize(to);
}

void LogitsPipeline::keep_top_p() {
    if (params_.top_p >= 1.0) return;
    const auto more_probable = [&](std::int32_t a, std::int32_t b) {
        const double qa = out_.q[a];
        const double qb = out_.q[b];
        return qa != qb ? qa > qb : a < b;
    };
    // All tokens below (1-p)/V together have a probability less than 1-p, so the prefix ends before them: sort only the
    // others.
    const double hopeless = (1.0 - params_.top_p) / static_cast<double>(out_.q.size());
    order_.clear();
    for (std::size_t i = 0; i < out_.q.size(); ++i) {
        if (out_.q[i] >= hopeless) order_.push_back(static_cast<std::int32_t>(i));
    }
    if (order_.size() < static_cast<std::size_t>(params_.min_keep)) {
        order_.resize(out_.q.size());
        std::iota(order_.begin(), order_.end(), 0);
    }
    // Sort only as far as the sum requires: usually a few hundred out of thousands.
    double sum = 0;
    std::size_t kept = 0, sorted = 0;
    while (kept < order_.size() && (sum < params_.top_p || kept < static_cast<std::size_t>(params_.min_keep))) {
        if (kept == sorted) {
            const auto from = order_.begin() + static_cast<std::ptrdiff_t>(sorted);
            sorted = std::min(order_.size(), std::max<std::size_t>(256, 4 * sorted));
            const auto to = order_.begin() + static_cast<std::ptrdiff_t>(sorted);
            std::nth_element(from, to, order_.end(), more_probable);
            std::sort(from, to, more_probable);
        }
        sum += out_.q[order_[kept++]];
    }
    order_.resize(std::max<std::size_t>(kept, 1));
    std::sort(order_.begin(), order_.end());
    for (std::size_t i = 0; i < order_.size(); ++i) {
        const auto from = static_cast<std::size_t>(order_[i]);
        out_.ids[i] = out_.ids[from];
        out_.log_weights[i] = out_.log_weights[from];
        out_.q[i] = out_.q[from];
    }
    out_.ids.resize(order_.size());
    out_.log_weights.resize(order_.size());
    out_.q.resize(order_.size());
    renormalise();
}

void LogitsPipeline::keep_eta() {
    if (params_.eta <= 0) return;
    const double entropy = -sum_over_tokens(out_.ids, [&](std::size_t i) {
        const double q = out_.q[i];
        return q > 0 ? q * kernels::scalar::det_log(q) : 0.0;
    });
    const double eta = std::min(params_.eta, std::sqrt(params_.eta) * kernels::scalar::det_exp(-entropy));
    keep_if([&](double q) { return q >= eta; });
    renormalise();
}

void LogitsPipeline::take(std::span<const float> logits) {
    // A broken model may produce infinity. Clamping it to the largest float keeps logits comparable and avoids inf -
    // inf.
    constexpr float greatest = std::numeric_limits<float>::max();
    constexpr float least = -std::numeric_limits<float>::infinity();
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        const float capped = logits[v] > greatest ? greatest : logits[v];
        logits_[v] = capped >= least ? capped : least;  // NaN
    }
}

float LogitsPipeline::greatest_logit() const {
    constexpr std::size_t lanes = 16;  // independent maxima, kept in registers
    std::array<float, lanes> greatest{};
    greatest.fill(-std::numeric_limits<float>::infinity());
    std::size_t v = 0;
    for (; v + lanes <= logits_.size(); v += lanes) {
        for (std::size_t i = 0; i < lanes; ++i) {
            greatest[i] = logits_[v + i] > greatest[i] ? logits_[v + i] : greatest[i];
        }
    }
    for (; v < logits_.size(); ++v) greatest[0] = std::max(greatest[0], logits_[v]);
    return *std::max_element(greatest.begin(), greatest.end());
}

void LogitsPipeline::take_greedy() {
    const auto best = std::find(logits_.begin(), logits_.end(), greatest_logit()) - logits_.begin();
    out_.ids.assign(1, static_cast<std::int32_t>(best));
    out_.log_weights.assign(1, 0.0);
    out_.q.assign(1, 1.0);
}

void LogitsPipeline::take_all() {
    constexpr float impossible = -std::numeric_limits<float>::infinity();
    int missing = 0;
    for (const float logit : logits_) missing |= logit > impossible ? 0 : 1;
    if (missing == 0) {  // the usual case; a branch-free loop is several times faster
        out_.ids.resize(logits_.size());
        out_.log_weights.resize(logits_.size());
        std::iota(out_.ids.begin(), out_.ids.end(), 0);
        for (std::size_t v = 0; v < logits_.size(); ++v)
            out_.log_weights[v] = static_cast<double>(logits_[v]) / params_.temperature;
        return;
    }
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        if (!(logits_[v] > impossible)) continue;
        out_.ids.push_back(static_cast<std::int32_t>(v));
        out_.log_weights.push_back(static_cast<double>(logits_[v]) / params_.temperature);
    }
}

/// q_i >= min_p * q_max is equivalent to log w_i - log w_max >= log min_p. This prefilter uses a threshold slightly
/// below that. It costs one comparison per token, and about a thousandth of the tokens of a typical vocabulary pass.
/// `apply` then makes the exact comparison.
void LogitsPipeline::take_by_min_p() {
    const double margin = kernels::scalar::det_log(params_.min_p) - 1e-6;
    const double cut = static_cast<double>(greatest_logit()) + params_.temperature * margin;
    const float below = std::nextafter(static_cast<float>(cut), -std::numeric_limits<float>::infinity());
    constexpr std::size_t block = 64;
    for (std::size_t first = 0; first < logits_.size(); first += block) {
        const std::size_t end = std::min(first + block, logits_.size());
        int any = 0;
        for (std::size_t v = first; v < end; ++v) any |= logits_[v] >= below ? 1 : 0;
        for (std::size_t v = first; any != 0 && v < end; ++v) {
            if (logits_[v] < below || !(logits_[v] > -std::numeric_limits<float>::infinity())) continue;
            out_.ids.push_back(static_cast<std::int32_t>(v));
            out_.log_weights.push_back(static_cast<double>(logits_[v]) / params_.temperature);
        }
    }
}

const Distribution& LogitsPipeline::apply(std::span<const float> logits, const NodeContext& context, bool with_q) {
    const kernels::FlushDenormals flush;
    take(logits);
    add_biases(context);
    keep_allowed(context);
    penalise(context);
    penalise_output(context);
    penalise_repeats(context);
    if (params_.temperature == 0) {
        take_greedy();
        return out_;
    }
    out_.ids.clear();
    out_.log_weights.clear();
    out_.q.clear();
    const bool min_p_first = params_.top_k <= 0 && params_.top_p >= 1.0 && params_.min_p > 0;
    if (min_p_first) take_by_min_p();
    if (!min_p_first || out_.ids.size() < static_cast<std::size_t>(params_.min_keep)) {
        out_.ids.clear();
        out_.log_weights.clear();
        take_all();
    }
    if (out_.ids.empty()) {  // all logits are NaN or -inf: choose token 0, so that only the item ends, not the program
        out_.ids.assign(1, 0);
        out_.log_weights.assign(1, 0.0);
    }
    keep_top_k();
    if (!with_q && params_.top_p >= 1.0 && params_.min_p <= 0 && params_.eta <= 0) return out_;
    const double greatest = out_.log_weights[most_probable(out_)];
    weigh(greatest);
    if (params_.top_p < 1.0) {
        renormalise();
        keep_top_p();
    }
    if (params_.min_p > 0) {
        const double least = params_.min_p * *std::max_element(out_.q.begin(), out_.q.end());
        keep_if([&](double q) { return q >= least; });
    }
    if (!with_q && params_.eta <= 0) {  // renormalized probabilities are not needed
        out_.q.clear();
        return out_;
    }
    renormalise();
    keep_eta();
    if (with_q && (params_.top_p < 1.0 || params_.eta > 0)) {
        weigh(greatest);
        renormalise();
    }
    return out_;
}

Distribution distribution_of(std::span<const kernels::Drawn> drawn) {
    std::vector<kernels::Drawn> sorted;
    std::copy_if(drawn.begin(), drawn.end(), std::back_inserter(sorted),
                 [](const kernels::Drawn& one) { return one.token >= 0; });
    std::sort(sorted.begin(), sorted.end(),
              [](const kernels::Drawn& a, const kernels::Drawn& b) { return a.token < b.token; });
    const auto same = [](const kernels::Drawn& a, const kernels::Drawn& b) { return a.token == b.token; };
    // The most probable token may also have been drawn.
    sorted.erase(std::unique(sorted.begin(), sorted.end(), same), sorted.end());
    Distribution distribution;
    for (const kernels::Drawn& one : sorted) {
        distribution.ids.push_back(one.token);
        distribution.log_weights.push_back(one.log_weight);
        distribution.q.push_back(one.probability);
    }
    return distribution;
}

Distribution kept_distribution(kernels::Device& device, const std::byte* kept) {
    const kernels::FlushDenormals flush;
    kernels::KeptDistribution head;
    device.download(&head, kept, sizeof head);
    std::vector<float> logits(static_cast<std::size_t>(head.vocab_size));
    device.download(logits.data(), kept + sizeof head, logits.size() * sizeof(float));
    Distribution distribution;
    for (std::size_t v = 0; v < logits.size(); ++v) {
        if (!(logits[v] > -std::numeric_limits<float>::infinity())) continue;
        distribution.ids.push_back(static_cast<std::int32_t>(v));
        distribution.log_weights.push_back(static_cast<double>(logits[v]) / head.temperature);
        distribution.q.push_back(kernels::scalar::exp_nonpositive(distribution.log_weights.back() - head.greatest) /
                                 head.sum);
    }
    return distribution;
}

std::size_t most_probable(const Distribution& distribution) {
    const std::vector<double>& weights = distribution.log_weights;
    constexpr std::size_t lanes = 8;  // independent maxima, kept in registers
    std::array<double, lanes> greatest{};
    greatest.fill(-std::numeric_limits<double>::infinity());
    std::size_t i = 0;
    for (; i + lanes <= weights.size(); i += lanes) {
        for (std::size_t lane = 0; lane < lanes; ++lane)
            greatest[lane] = weights[i + lane] > greatest[lane] ? weights[i + lane] : greatest[lane];
    }
    for (; i < weights.size(); ++i) greatest[0] = std::max(greatest[0], weights[i]);
    const double max_weight = *std::max_element(greatest.begin(), greatest.end());
    return static_cast<std::size_t>(std::find(weights.begin(), weights.end(), max_weight) - weights.begin());
}

std::int32_t gumbel_argmax(const Distribution& distribution, const NoiseRow& noise) {
    const auto& weights = distribution.log_weights;
    if (weights.size() == 1) return distribution.ids[0];
    // Start with the most probable token. A token that cannot beat it even with the maximum noise needs no noise drawn.
    const std::size_t first = most_probable(distribution);
    std::size_t best = first;
    double best_score = weights[first] + static_cast<double>(noise.gumbel(distribution.ids[first]));
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (i == first || weights[i] + kernels::max_gumbel < best_score) continue;
        if (weights[i] + noise.gumbel_bound(distribution.ids[i]) < best_score) continue;
        const double score = weights[i] + static_cast<double>(noise.gumbel(distribution.ids[i]));
        if (score > best_score || (score == best_score && i < best)) {
            best = i;
            best_score = score;
        }
    }
    return distribution.ids[best];
}

namespace {

/// The smallest of the `count` greatest `weights`; 0 < count <= weights.size().
double floor_of_greatest(const std::vector<double>& weights, std::size_t count) {
    std::vector<double> best(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(count));
    std::make_heap(best.begin(), best.end(), std::greater<>());  // min-heap
    for (std::size_t i = count; i < weights.size(); ++i) {
        if (weights[i] <= best.front()) continue;
        std::pop_heap(best.begin(), best.end(), std::greater<>());
        best.back() = weights[i];
        std::push_heap(best.begin(), best.end(), std::greater<>());
    }
    return best.front();
}

}  // namespace

std::vector<Perturbed> gumbel_top_k(const Distribution& distribution, const NoiseRow& noise, std::int64_t count) {
    const auto& weights = distribution.log_weights;
    const auto less = [](const Perturbed& a, const Perturbed& b) {
        return a.score != b.score ? a.score > b.score : a.place < b.place;  // heap with the worst one on top
    };
    const std::size_t max_count = std::min(weights.size(), static_cast<std::size_t>(std::max<std::int64_t>(count, 0)));
    std::vector<Perturbed> best;
    if (max_count == 0) return best;
    const auto take = [&](std::size_t i) {
        const Perturbed next{static_cast<std::int64_t>(i),
                             weights[i] + static_cast<double>(noise.gumbel(distribution.ids[i]))};
        if (!(next.score > -std::numeric_limits<double>::infinity())) return;
        if (best.size() == max_count) {
            if (!less(next, best.front())) return;
            std::pop_heap(best.begin(), best.end(), less);
            best.pop_back();
        }
        best.push_back(next);
        std::push_heap(best.begin(), best.end(), less);
    };
    // Start with the most probable tokens. A token that cannot beat the worst of them even with the maximum noise needs
    // no noise drawn, and one that cannot even with the upper bound of its noise needs no logarithm.
    const double floor = floor_of_greatest(weights, max_count);
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] >= floor) take(i);
    }
    for (std::size_t i = 0; i < weights.size(); ++i) {
        if (weights[i] >= floor) continue;
        const bool full = best.size() == max_count;
        if (full && weights[i] + kernels::max_gumbel < best.front().score) continue;
        if (full && weights[i] + noise.gumbel_bound(distribution.ids[i]) < best.front().score) continue;
        take(i);
    }
    std::sort(best.begin(), best.end(), less);
    return best;
}

}  // namespace longhaul::engine
