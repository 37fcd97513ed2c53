// The choices of multiple-choice questions (mode = multiple-choice): their texts, and which of them is right.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/data/prompt_template.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// What the data says of the choices of one question.
struct GivenChoices {
    std::vector<std::string> texts{};   ///< empty: the job's `choice` lines
    std::vector<std::string> labels{};  ///< "A", "B", …: what the answer may name; empty: none
    engine::Json answer{};              ///< the right one: its place, its label or its text; null: not known
    /// Instead of `answer`: of each text whether it is right; empty: it is not said so.
    std::vector<bool> truths{};
};

struct Choices {
    std::vector<std::string> texts;     ///< at least two, none is empty
    std::vector<std::int64_t> right{};  ///< indices of the right ones; empty: not known
    bool has_truths = false;            ///< several may be right
};

/// A question divided at its choice-gap.
struct GapText {
    std::string before, behind;  ///< what stands before a choice, and what follows it and is scored
};

/// Divides at the first occurrence. Throws InputError if there is none, or nothing follows it.
GapText split_at_gap(const std::string& text, const std::string& gap, const std::string& where);

/// Whether a blank belongs between the texts: neither the first ends nor the second begins with white space.
bool needs_blank(const std::string& text, const std::string& more);

/// Whether the job itself has the choices, the same for all questions or made of the data's fields.
bool has_own_choices(const Settings& settings);

/// Reads the members "choices" (texts, {"text": texts, "label": texts}, or {"choices": texts, "labels": 1 or 0 for each
/// text}) and "answer" of an object, of which "choices" only if the job has none of its own. Throws InputError.
GivenChoices read_choices(const engine::Json& object, const Settings& settings, const std::string& where);

/// The fields that the job's `choice` lines name. Throws InputError.
std::vector<PromptTemplate::Field> fields_of_choices(const Settings& settings);

/// The choices of the questions of a job.
class JobChoices {
  public:
    /// `fields`: names that `choice` lines may have in braces. Throws InputError for others.
    JobChoices(const Settings& settings, const std::vector<std::string>& fields);

    /// `fields`: texts of the fields of a question, as many as names, or none if it consists of messages. Throws
    /// InputError.
    [[nodiscard]] Choices of(const GivenChoices& given, std::vector<std::string> fields,
                             const std::string& where) const;

  private:
    std::vector<PromptTemplate> templates_;  ///< of the job's own choices
    std::int64_t first_choice_;
    std::size_t num_fields_;
};

}  // namespace longhaul::runner
