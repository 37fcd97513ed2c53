#include "runner/host/message_text.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace longhaul::runner {

std::string grouped(std::int64_t number) {
    std::string digits = std::to_string(number);
    const std::size_t first = number < 0 ? 1 : 0;
    for (std::size_t at = digits.size(); at > first + 3;) digits.insert(at -= 3, ",");
    return digits;
}

std::string counted(std::int64_t number, const char* one, const char* many) {
    return grouped(number) + " " + (number == 1 ? one : many);
}

std::string duration_text(double seconds) {
    const auto whole = static_cast<long long>(std::llround(std::max(seconds, 0.0)));
    if (whole < 60) return formatted("%lld s", whole);
    if (whole < 3600) return formatted("%lld min %lld s", whole / 60, whole % 60);
    if (whole < 86400) return formatted("%lld h %lld min", whole / 3600, whole / 60 % 60);
    return formatted("%lld d %lld h", whole / 86400, whole / 3600 % 24);
}

std::string size_text(std::int64_t bytes) {
    if (bytes < 1024) return std::to_string(bytes) + " bytes";
    static constexpr std::array<const char*, 4> units{"KiB", "MiB", "GiB", "TiB"};
    double number = static_cast<double>(bytes) / 1024;
    std::size_t unit = 0;
    for (; number >= 1024 && unit + 1 < units.size(); ++unit) number /= 1024;
    return formatted("%.1f %s", number, units[unit]);
}

std::int64_t num_characters(const std::string& text) {
    return std::count_if(text.begin(), text.end(), [](char byte) { return (byte & 0xC0) != 0x80; });
}

std::string list_words(const std::vector<std::string>& words) {
    std::string list;
    for (std::size_t i = 0; i < words.size(); ++i) {
        if (i > 0) list += i + 1 == words.size() ? " or " : ", ";
        list += words[i];
    }
    return list;
}

}  // namespace longhaul::runner
