// How a normalized text is split into words, each of which is merged by itself: the `pre_tokenizer` of a
// tokenizer.json.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/pieces.hpp"

namespace longhaul::engine {

/// Published patterns, for models that come without a tokenizer.json.
extern const std::string_view gpt2_pattern;
extern const std::string_view qwen2_pattern;

class PreTokenizer {
  public:
    /// One way of splitting, applied to every piece.
    class Step {
      public:
        virtual ~Step() = default;
        virtual void apply(PieceList& pieces) const = 0;
    };

    /// Splits nothing.
    PreTokenizer() = default;

    /// From the member `pre_tokenizer` of a tokenizer.json: null, ByteLevel, Digits, Metaspace, Punctuation, Split,
    /// Whitespace, WhitespaceSplit and Sequence. Throws InputError for others and for malformed ones.
    static PreTokenizer from_json(const JsonView& json);

    /// Splits by `pattern` and writes each byte as a character of the byte alphabet.
    static PreTokenizer byte_level(std::string_view pattern, bool add_prefix_space, std::string_view file);

    void apply(PieceList& pieces) const {
        for (const auto& step : steps_) step->apply(pieces);
    }

  private:
    void add(const JsonView& json);

    std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace longhaul::engine
