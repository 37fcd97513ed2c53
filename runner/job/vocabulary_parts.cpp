#include "runner/job/vocabulary_parts.hpp"

#include "runner/job/value_text.hpp"

namespace longhaul::runner {

std::string joined(const Strings& words, const char* between) {
    std::string text;
    for (const std::string& word : words) text += text.empty() ? word : between + word;
    return text;
}

Key integer(std::string key, Kind kind, std::int64_t Settings::*field, std::int64_t low, std::int64_t high,
            std::string help) {
    return {
        .info = {.key = std::move(key), .value_name = "INTEGER", .help = std::move(help)},
        .kind = kind,
        .set = [=](Settings& s, const std::string& value, const auto&) { s.*field = parse_integer(value, low, high); },
        .get = [=](const Settings& s) { return Strings{std::to_string(s.*field)}; }};
}

Key number(std::string key, Kind kind, double Settings::*field, double low, double high, bool low_excluded,
           std::string help) {
    return {.info = {.key = std::move(key), .value_name = "NUMBER", .help = std::move(help)},
            .kind = kind,
            .set = [=](Settings& s, const std::string& value,
                       const auto&) { s.*field = parse_number(value, low, high, low_excluded); },
            .get = [=](const Settings& s) { return Strings{format_number(s.*field)}; }};
}

Key flag(std::string key, Kind kind, bool Settings::*field, std::string help) {
    return {.info = {.key = std::move(key), .value_name = "true|false", .help = std::move(help), .flag = true},
            .kind = kind,
            .set = [=](Settings& s, const std::string& value, const auto&) { s.*field = parse_bool(value); },
            .get = [=](const Settings& s) { return Strings{s.*field ? "true" : "false"}; }};
}

Key later(Key key) {
    key.later = true;
    return key;
}

Key of_copies(Key key, std::string earlier_value) {
    key.of_copies = true;
    key.earlier_value = std::move(earlier_value);
    return key;
}

Key not_for_generate(Key key) {
    key.for_generate = false;
    return key;
}

std::filesystem::path parse_path(const std::string& value, const std::filesystem::path& folder) {
    const std::string text = value.starts_with('"') ? parse_text(value) : value;
    if (text.empty() || text.find('\0') != std::string::npos) throw BadValue{"a path", ""};
    if (text.starts_with("~"))
        throw BadValue{"a path", "write the home folder out: '~' means nothing here (./~ for such a name)"};
    return (folder / text).lexically_normal();
}

std::string format_path(const std::filesystem::path& path) {
    const std::string& text = path.native();
    const bool plain =
        std::all_of(text.begin(), text.end(), [](char c) { return c > ' ' && c != '#' && c != '"' && c != 0x7F; });
    return plain || is_text(text) == false ? text : quote_text(text);
}

}  // namespace longhaul::runner
