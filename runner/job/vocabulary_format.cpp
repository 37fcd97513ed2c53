// The vocabulary of structured outputs: what an output must look like, behind the reasoning of a model that thinks
// first.
#include <algorithm>
#include <filesystem>
#include <numeric>

#include "engine/error.hpp"
#include "engine/grammar/output_grammar.hpp"
#include "engine/grammar/reasoning_end.hpp"
#include "engine/json.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary_parts.hpp"

namespace longhaul::runner {
namespace {

using Format = engine::OutputFormat;

constexpr std::size_t max_choices = 4096, max_format_bytes = 1 << 18, max_end_bytes = 256;

void check_kind(const Settings& settings, Format::Kind kind) {
    if (settings.format.kind != Format::Kind::any && settings.format.kind != kind)
        throw BadValue{"one of json-schema, regex, choice and grammar", "an empty value unsets another"};
}

/// Sets the format, if it can be followed. Throws BadValue.
void set_format(Settings& settings, Format format, const char* expected) {
    check_kind(settings, format.kind);
    static thread_local Format checked;  // the items of a batch usually have the same one
    try {
        if (format != checked) engine::check_format(format);
    } catch (const engine::BadFormat& bad) {
        throw BadValue{expected, bad.fault};
    }
    settings.format = checked = std::move(format);
}

/// An empty value: it unsets a format of this kind.
bool unsets(Settings& settings, Format::Kind kind, const std::string& text) {
    if (text.empty() && settings.format.kind == kind) settings.format = {};
    return text.empty();
}

/// A value as it stands in a job file. Double quotes around it are optional, unlike in parse_text: \\ stays \\ without.
std::string unquoted(const std::string& value) {
    std::string text = value.starts_with('"') ? parse_text(value) : value;
    if (text.size() > max_format_bytes) throw BadValue{"at most 256 KiB", ""};
    if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
    return text;
}

std::string quoted_if_needed(const std::string& text) {
    const bool as_it_is = !text.starts_with('"') && trimmed(text).size() == text.size() &&
                          text.find_first_of("#\n\t\r") == std::string::npos;
    return as_it_is ? text : quote_text(text);
}

/// The contents of the file that `path` names. `folder`: "" if it may name none. `what`: it holds.
std::string file_text(const std::string& path, const std::filesystem::path& folder, const std::string& what) {
    if (folder.empty()) throw BadValue{what, ""};
    try {
        return engine::read_file(parse_path(path, folder), static_cast<std::int64_t>(max_format_bytes));
    } catch (const InputError& error) {
        throw BadValue{what + ", or a file that holds one", error.what()};
    }
}

/// The schema that is the text, or in the file that it names.
std::string schema_of(const std::string& text, const std::filesystem::path& folder) {
    const std::string_view first = trimmed(text);
    return first.starts_with('{') || first.starts_with('[') ? text : file_text(text, folder, "a JSON schema");
}

/// On one line, with the members in their order.
std::string on_one_line(const std::string& schema) {
    try {
        return engine::json_text(engine::parse_ordered_json(schema, ""));
    } catch (const InputError& error) {
        throw BadValue{"a JSON schema", std::string("it is not JSON") + error.what()};
    }
}

}  // namespace

Key json_schema_key() {
    return {.info = {.key = "json-schema",
                     .value_name = "PATH|SCHEMA",
                     .help = "the output is a JSON value of this schema, a .json file or the schema itself: "
                             R"({"type": "object"} for any object; empty = none)",
                     .may_be_empty = true},
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto& folder) {
                    const std::string text = unquoted(value);
                    if (unsets(s, Format::Kind::json_schema, text)) return;
                    std::string line = on_one_line(schema_of(text, folder));
                    if (line.size() > max_format_bytes) throw BadValue{"at most 256 KiB on one line", ""};
                    set_format(s, {Format::Kind::json_schema, {std::move(line)}},
                               "a JSON schema that an output can follow");
                },
            .get =
                [](const Settings& s) {
                    if (s.format.kind != Format::Kind::json_schema) return Strings{};
                    return Strings{quoted_if_needed(s.format.texts.front())};
                }};
}

