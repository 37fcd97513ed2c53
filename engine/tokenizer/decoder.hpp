// Decodes tokens to text, one token at a time: the `decoder` of a tokenizer.json. Used by PipelineTokenizer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// A chain of stages that every token passes through. Immutable: the state of one text is in its DecodeState.
class TextDecoder {
  public:
    /// One stage. It transforms a stream of token texts.
    class Stage {
      public:
        using Memory = DecodeState::Stage;
        using Emit = std::function<void(std::string)>;

        virtual ~Stage() = default;
        /// Takes the next token; emits the output that can no longer change.
        virtual void push(Memory& memory, std::string token, const Emit& emit) const = 0;
        /// Emits the rest of the output at the end of the text.
        virtual void finish(Memory& /*memory*/, const Emit& /*emit*/) const {}
        /// Bytes that the token contributes inside a text (not at its start or end).
        [[nodiscard]] virtual std::string bytes_inside(std::string token) const { return token; }
        /// Whether the stage joins all tokens into one text. Later stages receive that text in parts, not token by
        /// token.
        [[nodiscard]] virtual bool fuses() const { return false; }
        /// Whether the stage may follow a stage that fuses.
        [[nodiscard]] virtual bool takes_parts() const { return false; }
    };

    /// Reads the member `decoder` of a tokenizer.json: null, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip
    /// or Sequence. Throws InputError for any other type and for malformed ones.
    static TextDecoder from_json(const JsonView& json);
    static TextDecoder byte_level();
    /// Decoder of a SentencePiece model: turns U+2581 into spaces and byte tokens into characters. `strip_first_space`
    /// removes the space that the normalizer put in front.
    static TextDecoder sentencepiece(bool strip_first_space);

    /// Appends to `text` the output that the next token completes.
    void push(DecodeState& state, std::string_view token, std::string& text) const;
    void finish(DecodeState& state, std::string& text) const;

    /// Bytes of one token as they appear inside a text.
    [[nodiscard]] std::string token_bytes(std::string_view token) const;

  private:
    void add(const JsonView& json);
    void append(std::shared_ptr<const Stage> stage, const JsonView& json);
    void pass(DecodeState& state, std::size_t stage_index, std::string token, std::string& text) const;

    std::vector<std::shared_ptr<const Stage>> stages_;
    bool fused_ = false;
};

}  // namespace longhaul::engine
