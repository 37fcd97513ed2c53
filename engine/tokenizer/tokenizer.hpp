// Text to token ids and back, as the model's own tokenizer files say.
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

/// What decoding remembers between two tokens of one text. Empty at the start; owned by who decodes.
struct DecodeState {
    struct Stage {
        std::string held;        // bytes that are not certain yet
        std::int64_t count = 0;  // of what the stage counts
    };
    std::vector<Stage> stages;
};

/// A tokenizer read from a Hugging Face folder: `tokenizer.json`, else `vocab.json` + `merges.txt`, else
/// `tokenizer.model`. Byte-level BPE (Llama 3, Qwen2.5, GPT-2, OPT) and SentencePiece-style BPE with byte fallback
/// (Llama 2). Immutable after load: any thread may call any const member.
class Tokenizer {
  public:
    /// Reads the tokenizer of `model_folder`. Throws InputError naming file and field; the files are not trusted.
    static std::unique_ptr<Tokenizer> load(const std::filesystem::path& model_folder);

    virtual ~Tokenizer() = default;

    /// Ids of `text` (UTF-8). Text of added/special tokens is recognised as the file says. No begin-of-text token is
    /// added here: see `bos_id` and `adds_bos`. Text that is not UTF-8 throws std::invalid_argument.
    [[nodiscard]] virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;

    /// Bytes of one token as they appear inside a text, special tokens included (their literal text). A token may end
    /// in the middle of a UTF-8 character. SentencePiece: U+2581 is a space. Ids without an entry give "".
    [[nodiscard]] virtual const std::string& token_bytes(std::int32_t token_id) const = 0;

    /// Whether the token is special (left out of results).
    [[nodiscard]] virtual bool is_special(std::int32_t token_id) const = 0;

    /// Whole text of `token_ids`, equal to what the `tokenizers` package decodes; bytes that are no UTF-8 become
    /// U+FFFD. Equals a Detokenizer fed token by token and finished. Ids without an entry are left out. One difference:
    /// an added token that the normalizer changes (Llama 2's `<s>` where it is marked as normalized) is its own text
    /// here, and left out when special; the package (0.23) writes the normalized text, special or not.
    [[nodiscard]] virtual std::string decode(std::span<const std::int32_t> token_ids, bool skip_special) const = 0;

    /// One step of decoding, for Detokenizer: appends to `text` what the token makes certain.
    virtual void decode_next(DecodeState& state, std::int32_t token_id, std::string& text) const = 0;
    /// Appends the rest and empties `state`.
    virtual void decode_rest(DecodeState& state, std::string& text) const = 0;

    /// One more than the greatest id the files define.
    [[nodiscard]] virtual std::int32_t vocab_size() const = 0;

    /// Begin-of-text token, if the files name one, and whether the files ask to put it before a text.
    [[nodiscard]] virtual std::optional<std::int32_t> bos_id() const = 0;
    [[nodiscard]] virtual bool adds_bos() const = 0;

    /// XXH3-64 over the vocabulary's files and what was taken from tokenizer_config.json (not the rest of that: a chat
    /// template may change): what the run folder records as the tokenizer's identity.
    [[nodiscard]] virtual std::uint64_t fingerprint() const = 0;
};

/// Turns a stream of tokens into UTF-8 that may be shown at once: holds back bytes of an unfinished character, and
/// (byte fallback) a run of byte tokens until it ends, since one bad byte turns all of the run into U+FFFD. May be
/// copied; the tokenizer must outlive it.
class Detokenizer {
  public:
    explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true)
        : tokenizer_(&tokenizer), skip_special_(skip_special) {}

    /// Appends a token; returns the text that became certain.
    std::string push(std::int32_t token_id);

    /// The rest at the end of the stream; unfinished bytes become U+FFFD. The next push starts another text.
    std::string finish();

  private:
    const Tokenizer* tokenizer_;
    bool skip_special_;
    DecodeState state_;
};

}  // namespace longhaul::engine
