// Translates Oniguruma syntax (its default, Ruby) to PCRE2 syntax. Character sets that differ are spelled out. Syntax
// without an equivalent is refused, because slightly wrong splits are worse than an error. The differences, found by
// comparing all characters of Unicode 14:
//   \s       White_Space; in PCRE2 also U+180E
//   \w, \b   Alphabetic, marks, decimal digits, connectors; in PCRE2 letters, numbers and _
//   \h       a hexadecimal digit; in PCRE2 horizontal space
//   \p{Han}  the script; in PCRE2 its script extensions
//   (?m)     the dot matches a newline; in PCRE2 that is (?s)
//   {1,3}+   repeats the interval; in PCRE2 a possessive interval. Likewise {2}? is an optional one, not a lazy one
//   {,2}     from 0 to 2 times; in PCRE2 10.42 these four characters
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/regex.hpp"

namespace longhaul::engine {

namespace {

constexpr std::string_view word_set = R"(\p{Alphabetic}\p{M}\p{Nd}\p{Pc})";
constexpr std::string_view hex_set = "0-9A-Fa-f";

bool compiles(const std::string& pattern) {
    int error = 0;
    std::size_t offset = 0;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    pcre2_code_free(code);
    return code != nullptr;
}

class Translator {
  public:
    Translator(std::string_view pattern, std::string_view file, std::string_view field)
        : pattern_(pattern), file_(file), field_(field) {}

    std::string run() {
        while (at_ < pattern_.size()) {
            if (in_class_) {
                class_item();
            } else {
                item();
            }
        }
        return std::move(result_);
    }

  private:
    [[noreturn]] void refuse(std::string_view what) const {
        throw InputError(file_, field_, "a pattern of the syntax known here", std::string(what));
    }

    [[nodiscard]] char peek(std::size_t offset = 0) const {
        return at_ + offset < pattern_.size() ? pattern_[at_ + offset] : '\0';
    }

    [[nodiscard]] bool starts_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }

    void copy(std::size_t num_bytes) {
        result_.append(pattern_.substr(at_, num_bytes));
        at_ += num_bytes;
    }

    void item() {
        const std::size_t start = result_.size();
        const bool goes_on = (static_cast<unsigned char>(peek()) & 0xC0U) == 0x80;  // a character of several bytes
        if (peek() != '(' && peek() != '{' && !goes_on) last_item_ = start;
        switch (peek()) {
            case '\\':
                return escape();
            case '[':
                return open_class();
            case '(':
                open_groups_.push_back(start);
                return group();
            case ')':
                return close_group();
            case '{':
                return interval();
            default:
                return copy(1);
        }
    }

    void close_group() {
        if (!open_groups_.empty()) {
            last_item_ = open_groups_.back();
            open_groups_.pop_back();
        }
        copy(1);
    }

    void open_class() {
        in_class_ = true;
        copy(1);
        if (peek() == '^') copy(1);
        if (peek() == ']') refuse("a class that begins with ]");
    }

    void class_item() {
        if (peek() == '\\') return escape();
        if (peek() == '[') refuse("a class within a class");
        if (starts_with("&&")) refuse("an intersection of classes");
        if (peek() == ']') in_class_ = false;
        copy(1);
    }

    // After an interval, + repeats it in Ruby but makes it possessive in PCRE2; after a fixed number, ? makes it
    // optional in Ruby but lazy in PCRE2. So the item and its interval become a group.
    void interval() {
        const std::size_t close = pattern_.find_first_not_of("0123456789,", at_ + 1);
        if (close == std::string_view::npos || pattern_[close] != '}') return copy(1);
        const std::string_view bounds = pattern_.substr(at_ + 1, close - at_ - 1);
        const auto num_commas = std::count(bounds.begin(), bounds.end(), ',');
        if (bounds.empty() || bounds == "," || num_commas > 1) return copy(1);
        result_.append(bounds[0] == ',' ? "{0" : "{").append(bounds).append("}");
        at_ = close + 1;
        if (peek() == '+' || (peek() == '?' && num_commas == 0)) {
            result_.insert(last_item_, "(?:");
            result_ += ')';
        }
    }

    void group() {
        if (starts_with("(*")) refuse("a verb (*");
        if (!starts_with("(?")) return copy(1);
        copy(2);
        std::size_t num_flags = 0;
        while (std::isalpha(static_cast<unsigned char>(peek(num_flags))) != 0 || peek(num_flags) == '-') ++num_flags;
        if (num_flags == 0 || (peek(num_flags) != ':' && peek(num_flags) != ')')) return;
        for (; num_flags > 0; --num_flags, ++at_) {
            const char flag = peek();
            if (std::string_view("imx-").find(flag) == std::string_view::npos) refuse("a flag other than i, m, x");
            result_ += flag == 'm' ? 's' : flag;
        }
    }

