#include "engine/sampling/output_counts.hpp"

#include <algorithm>

namespace longhaul::engine {

void OutputCounts::set_output(std::span<const std::int32_t> output) {
    counts_.resize(vocab_size_, 0);
    const bool has_grown =
        output.size() >= output_.size() && std::equal(output_.begin(), output_.end(), output.begin());
    if (!has_grown) {
        for (const std::int32_t token : distinct_) counts_[static_cast<std::size_t>(token)] = 0;
        distinct_.clear();
        output_.clear();
    }
    const auto fresh = output.subspan(output_.size());
    for (const std::int32_t token : fresh) add(token);
    output_.insert(output_.end(), fresh.begin(), fresh.end());
}

void OutputCounts::add(std::int32_t token) {
    if (!is_known(token)) return;
    if (counts_[static_cast<std::size_t>(token)]++ == 0) distinct_.push_back(token);
}

}  // namespace longhaul::engine
