#include "engine/tokenizer/pre_tokenizer.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "engine/tokenizer/regex.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

const std::string_view gpt2_pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
const std::string_view qwen2_pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

namespace {

/// What happens to the matches of the pattern ("delimiters"); the names are those of the tokenizers package.
enum class Behavior { isolated, removed, merged_with_previous, merged_with_next, contiguous };

Behavior behavior_of(const JsonView& json) {
    static constexpr std::array<std::pair<std::string_view, Behavior>, 5> names{{
        {"Isolated", Behavior::isolated},
        {"Removed", Behavior::removed},
        {"MergedWithPrevious", Behavior::merged_with_previous},
        {"MergedWithNext", Behavior::merged_with_next},
        {"Contiguous", Behavior::contiguous},
    }};
    for (const auto& [name, behavior] : names)
        if (json.is_string() && json.string() == name) return behavior;
    json.fail("Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous");
}

/// Part of a piece: a delimiter, or the text between two delimiters.
struct Span {
    std::size_t begin;
    std::size_t end;
    bool is_delimiter;
};

// A delimiter is joined only to text that is not a delimiter. Example: "a--b" with `-` and merged_with_previous gives
// "a-", "-", "b".
void join_spans(std::vector<Span>& spans, Behavior behavior) {
    std::vector<Span> joined;
    const bool backwards = behavior == Behavior::merged_with_next;
    bool was_delimiter = false;
    for (std::size_t i = 0; i < spans.size(); ++i) {
        const Span& span = spans[backwards ? spans.size() - 1 - i : i];
        const bool joins =
            behavior == Behavior::contiguous ? span.is_delimiter == was_delimiter : span.is_delimiter && !was_delimiter;
        if (joins && !joined.empty()) {
            (backwards ? joined.back().begin : joined.back().end) = backwards ? span.begin : span.end;
        } else {
            joined.push_back(span);
        }
        was_delimiter = span.is_delimiter;
    }
    if (backwards) joined = {joined.rbegin(), joined.rend()};
    spans = std::move(joined);
}

class Split final : public PreTokenizer::Step {
  public:
    Split(Regex regex, Behavior behavior, bool invert)
        : regex_(std::move(regex)), behavior_(behavior), invert_(invert) {}

    void apply(PieceList& pieces) const override {
        Regex::Matcher matcher(regex_);
        std::vector<Span> spans;
        pieces.replace_each([&](const Piece& piece, const auto& append) {
            find_spans(matcher, piece.text, spans);
            if (behavior_ != Behavior::isolated && behavior_ != Behavior::removed) join_spans(spans, behavior_);
            for (const Span& span : spans)
                if (behavior_ != Behavior::removed || !span.is_delimiter)
                    append(sub_piece(piece, span.begin, span.end));
        });
    }

  private:
    void find_spans(Regex::Matcher& matcher, std::string_view text, std::vector<Span>& spans) const {
        spans.clear();
        std::size_t done = 0;
        matcher.start(text);
        while (const auto match = matcher.next()) {
            if (done < match->begin) spans.push_back({done, match->begin, invert_});
            spans.push_back({match->begin, match->end, !invert_});
            done = match->end;
        }
        if (done < text.size()) spans.push_back({done, text.size(), invert_});
    }

    Regex regex_;
    Behavior behavior_;
    bool invert_;
};

/// Puts a space before each piece that does not start with one.
class PrefixSpace final : public PreTokenizer::Step {
  public:
    void apply(PieceList& pieces) const override {
        pieces.replace_each([&](const Piece& piece, const auto& append) {
            if (piece.text.starts_with(' ')) return append(piece);
            append(Piece{pieces.keep(std::string(" ").append(piece.text)), -1, piece.at_text_start});
        });
    }
};

/// Maps each byte to its character in the byte alphabet.
class ByteChars final : public PreTokenizer::Step {
  public:
    void apply(PieceList& pieces) const override {
        std::size_t num_bytes = 0;
        for (const Piece& piece : pieces.pieces()) num_bytes += piece.text.size();
        std::string& buffer = pieces.keep_room(2 * num_bytes);  // a character of the alphabet has at most two bytes
        const auto& alphabet = unicode::byte_alphabet();
        pieces.replace_each([&](const Piece& piece, const auto& append) {
            const std::size_t begin = buffer.size();
            for (const char byte : piece.text) buffer += alphabet[static_cast<unsigned char>(byte)];
            append(Piece{std::string_view(buffer).substr(begin), -1, piece.at_text_start});
        });
    }
};

/// Writes spaces as the replacement character (usually U+2581), optionally puts one in front, and splits before each.
class Metaspace final : public PreTokenizer::Step {
  public:
    enum class Prefix { always, first, never };

    Metaspace(std::string replacement, Prefix prefix, bool split)
        : replacement_(std::move(replacement)), prefix_(prefix), split_(split) {}

    void apply(PieceList& pieces) const override {
        pieces.replace_each([&](const Piece& piece, const auto& append) {
            const std::string_view text = pieces.keep(visible(piece));
            const Piece whole{text, -1, piece.at_text_start};
            if (!split_) return append(whole);
            std::size_t begin = 0;
            while (begin < text.size()) {
                // Every replacement character starts a new piece, also one directly after another.
                const std::size_t end = std::min(text.find(replacement_, begin + 1), text.size());
                append(sub_piece(whole, begin, end));
                begin = end;
            }
        });
    }