    void put_set(std::string_view set, bool negated) {
        if (in_class_ && negated) refuse("a negated set within a class");
        if (in_class_) {
            result_.append(set);
        } else {
            result_.append(negated ? "[^" : "[").append(set).append("]");
        }
    }

    void boundary(bool negated) {
        if (in_class_) {  // \b in a class is a backspace
            result_ += "\\x{8}";
            return;
        }
        const std::string word = "[" + std::string(word_set) + "]";
        result_ += negated ? "(?:(?<=" + word + ")(?=" + word + ")|(?<!" + word + ")(?!" + word + "))"
                           : "(?:(?<=" + word + ")(?!" + word + ")|(?<!" + word + ")(?=" + word + "))";
    }

    void escape() {
        const char letter = peek(1);
        switch (letter) {
            case '\0':
                refuse("a \\ at the end");
            case 'p':
            case 'P':
                return property();
            case 'u':
                return code_point();
            case 's':
                return replace("\\p{White_Space}");
            case 'S':
                return replace("\\P{White_Space}");
            case 'd':
                return replace("\\p{Nd}");
            case 'D':
                return replace("\\P{Nd}");
            case 'v':
                return replace("\\x{b}");
            case 'w':
            case 'W':
                at_ += 2;
                return put_set(word_set, letter == 'W');
            case 'h':
            case 'H':
                at_ += 2;
                return put_set(hex_set, letter == 'H');
            case 'b':
            case 'B':
                at_ += 2;
                return boundary(letter == 'B');
            default:
                // Letters with the same meaning in both syntaxes; an escaped non-letter is the character itself.
                if (std::isalpha(static_cast<unsigned char>(letter)) != 0 &&
                    std::string_view("trnfaexAzZGKRXk").find(letter) == std::string_view::npos)
                    refuse("the escape \\" + std::string(1, letter));
                return copy(2);
        }
    }

    void replace(std::string_view text) {
        at_ += 2;
        result_.append(text);
    }

    void code_point() {
        const std::string_view digits = pattern_.substr(std::min(at_ + 2, pattern_.size()), 4);
        if (digits.size() < 4 ||
            !std::all_of(digits.begin(), digits.end(), [](unsigned char c) { return std::isxdigit(c) != 0; }))
            refuse("\\u without four hexadecimal digits");
        result_.append("\\x{").append(digits).append("}");
        at_ += 6;
    }

    void property() {
        const std::size_t close = pattern_.find('}', at_);
        if (peek(2) != '{' || close == std::string_view::npos) refuse("\\p without {...}");
        std::string name(pattern_.substr(at_ + 3, close - at_ - 3));
        std::string head = pattern_.substr(at_, 3) == "\\p{" ? "\\p{" : "\\P{";
        if (!name.empty() && name[0] == '^') {
            name.erase(0, 1);
            head = head == "\\p{" ? "\\P{" : "\\p{";
        }
        at_ = close + 1;
        result_ += head + pcre_property(name) + "}";
    }

    [[nodiscard]] std::string pcre_property(const std::string& name) const {
        static constexpr std::array<std::pair<std::string_view, std::string_view>, 12> long_names{{
            {"Letter", "L"},
            {"Mark", "M"},
            {"Number", "N"},
            {"Punctuation", "P"},
            {"Symbol", "S"},
            {"Separator", "Z"},
            {"Other", "C"},
            {"Uppercase_Letter", "Lu"},
            {"Lowercase_Letter", "Ll"},
            {"Decimal_Number", "Nd"},
            {"Nonspacing_Mark", "Mn"},
            {"Space_Separator", "Zs"},
        }};
        for (const auto& [long_name, category] : long_names)
            if (name == long_name) return std::string(category);
        if (name.size() <= 2) return name;
        if (compiles("\\p{sc:" + name + "}")) return "sc:" + name;
        // Oniguruma defines the POSIX names (Alnum, Punct, ...) as its own sets. These five are the same in both.
        static constexpr std::array<std::string_view, 5> same{"Any", "Alphabetic", "White_Space", "Uppercase",
                                                              "Lowercase"};
        if (std::find(same.begin(), same.end(), name) == same.end()) refuse("the property " + in_quotes(name));
        return name;
    }

    std::string_view pattern_;
    std::string_view file_;
    std::string_view field_;
    std::size_t at_ = 0;
    bool in_class_ = false;
    std::string result_;
    std::size_t last_item_ = 0;  // where it begins in result_: what a quantifier would repeat
    std::vector<std::size_t> open_groups_;
};

}  // namespace

std::string pcre_pattern(std::string_view pattern, std::string_view file, std::string_view field) {
    constexpr std::size_t max_pattern_bytes = 65536;
    if (pattern.size() > max_pattern_bytes)
        throw InputError(file, field, "a pattern of at most " + std::to_string(max_pattern_bytes) + " bytes",
                         std::to_string(pattern.size()) + " bytes");
    return Translator(pattern, file, field).run();
}

}  // namespace longhaul::engine
