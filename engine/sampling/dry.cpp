#include "engine/sampling/dry.hpp"

#include <algorithm>
#include <limits>

#include "kernels/scalar_math.hpp"

namespace longhaul::engine {

DryBreakers::DryBreakers(const std::vector<std::vector<std::int32_t>>& sequences) {
    for (const std::vector<std::int32_t>& sequence : sequences) {
        const auto head = static_cast<std::size_t>(sequence.front());
        if (head >= roles_.size()) roles_.resize(head + 1, Role::none);
        if (sequence.size() == 1) {
            roles_[head] = Role::breaker;
            continue;
        }
        if (roles_[head] == Role::none) roles_[head] = Role::head;
        tails_[sequence.front()].emplace_back(sequence.begin() + 1, sequence.end());
        max_tail_ = std::max(max_tail_, static_cast<std::int64_t>(sequence.size()) - 1);
    }
}

std::span<const std::vector<std::int32_t>> DryBreakers::tails(std::int32_t head) const {
    const auto found = tails_.find(head);
    return found == tails_.end() ? std::span<const std::vector<std::int32_t>>() : found->second;
}

/// suffix[i] = length of the longest common suffix of tokens[0..i] and `tokens`: the Z-algorithm from the end.
static void common_suffixes(std::span<const std::int32_t> tokens, std::vector<std::int32_t>& suffix) {
    const auto size = static_cast<std::int64_t>(tokens.size());
    suffix.resize(tokens.size());
    if (size == 0) return;
    const auto from_end = [&](std::int64_t k) { return tokens[static_cast<std::size_t>(size - 1 - k)]; };
    const auto length = [&](std::int64_t k) -> std::int32_t& { return suffix[static_cast<std::size_t>(size - 1 - k)]; };
    length(0) = static_cast<std::int32_t>(size);
    // The match found furthest from the end: its tokens [first, behind) equal the last behind - first ones.
    std::int64_t first = 0, behind = 0;
    for (std::int64_t k = 1; k < size; ++k) {
        std::int64_t known = k < behind ? std::min<std::int64_t>(length(k - first), behind - k) : 0;
        if (k + known >= behind) {
            while (k + known < size && from_end(known) == from_end(k + known)) ++known;
            first = k;
            behind = k + known;
        }
        length(k) = static_cast<std::int32_t>(known);
    }
}

void DryMatcher::set_sequence(std::span<const std::int32_t> sequence) {
    if (std::equal(sequence.begin(), sequence.end(), sequence_.begin(), sequence_.end())) return;
    if (indexed_) {
        for (const std::int32_t token : sequence_) {
            if (is_known(token)) newest_[static_cast<std::size_t>(token)] = -1;
        }
    }
    indexed_ = false;
    sequence_.assign(sequence.begin(), sequence.end());
    common_suffixes(sequence_, suffix_);
}

void DryMatcher::index_tokens() {
    if (indexed_) return;
    indexed_ = true;
    newest_.resize(vocab_size_, -1);
    previous_.resize(sequence_.size());
    for (std::size_t i = 0; i < sequence_.size(); ++i) {
        if (!is_known(sequence_[i])) continue;
        const auto token = static_cast<std::size_t>(sequence_[i]);
        previous_[i] = newest_[token];
        newest_[token] = static_cast<std::int32_t>(i);
    }
}

std::int32_t DryMatcher::at(const Context& context, std::int64_t index) const {
    return index < sequence_size() ? sequence_[static_cast<std::size_t>(index)]
                                   : context.path[static_cast<std::size_t>(index - sequence_size())];
}

void DryMatcher::note(std::int32_t token, std::int64_t length) {
    if (!is_known(token)) return;
    const auto v = static_cast<std::size_t>(token);
    if (longest_[v] == 0) matched_.push_back(token);
    longest_[v] = std::max(longest_[v], static_cast<std::int32_t>(length));
}

/// Notes the token behind `last` if the tokens up to `last` match the end of the context.
void DryMatcher::match_at(const Context& context, std::int64_t last, std::int64_t min_length) {
    const auto depth = static_cast<std::int64_t>(context.path.size());
    std::int64_t length = 0;
    while (length < depth && last - length >= context.begin &&
           at(context, last - length) == context.path[static_cast<std::size_t>(depth - 1 - length)])
        ++length;
    if (length == depth && last - depth >= context.begin) length += suffix_[static_cast<std::size_t>(last - depth)];
    length = std::min(length, last - context.begin + 1);
    if (length >= min_length) note(at(context, last + 1), length);
}

void DryMatcher::match_all(const Context& context, std::int64_t min_length) {
    if (context.path.empty()) {
        for (std::int64_t last = context.begin; last < context.end - 1; ++last) {
            const std::int32_t length = suffix_[static_cast<std::size_t>(last)];
            if (length >= min_length) note(sequence_[static_cast<std::size_t>(last + 1)], length);
        }
        return;
    }
    for (std::int64_t last = std::max(context.begin, sequence_size()); last < context.end - 1; ++last)
        match_at(context, last, min_length);
    index_tokens();
    if (!is_known(context.path.back())) return;
    std::int64_t last = newest_[static_cast<std::size_t>(context.path.back())];
    for (; last >= context.begin; last = previous_[static_cast<std::size_t>(last)]) match_at(context, last, min_length);
}

/// Number of tokens behind the last breaker of the context. If it is further away than any match is long, the result is
/// at least `max_length`.
std::int64_t DryMatcher::tokens_behind_breaker(const Context& context, const DryBreakers& breakers,
                                               std::int64_t max_length) const {
    const std::int64_t size = context.end - context.begin;
    const std::int64_t furthest = std::min(size, max_length + breakers.max_tail() + 1);
    for (std::int64_t behind = 0; behind < furthest; ++behind) {  // tokens behind the head
        const std::int64_t head = context.end - 1 - behind;
        const std::int32_t token = at(context, head);
        if (!breakers.is_head(token)) continue;
        std::int64_t longest = breakers.is_breaker(token) ? 0 : -1;
        for (const std::vector<std::int32_t>& tail : breakers.tails(token)) {
            const auto length = static_cast<std::int64_t>(tail.size());
            if (length <= longest || length > behind) continue;
            std::int64_t same = 0;
            while (same < length && at(context, head + 1 + same) == tail[static_cast<std::size_t>(same)]) ++same;
            if (same == length) longest = length;
        }
        if (longest >= 0) return behind - longest;
    }
    return size;
}

/// base^exponent, without libm: the same bits on every machine.
static double power(double base, std::int64_t exponent) {
    double result = 1;
    for (; exponent > 0; exponent >>= 1, base *= base) {
        if ((exponent & 1) != 0) result *= base;
    }
    return result;
}

/// The penalty of a match. Parameters and result are rounded to float, and the exponent is limited, as in llama.cpp.
static float amount_of(const DryParams& params, std::int64_t length) {
    constexpr float greatest = std::numeric_limits<float>::max();
    constexpr float log_of_greatest = 88.7228391F;
    const auto base = static_cast<float>(params.base);
    std::int64_t exponent = length - params.allowed_length;
    if (base > 1.000001F) {
        const auto log_base = static_cast<float>(kernels::scalar::det_log(static_cast<double>(base)));
        exponent = std::min(exponent, static_cast<std::int64_t>(log_of_greatest / log_base));
    }
    const double amount = static_cast<double>(static_cast<float>(params.multiplier)) * power(base, exponent);
    return static_cast<float>(std::min(amount, static_cast<double>(greatest)));
}

std::span<const DryPenalty> DryMatcher::find(const SamplingParams& params, std::span<const std::int32_t> sequence,
                                             std::span<const std::int32_t> path) {
    penalties_.clear();
    if (!params.dry.is_on()) return penalties_;
    longest_.resize(vocab_size_, 0);
    const std::int64_t window = params.dry.window > 0 ? params.dry.window : std::numeric_limits<std::int32_t>::max();
    set_sequence(sequence.last(std::min(sequence.size(), static_cast<std::size_t>(window))));
    Context context{.path = path};
    context.end = sequence_size() + static_cast<std::int64_t>(path.size());
    context.begin = std::max<std::int64_t>(context.end - window, 0);
    const std::int64_t min_length = std::max<std::int64_t>(params.dry.allowed_length, 1);
    if (context.end - context.begin <= min_length) return penalties_;
    match_all(context, min_length);
    std::int64_t max_length = 0;
    for (const std::int32_t token : matched_)
        max_length = std::max<std::int64_t>(max_length, longest_[static_cast<std::size_t>(token)]);
    const DryBreakers* breakers = params.dry_breakers;
    if (breakers != nullptr && max_length > 0)
        max_length = std::min(max_length, tokens_behind_breaker(context, *breakers, max_length));
    for (const std::int32_t token : matched_) {
        std::int32_t& longest = longest_[static_cast<std::size_t>(token)];
        const std::int64_t length = std::min<std::int64_t>(longest, max_length);
        longest = 0;
        if (length < min_length || (breakers != nullptr && breakers->is_breaker(token))) continue;
        penalties_.push_back({token, amount_of(params.dry, length)});
    }
    matched_.clear();
    return penalties_;
}

}  // namespace longhaul::engine
