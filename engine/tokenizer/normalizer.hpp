// What is done to a text before it is split: the `normalizer` of a tokenizer.json, or that of SentencePiece.
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
    /// One change of a text.
    class Step {
      public:
        virtual ~Step() = default;
        [[nodiscard]] virtual std::string apply(std::string_view text) const = 0;
    };

    /// Changes nothing.
    Normalizer() = default;

    /// From the member `normalizer` of a tokenizer.json: null, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip
    /// and Sequence (not the compatibility forms: their tables differ by the version of Unicode). Throws InputError for
    /// others and for malformed ones.
    static Normalizer from_json(const JsonView& json);

    /// Normalization form C alone.
    static Normalizer nfc();

    /// That of a SentencePiece model without a table of its own ("identity").
    static Normalizer sentencepiece(bool add_dummy_prefix, bool remove_extra_whitespaces, bool escape_whitespaces);

    [[nodiscard]] std::string apply(std::string_view text) const;
    void apply(PieceList& pieces) const;

  private:
    void add(const JsonView& json);

    std::vector<std::shared_ptr<const Step>> steps_;
    std::string file_;  // for messages
};

}  // namespace longhaul::engine
