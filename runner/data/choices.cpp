#include "runner/data/choices.hpp"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "engine/error.hpp"
#include "engine/grammar/reasoning_end.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;
using Strings = std::vector<std::string>;

constexpr std::size_t max_choices = 4096;
constexpr const char* array_of_texts = "an array of at least 2 texts";

/// A text, or what is not one as JSON has it.
std::string text_of(const Json& value, const std::string& where, const std::string& field) {
    if (value.is_number() || value.is_boolean()) return engine::json_text(value);
    if (!value.is_string()) throw InputError(where, field, "a text, number or boolean", engine::describe(value));
    std::string text = value.get<std::string>();
    if (!is_text(text)) throw InputError(where, field, "text", "a NUL character");
    return text;
}

Strings texts_of(const Json& array, const std::string& where, const std::string& field) {
    if (!array.is_array() || array.size() < 2)
        throw InputError(where, field, array_of_texts, engine::describe(array),
                         array.is_string() ? "choice = {FIELD} in the job makes choices of texts" : "");
    if (array.size() > max_choices)
        throw InputError(where, field, "at most " + std::to_string(max_choices) + " texts", engine::describe(array));
    Strings texts;
    for (const Json& value : array) texts.push_back(text_of(value, where, field + "." + std::to_string(texts.size())));
    return texts;
}

std::optional<std::int64_t> place_in(const Strings& texts, std::string_view wanted) {
    for (std::size_t at = 0; at < texts.size(); ++at) {
        if (engine::without_space(texts[at]) == wanted) return static_cast<std::int64_t>(at);
    }
    return std::nullopt;
}

/// What an answer without a label or text of its own means: "2", where the first choice is `first`, or "C".
std::optional<std::int64_t> place_of(std::string_view answer, std::int64_t first) {
    std::int32_t place = 0;
    const auto [end, error] = std::from_chars(answer.data(), answer.data() + answer.size(), place);
    if (error == std::errc() && end == answer.data() + answer.size()) return place - first;
    if (answer.size() == 1 && answer.front() >= 'A' && answer.front() <= 'Z') return answer.front() - 'A';
    return std::nullopt;
}

/// An answer as a text. Tables whose column has gaps spell their integers as 2.0.
std::string answer_text(const Json& answer, const std::string& where) {
    constexpr double max_exact = 1 << 30;
    const double number = answer.is_number_float() ? answer.get<double>() : 0.5;
    const bool is_whole = std::abs(number) < max_exact && number == std::floor(number);
    return is_whole ? std::to_string(static_cast<std::int64_t>(number)) : text_of(answer, where, "answer");
}

/// nullopt where the data does not know it: no answer, an empty one, or -1. `first`: the first choice's place in
/// answers.
std::optional<std::int64_t> right_of(const GivenChoices& given, const Strings& texts, std::int64_t first,
                                     const std::string& where) {
    const Json& answer = given.answer;
    if (answer.is_null()) return std::nullopt;
    if (answer.is_boolean()) return answer.get<bool>() ? 1 : 0;
    const std::string text = answer_text(answer, where);
    const std::string_view wanted = engine::without_space(text);
    if (wanted.empty() || wanted == "-1") return std::nullopt;
    if (const auto label = place_in(given.labels, wanted)) return label;
    const auto place = place_of(wanted, first), same = answer.is_string() ? place_in(texts, wanted) : std::nullopt;
    const bool has_place = place && *place >= 0 && *place < std::ssize(texts);
    if (same && has_place && *same != *place)
        throw InputError(where, "answer", "the place or the text of a choice", in_quotes(text) + ", which is both",
                         "give places as numbers");
    if (same) return same;
    if (has_place) return place;
    throw InputError(where, "answer",
                     std::to_string(first) + " to " + std::to_string(first + std::ssize(texts) - 1) +
                         ", the place of the right choice, or its " + (given.labels.empty() ? "" : "label or ") +
                         "text",
                     in_quotes(text),
                     first == 0 && text == std::to_string(texts.size()) ? "first-choice = 1 counts places from 1" : "");
}

/// Which of `count` texts are right, as TruthfulQA says it. Empty if it is not known: all are null or -1.
std::vector<bool> truths_of(const Json& labels, std::size_t count, const std::string& where) {
    const std::string expected =
        "an array of " + std::to_string(count) + " numbers 0 or 1, with at least one 1 and one 0";
    const bool none_known =
        std::all_of(labels.begin(), labels.end(), [](const Json& label) { return label.is_null() || label == -1; });
    if (labels.is_array() && labels.size() == count && none_known) return {};
    std::vector<bool> truths;
    for (const Json& label : labels.is_array() ? labels : Json::array()) {
        const double value = label.is_boolean()  ? (label.get<bool>() ? 1 : 0)
                             : label.is_number() ? label.get<double>()
                                                 : -1;
        if (value != 0 && value != 1) throw InputError(where, "choices.labels", expected, engine::describe(label));
        truths.push_back(value == 1);
    }
    const auto num_right = static_cast<std::size_t>(std::count(truths.begin(), truths.end(), true));
    if (truths.size() != count) throw InputError(where, "choices.labels", expected, engine::describe(labels));
    if (num_right == 0 || num_right == count)
        throw InputError(where, "choices.labels", expected, std::string("only ") + (num_right == 0 ? "0" : "1"));
    return truths;
}

