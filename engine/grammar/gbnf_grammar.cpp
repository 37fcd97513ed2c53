#include "engine/grammar/gbnf_grammar.hpp"

#include <algorithm>
#include <cctype>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/grammar/output_grammar.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

using Piece = GrammarBuilder::Piece;

constexpr int max_nested_groups = 256;  // one within the other

/// Recursive descent. In the outermost alternatives of a rule a line end ends the rule.
class GbnfParser {
  public:
    GbnfParser(GrammarBuilder& builder, std::string_view text) : builder_(builder), text_(text) {
        if (!unicode::is_utf8(text)) throw BadFormat{"it is not UTF-8"};
    }

    Piece parse() {
        Rule& root = rule_named("root");
        take("\xEF\xBB\xBF");  // a byte order mark
        skip_space(true);
        while (!at_end()) rule();
        if (!root.is_defined) throw BadFormat{"it has no rule root"};
        for (const auto& [name, rule] : rules_) {
            at_ = rule.first_use;
            if (!rule.is_defined) refuse("no rule " + name);
        }
        const std::optional<std::int32_t> recursive = builder_.left_recursive_rule();
        for (const auto& [name, rule] : rules_) {
            at_ = rule.defined_at;
            if (recursive == rule.number) refuse("rule " + name + " can begin with itself");
        }
        return builder_.call(root.number);
    }

  private:
    struct Rule {
        std::int32_t number = 0;
        std::size_t first_use = 0, defined_at = 0;
        bool is_defined = false;
    };

