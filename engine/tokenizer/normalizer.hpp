// Normalization: changes a text before pre-tokenization. Reads the `normalizer` of a tokenizer.json, or builds the one
// of SentencePiece. Used by PipelineTokenizer.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/pieces.hpp"

namespace longhaul::engine {

class Normalizer {
  public:
    /// One step: maps a text to a text.
    class Step {
      public:
        virtual ~Step() = default;
        [[nodiscard]] virtual std::string apply(std::string_view text) const = 0;
    };

    /// Identity: changes nothing.
    Normalizer() = default;

    /// Reads the member `normalizer` of a tokenizer.json: null, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace,
    /// Strip or Sequence. Throws InputError for any other type and for malformed ones.
    static Normalizer from_json(const JsonView& json);

    /// Normalization form C alone.
    static Normalizer nfc();

    /// Normalizer of a SentencePiece model without its own character table ("identity").
    static Normalizer sentencepiece(bool add_dummy_prefix, bool remove_extra_whitespaces, bool escape_whitespaces);

    [[nodiscard]] std::string apply(std::string_view text) const;
    void apply(PieceList& pieces) const;

  private:
    void add(const JsonView& json);

    std::vector<std::shared_ptr<const Step>> steps_;
    std::string file_;  // for error messages
};

}  // namespace longhaul::engine
