// From tokens back to text, one token at a time: the `decoder` of a tokenizer.json.
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

/// A chain of stages; the text of a token goes through all of them. Immutable: what a text needs to remember between
/// tokens is in its DecodeState.
class TextDecoder {
  public:
    /// One change of the row of tokens.
    class Stage {
      public:
        using Memory = DecodeState::Stage;
        using Emit = std::function<void(std::string)>;

        virtual ~Stage() = default;
        /// Takes the next token of the row; emits what becomes certain.
        virtual void push(Memory& memory, std::string token, const Emit& emit) const = 0;
        /// Emits the rest.
        virtual void finish(Memory& /*memory*/, const Emit& /*emit*/) const {}
        /// Bytes that a token stands for inside a text.
        [[nodiscard]] virtual std::string bytes_inside(std::string token) const { return token; }
        /// Whether the stage makes one token of the row: those behind it see the whole text, in parts.
        [[nodiscard]] virtual bool fuses() const { return false; }
        /// Whether the stage may stand behind one that fuses.
        [[nodiscard]] virtual bool takes_parts() const { return false; }
    };

    /// From the member `decoder` of a tokenizer.json: null, ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip
    /// and Sequence. Throws InputError for others and for malformed ones.
    static TextDecoder from_json(const JsonView& json);
    static TextDecoder byte_level();
    /// Visible spaces to spaces, bytes of a fallback to characters; the space that was put in front is taken away.
    static TextDecoder sentencepiece(bool strip_first_space);

    /// Appends to `text` what the next token makes certain.
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
