// How often each token occurs in an output: for presence and frequency penalties.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::engine {

/// The counts of an output are kept and added to as it grows, so that a node of its tree costs as much as the output
/// has different tokens.
class OutputCounts {
  public:
    /// Only tokens below `vocab_size` are counted.
    explicit OutputCounts(std::int64_t vocab_size) : vocab_size_(static_cast<std::size_t>(vocab_size)) {}

    /// Calls take(token, count) once for each token of `output` followed by `path`.
    template <typename Take>
    void each(std::span<const std::int32_t> output, std::span<const std::int32_t> path, Take take) {
        set_output(output);
        const std::size_t without_path = distinct_.size();
        for (const std::int32_t token : path) add(token);
        for (const std::int32_t token : distinct_) take(token, counts_[static_cast<std::size_t>(token)]);
        for (const std::int32_t token : path) {
            if (is_known(token)) --counts_[static_cast<std::size_t>(token)];
        }
        distinct_.resize(without_path);
    }

  private:
    void set_output(std::span<const std::int32_t> output);
    void add(std::int32_t token);
    [[nodiscard]] bool is_known(std::int32_t token) const { return static_cast<std::size_t>(token) < vocab_size_; }

    std::size_t vocab_size_;
    std::vector<std::int32_t> output_;    ///< what is counted
    std::vector<std::int32_t> counts_;    ///< [token]
    std::vector<std::int32_t> distinct_;  ///< tokens with a count
};

}  // namespace longhaul::engine
