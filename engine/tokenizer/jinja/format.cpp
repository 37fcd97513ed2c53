// Formats of strings: the % operator, and the method format.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include "engine/json.hpp"
#include "engine/tokenizer/jinja/operations.hpp"

namespace longhaul::engine::jinja {
namespace {

/// One conversion of a format: %-08.3f
struct Conversion {
    std::string name;  ///< %(name)s
    bool has_name = false;
    std::string flags;
    int width = 0, precision = -1;
    char letter = 0;
};

/// format % arguments
class PercentFormatter {
  public:
    PercentFormatter(Runtime& runtime, std::string_view format, const Value& arguments)
        : runtime_(runtime), rest_(format), arguments_(arguments) {}

    std::string run() {
        while (!rest_.empty()) {
            const std::size_t percent = std::min(rest_.find('%'), rest_.size());
            result_ += rest_.substr(0, percent);
            rest_.remove_prefix(percent);
            if (!rest_.empty()) convert(read());
            runtime_.check_text_bytes(result_.size());
            runtime_.work(percent);
        }
        const bool one = !arguments_.is(Kind::tuple);
        const std::size_t count = one ? 1 : arguments_.as_sequence().items.size();
        if (used_ < count && !(one && arguments_.is(Kind::dict)) && !(one && arguments_.is(Kind::list)))
            runtime_.fail("a conversion for each argument", "more arguments");
        return std::move(result_);
    }

  private:
    Conversion read() {
        Conversion conversion;
        rest_.remove_prefix(1);
        if (rest_.starts_with('(')) {
            const std::size_t end = rest_.find(')');
            if (end == std::string_view::npos) runtime_.fail("a ) after the name of an argument", "none");
            conversion.has_name = true;
            conversion.name = rest_.substr(1, end - 1);
            rest_.remove_prefix(end + 1);
        }
        while (!rest_.empty() && std::string_view("-+ 0").find(rest_.front()) != std::string_view::npos) {
            conversion.flags += rest_.front();
            rest_.remove_prefix(1);
        }
        conversion.width = read_number();
        if (rest_.starts_with('.')) {
            rest_.remove_prefix(1);
            conversion.precision = read_number();
        }
        if (rest_.empty()) runtime_.fail("a letter after %", "the end of the format");
        conversion.letter = rest_.front();
        rest_.remove_prefix(1);
        return conversion;
    }

    int read_number() {
        int number = 0;
        while (!rest_.empty() && rest_.front() >= '0' && rest_.front() <= '9') {
            number = number * 10 + (rest_.front() - '0');
            rest_.remove_prefix(1);
            if (number > 1000) runtime_.fail("a width of at most 1000", std::to_string(number));
        }
        return number;
    }

    Value argument(const Conversion& conversion) {
        if (conversion.has_name) {
            if (!arguments_.is(Kind::dict)) runtime_.refuse("a dict for arguments with names", arguments_);
            const Value* found = find_key(runtime_, arguments_.as_dict(), Value::text(conversion.name));
            if (found == nullptr) runtime_.fail("an argument '" + printable(conversion.name) + "'", "none");
            return *found;
        }
        if (!arguments_.is(Kind::tuple)) {
            if (used_++ > 0) runtime_.fail("an argument for each conversion", "fewer");
            return arguments_;
        }
        const Values& items = arguments_.as_sequence().items;
        if (used_ == items.size()) runtime_.fail("an argument for each conversion", "fewer");
        return items[used_++];
    }

    void convert(const Conversion& conversion) {
        if (conversion.letter == '%') {
            result_ += '%';
            return;
        }
        const Value value = argument(conversion);
        switch (conversion.letter) {
            case 's':
                return pad(cut(text_of(runtime_, value), conversion), conversion);
            case 'r':
                return pad(cut(repr_of(runtime_, value), conversion), conversion);
            case 'd':
            case 'i':
            case 'x':
            case 'X':
            case 'o':
                return integer(value, conversion);
            case 'f':
            case 'F':
            case 'e':
            case 'g':
                return real(value, conversion);
            default:
                runtime_.fail("a conversion %s, %r, %d, %x, %o, %f, %e or %g",
                              "'%" + printable(std::string(1, conversion.letter)) + "'");
        }
    }

    static std::string cut(std::string text, const Conversion& conversion) {
        if (conversion.precision >= 0) text.resize(offset_of_char(text, conversion.precision));
        return text;
    }

