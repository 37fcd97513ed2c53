#include "engine/tokenizer/unicode.hpp"

#include <cstring>

namespace longhaul::engine::unicode {

namespace {

struct LeadByte {
    int num_continuation;  // -1: cannot start a character
    unsigned char low;     // valid range of the second byte
    unsigned char high;
};

// Table 3-7 of the Unicode standard. The range of the second byte excludes overlong forms, surrogates and code points
// beyond U+10FFFF.
LeadByte classify(unsigned char lead) {
    if (lead < 0x80) return {0, 0, 0};
    if (lead < 0xC2) return {-1, 0, 0};
    if (lead < 0xE0) return {1, 0x80, 0xBF};
    if (lead == 0xE0) return {2, 0xA0, 0xBF};
    if (lead == 0xED) return {2, 0x80, 0x9F};
    if (lead < 0xF0) return {2, 0x80, 0xBF};
    if (lead == 0xF0) return {3, 0x90, 0xBF};
    if (lead < 0xF4) return {3, 0x80, 0xBF};
    if (lead == 0xF4) return {3, 0x80, 0x8F};
    return {-1, 0, 0};
}

std::size_t ascii_prefix(std::string_view bytes) {
    std::size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + at, 8);
        if (word & 0x8080808080808080U) break;
    }
    while (at < bytes.size() && static_cast<unsigned char>(bytes[at]) < 0x80) ++at;
    return at;
}

}  // namespace

Step step(std::string_view bytes) {
    const auto at = [&](std::size_t index) { return static_cast<unsigned char>(bytes[index]); };
    const LeadByte lead = classify(at(0));
    if (lead.num_continuation < 0) return {StepKind::invalid, 1};
    std::size_t used = 1;
    for (int i = 0; i < lead.num_continuation; ++i, ++used) {
        if (used == bytes.size()) return {StepKind::incomplete, used};
        const unsigned char low = i == 0 ? lead.low : 0x80;
        const unsigned char high = i == 0 ? lead.high : 0xBF;
        if (at(used) < low || at(used) > high) return {StepKind::invalid, used};
    }
    return {StepKind::valid, used};
}

bool is_utf8(std::string_view bytes) {
    while (true) {
        bytes.remove_prefix(ascii_prefix(bytes));
        if (bytes.empty()) return true;
        const Step next = step(bytes);
        if (next.kind != StepKind::valid) return false;
        bytes.remove_prefix(next.num_bytes);
    }
}

std::size_t append_lossy(std::string_view bytes, bool at_end, std::string& text) {
    std::size_t used = 0;
    while (used < bytes.size()) {
        const std::string_view rest = bytes.substr(used);
        const std::size_t ascii = ascii_prefix(rest);
        text.append(rest.substr(0, ascii));
        used += ascii;
        if (ascii == rest.size()) break;
        const Step next = step(rest.substr(ascii));
        if (next.kind == StepKind::incomplete && !at_end) break;
        text.append(next.kind == StepKind::valid ? rest.substr(ascii, next.num_bytes) : replacement_character);
        used += next.num_bytes;
    }
    return used;
}

char32_t first_char(std::string_view text) {
    const auto at = [&](std::size_t index) { return static_cast<unsigned char>(text[index]); };
    switch (char_bytes(text[0])) {
        case 1:
            return at(0);
        case 2:
            return (at(0) & 0x1FU) << 6 | (at(1) & 0x3FU);
        case 3:
            return (at(0) & 0x0FU) << 12 | (at(1) & 0x3FU) << 6 | (at(2) & 0x3FU);
        default:
            return (at(0) & 0x07U) << 18 | (at(1) & 0x3FU) << 12 | (at(2) & 0x3FU) << 6 | (at(3) & 0x3FU);
    }
}

std::size_t last_char_start(std::string_view text) {
    std::size_t at = text.size() - 1;
    while (at > 0 && (static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80) --at;
    return at;
}

void append_char(char32_t code, std::string& text) {
    const auto tail = [&](int shift) { text.push_back(static_cast<char>(0x80U | (code >> shift & 0x3FU))); };
    if (code < 0x80) {
        text.push_back(static_cast<char>(code));
    } else if (code < 0x800) {
        text.push_back(static_cast<char>(0xC0U | code >> 6));
        tail(0);
    } else if (code < 0x10000) {
        text.push_back(static_cast<char>(0xE0U | code >> 12));
        tail(6);
        tail(0);
    } else {
        text.push_back(static_cast<char>(0xF0U | code >> 18));
        tail(12);
        tail(6);
        tail(0);
    }
}

bool is_white_space(char32_t code) {
    return (code >= 0x9 && code <= 0xD) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
           (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F || code == 0x205F ||
           code == 0x3000;
}

namespace {

// Printable Latin-1 characters represent their own byte. The other 68 bytes are U+0100, U+0101, ... in order.
bool stands_for_itself(int byte) {
    return (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
    std::array<std::string, 256> chars;
    std::array<std::int16_t, 0x144> bytes{};

    ByteAlphabet() {
        bytes.fill(-1);
        int next = 0x100;
        for (int byte = 0; byte < 256; ++byte) {
            const int code = stands_for_itself(byte) ? byte : next++;
            append_char(static_cast<char32_t>(code), chars.at(byte));
            bytes.at(code) = static_cast<std::int16_t>(byte);
        }
    }
};

const ByteAlphabet& alphabet() {
    static const ByteAlphabet table;
    return table;
}

}  // namespace

const std::array<std::string, 256>& byte_alphabet() {
    return alphabet().chars;
}

int byte_of(char32_t code) {
    const auto& bytes = alphabet().bytes;
    return code < bytes.size() ? bytes[code] : -1;
}

bool append_alphabet_bytes(std::string_view token, std::string& bytes) {
    const std::size_t before = bytes.size();
    while (!token.empty()) {
        const int byte = byte_of(first_char(token));
        if (byte < 0) {
            bytes.resize(before);
            return false;
        }
        bytes.push_back(static_cast<char>(byte));
        token.remove_prefix(char_bytes(token[0]));
    }
    return true;
}

}  // namespace longhaul::engine::unicode
