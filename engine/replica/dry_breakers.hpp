// DRY's sequence breakers (engine/sampling/dry.hpp) from their texts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/sampling/dry.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// A breaker as tokens, in every way that a token of the vocabulary can contain it or its beginning, as llama.cpp has
/// it: a token that contains the whole text; or one that ends with a beginning of it, followed by the tokens of the
/// rest, of which the first 20 count.
std::vector<std::vector<std::int32_t>> breaker_sequences(const Tokenizer& tokenizer, std::string_view text);

/// Makes breakers. Items of a job usually have the same ones: those of the last call are kept.
class BreakerMaker {
  public:
    /// `tokenizer` must outlive the object.
    explicit BreakerMaker(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

    std::shared_ptr<const DryBreakers> of(const std::vector<std::string>& texts);

  private:
    const Tokenizer& tokenizer_;
    std::vector<std::string> texts_;
    std::shared_ptr<const DryBreakers> breakers_;
};

}  // namespace longhaul::engine
