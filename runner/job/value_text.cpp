#include "runner/job/value_text.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "engine/json.hpp"

namespace longhaul::runner {
namespace {

/// Parses the whole of `text` as one number. Returns false for anything else, including overflow.
template <typename T>
bool read_integer(std::string_view text, T& value) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    return error == std::errc() && end == text.data() + text.size();
}

std::string range_text(std::string_view kind, const std::string& low, const std::string& high, bool has_high) {
    std::string text = std::string(kind) + " from " + low;
    return has_high ? text + " to " + high : text + " on";
}

char escape_of(char letter) {
    switch (letter) {
        case 'n':
            return '\n';
        case 't':
            return '\t';
        case 'r':
            return '\r';
        case '\\':
        case '"':
            return letter;
        default:
            throw BadValue{R"(text with \n \t \r \\ or \" as the only escapes)", R"(a backslash itself is \\)"};
    }
}

/// Edit distance between two words (optimal string alignment).
std::size_t slips(std::string_view a, std::string_view b) {
    std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
    for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
    for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
    for (std::size_t i = 1; i <= a.size(); ++i) {
        for (std::size_t j = 1; j <= b.size(); ++j) {
            const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
            cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, replaced});
            const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
            if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
        }
    }
    return cost[a.size()][b.size()];
}

}  // namespace

std::int64_t parse_integer(std::string_view text, std::int64_t low, std::int64_t high) {
    std::int64_t value = 0;
    if (read_integer(text, value) && value >= low && value <= high) return value;
    const bool has_high = high != std::numeric_limits<std::int64_t>::max();
    throw BadValue{range_text("an integer", std::to_string(low), std::to_string(high), has_high), ""};
}

std::uint64_t parse_seed(std::string_view text) {
    std::uint64_t value = 0;
    if (read_integer(text, value)) return value;
    throw BadValue{"an integer from 0 to 18446744073709551615", ""};
}

bool parse_bool(std::string_view text) {
    if (text == "true") return true;
    if (text == "false") return false;
    throw BadValue{"true or false", ""};
}

double parse_number(std::string_view text, double low, double high, bool low_excluded) {
    double value = 0;
    const bool good = read_integer(text, value) && std::isfinite(value) && value <= high;
    if (good && (low_excluded ? value > low : value >= low)) return value;
    const bool has_high = std::isfinite(high);
    if (!low_excluded) throw BadValue{range_text("a number", format_number(low), format_number(high), has_high), ""};
    const std::string above = "a number above " + format_number(low);
    throw BadValue{has_high ? above + " and at most " + format_number(high) : above, ""};
}

std::int64_t parse_size(std::string_view text) {
    static constexpr std::array<std::pair<std::string_view, double>, 8> units{{{"KiB", 0x1p10},
                                                                               {"MiB", 0x1p20},
                                                                               {"GiB", 0x1p30},
                                                                               {"TiB", 0x1p40},
                                                                               {"K", 0x1p10},
                                                                               {"M", 0x1p20},
                                                                               {"G", 0x1p30},
                                                                               {"T", 0x1p40}}};
    std::int64_t bytes = 0;
    if (read_integer(text, bytes) && bytes >= 0) return bytes;
    for (const auto& [unit, factor] : units) {
        if (!text.ends_with(unit)) continue;
        std::string_view number_text = text.substr(0, text.size() - unit.size());
        while (number_text.ends_with(' ')) number_text.remove_suffix(1);
        double number = 0;
        const bool good = read_integer(number_text, number) && std::isfinite(number) && number >= 0;
        // 2^63 is exact in double, so every number below it fits into the result.
        if (good && number * factor < 0x1p63) return static_cast<std::int64_t>(number * factor);
        break;
    }
    throw BadValue{"a size in bytes below 2^63, such as 1048576, 512MiB or 1.5GiB", ""};
}

std::string parse_text(std::string_view text) {
    const bool quoted = text.starts_with('"');
    if (quoted) text.remove_prefix(1);
    std::string value;
    std::size_t i = 0;
    for (; i < text.size() && !(quoted && text[i] == '"'); ++i) {
        if (text[i] != '\\') {
            value += text[i];
        } else {
            value += escape_of(i + 1 < text.size() ? text[i + 1] : '\0');
            ++i;
        }
    }
    if (quoted && i + 1 != text.size()) {
        throw BadValue{"one text in double quotes", R"(a quotation mark inside it is \")"};
    }
    return value;
}

std::string format_number(double value) {
    std::array<char, 32> digits{};
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    return error == std::errc() ? std::string(digits.data(), end) : std::string("?");
}

std::string in_quotes(std::string_view text) {
    return "'" + engine::printable(text) + "'";
}

std::string shown(std::string_view text) {
    return text.empty() ? "nothing" : in_quotes(text);
}

std::string quote_text(std::string_view text) {
    std::string quoted = "\"";
    for (const char c : text) {
        switch (c) {
            case '\n':
                quoted += "\\n";
                break;
            case '\t':
                quoted += "\\t";
                break;
            case '\r':
                quoted += "\\r";
                break;
            case '\\':
            case '"':
                quoted += '\\';
                [[fallthrough]];
            default:
                quoted += c;
        }
    }
    return quoted + '"';
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    return text;
}

std::size_t first_bad_byte(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : '\0'); };
    for (std::size_t i = 0; i < text.size();) {
        const unsigned char lead = byte(i);
        if (lead == 0 || (lead >= 0x80 && lead < 0xC2) || lead > 0xF4) return i;
        const std::size_t length = lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
        for (std::size_t j = 1; j < length; ++j) {
            if ((byte(i + j) & 0xC0) != 0x80) return i;
        }
        // The second byte excludes overlong forms, surrogates and code points beyond U+10FFFF.
        const unsigned char second = byte(i + 1);
        if ((lead == 0xE0 && second < 0xA0) || (lead == 0xF0 && second < 0x90)) return i;
        if ((lead == 0xED && second >= 0xA0) || (lead == 0xF4 && second >= 0x90)) return i;
        i += length;
    }
    return std::string_view::npos;
}

std::string_view whole_characters(std::string_view text, std::size_t max_bytes) {
    if (text.size() <= max_bytes) return text;
    // A character has at most three continuation bytes. If the text is not UTF-8, the position of the cut does not
    // matter.
    std::size_t cut = max_bytes;
    while (cut > 0 && max_bytes - cut < 3 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;
    return text.substr(0, cut);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& words) {
    if (word.size() > 64) return "";  // the comparison is quadratic in the length
    const std::size_t max_slips = std::max<std::size_t>(2, word.size() / 3);
    std::string nearest;
    std::size_t fewest = max_slips + 1;
    for (const std::string& candidate : words) {
        const std::size_t distance = slips(word, candidate);
        // If every character differs, it is not a typing error: "x" is not close to "k-3".
        if (distance < fewest && distance < std::max(word.size(), candidate.size())) {
            fewest = distance;
            nearest = candidate;
        }
    }
    return nearest;
}

}  // namespace longhaul::runner
