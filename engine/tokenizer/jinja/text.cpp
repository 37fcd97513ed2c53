#include "engine/tokenizer/jinja/text.hpp"

#include <utf8proc.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine::jinja {
namespace {

bool contains_char(std::string_view set, char32_t code) {
    for (; !set.empty(); set.remove_prefix(unicode::char_bytes(set.front()))) {
        if (unicode::first_char(set) == code) return true;
    }
    return false;
}

bool is_stripped(char32_t code, std::optional<std::string_view> characters) {
    return characters ? contains_char(*characters, code) : is_space(code);
}

bool is_line_break(char32_t code) {
    return (code >= 0xA && code <= 0xD) || (code >= 0x1C && code <= 0x1E) || code == 0x85 || code == 0x2028 ||
           code == 0x2029;
}

utf8proc_category_t category(char32_t code) {
    return utf8proc_category(static_cast<utf8proc_int32_t>(code));
}

/// Characters that have several in upper or title case (Unicode, SpecialCasing.txt).
bool has_long_upper(char32_t code) {
    static constexpr std::array<std::pair<char32_t, char32_t>, 12> ranges{{{0xDF, 0xDF},
                                                                           {0x149, 0x149},
                                                                           {0x1F0, 0x1F0},
                                                                           {0x390, 0x390},
                                                                           {0x3B0, 0x3B0},
                                                                           {0x587, 0x587},
                                                                           {0x1E96, 0x1E9A},
                                                                           {0x1F50, 0x1F56},
                                                                           {0x1F80, 0x1FAF},
                                                                           {0x1FB2, 0x1FFC},
                                                                           {0xFB00, 0xFB06},
                                                                           {0xFB13, 0xFB17}}};
    return std::any_of(ranges.begin(), ranges.end(),
                       [&](const auto& range) { return code >= range.first && code <= range.second; });
}

/// Whether the lower case is several characters (capital I with dot) or depends on its neighbours (capital sigma).
bool has_odd_lower(char32_t code) {
    return code == 0x130 || code == 0x3A3;
}

bool is_superscript_digit(char32_t code) {
    return code == 0xB2 || code == 0xB3 || code == 0xB9 || code == 0x2070 || (code >= 0x2074 && code <= 0x2079) ||
           (code >= 0x2080 && code <= 0x2089);
}

bool is_of(char32_t code, TextClass which) {
    const utf8proc_category_t kind = category(code);
    const bool alpha = kind >= UTF8PROC_CATEGORY_LU && kind <= UTF8PROC_CATEGORY_LO;
    const bool decimal = kind == UTF8PROC_CATEGORY_ND;
    const bool numeric = kind >= UTF8PROC_CATEGORY_ND && kind <= UTF8PROC_CATEGORY_NO;
    switch (which) {
        case TextClass::alpha:
            return alpha;
        case TextClass::digit:
            return decimal || is_superscript_digit(code);
        case TextClass::alnum:
            return alpha || numeric;
        case TextClass::space:
            return is_space(code);
        case TextClass::ascii:
            return code < 0x80;
        case TextClass::decimal:
            return decimal;
        case TextClass::numeric:
            return numeric;
        case TextClass::printable:
            return code == ' ' ||
                   (kind != UTF8PROC_CATEGORY_CN && (kind < UTF8PROC_CATEGORY_ZS || kind > UTF8PROC_CATEGORY_CO));
        default:
            return false;
    }
}

/// str.isupper and islower: at least one character with a case, and all such characters in this case.
bool is_in_case(std::string_view text, TextClass which) {
    bool found = false;
    for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text.front()))) {
        const utf8proc_category_t kind = category(unicode::first_char(text));
        const bool upper = kind == UTF8PROC_CATEGORY_LU;
        const bool lower = kind == UTF8PROC_CATEGORY_LL;
        if (kind == UTF8PROC_CATEGORY_LT || (which == TextClass::upper ? lower : upper)) return false;
        found = found || upper || lower;
    }
    return found;
}

