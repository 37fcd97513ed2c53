#include "engine/grammar/regex_grammar.hpp"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/output_grammar.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

using Piece = GrammarBuilder::Piece;

constexpr std::size_t max_bytes = 1 << 14;
constexpr int max_groups = 64;  // one within the other

const CharacterRanges digits{{'0', '9'}};
const CharacterRanges word{{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CharacterRanges space{{'\t', '\r'}, {' ', ' '}};
/// All that some dialect counts as white space: a \S is none of them.
const CharacterRanges any_space{{'\t', '\r'},     {0x1C, ' '},      {0x85, 0x85},     {0xA0, 0xA0},
                                {0x1680, 0x1680}, {0x2000, 0x200A}, {0x2028, 0x2029}, {0x202F, 0x202F},
                                {0x205F, 0x205F}, {0x3000, 0x3000}, {0xFEFF, 0xFEFF}};
const CharacterRanges line_end{{'\n', '\n'}};
const CharacterRanges any_line_end{{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};  // those of JSON Schema's dialect

/// Recursive descent over the characters of an expression.
class Parser {
  public:
    Parser(GrammarBuilder& builder, std::string_view expression, Spelling spelling)
        : builder_(builder), spelling_(spelling), expression_(expression) {
        if (expression.size() > max_bytes) throw BadFormat{"it has more than " + std::to_string(max_bytes) + " bytes"};
        if (!unicode::is_utf8(expression)) throw BadFormat{"it is not UTF-8"};
    }

    Piece parse(bool anywhere) {
        const bool from_start = take('^') || !anywhere;
        Piece all = alternatives();
        const bool to_end = take_last_dollar() || !anywhere;
        if (!at_end()) refuse("')' without '('");
        const Piece any = builder_.repeated(character(complement({})), 0);
        std::vector<Piece> pieces;
        if (!from_start) pieces.push_back(any);
        pieces.push_back(std::move(all));
        if (!to_end) pieces.push_back(any);
        return GrammarBuilder::sequence(std::move(pieces));
    }

  private:
    [[noreturn]] void refuse(const std::string& what) const {
        throw BadFormat{"at byte " + std::to_string(at_) + ": " + what};
    }

    [[nodiscard]] bool at_end() const { return at_ == expression_.size(); }
    [[nodiscard]] char peek() const { return at_end() ? '\0' : expression_[at_]; }
    bool take(char c) {
        if (at_end() || expression_[at_] != c) return false;
        ++at_;
        return true;
    }
    bool take_last_dollar() { return at_ + 1 == expression_.size() && take('$'); }
    char32_t take_character() {
        if (at_end()) refuse("it ends too early");
        const std::string_view rest = expression_.substr(at_);
        at_ += unicode::char_bytes(rest.front());
        return unicode::first_char(rest);
    }

    Piece character(const CharacterRanges& ranges) {
        return spelling_ == Spelling::json ? json_character(builder_, ranges) : builder_.character(ranges);
    }

    Piece alternatives() {
        std::vector<Piece> ways{terms()};
        while (take('|')) ways.push_back(terms());
        return builder_.either(std::move(ways));
    }

    Piece terms() {
        std::vector<Piece> pieces;
        while (!at_end() && peek() != '|' && peek() != ')' && !(peek() == '$' && at_ + 1 == expression_.size()))
            pieces.push_back(with_quantifier(atom()));
        return GrammarBuilder::sequence(std::move(pieces));
    }

    Piece atom() {
        if (take('(')) return group();
        if (take('[')) return character(char_class());
        if (take('.')) return character(complement(spelling_ == Spelling::json ? any_line_end : line_end));
        if (take('\\')) {
            if (const auto ranges = class_escape(false)) return character(*ranges);
            const char32_t c = escaped();
            return character({{c, c}});
        }
        if (peek() == '^' || peek() == '$') refuse("^ and $ stand only at the beginning and the end");
        if (peek() == '*' || peek() == '+' || peek() == '?') refuse("nothing before a quantifier");
        const char32_t c = take_character();
        return character({{c, c}});
    }

    Piece group() {
        if (++depth_ > max_groups) refuse("more than " + std::to_string(max_groups) + " groups within each other");
        if (take('?')) {
            const bool python = take('P');
            const bool named = peek() == '<' && (python || !is_lookbehind());
            if (named)
                at_ = std::min(expression_.find('>', at_), expression_.size() - 1) + 1;
            else if (python || !take(':'))
                refuse("look-around and flags are not supported");
        }
        Piece inside = alternatives();
        if (!take(')')) refuse("'(' without ')'");
        --depth_;
        return inside;
    }

    /// Whether "(?<" begins a look-behind, not a name.
    [[nodiscard]] bool is_lookbehind() const {
        const char next = at_ + 1 < expression_.size() ? expression_[at_ + 1] : '\0';
        return next == '=' || next == '!';
    }

    Piece with_quantifier(Piece piece) {
        std::int64_t min_count = 1, max_count = 1;
        if (take('*')) {
            min_count = 0;
            max_count = -1;
        } else if (take('+')) {
            max_count = -1;
        } else if (take('?')) {
            min_count = 0;
        } else if (peek() == '{') {
            ++at_;
            min_count = number();
            max_count = take(',') ? (peek() == '}' ? -1 : number()) : min_count;
            if (!take('}')) refuse("'{' without '}'");
            if (max_count >= 0 && max_count < min_count) refuse("a number of repeats from large to small");
        } else {
            return piece;
        }
        take('?');  // as few as possible: among whole texts it changes nothing
        if (peek() == '*' || peek() == '+' || peek() == '{') refuse("a quantifier behind a quantifier");
        return builder_.repeated(piece, min_count, max_count);
    }

    std::int64_t number() {
        std::int64_t value = 0;
        if (peek() < '0' || peek() > '9') refuse("no number of repeats");
        while (peek() >= '0' && peek() <= '9') {
            value = 10 * value + (peek() - '0');
            if (value > GrammarBuilder::max_repeats)
                refuse("more than " + std::to_string(GrammarBuilder::max_repeats) + " repeats");
            ++at_;
        }
        return value;
    }

    /// \d and the like, behind the backslash. `negated`: of a class whose opposite is meant.
    std::optional<CharacterRanges> class_escape(bool negated) {
        const char kind = peek();
        std::optional<CharacterRanges> ranges;
        if (kind == 'd' || kind == 'D') ranges = digits;
        if (kind == 'w' || kind == 'W') ranges = word;
        if (kind == 's' || kind == 'S') ranges = (kind == 'S') == negated ? space : any_space;
        if (!ranges) return {};
        ++at_;
        return kind >= 'a' ? *ranges : complement(*ranges);
    }

    /// A character behind a backslash.
    char32_t escaped() {
        const char32_t c = take_character();
        switch (c) {
            case 'n':
                return '\n';
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'f':
                return '\f';
            case 'v':
                return '\v';
            case 'x':
                return hex(2);
            case 'u':
                return hex(4);
            default:
                break;
        }
        const bool is_letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
        if (is_letter) refuse("\\" + std::string(1, static_cast<char>(c)) + " is not supported");
        return c;
    }

    char32_t hex(int num_digits) {
        char32_t value = 0;
        for (int i = 0; i < num_digits; ++i) {
            const char32_t c = take_character();
            const bool is_digit = c >= '0' && c <= '9', is_letter = (c | 0x20) >= 'a' && (c | 0x20) <= 'f';
            if (!is_digit && !is_letter) refuse(std::to_string(num_digits) + " hexadecimal digits are missing");
            value = 16 * value + (is_digit ? c - '0' : (c | 0x20) - 'a' + 10);
        }
        if (value >= 0xD800 && value <= 0xDFFF) refuse("half a surrogate pair");
        return value;
    }

    /// Behind the '['.
    CharacterRanges char_class() {
        const bool others = take('^');
        CharacterRanges ranges;
        for (bool first = true; first || peek() != ']'; first = false) {
            if (at_end()) refuse("'[' without ']'");
            if (peek() == '\\' && at_ + 1 < expression_.size()) {
                ++at_;
                if (const auto escape = class_escape(others)) {
                    ranges.insert(ranges.end(), escape->begin(), escape->end());
                    continue;
                }
                --at_;
            }
            const char32_t from = class_character();
            char32_t to = from;
            if (peek() == '-' && at_ + 1 < expression_.size() && expression_[at_ + 1] != ']') {
                ++at_;
                to = class_character();
                if (to < from) refuse("a range from large to small");
            }
            ranges.push_back({from, to});
        }
        ++at_;
        ranges = others ? complement(std::move(ranges)) : normalized(std::move(ranges));
        if (ranges.empty()) refuse("a class without a character");
        return ranges;
    }

    char32_t class_character() {
        if (!take('\\')) return take_character();
        if (take('b')) return '\b';
        return escaped();
    }

    GrammarBuilder& builder_;
    Spelling spelling_;
    std::string_view expression_;
    std::size_t at_ = 0;
    int depth_ = 0;
};

}  // namespace

Piece json_character(GrammarBuilder& builder, const CharacterRanges& ranges) {
    static const CharacterRanges special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    std::vector<Piece> ways;
    CharacterRanges others = complement(ranges);
    others.insert(others.end(), special.begin(), special.end());
    if (const CharacterRanges plain = complement(others); !plain.empty()) ways.push_back(builder.character(plain));
    for (const CharacterRange range : normalized(ranges)) {
        for (char32_t c = range.first; c <= std::min<char32_t>(range.last, '\\'); ++c) {
            if (c >= 0x20 && c != '"' && c != '\\') continue;
            const std::string quoted = json_text(Json(std::string(1, static_cast<char>(c))));
            ways.push_back(builder.text(std::string_view(quoted).substr(1, quoted.size() - 2)));
        }
    }
    return builder.either(std::move(ways));
}

Piece regex_piece(GrammarBuilder& builder, std::string_view expression, Spelling spelling, bool anywhere) {
    return Parser(builder, expression, spelling).parse(anywhere);
}

}  // namespace longhaul::engine
