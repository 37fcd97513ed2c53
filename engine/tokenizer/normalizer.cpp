#include "engine/tokenizer/normalizer.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <new>
#include <optional>
#include <span>
#include <stdexcept>

#include "engine/tokenizer/regex.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

constexpr std::string_view meta_space = "\xE2\x96\x81";  // U+2581, which SentencePiece writes for a space
constexpr std::size_t max_content_bytes = 256;           // longest text that Prepend or a match of Replace inserts
// Limit on how many times longer than the text a result may be. The growth of the steps in a Sequence multiplies; no
// real normalizer reaches this.
constexpr std::size_t max_growth = 64;

int combining_class(std::string_view character) {
    return utf8proc_get_property(static_cast<utf8proc_int32_t>(unicode::first_char(character)))->combining_class;
}

// Sorts long runs of combining marks into canonical order. utf8proc takes quadratic time for this, which would not
// finish on such runs. Every normalization form includes canonical order, so the result does not change.
void sort_long_runs_of_marks(std::string& text) {
    constexpr std::size_t min_marks = 64;
    std::vector<std::string> marks;
    for (std::size_t at = 0; at <= text.size();) {
        const std::string character = at < text.size() ? text.substr(at, unicode::char_bytes(text[at])) : std::string();
        if (!character.empty() && combining_class(character) != 0) {
            marks.push_back(character);
            at += character.size();
            continue;
        }
        if (marks.size() >= min_marks) {
            std::stable_sort(marks.begin(), marks.end(), [](const std::string& a, const std::string& b) {
                return combining_class(a) < combining_class(b);
            });
            std::string sorted;
            for (const std::string& mark : marks) sorted += mark;
            text.replace(at - sorted.size(), sorted.size(), sorted);
        }
        marks.clear();
        at += std::max<std::size_t>(1, character.size());
    }
}

std::string normalize_all(std::string text, utf8proc_option_t options) {
    sort_long_runs_of_marks(text);
    utf8proc_uint8_t* result = nullptr;
    const auto num_bytes = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                        static_cast<utf8proc_ssize_t>(text.size()), &result, options);
    if (num_bytes == UTF8PROC_ERROR_NOMEM) throw std::bad_alloc();
    const std::unique_ptr<utf8proc_uint8_t, decltype(&std::free)> owned(result, &std::free);
    if (num_bytes < 0) throw std::invalid_argument(utf8proc_errmsg(num_bytes));
    return {reinterpret_cast<const char*>(result), static_cast<std::size_t>(num_bytes)};
}

struct CharRange {
    char32_t first;
    char32_t last;
};

// Marks that Unicode 10 to 15 added, and three characters of Dives Akuru that compose. The tokenizers package has the
// tables of Unicode 9, where these are unassigned: they are neither reordered nor composed. Texts must give the tokens
// that the models were trained with, so these characters are left unchanged. The list was found by comparing the
// package with utf8proc.
constexpr std::array<CharRange, 39> newer_marks{{
    {0x07FD, 0x07FD},   {0x0898, 0x089F},   {0x08CA, 0x08D3},   {0x09FE, 0x09FE},   {0x0C3C, 0x0C3C},
    {0x0D3B, 0x0D3C},   {0x0EBA, 0x0EBA},   {0x1715, 0x1715},   {0x1ABF, 0x1ACE},   {0x1DF6, 0x1DFA},
    {0xA82C, 0xA82C},   {0x10D24, 0x10D27}, {0x10EAB, 0x10EAC}, {0x10EFD, 0x10EFF}, {0x10F46, 0x10F50},
    {0x10F82, 0x10F85}, {0x11070, 0x11070}, {0x1133B, 0x1133B}, {0x1145E, 0x1145E}, {0x11839, 0x1183A},
    {0x11930, 0x11930}, {0x11935, 0x11935}, {0x11938, 0x11938}, {0x1193D, 0x1193E}, {0x11943, 0x11943},
    {0x119E0, 0x119E0}, {0x11A34, 0x11A34}, {0x11A47, 0x11A47}, {0x11A99, 0x11A99}, {0x11D42, 0x11D42},
    {0x11D44, 0x11D45}, {0x11D97, 0x11D97}, {0x11F41, 0x11F42}, {0x16FF0, 0x16FF1}, {0x1E08F, 0x1E08F},
    {0x1E130, 0x1E136}, {0x1E2AE, 0x1E2AE}, {0x1E2EC, 0x1E2EF}, {0x1E4EC, 0x1E4EF},
}};

// Characters of Unicode 10 to 15 that the compatibility forms replace. Left unchanged for the same reason.
constexpr std::array<CharRange, 9> newer_variants{{
    {0x32FF, 0x32FF},
    {0xA7F2, 0xA7F4},
    {0xAB69, 0xAB69},
    {0x10781, 0x10785},
    {0x10787, 0x107B0},
    {0x107B2, 0x107BA},
    {0x1E030, 0x1E06D},
    {0x1F16C, 0x1F16C},
    {0x1FBF0, 0x1FBF9},
}};

