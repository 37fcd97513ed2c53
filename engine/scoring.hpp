// Types for scoring existing text (evaluation of loss, engine/replica/score.cpp): loss sums by position, and the
// sliding windows over a document longer than the context window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace longhaul::engine {

/// Loss of the scored tokens of one item, by position in the document (the prompt's first token has position 0). Tokens
/// are added in order of position, so the sums have the same bits however the item was divided into passes.
struct LossByPosition {
    struct Bucket {
        std::int64_t count = 0;
        double nll = 0;  ///< sum of -log p, in nats
    };
    std::vector<Bucket> buckets;  ///< buckets[b] covers positions [2^b, 2^(b+1))
    std::int64_t covered_tokens =
        0;  ///< output tokens covered, including those not scored because they have no context
    /// Scored tokens that were the most probable ones, as greedy decoding chooses them; nullopt: a version that did not
    /// count them scored some.
    std::optional<std::int64_t> greedy_tokens = 0;

    /// `position` >= 1.
    void add(std::int64_t position, double log_probability, bool is_greedy) {
        std::size_t bucket = 0;
        while (position >> (bucket + 1) != 0) ++bucket;
        if (buckets.size() <= bucket) buckets.resize(bucket + 1);
        ++buckets[bucket].count;
        buckets[bucket].nll -= log_probability;
        ++covered_tokens;
        if (greedy_tokens && is_greedy) ++*greedy_tokens;
    }
    [[nodiscard]] std::int64_t num_tokens() const {
        std::int64_t count = 0;
        for (const Bucket& bucket : buckets) count += bucket.count;
        return count;
    }
    /// Whether greedy decoding gives all scored tokens; nullopt if that is not known.
    [[nodiscard]] std::optional<bool> is_greedy() const {
        if (!greedy_tokens || buckets.empty()) return std::nullopt;
        return *greedy_tokens == num_tokens();
    }
    [[nodiscard]] double nll() const {
        double sum = 0;
        for (const Bucket& bucket : buckets) sum += bucket.nll;
        return sum;
    }
};

/// Sliding windows over a document. Window i sees positions [i * stride, i * stride + window) and scores the positions
/// that no earlier window has seen. With stride = window the windows are disjoint, and the first token of each is not
/// scored because it has no context there.
struct ScoringWindows {
    std::int64_t window = 2;  ///< >= 2
    std::int64_t stride = 1;  ///< in [1, window]

    /// First position of the window that scores `position`.
    [[nodiscard]] std::int64_t begin_of(std::int64_t position) const {
        return position < window ? 0 : ((position - window) / stride + 1) * stride;
    }
};

}  // namespace longhaul::engine
