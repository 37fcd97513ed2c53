// Items that consist of text fields for a prompt template, and optionally messages, a reference or options: tasks wmt,
// xsum, dolly, longwriter, prompts and openai-batch. Used by dataset.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/data/choices.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

struct Record {
    std::vector<std::string> fields;             ///< texts for RecordSource::field_names; empty if there are messages
    std::vector<engine::ChatMessage> messages;   ///< prompts: instead of fields
    std::vector<std::int32_t> tokens;            ///< openai-batch: instead of fields; none is negative
    std::optional<std::string> reference;        ///< the right answer, from the data
    std::optional<std::int64_t> required_words;  ///< longwriter: length that the prompt asks for
    GivenChoices choices;                        ///< with mode = multiple-choice
    std::shared_ptr<const Settings> settings;    ///< the item's own settings; null: the job's
};

/// Records numbered from 0 in the order of the input. Const members are thread-safe.
class RecordSource {
  public:
    virtual ~RecordSource() = default;
    [[nodiscard]] virtual const std::vector<std::string>& field_names() const = 0;  ///< at least one
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int64_t num_bytes(std::int64_t index) const = 0;  ///< approximate
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;
    /// Throws InputError for a bad item.
    [[nodiscard]] virtual Record read(std::int64_t index) const = 0;
    /// Hashes the bytes that the prompts are made from, and with `references` those of the references too. Throws
    /// InputError.
    virtual void add_to(engine::Hash& hash, bool references) const = 0;
    [[nodiscard]] virtual bool takes_messages() const { return false; }  ///< whether items may have messages
    /// Whether any item has messages, regardless of the limit. Reads everything. Throws InputError.
    [[nodiscard]] virtual bool has_messages() const { return false; }
    /// Lines for the user about the data as a whole. May read everything; leaves bad items out.
    [[nodiscard]] virtual std::vector<std::string> notices() const { return {}; }
};

/// Opens the data of `settings`; any task except pg19. Throws InputError.
std::unique_ptr<RecordSource> open_records(const Settings& settings);

/// The template of the prompts, with `fields`; nullopt if the first field is the whole prompt. Throws InputError.
std::optional<PromptTemplate> open_template(const Settings& settings, const std::vector<std::string>& fields);

/// Source file and reference file (empty if there is none) of wmt and xsum: `data` and `reference`. Without
/// `reference`, the matching file beside `data`: X-ref.L2.sgm for X-src.L1.sgm, X.target for X.source, and for wmt X.en
/// for X.de. `data` may be a folder with exactly one such pair. Throws InputError.
struct ParallelFiles {
    std::filesystem::path source, reference;
};
ParallelFiles find_parallel_files(const Settings& settings);

/// Records of parallel files, whose lines are the texts of `field`. Throws InputError.
std::unique_ptr<RecordSource> open_parallel(const Settings& settings, const std::string& field);
/// A prompt for each line of `data`. Throws InputError.
std::unique_ptr<RecordSource> open_prompt_lines(const Settings& settings);
/// The same, where the job's template names no other field than the line.
std::unique_ptr<RecordSource> open_prompts_of_lines(const Settings& settings);
/// Task prompts, of JSON objects or a table. Throws InputError.
std::unique_ptr<RecordSource> open_prompts(const Settings& settings);

/// Member `key` of `object` as a string without NUL. Throws InputError if it is absent or something else.
std::string text_member(const engine::Json& object, const std::string& key, const std::string& where);
/// The same of a member that may be absent or null.
std::optional<std::string> optional_text(const engine::Json& object, const std::string& key, const std::string& where);

/// Sets one generation key (temperature, stop, …) from JSON; a stop text or list replaces the settings' own. `field`
/// names the value in errors. Throws InputError.
void set_generation_key(Settings& settings, const std::string& key, const engine::Json& value, const std::string& where,
                        const std::string& field);

/// Throws InputError for a limit of a reasoning that has no end. Call when all keys of an item are set.
void check_reasoning(const Settings& settings, const std::string& where, const std::string& field);

/// The generation key that other programs call `name` ("max_tokens"); "" if there is none.
std::string option_called(std::string name);

/// The job's settings changed by the object "options" of an item. Only generation keys are allowed. Throws InputError.
std::shared_ptr<const Settings> with_options(const engine::Json& options, const Settings& job,
                                             const std::string& where);

}  // namespace longhaul::runner
