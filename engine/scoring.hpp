// Scoring text that is there already: sums of its loss, and the windows through which a long one is seen.
#pragma once

#include <cstdint>
#include <vector>

namespace longhaul::engine {

/// Loss of the scored tokens of one item by their position in the document (the prompt's first token is 0). Tokens are
/// added in the order of their positions, so the sums are the same bits however a pass was cut.
struct LossByPosition {
    struct Bucket {
        std::int64_t count = 0;
        double nll = 0;  ///< sum of -log p, natural logarithm
    };
    std::vector<Bucket> buckets;      ///< of positions [2^b, 2^(b+1))
    std::int64_t covered_tokens = 0;  ///< output tokens the sums are of, with those that had no context to be scored in

    /// `position` >= 1.
    void add(std::int64_t position, double log_probability) {
        std::size_t bucket = 0;
        while (position >> (bucket + 1) != 0) ++bucket;
        if (buckets.size() <= bucket) buckets.resize(bucket + 1);
        ++buckets[bucket].count;
        buckets[bucket].nll -= log_probability;
        ++covered_tokens;
    }
    [[nodiscard]] std::int64_t num_tokens() const {
        std::int64_t count = 0;
        for (const Bucket& bucket : buckets) count += bucket.count;
        return count;
    }
    [[nodiscard]] double nll() const {
        double sum = 0;
        for (const Bucket& bucket : buckets) sum += bucket.nll;
        return sum;
    }
};

/// Windows over a document: number i sees positions [i * stride, i * stride + window) and scores those that no window
/// before it has seen. With stride = window they are disjoint, and the first token of each, which has no context there,
/// is not scored.
struct ScoringWindows {
    std::int64_t window = 2;  ///< >= 2
    std::int64_t stride = 1;  ///< in [1, window]

    /// Beginning of the window that scores `position`.
    [[nodiscard]] std::int64_t begin_of(std::int64_t position) const {
        return position < window ? 0 : ((position - window) / stride + 1) * stride;
    }
};

}  // namespace longhaul::engine