    [[noreturn]] void refuse(const std::string& what) const {
        const auto line = 1 + std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(at_), '\n');
        throw BadFormat{"line " + std::to_string(line) + ": " + what};
    }

    [[nodiscard]] bool at_end() const { return at_ == text_.size(); }
    [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
    [[nodiscard]] bool at_line_end() const { return peek() == '\n' || peek() == '\r'; }
    bool take(std::string_view bytes) {
        if (!text_.substr(at_).starts_with(bytes)) return false;
        at_ += bytes.size();
        return true;
    }
    char32_t take_character() {
        if (at_end()) refuse("it ends too early");
        const std::string_view rest = text_.substr(at_);
        at_ += unicode::char_bytes(rest.front());
        return unicode::first_char(rest);
    }

    static std::string quoted(char32_t c, const std::string& before) {
        std::string text = "'" + before;
        unicode::append_char(c, text);
        return text + "'";
    }

    /// Blanks and comments, with `line_ends` those too.
    void skip_space(bool line_ends) {
        while (!at_end()) {
            if (peek() == '#')
                at_ = std::min(text_.find_first_of("\r\n", at_), text_.size());
            else if (peek() == ' ' || peek() == '\t' || (line_ends && at_line_end()))
                ++at_;
            else
                return;
        }
    }

    static bool is_of_name(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '-' || c == '_'; }
    std::string take_name() {
        const std::size_t from = at_;
        while (is_of_name(peek())) ++at_;
        return std::string(text_.substr(from, at_ - from));
    }
    Rule& rule_named(const std::string& name) {
        const auto [found, fresh] = rules_.try_emplace(name);
        if (fresh) found->second = {.number = builder_.new_rule(), .first_use = at_};
        return found->second;
    }

    void rule() {
        const std::string name = take_name();
        if (name.empty()) refuse("expected the name of a rule");
        Rule& rule = rule_named(name);
        if (std::exchange(rule.is_defined, true)) refuse("a second rule " + name);
        rule.defined_at = at_;
        skip_space(false);
        if (!take("::=")) refuse("expected ::= behind " + name);
        skip_space(true);
        builder_.define(rule.number, alternatives(false));
        if (!at_end() && !at_line_end())
            refuse("expected a literal, class, group, name or |, got " + quoted(take_character(), ""));
        skip_space(true);
    }

    struct Element {
        Piece piece;
        std::optional<std::string> literal{};  ///< that it is
    };

    /// Literals together, as one tree: there may be thousands.
    Piece alternatives(bool in_group) {
        std::vector<Piece> ways;
        std::vector<std::string> literals;
        do {
            std::vector<Element> elements = take_elements(in_group);
            if (elements.size() == 1 && elements.front().literal) {
                literals.push_back(*std::move(elements.front().literal));
                continue;
            }
            std::vector<Piece> pieces;
            pieces.reserve(elements.size());
            for (Element& element : elements) pieces.push_back(std::move(element.piece));
            ways.push_back(GrammarBuilder::sequence(std::move(pieces)));
        } while (take_bar(in_group));
        if (!literals.empty()) ways.push_back(builder_.one_of(literals));
        return builder_.either(std::move(ways));
    }

    /// A | at the beginning of the next line goes on with the rule.
    bool take_bar(bool in_group) {
        const std::size_t before = at_;
        skip_space(true);
        if (take("|")) {
            skip_space(true);
            return true;
        }
        if (!in_group) at_ = before;
        return false;
    }

    std::vector<Element> take_elements(bool in_group) {
        std::vector<Element> elements;
        while (std::optional<Element> element = take_element()) {
            skip_space(in_group);
            if (take_quantifier(element->piece)) element->literal.reset();
            skip_space(in_group);
            if (peek() != '\0' && std::string_view("*+?{").find(peek()) != std::string_view::npos)
                refuse("a quantifier behind a quantifier");
            elements.push_back(*std::move(element));
        }
        return elements;
    }

    std::optional<Element> take_element() {
        if (take("\"")) {
            std::string bytes = literal();
            return Element{builder_.text(bytes), bytes};
        }
        if (take("[")) return Element{builder_.character(char_class())};
        if (take(".")) return Element{builder_.character(complement({}))};
        if (take("(")) return Element{group()};
        if (peek() == '<' || peek() == '!') refuse("tokens (<think>, <[42]>) are not supported");
        if (!is_of_name(peek())) return {};
        const std::size_t from = at_;
        const std::string name = take_name();
        const std::size_t behind = std::exchange(at_, from);  // where the name is first used
        const std::int32_t number = rule_named(name).number;
        at_ = behind;
        return Element{builder_.call(number)};
    }

    Piece group() {
        if (++depth_ > max_nested_groups)
            refuse("more than " + std::to_string(max_nested_groups) + " groups within each other");
        skip_space(true);
        Piece inside = alternatives(true);
        if (!take(")")) refuse("'(' without ')'");
        --depth_;
        return inside;
    }

    /// Returns false if there is none.
    bool take_quantifier(Piece& piece) {
        std::int64_t min_count = 0, max_count = -1;
        if (take("+")) {
            min_count = 1;
        } else if (take("?")) {
            max_count = 1;
        } else if (take("{")) {
            std::tie(min_count, max_count) = repeats();
        } else if (!take("*")) {
            return false;
        }
        piece = builder_.repeated(std::move(piece), min_count, max_count);
        return true;
    }

    /// Behind the '{': m}, m,}, m,n} or ,n}.
    std::pair<std::int64_t, std::int64_t> repeats() {
        skip_space(false);
        const bool has_min = peek() != ',';
        const std::int64_t min_count = has_min ? take_number() : 0;
        std::int64_t max_count = min_count;
        if (take(",")) {
            skip_space(false);
            max_count = has_min && peek() == '}' ? -1 : take_number();
        }
        if (!take("}")) refuse("'{' without '}'");
        if (max_count >= 0 && max_count < min_count) refuse("a number of repeats from large to small");
        return {min_count, max_count};
    }

    std::int64_t take_number() {
        std::int64_t value = 0;
        if (peek() < '0' || peek() > '9') refuse("no number of repeats");
        for (; peek() >= '0' && peek() <= '9'; ++at_) {
            value = 10 * value + (peek() - '0');
            if (value > GrammarBuilder::max_repeats)
                refuse("more than " + std::to_string(GrammarBuilder::max_repeats) + " repeats");
        }
        skip_space(false);
        return value;
    }

    /// Behind the opening quote.
    std::string literal() {
        std::string bytes;
        while (!take("\"")) unicode::append_char(character(), bytes);
        return bytes;
    }

    /// Behind the '['.
    CharacterRanges char_class() {
        const bool others = take("^");
        CharacterRanges ranges;
        while (!take("]")) {
            const char32_t from = character();
            char32_t to = from;
            if (peek() == '-' && text_.substr(at_ + 1, 1) != "]") {
                ++at_;
                to = character();
                if (to < from) refuse("a range from large to small");
            }
            ranges.push_back({from, to});
        }
        ranges = others ? complement(std::move(ranges)) : normalized(std::move(ranges));
        if (ranges.empty()) refuse("a class without a character");
        return ranges;
    }

    char32_t character() {
        const char32_t c = take_character();
        if (c != '\\') return c;
        switch (const char32_t kind = take_character()) {
            case 'n':
                return '\n';
            case 't':
                return '\t';
            case 'r':
                return '\r';
            case 'x':
                return hex(2);
            case 'u':
                return hex(4);
            case 'U':
                return hex(8);
            default:
                if (kind > 0x7F || std::isalnum(static_cast<int>(kind)) != 0)
                    refuse(quoted(kind, "\\") + " is not supported");
                return kind;
        }
    }

    char32_t hex(int num_digits) {
        char32_t value = 0;
        for (int i = 0; i < num_digits; ++i) {
            const char c = peek();
            if (std::isxdigit(static_cast<unsigned char>(c)) == 0)
                refuse(std::to_string(num_digits) + " hexadecimal digits are missing");
            value = 16 * value + static_cast<char32_t>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
            ++at_;
        }
        if (value > 0x10FFFF || (value >= 0xD800 && value <= 0xDFFF)) refuse("an escape that is no character");
        return value;
    }

    GrammarBuilder& builder_;
    std::string_view text_;
    std::size_t at_ = 0;
    int depth_ = 0;
    std::map<std::string, Rule> rules_;
};

}  // namespace

Piece gbnf_piece(GrammarBuilder& builder, std::string_view text) {
    return GbnfParser(builder, text).parse();
}

}  // namespace longhaul::engine
