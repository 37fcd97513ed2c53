#include "runner/data/few_shot.hpp"

#include <algorithm>
#include <utility>

#include "engine/error.hpp"
#include "runner/data/choices.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

Settings settings_of_examples(Settings settings) {
    const std::filesystem::path& data = settings.few_shot_data.empty() ? settings.data : settings.few_shot_data;
    if (!settings.few_shot_split.empty() && !is_table(data))
        throw UsageError(InputError::format(settings.origins.of("few-shot-split"), "few-shot-split",
                                            "none with data of one file or of lines", shown(settings.few_shot_split),
                                            "few-shot-data names a file of examples"));
    if (!settings.few_shot_data.empty()) settings.data = settings.few_shot_data;
    settings.split = settings.few_shot_split;
    settings.limit = 0;
    // It stands before all examples, with the fields of the prompt: examples are read as prompts are, but need none.
    std::string optional_fields;
    for (const PromptTemplate::Field& field : PromptTemplate::fields_in_value(settings.introduction, "introduction"))
        optional_fields += "{?" + field.name + "}{" + field.name + "}{/" + field.name + "}";
    settings.introduction = optional_fields;
    return settings;
}

/// The right choice, or what continues the prompt.
std::string answer_of(const Record& record, const JobChoices& job_choices, const Settings& settings,
                      const std::string& where) {
    if (settings.mode != Mode::multiple_choice) {
        if (record.reference && !record.reference->empty()) return *record.reference;
        throw InputError(where, "continuation", "the answer of an example", "nothing",
                         "column = continuation=NAME names another field");
    }
    const Choices choices = job_choices.of(record.choices, record.fields, where);
    if (!choices.right.empty()) return choices.texts.at(static_cast<std::size_t>(choices.right.front()));
    throw InputError(where, "answer", "the answer of an example", "nothing",
                     "column = answer=NAME names another field");
}

/// Adds texts so that other texts give another hash, wherever they are divided.
void add_texts(engine::Hash& hash, const std::vector<std::string>& texts) {
    hash.add(std::to_string(texts.size()) + ":");
    for (const std::string& text : texts) hash.add(std::to_string(text.size()) + ":" + text);
}

void add_message(engine::Hash& hash, const engine::ChatMessage& message) {
    add_texts(hash, {message.role, message.content, message.reasoning_content.value_or("")});
    add_texts(hash, message.parts);
    for (const auto& [name, value] : message.more) add_texts(hash, {name, value});
}

}  // namespace

FewShot::FewShot(const Settings& job)
    : wanted_(job.few_shot),
      gap_(job.mode == Mode::multiple_choice ? job.choice_gap : ""),
      group_field_(job.few_shot_group) {
    const Settings settings = settings_of_examples(job);
    const std::unique_ptr<RecordSource> records = open_records(settings);
    const std::optional<PromptTemplate> text = open_template(settings, records->field_names());
    const JobChoices choices(settings, records->field_names());
    for (std::int64_t index = 0; index < records->size(); ++index) {
        const Record record = records->read(index);
        const std::string group = group_of(record, records->field_names());
        Examples& examples = groups_[group];
        if (examples.count == wanted_ && group_field_.empty()) break;
        if (examples.count == wanted_) continue;
        const std::string answer = answer_of(record, choices, settings, records->label(index));
        const std::string prompt = !record.messages.empty() ? ""
                                   : text                   ? text->render(record.fields)
                                                            : record.fields.front();
        add_texts(hash_, {group});
        add(examples, prompt, record, answer, records->label(index));
    }
    if (group_field_.empty() && groups_[""].count < wanted_)
        throw InputError(settings.data.string(), "few-shot", counted(wanted_, "example", "examples"),
                         std::to_string(groups_[""].count));
}

void FewShot::add(Examples& examples, const std::string& prompt, const Record& record, const std::string& answer,
                  const std::string& where) {
    ++examples.count;
    examples.has_messages |= !record.messages.empty();
    std::vector<engine::ChatMessage> messages = record.messages;
    if (messages.empty()) messages.push_back({"user", prompt});
    messages.push_back({"assistant", answer});
    for (const engine::ChatMessage& message : messages) add_message(hash_, message);
    examples.messages.insert(examples.messages.end(), messages.begin(), messages.end());
    if (gap_.empty() || examples.has_messages) {
        examples.text += prompt + (needs_blank(prompt, answer) ? " " : "") + answer + "\n\n";
    } else {
        const GapText parts = split_at_gap(prompt, gap_, where);
        examples.text += parts.before + answer + parts.behind + "\n\n";
    }
}

std::string FewShot::group_of(const Record& record, const std::vector<std::string>& names) const {
    const auto at = std::find(names.begin(), names.end(), group_field_) - names.begin();
    return at < std::ssize(record.fields) ? record.fields[static_cast<std::size_t>(at)] : "";
}

const FewShot::Examples& FewShot::before(const Record& record, const std::vector<std::string>& names,
                                         const std::string& where) const {
    const std::string group = group_of(record, names);
    const auto found = groups_.find(group);
    const std::int64_t count = found == groups_.end() ? 0 : found->second.count;
    if (count == wanted_) return found->second;
    throw InputError(where, "few-shot",
                     counted(wanted_, "example", "examples") + " whose " + group_field_ + " is " + in_quotes(group),
                     std::to_string(count), "few-shot-data has too few of them");
}

}  // namespace longhaul::runner
