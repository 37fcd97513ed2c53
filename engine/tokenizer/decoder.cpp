#include "engine/tokenizer/decoder.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

using Stage = TextDecoder::Stage;

constexpr std::string_view meta_space = "\xE2\x96\x81";  // U+2581

void replace_all(std::string& text, std::string_view from, std::string_view to) {
    if (text.find(from) == std::string::npos) return;
    std::string result;
    for (std::size_t at = 0;;) {
        const std::size_t found = text.find(from, at);
        result.append(text, at, found - at);
        if (found == std::string::npos) break;
        result.append(to);
        at = found + from.size();
    }
    text = std::move(result);
}

/// Maps characters of the byte alphabet to bytes, and the bytes of all tokens together to UTF-8 text.
class ByteLevelStage final : public Stage {
  public:
    void push(Memory& memory, std::string token, const Emit& emit) const override {
        // A token with any other character (an added token) is taken literally.
        if (!unicode::append_alphabet_bytes(token, memory.held)) memory.held += token;
        std::string text;
        const std::size_t used = unicode::append_lossy(memory.held, false, text);
        memory.held.erase(0, used);
        if (!text.empty()) emit(std::move(text));
    }
    void finish(Memory& memory, const Emit& emit) const override {
        std::string text;
        unicode::append_lossy(memory.held, true, text);
        memory.held.clear();
        if (!text.empty()) emit(std::move(text));
    }
    [[nodiscard]] std::string bytes_inside(std::string token) const override {
        std::string bytes;
        return unicode::append_alphabet_bytes(token, bytes) ? bytes : token;
    }
    [[nodiscard]] bool fuses() const override { return true; }
};

/// `<0x0A>` is byte 10. A run of byte tokens becomes text when the run ends. If the run as a whole is not valid UTF-8,
/// every byte of it becomes U+FFFD, so nothing can be emitted before the end of the run.
class ByteFallbackStage final : public Stage {
  public:
    void push(Memory& memory, std::string token, const Emit& emit) const override {
        if (const auto byte = byte_of(token)) {
            memory.held.push_back(*byte);
            return;
        }
        finish(memory, emit);
        emit(std::move(token));
    }
    void finish(Memory& memory, const Emit& emit) const override {
        if (memory.held.empty()) return;
        const std::string run = std::exchange(memory.held, {});
        if (unicode::is_utf8(run)) return emit(run);
        for (std::size_t i = 0; i < run.size(); ++i) emit(std::string(unicode::replacement_character));
    }
    [[nodiscard]] std::string bytes_inside(std::string token) const override {
        const auto byte = byte_of(token);
        return byte ? std::string(1, *byte) : token;
    }

  private:
    static std::optional<char> byte_of(std::string_view token) {
        if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
        unsigned int byte = 0;
        const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
        if (error != std::errc{} || end != token.data() + 5) return std::nullopt;
        return static_cast<char>(byte);
    }
};

class ReplaceStage final : public Stage {
  public:
    ReplaceStage(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
    void push(Memory& /*memory*/, std::string token, const Emit& emit) const override {
        emit(bytes_inside(std::move(token)));
    }
    [[nodiscard]] std::string bytes_inside(std::string token) const override {
        replace_all(token, from_, to_);
        return token;
    }

  private:
    std::string from_;
    std::string to_;
};

class FuseStage final : public Stage {
  public:
    void push(Memory& /*memory*/, std::string token, const Emit& emit) const override { emit(std::move(token)); }
    [[nodiscard]] bool fuses() const override { return true; }
    [[nodiscard]] bool takes_parts() const override { return true; }
};

/// Removes up to `start` copies of `content` from the front and up to `stop` from the end: of each token, or with
/// `whole_text` of the whole text.
class StripStage final : public Stage {
  public:
    StripStage(std::string content, std::int64_t start, std::int64_t stop, bool whole_text)
        : content_(std::move(content)), start_(start), stop_(stop), whole_text_(whole_text) {}

    void push(Memory& memory, std::string token, const Emit& emit) const override {
        strip_front(memory, token);
        std::string text = std::exchange(memory.held, {}) + token;
        // With whole_text: copies of `content` at the end are held back, since they may be the end of the text.
        std::size_t kept = text.size();
        for (std::int64_t i = 0; i < stop_ && std::string_view(text).substr(0, kept).ends_with(content_); ++i)
            kept -= content_.size();
        if (whole_text_) memory.held = text.substr(kept);
        text.resize(kept);
        if (!whole_text_) memory.count = 0;
        if (!text.empty() || !whole_text_) emit(std::move(text));
    }
    void finish(Memory& memory, const Emit& /*emit*/) const override { memory.held.clear(); }
    [[nodiscard]] bool takes_parts() const override { return true; }

  private:
    static constexpr std::int64_t front_done = -1;

    void strip_front(Memory& memory, std::string& token) const {
        while (memory.count != front_done && memory.count < start_ && token.starts_with(content_)) {
            token.erase(0, content_.size());
            ++memory.count;
        }
        if (!token.empty()) memory.count = front_done;
    }

