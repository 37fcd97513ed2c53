// Drafts of random language models that are accepted at a prescribed rate, for `longhaul bench speculation`. A draft
// model with random weights knows nothing of its target, so the rate cannot come from the models.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/token_tree.hpp"

namespace longhaul::runner {

/// A text of the target, and the probability with which drafts continue a path of right tokens by one more.
struct PlantedText {
    std::vector<std::int32_t> tokens{};
    std::int64_t prompt_tokens = 0;  ///< absolute position of the first token
    double accept = 0;
    std::int64_t trees = 0;  ///< planted so far
};

/// Writes the text's tokens into one path of a complete tree below `position`, from the root down to a depth, and
/// removes them from all other nodes where they would be accepted. The depths of successive trees are distributed as
/// `accept` says, and evenly: so few trees already have the mean of many.
void plant(engine::TokenTree& tree, PlantedText& text, std::int64_t position);

/// `method`, which drafts with language models, with trees that are grown by real draft passes and planted when they
/// are complete. While the result lives it uses `text`; only one may live at a time.
class PlantedMethod {
  public:
    PlantedMethod(const engine::DraftMethod& method, PlantedText& text);
    ~PlantedMethod();
    PlantedMethod(const PlantedMethod&) = delete;
    PlantedMethod& operator=(const PlantedMethod&) = delete;

    [[nodiscard]] const engine::DraftMethod& row() const { return row_; }

  private:
    engine::DraftMethod row_;
};

}  // namespace longhaul::runner
