// Tokenizer: text to token ids and back, as defined by the model's own tokenizer files. The runner uses it to make
// prompts, the engine to detokenize output.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::engine {

/// State of decoding one text. Default-constructed at the start of a text; the caller owns it.
struct DecodeState {
    struct Stage {
        std::string held;        // bytes that may still change
        std::int64_t count = 0;  // meaning depends on the stage
    };
    std::vector<Stage> stages;
};

/// A tokenizer read from a Hugging Face folder: `tokenizer.json`, else `vocab.json` + `merges.txt`, else
/// `tokenizer.model`. Supports byte-level BPE (Llama 3, Qwen2.5, GPT-2, OPT) and SentencePiece BPE with byte fallback
/// (Llama 2). Immutable after load: const members are thread-safe.
class Tokenizer {
  public:
    /// Reads the tokenizer of `model_folder`. The files are untrusted. Throws InputError naming file and field.
    static std::unique_ptr<Tokenizer> load(const std::filesystem::path& model_folder);

    virtual ~Tokenizer() = default;

    /// Token ids of `text` (UTF-8). Added and special tokens in the text are recognised as the files define. Adds no
    /// begin-of-text token: see `bos_id` and `adds_bos`. Throws std::invalid_argument if the text is not UTF-8 or
    /// longer than 1 GiB.
    [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

    /// Bytes of one token as they appear inside a text; for a special token, its literal text. A token may end in the
    /// middle of a UTF-8 character. SentencePiece: U+2581 is a space. Returns "" for an id without an entry.
    [[nodiscard]] virtual const std::string& token_bytes(std::int32_t token_id) const = 0;

    /// Whether the token is special. The text of results contains no special tokens.
    [[nodiscard]] virtual bool is_special(std::int32_t token_id) const = 0;

    /// Text of `token_ids`, equal to what the `tokenizers` package decodes. Invalid UTF-8 becomes U+FFFD; ids without
    /// an entry are skipped. A Detokenizer fed token by token gives the same text. One difference from the package: an
    /// added token that the normalizer changes (Llama 2's `<s>` if marked as normalized) decodes to its own text here
    /// and is skipped if special; the package (0.23) writes the normalized text, special or not.
    [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> token_ids, bool skip_special) const = 0;

    /// One step of decoding, for Detokenizer: appends to `text` the output that this token completes.
    virtual void decode_next(DecodeState& state, std::int32_t token_id, std::string& text) const = 0;
    /// Appends the remaining output and resets `state`.
    virtual void decode_rest(DecodeState& state, std::string& text) const = 0;

    /// Largest id that the files define, plus one.
    [[nodiscard]] virtual std::int32_t vocab_size() const = 0;

    /// The begin-of-text token if the files name one, and whether the files want it before every text.
    [[nodiscard]] virtual std::optional<std::int32_t> bos_id() const = 0;
    [[nodiscard]] virtual bool adds_bos() const = 0;

    /// XXH3-64 over the vocabulary files and the values used from tokenizer_config.json. The rest of that file is
    /// excluded, since a chat template may change. The run folder records this as the tokenizer's identity.
    [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

/// A text and its tokens, which others follow. `tokenizer` must outlive it.
class EncodedText {
  public:
    /// Throws std::invalid_argument like encode.
    EncodedText(const Tokenizer& tokenizer, std::string text);

    [[nodiscard]] const std::string& text() const { return text_; }
    [[nodiscard]] const std::vector<std::int32_t>& ids() const { return ids_; }
    /// The tokens of `more` behind the text: what follows the text's in the encoding of both together, or, if that does
    /// not begin with them, the encoding of `more` alone. Throws std::invalid_argument.
    [[nodiscard]] std::vector<std::int32_t> encode_behind(const std::string& more) const;

  private:
    const Tokenizer& tokenizer_;
    std::string text_, end_;                   ///< `end_`: of a long text the end, encoded in place of all of it
    std::vector<std::int32_t> ids_, end_ids_;  ///< of `text_` and of `end_`, with which `ids_` ends
};

/// Turns a stream of tokens into UTF-8 that can be shown at once. Holds back the bytes of an incomplete character and,
/// with byte fallback, a run of byte tokens until it ends, because one invalid byte turns the whole run into U+FFFD.
/// Copyable; the tokenizer must outlive it.
class Detokenizer {
  public:
    explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}

    /// Appends a token; returns the text that it completes.
    std::string push(std::int32_t token_id);

    /// Returns the rest at the end of the stream; incomplete bytes become U+FFFD. The next push starts a new text.
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    DecodeState state_;
};

}  // namespace longhaul::engine