    std::string content_;
    std::int64_t start_;
    std::int64_t stop_;
    bool whole_text_;
};

class MetaspaceStage final : public Stage {
  public:
    MetaspaceStage(std::string replacement, bool drops_first)
        : replacement_(std::move(replacement)), drops_first_(drops_first) {}
    void push(Memory& memory, std::string token, const Emit& emit) const override {
        const bool first = memory.count++ == 0;
        replace_all(token, replacement_, first && drops_first_ ? "" : " ");
        emit(std::move(token));
    }
    [[nodiscard]] std::string bytes_inside(std::string token) const override {
        replace_all(token, replacement_, " ");
        return token;
    }

  private:
    std::string replacement_;
    bool drops_first_;
};

/// Without a decoder in the file, tokens are joined by spaces.
class JoinStage final : public Stage {
  public:
    void push(Memory& memory, std::string token, const Emit& emit) const override {
        if (memory.count++ > 0) emit(" ");
        emit(std::move(token));
    }
};

std::string one_character(const JsonView& json) {
    const std::string& text = json.string();
    if (text.empty() || unicode::char_bytes(text[0]) != text.size()) json.fail("one character");
    return text;
}

std::shared_ptr<const Stage> make_replace(const JsonView& json) {
    const JsonView pattern = json.member("pattern").member("String");
    if (!pattern.is_string() || pattern.string().empty())
        pattern.fail("a text to replace (regex patterns are not supported)");
    const JsonView content = json.member("content");
    if (content.string().size() > 256) content.fail("a text of at most 256 bytes");
    return std::make_shared<ReplaceStage>(pattern.string(), content.string());
}

std::shared_ptr<const Stage> make_metaspace(const JsonView& json) {
    const JsonView scheme = json.member("prepend_scheme");
    const bool add_prefix_space = json.member("add_prefix_space").boolean_or(true);
    const bool never = scheme.is_null() ? !add_prefix_space : scheme.string() == "never";
    return std::make_shared<MetaspaceStage>(one_character(json.member("replacement")), !never);
}

std::shared_ptr<const Stage> make_strip(const JsonView& json, bool whole_text) {
    constexpr std::int64_t max_stripped = 1024;
    return std::make_shared<StripStage>(one_character(json.member("content")),
                                        json.member("start").integer(0, max_stripped),
                                        json.member("stop").integer(0, max_stripped), whole_text);
}

}  // namespace

TextDecoder TextDecoder::from_json(const JsonView& json) {
    TextDecoder decoder;
    if (json.is_null()) {
        decoder.stages_.push_back(std::make_shared<JoinStage>());
    } else {
        decoder.add(json);
    }
    return decoder;
}

TextDecoder TextDecoder::byte_level() {
    TextDecoder decoder;
    decoder.stages_.push_back(std::make_shared<ByteLevelStage>());
    return decoder;
}

TextDecoder TextDecoder::sentencepiece(bool strip_first_space) {
    TextDecoder decoder;
    decoder.stages_.push_back(std::make_shared<ReplaceStage>(std::string(meta_space), " "));
    decoder.stages_.push_back(std::make_shared<ByteFallbackStage>());
    if (strip_first_space) decoder.stages_.push_back(std::make_shared<StripStage>(" ", 1, 0, true));
    return decoder;
}

void TextDecoder::add(const JsonView& json) {
    const std::string& type = json.type();
    if (type == "Sequence") {
        const JsonView parts = json.member("decoders");
        for (std::size_t i = 0; i < parts.list().size(); ++i) add(parts.item(i));
    } else if (type == "ByteLevel") {
        append(std::make_shared<ByteLevelStage>(), json);
    } else if (type == "ByteFallback") {
        append(std::make_shared<ByteFallbackStage>(), json);
    } else if (type == "Fuse") {
        append(std::make_shared<FuseStage>(), json);
    } else if (type == "Metaspace") {
        append(make_metaspace(json), json);
    } else if (type == "Replace") {
        append(make_replace(json), json);
    } else if (type == "Strip") {
        append(make_strip(json, fused_), json);
    } else {
        json.member("type").fail("ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Strip or Sequence");
    }
}

void TextDecoder::append(std::shared_ptr<const Stage> stage, const JsonView& json) {
    if (fused_ && !stage->takes_parts()) json.member("type").fail("nothing but Strip behind ByteLevel or Fuse");
    if (stages_.size() >= max_steps) json.fail("at most " + std::to_string(max_steps) + " decoders");
    fused_ = fused_ || stage->fuses();
    stages_.push_back(std::move(stage));
}

void TextDecoder::pass(DecodeState& state, std::size_t stage_index, std::string token, std::string& text) const {
    if (stage_index == stages_.size()) {
        text += token;
        return;
    }
    stages_[stage_index]->push(state.stages[stage_index], std::move(token),
                               [&](std::string next) { pass(state, stage_index + 1, std::move(next), text); });
}

void TextDecoder::push(DecodeState& state, std::string_view token, std::string& text) const {
    state.stages.resize(stages_.size());
    pass(state, 0, std::string(token), text);
}

void TextDecoder::finish(DecodeState& state, std::string& text) const {
    state.stages.resize(stages_.size());
    for (std::size_t i = 0; i < stages_.size(); ++i)
        stages_[i]->finish(state.stages[i], [&](std::string next) { pass(state, i + 1, std::move(next), text); });
    state.stages.clear();
}

std::string TextDecoder::token_bytes(std::string_view token) const {
    std::string bytes(token);
    for (const auto& stage : stages_) bytes = stage->bytes_inside(std::move(bytes));
    return bytes;
}

}  // namespace longhaul::engine
