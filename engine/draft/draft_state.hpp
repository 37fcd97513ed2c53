// The state of a drafter as checkpoints store it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::engine {

/// A named tensor of a drafter's state.
struct NamedTensor {
    std::string name;                 ///< unique within the state
    std::vector<std::int64_t> shape;  ///< each at least 1
    std::vector<std::int32_t> words;  ///< one 32-bit word per element, opaque here

    bool operator==(const NamedTensor&) const = default;
};

/// State of a drafter as rows of integers (n-gram table: tokens of the n-gram, count, last seen). Rows of a later delta
/// override earlier ones. Only the drafter interprets them.
struct DrafterState {
    std::string kind;  ///< method and what its rows depend on, such as "ngram/4"; "" for no state
    std::int64_t row_width = 0;
    std::vector<std::int32_t> rows;      ///< [num_rows, row_width]
    std::vector<NamedTensor> tensors{};  ///< complete: a later delta replaces the tensor of the same name
};

}  // namespace longhaul::engine
