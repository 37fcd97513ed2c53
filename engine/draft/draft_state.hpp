// What a checkpoint keeps of a drafter.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::engine {

/// A tensor of a drafter, by the name that it gave it.
struct NamedTensor {
    std::string name;                 ///< unique in its state
    std::vector<std::int64_t> shape;  ///< each at least 1
    std::vector<std::int32_t> words;  ///< as many as the shape says: 32 bits an element, opaque here

    bool operator==(const NamedTensor&) const = default;
};

/// State of a drafter as rows of integers (n-gram table: tokens of the n-gram, count, last seen). A later delta
/// overrides earlier rows; only the drafter knows their meaning.
struct DrafterState {
    std::string kind;  ///< "ngram/4": method and the keys that shape its rows; "" for none
    std::int64_t row_width = 0;
    std::vector<std::int32_t> rows;      ///< [num_rows, row_width]
    std::vector<NamedTensor> tensors{};  ///< whole: a later delta's replaces an earlier one of its name
};

}  // namespace longhaul::engine
