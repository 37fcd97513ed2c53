// Numbers, sizes, durations and lists as people read them in messages and tables.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace longhaul::runner {

/// printf into a string, for at most 255 characters.
template <typename... Values>
std::string formatted(const char* format, Values... values) {
    std::array<char, 256> buffer{};
    std::snprintf(buffer.data(), buffer.size(), format, values...);
    return buffer.data();
}

/// "1,234,567"
std::string grouped(std::int64_t number);
/// "1 item", "1,234 items"
std::string counted(std::int64_t number, const char* one, const char* many);
/// "4 min 10 s"
std::string duration_text(double seconds);
/// "812 bytes", "13.3 MiB"
std::string size_text(std::int64_t bytes);
/// Characters that begin in these bytes of UTF-8.
std::int64_t num_characters(const std::string& text);
/// "a, b or c"
std::string list_words(const std::vector<std::string>& words);

}  // namespace longhaul::runner
