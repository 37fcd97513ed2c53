// All items of a job, read and tokenised without generating anything: how many there are, how long, which would fail.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "runner/data/dataset.hpp"

namespace longhaul::runner {

/// How often each number came. Memory follows the different numbers, not how many there were.
class Counts {
  public:
    void add(std::int64_t number, std::int64_t times = 1) { times_[number] += times; }
    void add(const Counts& others);

    [[nodiscard]] bool empty() const { return times_.empty(); }
    [[nodiscard]] std::int64_t sum() const;  ///< of all numbers
    [[nodiscard]] std::int64_t largest() const { return times_.empty() ? 0 : times_.rbegin()->first; }
    /// The least number that `share` (0 to 1) of all do not exceed; 0 where there is none.
    [[nodiscard]] std::int64_t quantile(double share) const;
    /// The `count` largest, or all where there are fewer, descending.
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

    std::int64_t inputs = 0;        ///< prompts of the data, `limit` and `shard` taken into account
    std::int64_t failed = 0;        ///< of them
    std::vector<Failure> failures;  ///< in the order of the input; the first ones only, if so asked
    Counts prompt_tokens;           ///< of each prompt that can be run
    Counts positions;               ///< the same and its new tokens at most: what an item may hold keys and values of
    std::int64_t new_tokens = 0;    ///< at most, all samples
    std::int64_t longest_index = -1;
};

/// Goes through all items of `data` with `threads` threads; keeps at most `max_failures` of the failed ones.
ItemSurvey survey_items(const DataSet& data, const engine::Tokenizer& tokenizer, const Settings& settings,
                        std::int64_t max_positions, int threads, std::int64_t max_failures);

}  // namespace longhaul::runner
