#include "runner/data/sgm.hpp"

#include <array>
#include <charconv>
#include <cstdint>
#include <utility>

namespace longhaul::runner {
namespace {

constexpr std::string_view white = " \t\n\v\f\r";

char lower(char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
}

bool same(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    for (std::size_t i = 0; i < a.size(); ++i) {
        if (lower(a[i]) != lower(b[i])) return false;
    }
    return true;
}

void append_utf8(std::uint32_t code, std::string& text) {
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
    if (code < 0x80) {
        text += static_cast<char>(code);
    } else if (code < 0x800) {
        text += {static_cast<char>(0xC0 | (code >> 6)), tail(0)};
    } else if (code < 0x10000) {
        text += {static_cast<char>(0xE0 | (code >> 12)), tail(6), tail(0)};
    } else {
        text += {static_cast<char>(0xF0 | (code >> 18)), tail(12), tail(6), tail(0)};
    }
}

/// Appends the character of the entity `name` (without & and ;). Returns false if it is not an entity; the caller then
/// keeps the text.
bool append_entity(std::string_view name, std::string& text) {
    static constexpr std::array<std::pair<std::string_view, char>, 5> known{
        {{"amp", '&'}, {"lt", '<'}, {"gt", '>'}, {"quot", '"'}, {"apos", '\''}}};
    for (const auto& [entity, character] : known) {
        if (name != entity) continue;
        text += character;
        return true;
    }
    if (!name.starts_with('#')) return false;
    const bool hex = name.starts_with("#x") || name.starts_with("#X");
    const std::string_view digits = name.substr(hex ? 2 : 1);
    std::uint32_t code = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), code, hex ? 16 : 10);
    const bool good = error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
    if (!good || code == 0 || code > 0x10FFFF || (code >= 0xD800 && code <= 0xDFFF)) return false;
    append_utf8(code, text);
    return true;
}

std::string resolved(std::string_view bytes) {
    constexpr std::size_t max_name_bytes = 10;
    std::string text;
    for (std::size_t i = 0; i < bytes.size(); ++i) {
        const std::size_t length =
            bytes[i] == '&' ? bytes.substr(i + 1, max_name_bytes + 1).find(';') : std::string_view::npos;
        if (length != std::string_view::npos && append_entity(bytes.substr(i + 1, length), text)) {
            i += length + 1;
        } else {
            text += bytes[i];
        }
    }
    return text;
}

}  // namespace

std::string sgm_tag_name(std::string_view bytes) {
    std::string name;
    for (std::size_t i = 1; i < bytes.size(); ++i) {
        const char c = lower(bytes[i]);
        const bool part = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || (c == '/' && i == 1);
        if (!part) break;
        name += c;
    }
    return name;
}

std::string sgm_attribute(std::string_view bytes, std::string_view name) {
    std::size_t at = bytes.find_first_of(" \t\n\v\f\r>");
    while (at != std::string_view::npos) {
        const std::size_t begin = bytes.find_first_not_of(white, at);
        if (begin == std::string_view::npos || bytes[begin] == '>') break;
        const std::size_t equals = bytes.find_first_of("=>", begin);
        if (equals == std::string_view::npos || bytes[equals] == '>') break;
        std::string_view key = bytes.substr(begin, equals - begin);
        key = key.substr(0, key.find_last_not_of(white) + 1);
        const std::size_t open = bytes.find_first_not_of(white, equals + 1);
        if (open == std::string_view::npos) break;
        const bool quoted = bytes[open] == '"' || bytes[open] == '\'';
        const std::size_t first = quoted ? open + 1 : open;
        std::size_t end = quoted ? bytes.find(bytes[open], first) : bytes.find_first_of(" \t\n\v\f\r>", first);
        if (end == std::string_view::npos) end = bytes.size();
        if (same(key, name)) return resolved(bytes.substr(first, end - first));
        at = quoted && end < bytes.size() ? end + 1 : end;
        if (at >= bytes.size()) break;
    }
    return "";
}

std::string segment_text(std::string_view bytes) {
    const std::size_t open = bytes.find('>');
    const std::string text = resolved(open == std::string_view::npos ? std::string_view() : bytes.substr(open + 1));
    std::string plain;
    for (const char c : text) {
        const bool blank = white.find(c) != std::string_view::npos;
        if (!blank)
            plain += c;
        else if (!plain.empty() && plain.back() != ' ')
            plain += ' ';
    }
    if (plain.ends_with(' ')) plain.pop_back();
    return plain;
}

}  // namespace longhaul::runner