std::vector<std::string_view> split_at_spaces(std::string_view text, std::int64_t max_splits) {
    std::vector<std::string_view> parts;
    for (text = stripped_left(text); !text.empty(); text = stripped_left(text)) {
        if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) == max_splits) {
            parts.push_back(text);
            break;
        }
        std::size_t end = 0;
        while (end < text.size() && !is_space(unicode::first_char(text.substr(end))))
            end += unicode::char_bytes(text[end]);
        parts.push_back(text.substr(0, end));
        text.remove_prefix(end);
    }
    return parts;
}

std::vector<std::string_view> split_right_at_spaces(std::string_view text, std::int64_t max_splits) {
    std::vector<std::string_view> parts;
    for (text = stripped_right(text); !text.empty(); text = stripped_right(text)) {
        if (max_splits >= 0 && static_cast<std::int64_t>(parts.size()) == max_splits) {
            parts.push_back(text);
            break;
        }
        std::size_t begin = text.size();
        while (begin > 0) {
            const std::size_t last = unicode::last_char_start(text.substr(0, begin));
            if (is_space(unicode::first_char(text.substr(last)))) break;
            begin = last;
        }
        parts.push_back(text.substr(begin));
        text = text.substr(0, begin);
    }
    std::reverse(parts.begin(), parts.end());
    return parts;
}

void append_escaped_char(std::string_view character, char quote, std::string& result) {
    constexpr std::string_view hex = "0123456789abcdef";
    const char32_t code = unicode::first_char(character);
    const auto append_code = [&](char letter, int digits) {
        result.append("\\").append(1, letter);
        for (int shift = 4 * (digits - 1); shift >= 0; shift -= 4) result += hex[(code >> shift) & 15];
    };
    if (character.front() == quote || code == '\\') {
        result.append("\\").append(character);
    } else if (code == '\n' || code == '\r' || code == '\t') {
        result.append(code == '\n' ? "\\n" : code == '\r' ? "\\r" : "\\t");
    } else if (is_of(code, TextClass::printable)) {
        result += character;
    } else if (code < 0x100) {
        append_code('x', 2);
    } else if (code < 0x10000) {
        append_code('u', 4);
    } else {
        append_code('U', 8);
    }
}

}  // namespace

bool is_space(char32_t code) {
    return unicode::is_white_space(code) || (code >= 0x1C && code <= 0x1F);
}

std::size_t leading_spaces(std::string_view text) {
    return text.size() - stripped_left(text).size();
}

std::string_view stripped_left(std::string_view text, std::optional<std::string_view> characters) {
    while (!text.empty() && is_stripped(unicode::first_char(text), characters))
        text.remove_prefix(unicode::char_bytes(text.front()));
    return text;
}

std::string_view stripped_right(std::string_view text, std::optional<std::string_view> characters) {
    while (!text.empty()) {
        const std::size_t last = unicode::last_char_start(text);
        if (!is_stripped(unicode::first_char(text.substr(last)), characters)) break;
        text = text.substr(0, last);
    }
    return text;
}

std::string_view stripped(std::string_view text, std::optional<std::string_view> characters) {
    return stripped_right(stripped_left(text, characters), characters);
}

