// Pre-tokenization: splits a normalized text into words, which BPE merges separately. Reads the `pre_tokenizer` of a
// tokenizer.json. Used by PipelineTokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/pieces.hpp"

namespace longhaul::engine {

/// Published split patterns, for models without a tokenizer.json.
extern const std::string_view gpt2_pattern;
extern const std::string_view qwen2_pattern;

class PreTokenizer {
  public:
    /// One step, applied to every piece.
    class Step {
      public:
        virtual ~Step() = default;
        virtual void apply(PieceList& pieces) const = 0;
    };

    /// Does not split.
    PreTokenizer() = default;

    /// Reads the member `pre_tokenizer` of a tokenizer.json: null, ByteLevel, Digits, Metaspace, Punctuation, Split,
    /// Whitespace, WhitespaceSplit or Sequence. Throws InputError for any other type and for malformed ones.
    static PreTokenizer from_json(const JsonView& json);

    /// Splits by `pattern`, then maps each byte to its character in the byte alphabet.
    static PreTokenizer byte_level(std::string_view pattern, bool add_prefix_space, std::string_view file);

    void apply(PieceList& pieces) const {
        for (const auto& step : steps_) step->apply(pieces);
    }

  private:
    void add(const JsonView& json);

    std::vector<std::shared_ptr<const Step>> steps_;
};

}  // namespace longhaul::engine
