#include "engine/tokenizer/jinja/lexer.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdio>
#include <cstdlib>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/jinja/text.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine::jinja {
namespace {

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_word_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

/// The source with \n for every kind of line break, without one at its end.
std::string with_plain_newlines(std::string_view source) {
    std::string text;
    text.reserve(source.size());
    for (std::size_t i = 0; i < source.size(); ++i) {
        if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
        text += source[i] == '\r' ? '\n' : source[i];
    }
    if (text.ends_with('\n')) text.pop_back();
    return text;
}

class Lexer {
  public:
    Lexer(std::string_view source, std::string_view file) : source_(source), file_(file) {}

    std::vector<Token> run() {
        while (at_ < source_.size()) read_data();
        add(TokenKind::end, "");
        return std::move(tokens_);
    }

  private:
    [[noreturn]] void fail(std::string_view expected, std::string_view got) const {
        fail_at(file_, line_, "", expected, got);
    }
    [[nodiscard]] bool sees(std::string_view text) const { return source_.substr(at_).starts_with(text); }
    void skip(std::size_t num_bytes) {
        line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                             source_.begin() + static_cast<std::ptrdiff_t>(at_ + num_bytes), '\n'));
        at_ += num_bytes;
        line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
    }
    void skip_spaces() { skip(leading_spaces(source_.substr(at_))); }
    Token& add(TokenKind kind, std::string_view word) {
        tokens_.push_back({.kind = kind, .line = line_, .word = std::string(word)});
        return tokens_.back();
    }

    /// Text up to the next tag or the end, then the tag.
    void read_data() {
        std::size_t tag = at_;
        do {
            tag = source_.find('{', tag);
            if (tag == std::string_view::npos || tag + 1 == source_.size()) break;
        } while (std::string_view("{%#").find(source_[tag + 1]) == std::string_view::npos && ++tag > 0);
        if (tag == std::string_view::npos || tag + 1 == source_.size()) {
            add(TokenKind::data, source_.substr(at_));
            return skip(source_.size() - at_);
        }
        const char kind = source_[tag + 1];
        const char sign = tag + 2 < source_.size() ? source_[tag + 2] : ' ';
        add_data(source_.substr(at_, tag - at_), sign, kind != '{');
        skip(tag - at_ + 2);
        if (sign == '-' || sign == '+') skip(1);
        if (kind == '#') return skip_comment();
        if (kind == '%' && skip_raw_tag()) return read_raw();
        add(kind == '{' ? TokenKind::print_begin : TokenKind::block_begin, "");
        read_tag(kind == '{');
    }

    /// Adds text that stands before a tag with the sign `sign`. Only before blocks and comments the blanks at the
    /// beginning of their line are removed.
    void add_data(std::string_view text, char sign, bool strips_line) {
        if (sign == '-') {
            text = stripped_right(text);
        } else if (sign != '+' && strips_line) {
            const std::size_t newline = text.rfind('\n');
            const std::size_t line = newline == std::string_view::npos ? 0 : newline + 1;
            const bool at_line_start = newline != std::string_view::npos || line_starting_;
            if (at_line_start && leading_spaces(text.substr(line)) == text.size() - line) text = text.substr(0, line);
        }
        if (!text.empty()) add(TokenKind::data, text);
    }

    /// Skips the end of a tag if it is here: "%}", "+%}" or "-%}" with what it removes.
    bool skip_end(std::string_view closing, bool trims_newline) {
        const bool minus = sees("-") && source_.substr(at_ + 1).starts_with(closing);
        const bool plus = trims_newline && sees("+") && source_.substr(at_ + 1).starts_with(closing);
        if (!minus && !plus && !sees(closing)) return false;
        skip(closing.size() + (minus || plus ? 1 : 0));
        if (minus) skip_spaces();
        if (!minus && !plus && trims_newline && sees("\n")) skip(1);
        return true;
    }

    void skip_comment() {
        while (at_ < source_.size()) {
            if (skip_end("#}", true)) return;
            skip(1);
        }
        fail("the end of a comment: #}", "the end of the template");
    }

    /// Skips "raw %}" if it is here.
    bool skip_raw_tag() {
        std::string_view rest = source_.substr(at_);
        rest.remove_prefix(leading_spaces(rest));
        if (!rest.starts_with("raw")) return false;
        rest.remove_prefix(3);
        rest.remove_prefix(leading_spaces(rest));
        if (!rest.starts_with("%}") && !rest.starts_with("-%}")) return false;
        skip(source_.size() - at_ - rest.size());
        return skip_end("%}", false);
    }

    void read_raw() {
        const std::size_t begin = at_;
        for (std::size_t tag = source_.find("{%", at_); tag != std::string_view::npos;
             tag = source_.find("{%", tag + 1)) {
            std::string_view rest = source_.substr(tag + 2);
            const char sign = rest.empty() ? ' ' : rest.front();
            if (sign == '-' || sign == '+') rest.remove_prefix(1);
            rest.remove_prefix(leading_spaces(rest));
            if (!rest.starts_with("endraw")) continue;
            rest.remove_prefix(6);
            rest.remove_prefix(leading_spaces(rest));
            if (!rest.starts_with("%}") && !rest.starts_with("-%}") && !rest.starts_with("+%}")) continue;
            add_data(source_.substr(begin, tag - begin), sign, true);
            skip(source_.size() - at_ - rest.size());
            skip_end("%}", true);
            return;
        }
        fail("the end of a raw block: {% endraw %}", "the end of the template");
    }

    void read_tag(bool print) {
        std::string open;  // brackets that are open; within them "}}" is no end
        for (;;) {
            skip_spaces();
            if (at_ == source_.size())
                fail(print ? "the end of a print statement: }}" : "the end of a block: %}", "the end of the template");
            if (open.empty() && skip_tag_end(print)) return;
            const char c = source_[at_];
            if (is_digit(c)) {
                read_number();
            } else if (is_word_char(c)) {
                read_name();
            } else if (c == '"' || c == '\'') {
                read_text();
            } else {
                read_symbol(open);
            }
        }
    }

    bool skip_tag_end(bool print) {
        const int line = line_;
        if (!skip_end(print ? "}}" : "%}", !print)) return false;
        add(print ? TokenKind::print_end : TokenKind::block_end, "").line = line;
        return true;
    }

    void read_name() {
        std::size_t length = 1;
        while (at_ + length < source_.size() && is_word_char(source_[at_ + length])) ++length;
        add(TokenKind::name, source_.substr(at_, length));
        skip(length);
    }

    /// Length of digits, with single underscores between them, at `from`; 0 if there are none.
    [[nodiscard]] std::size_t digits_at(std::size_t from) const {
        std::size_t end = from;
        while (end < source_.size() &&
               (is_digit(source_[end]) || (end > from && source_[end] == '_' && end + 1 < source_.size() &&
                                           is_digit(source_[end + 1]) && source_[end - 1] != '_')))
            ++end;
        return end - from;
    }

    [[nodiscard]] std::size_t real_length() const {
        if (at_ > 0 && source_[at_ - 1] == '.') return 0;  // the 0 of x.0.1
        std::size_t length = digits_at(at_);
        bool is_real = false;
        if (at_ + length < source_.size() && source_[at_ + length] == '.' && digits_at(at_ + length + 1) > 0) {
            length += 1 + digits_at(at_ + length + 1);
            is_real = true;
        }
        std::size_t e = at_ + length;
        if (e < source_.size() && (source_[e] == 'e' || source_[e] == 'E')) {
            e += e + 1 < source_.size() && (source_[e + 1] == '+' || source_[e + 1] == '-') ? 2 : 1;
            if (digits_at(e) > 0) return e + digits_at(e) - at_;
        }
        return is_real ? length : 0;
    }

    void read_number() {
        if (const std::size_t length = real_length(); length > 0) {
            std::string digits(source_.substr(at_, length));
            std::erase(digits, '_');
            add(TokenKind::real, "").real = std::strtod(digits.c_str(), nullptr);
            return skip(length);
        }
        int base = 10;
        if (source_[at_] == '0' && at_ + 2 < source_.size()) {
            const char letter = static_cast<char>(source_[at_ + 1] | 0x20);
            const int other = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 10;
            if (other != 10 && digit_value(source_[at_ + 2]) < other) base = other;
        }
        read_integer(base);
    }

    static int digit_value(char c) {
        if (is_digit(c)) return c - '0';
        const char lower = static_cast<char>(c | 0x20);
        return lower >= 'a' && lower <= 'z' ? lower - 'a' + 10 : 99;
    }

    void read_integer(int base) {
        std::size_t end = at_ + (base == 10 ? 0 : 2);
        const bool zeros_only = base == 10 && source_[at_] == '0';  // 012 is 0, then 12
        std::string digits;
        while (end < source_.size() && digit_value(source_[end]) < (zeros_only ? 1 : base)) {
            digits += source_[end++];
            if (end + 1 < source_.size() && source_[end] == '_' && digit_value(source_[end + 1]) < base) ++end;
        }
        Token& token = add(TokenKind::integer, "");
        const auto result = std::from_chars(digits.data(), digits.data() + digits.size(), token.integer, base);
        if (result.ec != std::errc()) fail("an integer of 64 bits", printable(digits));
        skip(end - at_);
    }

    void read_symbol(std::string& open) {
        static constexpr std::array<std::string_view, 7> pairs{"//", "**", "==", "!=", ">=", "<=", ""};
        std::string_view word = source_.substr(at_, 1);
        for (const std::string_view pair : pairs) {
            if (!pair.empty() && sees(pair)) word = pair;
        }
        const char c = word.front();
        if (word.size() == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(c) == std::string_view::npos)
            fail("a name, number, string or operator", '\'' + printable(first_character()) + '\'');
        if (word.size() == 1) track_bracket(c, open);
        add(TokenKind::symbol, word);
        skip(word.size());
    }

    [[nodiscard]] std::string_view first_character() const {
        return source_.substr(at_, unicode::char_bytes(source_[at_]));
    }

    void track_bracket(char c, std::string& open) const {
        const std::size_t opening = std::string_view("([{").find(c);
        if (opening != std::string_view::npos) open += ")]}"[opening];
        if (std::string_view(")]}").find(c) == std::string_view::npos) return;
        if (open.empty() || open.back() != c)
            fail(open.empty() ? "no closing bracket here" : std::string("'") + open.back() + "'",
                 std::string("'") + c + "'");
        open.pop_back();
    }

    void read_text() {
        const char quote = source_[at_];
        const int line = line_;
        std::size_t at = at_ + 1;
        std::string text;
        while (at < source_.size() && source_[at] != quote) {
            if (source_[at] != '\\' || at + 1 == source_.size()) {
                text += source_[at++];
            } else {
                at += append_escape(source_.substr(at), text);
            }
        }
        if (at >= source_.size()) fail("the end of a string", "the end of the template");
        add(TokenKind::text, text).line = line;
        skip(at + 1 - at_);
    }

    /// Appends what the escape at the beginning of `text` stands for in Python. Returns its length.
    std::size_t append_escape(std::string_view text, std::string& result) const {
        const char letter = text[1];
        static constexpr std::string_view letters = "\n\\'\"abfnrtv";
        static constexpr std::array<std::string_view, 11> meanings{"",   "\\", "'",  "\"", "\a", "\b",
                                                                   "\f", "\n", "\r", "\t", "\v"};
        if (const std::size_t index = letters.find(letter); index != std::string_view::npos) {
            result += meanings[index];
            return 2;
        }
        if (letter >= '0' && letter <= '7') return append_octal(text, result);
        const std::size_t count = letter == 'x' ? 2 : letter == 'u' ? 4 : letter == 'U' ? 8 : 0;
        if (count > 0) return append_hexadecimal(text, count, result);
        if (letter == 'N') fail("a character written as itself or by its number", "\\N");
        if (static_cast<unsigned char>(letter) >= 0x80) return append_not_ascii(text, result);
        result.append(text.substr(0, 2));
        return 2;
    }

    static std::size_t append_octal(std::string_view text, std::string& result) {
        char32_t code = 0;
        std::size_t length = 1;
        while (length < 4 && length < text.size() && text[length] >= '0' && text[length] <= '7')
            code = code * 8 + static_cast<char32_t>(text[length++] - '0');
        unicode::append_char(code, result);
        return length;
    }

    std::size_t append_hexadecimal(std::string_view text, std::size_t count, std::string& result) const {
        std::uint32_t code = 0;
        const std::string_view digits = text.substr(2, count);
        const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
        if (digits.size() != count || error != std::errc() || end != digits.data() + count || code > 0x10FFFF ||
            (code >= 0xD800 && code < 0xE000))
            fail("an escape with the " + std::to_string(count) + " digits of a character",
                 printable(text.substr(0, count + 2)));
        unicode::append_char(code, result);
        return count + 2;
    }

    /// A backslash before a character that is not ASCII: jinja2 turns the character into an escape, and Python then
    /// reads the two backslashes as one.
    static std::size_t append_not_ascii(std::string_view text, std::string& result) {
        const char32_t code = unicode::first_char(text.substr(1));
        std::array<char, 16> escape{};
        const char* format = code < 0x100 ? "\\x%02x" : code < 0x10000 ? "\\u%04x" : "\\U%08x";
        std::snprintf(escape.data(), escape.size(), format, static_cast<unsigned>(code));
        result += escape.data();
        return 1 + unicode::char_bytes(text[1]);
    }

    std::string_view source_;
    std::string_view file_;
    std::size_t at_ = 0;
    int line_ = 1;
    bool line_starting_ = true;
    std::vector<Token> tokens_;
};

}  // namespace

void fail_at(std::string_view file, int line, std::string_view construct, std::string_view expected,
             std::string_view got) {
    throw InputError(std::string(file) + ":" + std::to_string(line), construct, expected, got);
}

std::vector<Token> tokenize(std::string_view source, std::string_view file) {
    if (!unicode::is_utf8(source)) throw InputError(file, "", "UTF-8 text", "another encoding");
    const std::string text = with_plain_newlines(source);
    return Lexer(text, file).run();
}

}  // namespace longhaul::engine::jinja