std::int64_t num_chars(std::string_view text) {
    return std::count_if(text.begin(), text.end(),
                         [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

std::size_t offset_of_char(std::string_view text, std::int64_t index) {
    std::size_t offset = 0;
    for (; index > 0 && offset < text.size(); --index) offset += unicode::char_bytes(text[offset]);
    return offset;
}

std::vector<std::string_view> characters_of(std::string_view text) {
    std::vector<std::string_view> characters;
    for (std::size_t at = 0; at < text.size(); at += characters.back().size())
        characters.push_back(text.substr(at, unicode::char_bytes(text[at])));
    return characters;
}

std::size_t find_part(std::string_view text, std::string_view part, std::size_t from) {
    if (from > text.size()) return std::string_view::npos;
    if (part.size() <= 1) return text.find(part, from);
    const void* found = memmem(text.data() + from, text.size() - from, part.data(), part.size());
    return found == nullptr ? std::string_view::npos
                            : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::vector<std::string_view> split(std::string_view text, std::optional<std::string_view> separator,
                                    std::int64_t max_splits) {
    if (!separator) return split_at_spaces(text, max_splits);
    std::vector<std::string_view> parts;
    while (max_splits < 0 || static_cast<std::int64_t>(parts.size()) < max_splits) {
        const std::size_t at = find_part(text, *separator);
        if (at == std::string_view::npos) break;
        parts.push_back(text.substr(0, at));
        text.remove_prefix(at + separator->size());
    }
    parts.push_back(text);
    return parts;
}

std::vector<std::string_view> split_right(std::string_view text, std::optional<std::string_view> separator,
                                          std::int64_t max_splits) {
    if (!separator) return split_right_at_spaces(text, max_splits);
    // The occurrences that a search from the right finds; they differ from those from the left only if the separator
    // overlaps itself. Compares backwards, so the cost per position is bounded by the separator's length.
    std::vector<std::string_view> parts;
    const std::size_t length = separator->size();
    std::size_t end = text.size();
    for (std::size_t at = text.size(); at >= length && (max_splits < 0 || std::ssize(parts) < max_splits);) {
        if (text.substr(at - length, length) != *separator) {
            --at;
            continue;
        }
        parts.push_back(text.substr(at, end - at));
        end = at -= length;
    }
    parts.push_back(text.substr(0, end));
    std::reverse(parts.begin(), parts.end());
    return parts;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
    std::vector<std::string_view> lines;
    std::size_t begin = 0;
    for (std::size_t at = 0; at < text.size();) {
        std::size_t length = unicode::char_bytes(text[at]);
        if (!is_line_break(unicode::first_char(text.substr(at)))) {
            at += length;
            continue;
        }
        if (text.substr(at).starts_with("\r\n")) length = 2;
        lines.push_back(text.substr(begin, at - begin + (keep_ends ? length : 0)));
        begin = at += length;
    }
    if (begin < text.size()) lines.push_back(text.substr(begin));
    return lines;
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t count) {
    std::string result;
    if (from.empty()) {  // before each character and at the end
        for (; count != 0; --count) {
            result += to;
            if (text.empty()) return result;
            result += text.substr(0, unicode::char_bytes(text.front()));
            text.remove_prefix(unicode::char_bytes(text.front()));
        }
        return result.append(text);
    }
    for (; count != 0; --count) {
        const std::size_t at = find_part(text, from);
        if (at == std::string_view::npos) break;
        result.append(text.substr(0, at)).append(to);
        text.remove_prefix(at + from.size());
    }
    return result.append(text);
}

std::optional<std::string> with_case(std::string_view text, Case to) {
    std::string result;
    for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text.front()))) {
        const char32_t code = unicode::first_char(text);
        if (to == Case::lower ? has_odd_lower(code) : has_long_upper(code)) return std::nullopt;
        const auto number = static_cast<utf8proc_int32_t>(code);
        const auto changed = to == Case::upper   ? utf8proc_toupper(number)
                             : to == Case::title ? utf8proc_totitle(number)
                                                 : utf8proc_tolower(number);
        unicode::append_char(static_cast<char32_t>(changed), result);
    }
    return result;
}

bool is_text_of(std::string_view text, TextClass which) {
    if (which == TextClass::upper || which == TextClass::lower) return is_in_case(text, which);
    if (text.empty()) return which == TextClass::ascii || which == TextClass::printable;
    for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text.front()))) {
        if (!is_of(unicode::first_char(text), which)) return false;
    }
    return true;
}

std::string repr_of_text(std::string_view text) {
    const bool single = text.find('\'') == std::string_view::npos || text.find('"') != std::string_view::npos;
    const char quote = single ? '\'' : '"';
    std::string result(1, quote);
    for (; !text.empty(); text.remove_prefix(unicode::char_bytes(text.front())))
        append_escaped_char(text.substr(0, unicode::char_bytes(text.front())), quote, result);
    return result + quote;
}

std::string html_escaped(std::string_view text) {
    std::string result;
    for (const char c : text) {
        switch (c) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '\'':
                result += "&#39;";
                break;
            case '"':
                result += "&#34;";
                break;
            default:
                result += c;
        }
    }
    return result;
}

}  // namespace longhaul::engine::jinja
