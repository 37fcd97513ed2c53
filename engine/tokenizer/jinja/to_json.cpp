// Filter tojson: json.dumps(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False), unless its
// arguments say otherwise.
#include <algorithm>

#include "engine/tokenizer/jinja/filters.hpp"
#include "engine/tokenizer/jinja/text.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine::jinja {
namespace {

class Writer {
  public:
    Writer(Runtime& runtime, const Parameters& parameters) : runtime_(runtime), output_(runtime) {
        ascii_ = parameters.truth(0);
        sort_keys_ = parameters.truth(3);
        if (parameters.has(1) && !parameters[1].is(Kind::none)) {
            indented_ = true;
            item_separator_ = ",";
            set_margin(parameters);
        }
        if (!parameters.has(2) || parameters[2].is(Kind::none)) return;
        const Values separators = items_of(runtime, parameters[2]);
        const bool texts = separators.size() == 2 && separators[0].is(Kind::text) && separators[1].is(Kind::text);
        if (!texts) runtime.fail("separators = (between items, after keys)", "something else");
        item_separator_ = separators[0].bytes();
        key_separator_ = separators[1].bytes();
    }

    Value run(const Value& value) {
        write(value, 0);
        return runtime_.text(output_.take());
    }

  private:
    void set_margin(const Parameters& parameters) {
        if (parameters[1].is(Kind::text)) {
            margin_ = parameters.text(1);
            return;
        }
        const std::int64_t blanks = std::max<std::int64_t>(parameters.integer(1, 0), 0);
        if (blanks > 1000) runtime_.fail("an indent of at most 1000", std::to_string(blanks));
        margin_.assign(static_cast<std::size_t>(blanks), ' ');
    }

    void write(const Value& value, int level) {
        switch (value.kind()) {
            case Kind::none:
                return output_.append("null");
            case Kind::boolean:
                return output_.append(value.as_bool() ? "true" : "false");
            case Kind::integer:
                return output_.append(std::to_string(value.as_integer()));
            case Kind::real:
                return output_.append(real(value.as_real()));
            case Kind::text:
                return write_text(value.bytes());
            case Kind::list:
            case Kind::tuple:
                return write_list(value.as_sequence().items, level);
            case Kind::dict:
                return write_dict(value, level);
            default:
                runtime_.refuse("a value that JSON has", value);
        }
    }

    static std::string real(double value) {
        std::string text = real_text(value);
        if (text == "nan") return "NaN";
        if (text.ends_with("inf")) return text.front() == '-' ? "-Infinity" : "Infinity";
        return text;
    }

    void write_text(std::string_view text) {
        constexpr std::string_view short_escapes = "\"\\\n\r\t\b\f";
        constexpr std::string_view letters = "\"\\nrtbf";
        std::string result = "\"";
        for (const std::string_view character : characters_of(text)) {
            const std::size_t index = short_escapes.find(character.front());
            const char32_t code = unicode::first_char(character);
            if (index != std::string_view::npos) {
                result.append("\\").append(1, letters[index]);
            } else if (code < 0x20 || (ascii_ && code >= 0x7F + 1)) {
                append_code(code, result);
            } else {
                result += character;
            }
        }
        output_.append(result + "\"");
    }

    static void append_code(char32_t code, std::string& result) {
        constexpr std::string_view hex = "0123456789abcdef";
        if (code >= 0x10000) {
            append_code(0xD800 + ((code - 0x10000) >> 10), result);
            append_code(0xDC00 + ((code - 0x10000) & 0x3FF), result);
            return;
        }
        result += "\\u";
        for (int shift = 12; shift >= 0; shift -= 4) result += hex[(code >> shift) & 15];
    }

    void write_line(int level) {
        if (!indented_) return;
        output_.append("\n");
        for (int i = 0; i < level; ++i) output_.append(margin_);
    }

    void write_list(const Values& items, int level) {
        output_.append("[");
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (i > 0) output_.append(item_separator_);
            write_line(level + 1);
            write(items[i], level + 1);
        }
        if (!items.empty()) write_line(level);
        output_.append("]");
    }

    void write_dict(const Value& dict, int level) {
        std::vector<std::pair<Value, Value>> items = dict.as_dict().items;
        if (sort_keys_)
            std::stable_sort(items.begin(), items.end(),
                             [&](const auto& a, const auto& b) { return less(runtime_, a.first, b.first); });
        output_.append("{");
        for (std::size_t i = 0; i < items.size(); ++i) {
            if (i > 0) output_.append(item_separator_);
            write_line(level + 1);
            write_key(items[i].first);
            output_.append(key_separator_);
            write(items[i].second, level + 1);
        }
        if (!items.empty()) write_line(level);
        output_.append("}");
    }

    void write_key(const Value& key) {
        if (key.is(Kind::text)) return write_text(key.bytes());
        if (!key.is_number() && !key.is(Kind::none)) runtime_.refuse("a key that JSON has", key);
        output_.append("\"");
        write(key, 0);
        output_.append("\"");
    }

    Runtime& runtime_;
    Output output_;
    bool ascii_ = false, sort_keys_ = false, indented_ = false;
    std::string margin_, item_separator_ = ", ", key_separator_ = ": ";
};

}  // namespace

Value to_json(Runtime& runtime, const Value& input, const Arguments& arguments) {
    const Parameters parameters(runtime, arguments, {"ensure_ascii", "indent", "separators", "sort_keys"});
    return Writer(runtime, parameters).run(input);
}

}  // namespace longhaul::engine::jinja
