#include "engine/sampling/log_softmax.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>

#include "kernels/exp_nonpositive.hpp"
#include "kernels/scalar_math.hpp"

namespace longhaul::engine {
namespace {

constexpr float impossible = -std::numeric_limits<float>::infinity();

double sum_of_exponentials(const std::vector<float>& logits, double greatest) {
    constexpr std::size_t lanes = 16;
    constexpr std::size_t block = 16 * lanes;  // separate loops for exponentials and sums: each is vectorized
    std::array<double, lanes> sums{};
    std::array<double, block> terms;
    for (std::size_t first = 0; first < logits.size(); first += block) {
        const std::size_t count = std::min(block, logits.size() - first);
        for (std::size_t i = 0; i < count; ++i)
            terms[i] = kernels::scalar::exp_nonpositive(static_cast<double>(logits[first + i]) - greatest);
        for (std::size_t i = count; i < block; ++i) terms[i] = 0;
        for (std::size_t i = 0; i < block; i += lanes) {
            for (std::size_t lane = 0; lane < lanes; ++lane) sums[lane] += terms[i + lane];
        }
    }
    for (std::size_t half = lanes / 2; half > 0; half /= 2) {
        for (std::size_t i = 0; i < half; ++i) sums[i] += sums[i + half];
    }
    return sums[0];
}

float greatest_of(const std::vector<float>& logits) {
    std::array<float, 16> lanes;  // independent maxima, kept in registers
    lanes.fill(impossible);
    std::size_t v = 0;
    for (; v + lanes.size() <= logits.size(); v += lanes.size()) {
        for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = logits[v + i] > lanes[i] ? logits[v + i] : lanes[i];
    }
    for (; v < logits.size(); ++v) lanes[0] = std::max(lanes[0], logits[v]);
    return *std::max_element(lanes.begin(), lanes.end());
}

std::int32_t bits_of(double log_probability) {
    return std::bit_cast<std::int32_t>(static_cast<float>(log_probability));
}

}  // namespace

void LogSoftmax::set(std::span<const float> logits) {
    constexpr float max_float = std::numeric_limits<float>::max();
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        const float capped = logits[v] > max_float ? max_float : logits[v];
        logits_[v] = capped >= impossible ? capped : impossible;  // NaN
    }
    const float greatest = greatest_of(logits_);
    greatest_ = static_cast<double>(greatest);
    log_sum_ = greatest == impossible ? 0 : kernels::scalar::det_log(sum_of_exponentials(logits_, greatest_));
}

double LogSoftmax::operator()(std::int32_t token) const {
    const float logit = logits_[token];
    if (logit == impossible) return min_log_probability;
    return std::max((static_cast<double>(logit) - greatest_) - log_sum_, min_log_probability);
}

bool LogSoftmax::is_best(std::int32_t token) const {
    if (static_cast<double>(logits_[token]) != greatest_) return false;
    return std::find(logits_.begin(), logits_.begin() + token, logits_[token]) == logits_.begin() + token;
}

std::span<const std::int32_t> LogSoftmax::best(std::int64_t count) {
    const auto logit = [&](std::int32_t token) { return logits_[token]; };
    const auto better = [&](std::int32_t a, std::int32_t b) {
        return logit(a) != logit(b) ? logit(a) > logit(b) : a < b;
    };
    // Heap with the worst of the current best tokens on top; only few tokens of a vocabulary enter it.
    best_.clear();
    const auto wanted = std::min(static_cast<std::size_t>(count), logits_.size());
    for (std::size_t v = 0; v < logits_.size(); ++v) {
        const auto token = static_cast<std::int32_t>(v);
        if (best_.size() == wanted) {
            if (wanted == 0 || !(logits_[v] > logit(best_.front())))
                continue;  // ties: the lower id is already in the heap
            std::pop_heap(best_.begin(), best_.end(), better);
            best_.pop_back();
        }
        best_.push_back(token);
        std::push_heap(best_.begin(), best_.end(), better);
    }
    std::sort(best_.begin(), best_.end(), better);
    return best_;
}

void append_logprobs(LogSoftmax& log_softmax, std::int32_t chosen, std::int64_t num_best,
                     std::vector<std::int32_t>& rows) {
    rows.push_back(bits_of(log_softmax(chosen)));
    const std::span<const std::int32_t> best = log_softmax.best(num_best);
    rows.insert(rows.end(), best.begin(), best.end());
    for (const std::int32_t token : best) rows.push_back(bits_of(log_softmax(token)));
}

std::vector<TokenLogprob> read_logprobs(std::span<const std::int32_t> row, std::int32_t chosen) {
    const std::size_t num_best = (row.size() - 1) / 2;
    std::vector<TokenLogprob> entries{{chosen, std::bit_cast<float>(row[0])}};
    for (std::size_t i = 0; i < num_best; ++i) {
        if (row[1 + i] != chosen) entries.push_back({row[1 + i], std::bit_cast<float>(row[1 + num_best + i])});
    }
    return entries;
}

}  // namespace longhaul::engine