bool is_in(std::span<const CharRange> ranges, char32_t code) {
    const auto range = std::lower_bound(ranges.begin(), ranges.end(), code,
                                        [](const CharRange& r, char32_t value) { return r.last < value; });
    return range != ranges.end() && range->first <= code;
}

bool is_newer(char32_t code) {
    return is_in(newer_marks, code) || is_in(newer_variants, code);
}

class UnicodeForm final : public Normalizer::Step {
  public:
    UnicodeForm(int options, unsigned char first_lead)
        : options_(static_cast<utf8proc_option_t>(options)), first_lead_(first_lead) {}

    // A character whose lead byte is below first_lead_ does not change and does not compose with the character before
    // it. So only runs of other characters are normalized, each together with the one preceding character that it may
    // compose with. The rest, which is most of a book, is copied.
    [[nodiscard]] std::string apply(std::string_view text) const override {
        std::string result;
        result.reserve(text.size());
        std::size_t copied = 0;
        std::size_t previous = 0;  // start of the character before `at`
        for (std::size_t at = 0; at < text.size();) {
            if (is_inert(text.substr(at))) {
                previous = at;
                at += unicode::char_bytes(text[at]);
                continue;
            }
            const bool joins = at > copied && !is_newer(unicode::first_char(text.substr(previous)));
            const std::size_t begin = joins ? previous : at;
            while (at < text.size() && !is_inert(text.substr(at))) at += unicode::char_bytes(text[at]);
            result.append(text.substr(copied, begin - copied));
            result.append(normalize_all(std::string(text.substr(begin, at - begin)), options_));
            copied = at;
        }
        return result.append(text.substr(copied));
    }

  private:
    [[nodiscard]] bool is_inert(std::string_view text) const {
        return static_cast<unsigned char>(text[0]) < first_lead_ || is_newer(unicode::first_char(text));
    }

    utf8proc_option_t options_;
    unsigned char first_lead_;
};

class Lowercase final : public Normalizer::Step {
  public:
    [[nodiscard]] std::string apply(std::string_view text) const override {
        std::string result;
        for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text[0]))) {
            const char32_t code = unicode::first_char(text);
            // U+0130 is the only character whose lower case is two characters.
            if (code == 0x130) {
                result.append("i\xCC\x87");
            } else {
                unicode::append_char(static_cast<char32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(code))),
                                     result);
            }
        }
        return result;
    }
};

class Prepend final : public Normalizer::Step {
  public:
    explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
    [[nodiscard]] std::string apply(std::string_view text) const override {
        return text.empty() ? std::string() : prefix_ + std::string(text);
    }

  private:
    std::string prefix_;
};

class ReplaceText final : public Normalizer::Step {
  public:
    ReplaceText(std::string from, std::string to) : from_(std::move(from)), to_(std::move(to)) {}
    [[nodiscard]] std::string apply(std::string_view text) const override {
        std::string result;
        result.reserve(text.size() + text.size() / 2);
        for (std::size_t at = 0;;) {
            const std::size_t found = text.find(from_, at);
            result.append(text.substr(at, found - at));
            if (found == std::string_view::npos) return result;
            result.append(to_);
            at = found + from_.size();
        }
    }

  private:
    std::string from_;
    std::string to_;
};

class ReplacePattern final : public Normalizer::Step {
  public:
    ReplacePattern(Regex regex, std::string to) : regex_(std::move(regex)), to_(std::move(to)) {}
    [[nodiscard]] std::string apply(std::string_view text) const override {
        std::string result;
        Regex::Matcher matcher(regex_);
        matcher.start(text);
        std::size_t done = 0;
        while (const auto match = matcher.next()) {
            result.append(text.substr(done, match->begin - done)).append(to_);
            done = match->end;
        }
        return result.append(text.substr(done));
    }

  private:
    Regex regex_;
    std::string to_;
};

class Strip final : public Normalizer::Step {
  public:
    Strip(bool left, bool right) : left_(left), right_(right) {}
    [[nodiscard]] std::string apply(std::string_view text) const override {
        const auto is_space_at = [&](std::size_t at) {
            return unicode::is_white_space(unicode::first_char(text.substr(at)));
        };
        while (left_ && !text.empty() && is_space_at(0)) text.remove_prefix(unicode::char_bytes(text[0]));
        while (right_ && !text.empty() && is_space_at(unicode::last_char_start(text)))
            text = text.substr(0, unicode::last_char_start(text));
        return std::string(text);
    }

  private:
    bool left_;
    bool right_;
};

// Follows the description of normalizer_spec: only U+0020 is white space. Other white space is handled by the character
// table, and the loader refuses models that have one.
class SentencePieceSpaces final : public Normalizer::Step {
  public:
    SentencePieceSpaces(bool add_prefix, bool remove_extra, bool escape)
        : add_prefix_(add_prefix), remove_extra_(remove_extra), space_(escape ? meta_space : " ") {}

