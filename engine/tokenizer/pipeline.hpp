// The only implementation of Tokenizer. Encode: added tokens, normalizer, added tokens again, pre-tokenizer, BPE.
// Decode: TextDecoder. The loaders read these parts from different files.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/added_tokens.hpp"
#include "engine/tokenizer/bpe.hpp"
#include "engine/tokenizer/decoder.hpp"
#include "engine/tokenizer/normalizer.hpp"
#include "engine/tokenizer/pre_tokenizer.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "engine/tokenizer/vocabulary.hpp"

namespace longhaul::engine {

struct TokenizerParts {
    Vocabulary vocabulary;  ///< includes the added tokens
    std::vector<Merge> merges;
    ExtraChars extra_chars;
    BpeOptions bpe;
    std::vector<AddedToken> added_tokens;
    /// Matched literally in the normalized text, not in their normalized form (SentencePiece's user-defined symbols).
    std::vector<AddedToken> verbatim_tokens;
    std::vector<std::int32_t> special_ids;  ///< in addition to special added tokens
    Normalizer normalizer;
    PreTokenizer pre_tokenizer;
    TextDecoder decoder;
    std::optional<std::int32_t> bos_id;
    bool adds_bos = false;
    std::uint64_t fingerprint = 0;
};

class PipelineTokenizer final : public Tokenizer {
  public:
    explicit PipelineTokenizer(TokenizerParts parts);

    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override;
    [[nodiscard]] const std::string& token_bytes(std::int32_t token_id) const override;
    [[nodiscard]] bool is_special(std::int32_t token_id) const override;
    [[nodiscard]] std::string decode(std::span<const std::int32_t> token_ids, bool skip_special) const override;
    void decode_next(DecodeState& state, std::int32_t token_id, std::string& text) const override;
    void decode_rest(DecodeState& state, std::string& text) const override;
    [[nodiscard]] std::int32_t vocab_size() const override { return parts_.vocabulary.size(); }
    [[nodiscard]] std::optional<std::int32_t> bos_id() const override { return parts_.bos_id; }
    [[nodiscard]] bool adds_bos() const override { return parts_.adds_bos; }
    [[nodiscard]] std::uint64_t fingerprint() const override { return parts_.fingerprint; }

  private:
    TokenizerParts parts_;
    Bpe bpe_;
    AddedTokenMatcher original_matcher_;
    AddedTokenMatcher normalized_matcher_;
    std::vector<bool> is_special_;          // [token_id]
    std::vector<std::string> token_bytes_;  // [token_id]
};

/// Finds the ids of the tokens <0x00> to <0xFF>. Returns false if there are none. If only some exist, each missing one
/// must be that of an ASCII character which is a token itself (its id is then -1); otherwise throws InputError.
bool find_byte_tokens(const Vocabulary& vocabulary, std::array<std::int32_t, 256>& byte_ids, std::string_view file,
                      std::string_view field);

/// Loaders, one per file format. They throw InputError naming file and field.
TokenizerParts load_tokenizer_json(const std::filesystem::path& model_folder);
TokenizerParts load_vocab_and_merges(const std::filesystem::path& model_folder);
TokenizerParts load_sentencepiece(const std::filesystem::path& model_folder);

}  // namespace longhaul::engine