    void pad(const std::string& text, const Conversion& conversion) {
        const std::int64_t missing = conversion.width - num_chars(text);
        const std::string blanks(static_cast<std::size_t>(std::max<std::int64_t>(missing, 0)), ' ');
        const bool left = conversion.flags.find('-') != std::string::npos;
        result_ += left ? text + blanks : blanks + text;
    }

    void integer(const Value& value, const Conversion& conversion) {
        if (!value.is_number()) runtime_.refuse("a number to format", value);
        const bool decimal = conversion.letter == 'd' || conversion.letter == 'i';
        const double real = value.as_real();
        if (!value.is_integer() && (!decimal || !(std::abs(real) < 9e18)))
            runtime_.refuse("an integer of 64 bits to format", value);
        const std::int64_t number = value.is_integer() ? value.as_integer() : static_cast<std::int64_t>(real);
        if (!decimal && number < 0) runtime_.fail("a number that is not negative", std::to_string(number));
        const std::string format = "%" + conversion.flags + "*.*ll" + std::string(1, decimal ? 'd' : conversion.letter);
        print(format, conversion, static_cast<long long>(number));
    }

    void real(const Value& value, const Conversion& conversion) {
        if (!value.is_number()) runtime_.refuse("a number to format", value);
        print("%" + conversion.flags + "*.*" + std::string(1, conversion.letter), conversion, value.as_real());
    }

    template <class Number>
    void print(const std::string& format, const Conversion& conversion, Number number) {
        std::string text(2500, '\0');  // a width, a precision of at most 1000, and 309 digits before the point
        const int length =
            std::snprintf(text.data(), text.size(), format.c_str(), conversion.width, conversion.precision, number);
        text.resize(static_cast<std::size_t>(std::max(length, 0)));
        result_ += text;
    }

    Runtime& runtime_;
    std::string_view rest_;
    const Value& arguments_;
    std::size_t used_ = 0;
    std::string result_;
};

/// The part of a replacement field after the colon: [[fill]align][0][width][.precision][type]
struct Spec {
    std::string fill = " ";
    char align = 0;  ///< 0: left for texts, right for numbers
    int width = 0, precision = -1;
    char type = 0;
};

/// format.format(arguments)
class BraceFormatter {
  public:
    BraceFormatter(Runtime& runtime, std::string_view format, const Arguments& arguments)
        : runtime_(runtime), rest_(format), arguments_(arguments) {}

    std::string run() {
        while (!rest_.empty()) {
            const std::size_t brace = std::min(rest_.find_first_of("{}"), rest_.size());
            result_ += rest_.substr(0, brace);
            rest_.remove_prefix(brace);
            runtime_.check_text_bytes(result_.size());
            runtime_.work(brace);
            if (rest_.empty()) break;
            const char c = rest_.front();
            if (rest_.size() > 1 && rest_[1] == c) {
                result_ += c;
                rest_.remove_prefix(2);
            } else {
                if (c == '}') runtime_.fail("a '{' before '}'", "a single '}'");
                rest_.remove_prefix(1);
                replace_field();
            }
        }
        return std::move(result_);
    }

  private:
    void replace_field() {
        const std::size_t end = rest_.find('}');
        if (end == std::string_view::npos) runtime_.fail("a '}' after '{'", "none");
        std::string_view field = rest_.substr(0, end);
        rest_.remove_prefix(end + 1);
        if (field.find('{') != std::string_view::npos) runtime_.fail("a field without fields in it", "a nested field");
        const std::size_t colon = std::min(field.find(':'), field.size());
        const std::string_view spec = field.substr(std::min(colon + 1, field.size()));
        field = field.substr(0, colon);
        const std::size_t mark = field.find('!');
        const std::string_view conversion =
            mark == std::string_view::npos ? std::string_view() : field.substr(mark + 1);
        Value value = lookup(field.substr(0, mark));
        if (!conversion.empty() && conversion != "s" && conversion != "r")
            runtime_.fail("conversion !s or !r", "'!" + printable(conversion) + "'");
        if (conversion == "r") value = runtime_.text(repr_of(runtime_, value));
        if (conversion == "s") value = runtime_.text(text_of(runtime_, value));
        append(value, parse(spec));
    }

    /// name.attribute[index]
    Value lookup(std::string_view path) {
        const std::size_t end = std::min(path.find_first_of(".["), path.size());
        Value value = argument(path.substr(0, end));
        path.remove_prefix(end);
        while (!path.empty()) {
            const bool is_index = path.front() == '[';
            path.remove_prefix(1);
            const std::size_t stop = std::min(path.find_first_of(is_index ? "]" : ".["), path.size());
            if (stop == 0 || (is_index && stop == path.size())) runtime_.fail("a name or index", "none");
            const std::string_view word = path.substr(0, stop);
            std::int64_t index = 0;
            const bool number = is_index && is_number(word, index);
            value = number     ? item_of(runtime_, value, Value::integer(index))
                    : is_index ? item_of(runtime_, value, runtime_.text(std::string(word)))
                               : attribute_of(runtime_, value, word);
            path.remove_prefix(stop + (is_index ? 1 : 0));
        }
        return value;
    }