    [[nodiscard]] std::string apply(std::string_view text) const override {
        if (remove_extra_) {
            const std::size_t begin = text.find_first_not_of(' ');
            if (begin == std::string_view::npos) return {};
            text = text.substr(begin, text.find_last_not_of(' ') + 1 - begin);
        }
        if (text.empty()) return {};
        std::string result;
        result.reserve(text.size() + text.size() / 2);
        if (add_prefix_) result.append(space_);
        char previous = '\0';
        for (const char c : text) {
            if (c != ' ') {
                result.push_back(c);
            } else if (!remove_extra_ || previous != ' ') {
                result.append(space_);
            }
            previous = c;
        }
        // Removes trailing U+2581 too, including those that were in the text. Leading and inner ones stay.
        while (remove_extra_ && result.ends_with(space_)) result.resize(result.size() - space_.size());
        return result;
    }

  private:
    bool add_prefix_;
    bool remove_extra_;
    std::string_view space_;
};

std::shared_ptr<const Normalizer::Step> make_replace(const JsonView& json) {
    const std::string& content = json.member("content").string();
    if (content.size() > max_content_bytes) json.member("content").fail("a text of at most 256 bytes");
    const JsonView pattern = json.member("pattern");
    if (const JsonView text = pattern.member("String"); !text.is_null()) {
        if (text.string().empty()) text.fail("a text to replace");
        return std::make_shared<ReplaceText>(text.string(), content);
    }
    const JsonView regex = pattern.member("Regex");
    if (!regex.is_string()) pattern.fail("an object with String or Regex");
    if (content.find('$') != std::string::npos) json.member("content").fail("a text without groups ($)");
    return std::make_shared<ReplacePattern>(Regex(regex.string(), json.file(), regex.path()), content);
}

// UTF-8 lead bytes: 0xCC starts U+0300, the first character that composes; 0xC2 starts U+0080, below which no character
// decomposes.
constexpr unsigned char first_composing = 0xCC;
constexpr unsigned char first_decomposing = 0xC2;

std::shared_ptr<const Normalizer::Step> make_unicode_form(std::string_view type) {
    constexpr int stable = UTF8PROC_STABLE;
    if (type == "NFC") return std::make_shared<UnicodeForm>(stable | UTF8PROC_COMPOSE, first_composing);
    if (type == "NFD") return std::make_shared<UnicodeForm>(stable | UTF8PROC_DECOMPOSE, first_decomposing);
    constexpr int compatible = stable | UTF8PROC_COMPAT;
    if (type == "NFKC") return std::make_shared<UnicodeForm>(compatible | UTF8PROC_COMPOSE, first_decomposing);
    if (type == "NFKD") return std::make_shared<UnicodeForm>(compatible | UTF8PROC_DECOMPOSE, first_decomposing);
    return nullptr;
}

}  // namespace

Normalizer Normalizer::from_json(const JsonView& json) {
    Normalizer normalizer;
    normalizer.file_ = json.file();
    if (!json.is_null()) normalizer.add(json);
    return normalizer;
}

void Normalizer::add(const JsonView& json) {
    const std::string& type = json.type();
    if (steps_.size() >= max_steps) json.fail("at most " + std::to_string(max_steps) + " normalizers");
    if (auto form = make_unicode_form(type)) {
        steps_.push_back(std::move(form));
    } else if (type == "Sequence") {
        const JsonView parts = json.member("normalizers");
        for (std::size_t i = 0; i < parts.list().size(); ++i) add(parts.item(i));
    } else if (type == "Prepend") {
        const std::string& prefix = json.member("prepend").string();
        if (prefix.size() > max_content_bytes) json.member("prepend").fail("a text of at most 256 bytes");
        steps_.push_back(std::make_shared<Prepend>(prefix));
    } else if (type == "Replace") {
        steps_.push_back(make_replace(json));
    } else if (type == "Lowercase") {
        steps_.push_back(std::make_shared<Lowercase>());
    } else if (type == "Strip") {
        steps_.push_back(std::make_shared<Strip>(json.member("strip_left").boolean_or(true),
                                                 json.member("strip_right").boolean_or(true)));
    } else {
        json.member("type").fail("NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Replace, Strip or Sequence");
    }
}

Normalizer Normalizer::nfc() {
    Normalizer normalizer;
    normalizer.steps_.push_back(make_unicode_form("NFC"));
    return normalizer;
}

Normalizer Normalizer::sentencepiece(bool add_dummy_prefix, bool remove_extra_whitespaces, bool escape_whitespaces) {
    Normalizer normalizer;
    normalizer.steps_.push_back(
        std::make_shared<SentencePieceSpaces>(add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces));
    return normalizer;
}

std::string Normalizer::apply(std::string_view text) const {
    std::string result(text);
    for (const auto& step : steps_) {
        result = step->apply(result);
        if (result.size() > max_growth * (text.size() + max_content_bytes))
            throw InputError(file_, "normalizer", "steps that keep the length of a text in bounds",
                             std::to_string(result.size()) + " bytes from " + std::to_string(text.size()));
    }
    return result;
}

void Normalizer::apply(PieceList& pieces) const {
    if (steps_.empty()) return;
    pieces.replace_each([&](const Piece& piece, const auto& append) {
        append(Piece{pieces.keep(apply(piece.text)), -1, piece.at_text_start});
    });
}

}  // namespace longhaul::engine
