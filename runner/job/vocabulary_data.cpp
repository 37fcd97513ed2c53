// The keys of the vocabulary that say how data is read and how prompts are made of it.
#include <algorithm>

#include "engine/error.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary_parts.hpp"

namespace longhaul::runner {

Key column_key() {
    return {.info = {.key = "column",
                     .value_name = "FIELD=NAME",
                     .help = "name that a field of the task has in the data (.jsonl, Parquet), e.g. prompt=question or "
                             "source=translation.de",
                     .repeatable = true},
            .later = true,
            .for_generate = false,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    const std::size_t equals = value.find('=');
                    if (equals == std::string::npos || equals == 0 || equals + 1 == value.size() || !is_text(value))
                        throw BadValue{"FIELD=NAME, such as prompt=question", ""};
                    for (const std::string& other : s.column) {
                        if (other.starts_with(value.substr(0, equals + 1))) throw BadValue{"one name per field", ""};
                    }
                    s.column.push_back(value);
                },
            .get = [](const Settings& s) { return s.column; }};
}

/// A key that names a split of a data set.
static Key split_of(std::string key, std::string Settings::*field, std::string help) {
    return {.info = {.key = std::move(key), .value_name = "NAME", .help = std::move(help), .may_be_empty = true},
            .kind = Kind::execution,
            .for_generate = false,
            .set =
                [=](Settings& s, const std::string& value, const auto&) {
                    if (value.find('/') != std::string::npos || value.starts_with('.') || !is_text(value))
                        throw BadValue{"the name of a split", ""};
                    s.*field = value;
                },
            .get = [=](const Settings& s) { return (s.*field).empty() ? Strings{} : Strings{s.*field}; }};
}

Key split_key() {
    Key key = split_of("split", &Settings::split,
                       "split of a dataset folder of Parquet or Arrow files, if it has several: train, test, ...");
    key.info.may_be_empty = false;
    return key;
}

Key few_shot_split_key() {
    return split_of("few-shot-split", &Settings::few_shot_split,
                    "split of few-shot-data that has the examples: validation, dev, ...; empty = none");
}

Key few_shot_group_key() {
    return {.info = {.key = "few-shot-group",
                     .value_name = "FIELD",
                     .help = "examples are the first of those whose FIELD is that of the prompt, for example subject; "
                             "empty = all prompts have the same ones",
                     .may_be_empty = true},
            .later = true,
            .for_generate = false,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    if (!is_text(value) || value.find('=') != std::string::npos)
                        throw BadValue{"the name of a field", ""};
                    s.few_shot_group = value;
                },
            .get = [](const Settings& s) { return s.few_shot_group.empty() ? Strings{} : Strings{s.few_shot_group}; }};
}

/// A key whose value is a text, or empty for none.
static Key text_of(std::string key, std::string Settings::*field, std::string help) {
    return {.info = {.key = std::move(key), .value_name = "TEXT", .help = std::move(help), .may_be_empty = true},
            .later = true,
            .for_generate = false,
            .set =
                [=](Settings& s, const std::string& value, const auto&) {
                    std::string text = value.empty() ? "" : parse_text(value);
                    if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
                    s.*field = std::move(text);
                },
            .get = [=](const Settings& s) { return (s.*field).empty() ? Strings{} : Strings{quote_text(s.*field)}; }};
}

Key introduction_key() {
    return text_of(
        "introduction", &Settings::introduction,
        R"(text before each prompt and its examples, which may name {field}s; with chat or messages it is the )"
        R"(system message; \n \t \\ are escapes, quotes keep blanks; empty = none)");
}

Key choice_gap_key() {
    return text_of(
        "choice-gap", &Settings::choice_gap,
        "with mode = multiple-choice the text of a question that each choice replaces, the first such text: what "
        "follows it is scored, in place of the choice; empty = choices follow the prompt");
}

Key template_key() {
    return {.info = {.key = "template",
                     .value_name = "auto|PATH",
                     .help = "prompt template file: {field}; {?field}...{/field} if it is not empty; {{ and }} for "
                             "braces; auto = the task's own (jobs/templates)"},
            .kind = Kind::execution,
            .for_generate = false,
            .set = [](Settings& s, const std::string& value,
                      const auto& folder) { s.prompt_template = value == "auto" ? "" : parse_path(value, folder); },
            .get =
                [](const Settings& s) {
                    return Strings{s.prompt_template.empty() ? "auto" : format_path(s.prompt_template)};
                }};
}

Key chat_template_key() {
    Strings names = engine::ChatTemplate::names();
    names.insert(names.begin(), "auto");
    return {
        .info = {.key = "chat-template",
                 .value_name = joined(names, "|") + "|PATH",
                 .help = "chat template; auto = the model's own; a built-in one (llama3.1 covers 3.2 and 3.3); or a "
                         ".jinja file"},
        .kind = Kind::execution,
        .set =
            [=](Settings& s, const std::string& value, const auto& folder) {
                if (engine::ChatTemplate::is_path(value)) {
                    s.chat_template = parse_path(value, folder).string();
                } else if (std::find(names.begin(), names.end(), value) != names.end()) {
                    s.chat_template = value;
                } else {
                    const std::string near = nearest_word(value, names);
                    throw BadValue{joined(names, ", ") + " or a .jinja file",
                                   near.empty() ? "" : "did you mean '" + near + "'?"};
                }
            },
        .get =
            [](const Settings& s) {
                const bool path = engine::ChatTemplate::is_path(s.chat_template);
                return Strings{path ? format_path(s.chat_template) : s.chat_template};
            }};
}

Key template_variable_key() {
    return {.info = {.key = "template-variable",
                     .value_name = "NAME=VALUE",
                     .help = "variable of the chat template, for example enable_thinking=false; the value is JSON, or "
                             "else a text",
                     .repeatable = true},
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    std::string text = value.starts_with('"') ? parse_text(value) : value;
                    if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
                    try {
                        engine::parse_template_variable(text);
                    } catch (const InputError&) {
                        throw BadValue{"NAME=VALUE with a name other than messages and add_generation_prompt",
                                       "for example enable_thinking=false"};
                    }
                    for (const std::string& other : s.template_variable) {
                        if (other.starts_with(text.substr(0, text.find('=') + 1)))
                            throw BadValue{"one value per variable", ""};
                    }
                    s.template_variable.push_back(std::move(text));
                },
            .get =
                [](const Settings& s) {
                    Strings values;
                    for (const std::string& text : s.template_variable) values.push_back(quote_text(text));
                    return values;
                }};
}

Key template_date_key() {
    return {
        .info = {.key = "template-date",
                 .value_name = "YYYY-MM-DD",
                 .help = "date for chat templates that ask for today's, so that a job gives the same text on any day"},
        .later = true,
        .set =
            [](Settings& s, const std::string& value, const auto&) {
                if (!engine::parse_template_date(value)) throw BadValue{"a date such as 2024-07-26", ""};
                s.template_date = value;
            },
        .get = [](const Settings& s) { return Strings{s.template_date}; }};
}

}  // namespace longhaul::runner
