// Survey of a job: reads and tokenizes all items without generating. Counts items, lengths and failures for `longhaul
// check`.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runner/data/dataset.hpp"

namespace longhaul::runner {

/// Histogram of integers. Memory grows with the number of distinct values, not with the number of entries.
class Counts {
  public:
    void add(std::int64_t number, std::int64_t times = 1) { times_[number] += times; }
    void add(const Counts& others);

    [[nodiscard]] bool empty() const { return times_.empty(); }
    [[nodiscard]] std::int64_t size() const;  ///< number of entries
    [[nodiscard]] std::int64_t sum() const;   ///< of all entries
    [[nodiscard]] std::int64_t largest() const { return times_.empty() ? 0 : times_.rbegin()->first; }
    /// Smallest value that at least the fraction `share` (0 to 1) of the entries does not exceed; 0 if empty.
    [[nodiscard]] std::int64_t quantile(double share) const;
    /// The `count` largest entries (all if there are fewer), in descending order.
    [[nodiscard]] std::vector<std::int64_t> largest(std::int64_t count) const;

  private:
    std::map<std::int64_t, std::int64_t> times_;
};

struct ItemSurvey {
    /// An item that would fail.
    struct Failure {
        std::int64_t index = 0;
        std::string id, error;
    };

    std::int64_t inputs = 0;        ///< prompts of the data after `limit` and `shard`
    std::int64_t failed = 0;        ///< of the inputs
    std::vector<Failure> failures;  ///< in the order of the input, at most max_failures
    Counts prompt_tokens;           ///< one entry per prompt that can be run
    Counts positions;          ///< one entry per sample: prompt and new tokens, i.e. the most KV positions it may need
    std::int64_t choices = 0;  ///< of all questions
    std::int64_t new_tokens = 0;  ///< maximum, all samples
    std::int64_t longest_index = -1;
};

/// Reads all items of `data` with `threads` threads. Keeps at most `max_failures` of the failures.
ItemSurvey survey_items(const DataSet& data, const engine::Tokenizer& tokenizer, const Settings& settings,
                        std::int64_t max_positions, int threads, std::int64_t max_failures);

}  // namespace longhaul::runner