  private:
    [[nodiscard]] std::string visible(const Piece& piece) const {
        const bool starts_visible = piece.text.starts_with(' ') || piece.text.starts_with(replacement_);
        const bool prefixed = prefix_ == Prefix::always || (prefix_ == Prefix::first && piece.at_text_start);
        std::string text;
        text.reserve(piece.text.size() + piece.text.size() / 2 + replacement_.size());
        if (prefixed && !starts_visible) text += replacement_;
        for (const char byte : piece.text) {
            if (byte == ' ') {
                text += replacement_;
            } else {
                text += byte;
            }
        }
        return text;
    }

    std::string replacement_;
    Prefix prefix_;
    bool split_;
};

Metaspace::Prefix prefix_of(const JsonView& json) {
    const JsonView scheme = json.member("prepend_scheme");
    // Older files have add_prefix_space instead of prepend_scheme; newer files may have both.
    const bool add_prefix_space = json.member("add_prefix_space").boolean_or(true);
    if (scheme.is_null()) return add_prefix_space ? Metaspace::Prefix::always : Metaspace::Prefix::never;
    if (scheme.string() == "never") return Metaspace::Prefix::never;
    if (!add_prefix_space) scheme.fail("never, since add_prefix_space is false");
    if (scheme.string() == "always") return Metaspace::Prefix::always;
    if (scheme.string() == "first") return Metaspace::Prefix::first;
    scheme.fail("always, first or never");
}

std::shared_ptr<const PreTokenizer::Step> make_metaspace(const JsonView& json) {
    const JsonView replacement = json.member("replacement");
    if (replacement.string().empty() || unicode::char_bytes(replacement.string()[0]) != replacement.string().size())
        replacement.fail("one character");
    return std::make_shared<Metaspace>(replacement.string(), prefix_of(json), json.member("split").boolean_or(true));
}

std::shared_ptr<const PreTokenizer::Step> make_split(const JsonView& json) {
    const JsonView pattern = json.member("pattern");
    const JsonView text = pattern.member("String");
    const JsonView regex = pattern.member("Regex");
    if (!text.is_string() && !regex.is_string()) pattern.fail("an object with String or Regex");
    if (text.is_string() && text.string().empty()) text.fail("a text to split at");
    return std::make_shared<Split>(text.is_string() ? Regex::literal(text.string(), json.file(), text.path())
                                                    : Regex(regex.string(), json.file(), regex.path()),
                                   behavior_of(json.member("behavior")), json.member("invert").boolean_or(false));
}

}  // namespace

PreTokenizer PreTokenizer::from_json(const JsonView& json) {
    PreTokenizer pre_tokenizer;
    if (!json.is_null()) pre_tokenizer.add(json);
    return pre_tokenizer;
}

PreTokenizer PreTokenizer::byte_level(std::string_view pattern, bool add_prefix_space, std::string_view file) {
    PreTokenizer pre_tokenizer;
    if (add_prefix_space) pre_tokenizer.steps_.push_back(std::make_shared<PrefixSpace>());
    pre_tokenizer.steps_.push_back(
        std::make_shared<Split>(Regex(pattern, file, "split pattern"), Behavior::isolated, false));
    pre_tokenizer.steps_.push_back(std::make_shared<ByteChars>());
    return pre_tokenizer;
}

void PreTokenizer::add(const JsonView& json) {
    const std::string& type = json.type();
    if (steps_.size() >= max_steps) json.fail("at most " + std::to_string(max_steps) + " pre-tokenizers");
    const auto split = [&](std::string_view pattern, Behavior behavior, bool invert) {
        steps_.push_back(std::make_shared<Split>(Regex(pattern, json.file(), json.path()), behavior, invert));
    };
    if (type == "Sequence") {
        const JsonView parts = json.member("pretokenizers");
        for (std::size_t i = 0; i < parts.list().size(); ++i) add(parts.item(i));
    } else if (type == "ByteLevel") {
        if (json.member("add_prefix_space").boolean_or(true)) steps_.push_back(std::make_shared<PrefixSpace>());
        if (json.member("use_regex").boolean_or(true)) split(gpt2_pattern, Behavior::isolated, false);
        steps_.push_back(std::make_shared<ByteChars>());
    } else if (type == "Split") {
        steps_.push_back(make_split(json));
    } else if (type == "Metaspace") {
        steps_.push_back(make_metaspace(json));
    } else if (type == "Digits") {
        const bool individual = json.member("individual_digits").boolean_or(false);
        split(R"(\p{N})", individual ? Behavior::isolated : Behavior::contiguous, false);
    } else if (type == "Punctuation") {
        const JsonView behavior = json.member("behavior");
        split(R"([!-\/:-@\[-`{-~\p{P}])", behavior.is_null() ? Behavior::isolated : behavior_of(behavior), false);
    } else if (type == "Whitespace") {
        split(R"(\w+|[^\w\s]+)", Behavior::removed, true);
    } else if (type == "WhitespaceSplit") {
        split(R"(\s)", Behavior::removed, false);
    } else {
        json.member("type").fail(
            "ByteLevel, Digits, Metaspace, Punctuation, Split, Whitespace, WhitespaceSplit or Sequence");
    }
}

}  // namespace longhaul::engine