    static bool is_number(std::string_view word, std::int64_t& number) {
        const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
        return error == std::errc() && end == word.data() + word.size() && word.front() != '-';
    }

    Value argument(std::string_view name) {
        std::int64_t index = 0;
        const bool number = name.empty() || is_number(name, index);
        if (name.empty()) index = next_++;
        if (number) {
            if (index >= std::ssize(arguments_.positional))
                runtime_.fail("an argument for each field", std::to_string(arguments_.positional.size()));
            return arguments_.positional[static_cast<std::size_t>(index)];
        }
        for (const auto& [known, value] : arguments_.keyword) {
            if (known == name) return value;
        }
        runtime_.fail("an argument '" + printable(name) + "'", "none");
    }

    Spec parse(std::string_view text) {
        Spec spec;
        const std::string_view whole = text;
        constexpr std::string_view aligns = "<>^";
        const std::size_t first = offset_of_char(text, 1);
        if (first < text.size() && aligns.find(text[first]) != std::string_view::npos) {
            spec.fill = text.substr(0, first);
            text.remove_prefix(first);
        }
        if (!text.empty() && aligns.find(text.front()) != std::string_view::npos) {
            spec.align = text.front();
            text.remove_prefix(1);
        }
        spec.width = take_number(text, 0);
        if (text.starts_with('.')) {
            text.remove_prefix(1);
            spec.precision = take_number(text, -1);
        }
        if (text.size() == 1 && std::string_view("sdf").find(text.front()) != std::string_view::npos) {
            spec.type = text.front();
            text.remove_prefix(1);
        }
        if (!text.empty() || (spec.width > 0 && whole.find('0') == 0))
            runtime_.fail("a format such as <10, >6.2f or d", "'" + printable(whole) + "'");
        return spec;
    }

    int take_number(std::string_view& text, int fallback) {
        int number = fallback;
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
        if (error == std::errc::result_out_of_range || number > 1000) runtime_.fail("a width of at most 1000", "more");
        text.remove_prefix(static_cast<std::size_t>(end - text.data()));
        return number;
    }

    void append(const Value& value, const Spec& spec) {
        const bool number = value.is(Kind::integer) || value.is(Kind::real);
        const bool fits = spec.type == 0 || (spec.type == 's' && value.is(Kind::text)) ||
                          (spec.type == 'd' && value.is_integer()) || (spec.type == 'f' && value.is_number());
        const bool plain = spec.width == 0 && spec.precision < 0 && spec.type == 0 && spec.align == 0;
        if (!plain &&
            (!fits || (!number && !value.is(Kind::text)) || (number && spec.precision >= 0 && spec.type != 'f')))
            runtime_.refuse("a value that this format takes", value);
        std::string text = spec.type == 'f' ? fixed(value.as_real(), spec.precision) : text_of(runtime_, value);
        if (!number && spec.precision >= 0) text.resize(offset_of_char(text, spec.precision));
        const std::int64_t missing = std::max<std::int64_t>(spec.width - num_chars(text), 0);
        const char align = spec.align != 0 ? spec.align : number ? '>' : '<';
        const std::int64_t left = align == '<' ? 0 : align == '>' ? missing : missing / 2;
        for (std::int64_t i = 0; i < left; ++i) result_ += spec.fill;
        result_ += text;
        for (std::int64_t i = left; i < missing; ++i) result_ += spec.fill;
    }

    static std::string fixed(double value, int precision) {
        std::string text(1400, '\0');
        const int length = std::snprintf(text.data(), text.size(), "%.*f", precision < 0 ? 6 : precision, value);
        text.resize(static_cast<std::size_t>(std::max(length, 0)));
        return text;
    }

    Runtime& runtime_;
    std::string_view rest_;
    const Arguments& arguments_;
    std::int64_t next_ = 0;
    std::string result_;
};

}  // namespace

std::string formatted(Runtime& runtime, std::string_view format, const Value& arguments) {
    return PercentFormatter(runtime, format, arguments).run();
}

std::string formatted(Runtime& runtime, std::string_view format, const Arguments& arguments) {
    return BraceFormatter(runtime, format, arguments).run();
}

}  // namespace longhaul::engine::jinja