Key regex_key() {
    return {.info = {.key = "regex",
                     .value_name = "EXPRESSION",
                     .help = "the whole output matches this regular expression; empty = none",
                     .may_be_empty = true},
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    const std::string text = unquoted(value);
                    if (unsets(s, Format::Kind::regex, text)) return;
                    set_format(s, {Format::Kind::regex, {text}}, "a regular expression");
                },
            .get =
                [](const Settings& s) {
                    if (s.format.kind != Format::Kind::regex) return Strings{};
                    return Strings{quoted_if_needed(s.format.texts.front())};
                }};
}

Key grammar_key() {
    return {
        .info = {.key = "grammar",
                 .value_name = "PATH|GBNF",
                 .help = R"(the output is a text of this grammar in llama.cpp's GBNF, a file or the grammar itself: )"
                         R"(root ::= "yes" | "no"; empty = none)",
                 .may_be_empty = true},
        .later = true,
        .set =
            [](Settings& s, const std::string& value, const auto& folder) {
                std::string text = unquoted(value);
                if (unsets(s, Format::Kind::gbnf, text)) return;
                if (text.find("::=") == std::string::npos) text = file_text(text, folder, "a grammar in GBNF");
                if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
                set_format(s, {Format::Kind::gbnf, {std::move(text)}}, "a grammar in GBNF");
            },
        .get =
            [](const Settings& s) {
                if (s.format.kind != Format::Kind::gbnf) return Strings{};
                return Strings{quoted_if_needed(s.format.texts.front())};
            }};
}

Key choice_key() {
    return {
        .info =
            {.key = "choice",
             .value_name = "TEXT",
             .help =
                 R"(the output is this text, or that of another choice; with mode = multiple-choice a choice of every )"
                 R"(question, which may name {field}s; \n \t \\ are escapes; empty = none)",
             .repeatable = true,
             .may_be_empty = true},
        .later = true,
        .set =
            [](Settings& s, const std::string& value, const auto&) {
                if (unsets(s, Format::Kind::choice, value)) return;
                std::string text = parse_text(value);
                if (text.empty() || !is_text(text)) throw BadValue{"a text of at least one character", ""};
                check_kind(s, Format::Kind::choice);
                std::vector<std::string>& choices = s.format.texts;
                const std::size_t num_bytes =
                    std::accumulate(choices.begin(), choices.end(), text.size(),
                                    [](std::size_t sum, const std::string& other) { return sum + other.size(); });
                if (choices.size() == max_choices || num_bytes > max_format_bytes)
                    throw BadValue{"at most " + std::to_string(max_choices) + " texts of together at most 256 KiB", ""};
                s.format.kind = Format::Kind::choice;
                choices.push_back(std::move(text));
            },
        .get =
            [](const Settings& s) {
                Strings values;
                if (s.format.kind != Format::Kind::choice) return values;
                for (const std::string& text : s.format.texts) values.push_back(quote_text(text));
                return values;
            }};
}

Key reasoning_end_key() {
    return {.info = {.key = "reasoning-end",
                     .value_name = "TEXT",
                     .help = "for models that think first: the text between reasoning and answer, such as </think>. "
                             "Results then have the answer by itself, and a format is the answer's; empty = none",
                     .may_be_empty = true},
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    std::string text = value.empty() ? "" : parse_text(value);
                    if (text.size() > max_end_bytes || !is_text(text))
                        throw BadValue{"UTF-8 text of at most " + std::to_string(max_end_bytes) + " bytes", ""};
                    if (!text.empty() && engine::without_space(text).empty())
                        throw BadValue{"a text that is not white space alone", ""};
                    s.reasoning_end = std::move(text);
                },
            .get =
                [](const Settings& s) {
                    return s.reasoning_end.empty() ? Strings{} : Strings{quote_text(s.reasoning_end)};
                }};
}

}  // namespace longhaul::runner