bool is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

std::string place_of_choices(const Settings& settings) {
    return settings.origins.of("choice") + ": choice";
}

}  // namespace

bool needs_blank(const std::string& text, const std::string& more) {
    return !text.empty() && !more.empty() && !is_space(text.back()) && !is_space(more.front());
}

GapText split_at_gap(const std::string& text, const std::string& gap, const std::string& where) {
    const std::size_t at = text.find(gap);
    if (at == std::string::npos) throw InputError(where, "prompt", "the text of choice-gap, " + in_quotes(gap), "none");
    GapText parts{text.substr(0, at), text.substr(at + gap.size())};
    if (engine::without_space(parts.behind).empty())
        throw InputError(where, "prompt", "text behind choice-gap, " + in_quotes(gap), "none",
                         "without choice-gap the choices are what follows the prompt");
    return parts;
}

bool has_own_choices(const Settings& settings) {
    return settings.format.kind == engine::OutputFormat::Kind::choice;
}

GivenChoices read_choices(const Json& object, const Settings& settings, const std::string& where) {
    GivenChoices given;
    if (const Json* answer = engine::find_member(object, "answer", where)) given.answer = *answer;
    const Json* const choices = engine::find_member(object, "choices", where);
    if (choices == nullptr || has_own_choices(settings)) return given;
    if (!choices->is_object()) {
        given.texts = texts_of(*choices, where, "choices");
        return given;
    }
    if (const Json* const named = engine::find_member(*choices, "choices", where)) {
        const Json* const truths = engine::find_member(*choices, "labels", where);
        given.texts = texts_of(*named, where, "choices.choices");
        if (truths != nullptr) given.truths = truths_of(*truths, given.texts.size(), where);
        return given;
    }
    const Json* const texts = engine::find_member(*choices, "text", where);
    const Json* const labels = engine::find_member(*choices, "label", where);
    if (texts == nullptr)
        throw InputError(where, "choices",
                         std::string(array_of_texts) +
                             R"(, {"text": texts, "label": labels} or {"choices": texts, "labels": 1 or 0 for each})",
                         "an object without text and choices");
    given.texts = texts_of(*texts, where, "choices.text");
    if (labels != nullptr) given.labels = texts_of(*labels, where, "choices.label");
    if (!given.labels.empty() && given.labels.size() != given.texts.size())
        throw InputError(where, "choices.label", std::to_string(given.texts.size()) + " labels, one for each text",
                         std::to_string(given.labels.size()));
    return given;
}

std::vector<PromptTemplate::Field> fields_of_choices(const Settings& settings) {
    std::vector<PromptTemplate::Field> fields;
    if (settings.mode != Mode::multiple_choice || !has_own_choices(settings)) return fields;
    for (const std::string& text : settings.format.texts) {
        for (PromptTemplate::Field& field : PromptTemplate::fields_in_value(text, place_of_choices(settings)))
            fields.push_back(std::move(field));
    }
    return fields;
}

JobChoices::JobChoices(const Settings& settings, const std::vector<std::string>& fields)
    : first_choice_(settings.first_choice), num_fields_(fields.size()) {
    if (settings.mode != Mode::multiple_choice || !has_own_choices(settings)) return;
    for (const std::string& text : settings.format.texts)
        templates_.push_back(PromptTemplate::parse_value(text, place_of_choices(settings), fields));
}

Choices JobChoices::of(const GivenChoices& given, std::vector<std::string> fields, const std::string& where) const {
    Choices choices{.texts = given.texts, .has_truths = !given.truths.empty()};
    fields.resize(num_fields_);  // messages have none
    for (const PromptTemplate& text : templates_) choices.texts.push_back(text.render(fields));
    if (choices.texts.empty())
        throw InputError(where, "choices", array_of_texts, "nothing",
                         "column = choices=NAME names another field, choice = TEXT in the job gives all questions the "
                         "same ones");
    const auto empty = std::find_if(choices.texts.begin(), choices.texts.end(),
                                    [](const std::string& text) { return engine::without_space(text).empty(); });
    if (empty != choices.texts.end())
        throw InputError(where, "choices." + std::to_string(empty - choices.texts.begin()), "a text", "none");
    for (std::size_t at = 0; at < given.truths.size(); ++at) {
        if (given.truths[at]) choices.right.push_back(static_cast<std::int64_t>(at));
    }
    if (choices.has_truths) return choices;
    if (const auto right = right_of(given, choices.texts, first_choice_, where)) choices.right.push_back(*right);
    return choices;
}

}  // namespace longhaul::runner
