// The items of a job in the order of the input: prompts, references, fingerprint. Readers stream: an item costs only an
// index entry until it is read. Opened by runner/launch and by the commands `results` and `sweep`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// A choice of a multiple-choice question.
struct PromptChoice {
    std::string text;                    ///< as the data has it
    std::vector<std::int32_t> tokens;    ///< that are scored and follow the prompt, at least one
    std::int64_t num_characters = 0;     ///< of what is scored, as the data has it
    std::vector<std::int32_t> prompt{};  ///< with choice-gap; empty: that of the question
};

/// One prompt for the engine, or the reason why it cannot be run.
struct Prompt {
    std::string id;  ///< UTF-8; unique in the data, except for items that fail because of a duplicate id
    std::vector<std::int32_t> tokens;  ///< includes the begin-of-text token; not empty unless there is an error
    std::string error;                 ///< not empty: the item is recorded as failed with this line
    /// If `wants_continuation`: the tokens that follow the prompt in the data, 1 to max-tokens. Otherwise empty.
    std::vector<std::int32_t> continuation{};
    /// The job's settings changed by the item's "options"; null if the item has none.
    std::shared_ptr<const Settings> settings{};
    std::vector<PromptChoice> choices{};        ///< with mode = multiple-choice at least two, otherwise none
    std::vector<std::int64_t> right_choices{};  ///< indices; empty: not known
    bool may_have_several_right = false;        ///< the data says of each choice whether it is right
    std::string group{};                        ///< of the question, with few-shot-group
};

/// A notice for each key of chat templates that a job without `chat` gives: they concern only data with messages.
std::vector<std::string> unused_chat_keys(const Settings& settings);

/// Whether a begin-of-text token goes before every prompt, by `add-bos` and the tokenizer. Throws UsageError if add-bos
/// = true and the tokenizer has no such token; call it once before the first item.
bool puts_bos(const Settings& settings, const engine::Tokenizer& tokenizer);

/// Parameters of make_prompt besides the tokens.
struct PromptForm {
    std::string label;              ///< names the text in messages
    bool complete = false;          ///< a chat template, or who gave the tokens, has decided on a begin-of-text token
    std::int64_t continuation = 0;  ///< number of tokens that will follow; 0: max-tokens
};

/// Makes a prompt from `ids`, the tokens of a text. Adds a begin-of-text token if `puts_bos`, and leaves space for the
/// new tokens in a context of `max_positions`. If the prompt is too long, `overlong` decides: an error, or truncation
/// from the left, which keeps a begin-of-text token. Throws InputError, and UsageError like puts_bos.
std::vector<std::int32_t> make_prompt(std::vector<std::int32_t> ids, const PromptForm& form, const Settings& settings,
                                      const engine::Tokenizer& tokenizer, std::int64_t max_positions);

/// A data set. Const members are thread-safe.
class DataSet {
  public:
    /// Opens the data of `settings` (task, data, reference, limit and the keys that shape prompts). Throws InputError
    /// if nothing can be read (missing, empty, unreadable), if two parallel files differ in length, if a template file
    /// has mistakes, or if `chat` needs a chat template that is not available.
    ///
    /// pg19: a folder of books NAME.txt (sorted by the bytes of the names; no subfolders, no hidden files), one book,
    /// or JSONL lines {"id"?, "text"}. The prompt is the first `prompt-tokens` tokens of the book, or all of a shorter
    /// book. The continuation is what follows in the book.
    ///
    /// The prompts of the other tasks are rendered from a template (jobs/templates, or the file given as `template`)
    /// with the fields named below. With `chat`, the chat template renders that text as one user message.
    /// wmt: two files of parallel lines or SGM segments, see find_parallel_files; field source.
    /// xsum: JSONL lines {"id"?, "document", "summary"}, or parallel lines; field document.
    /// dolly: JSONL lines {"id"?, "instruction", "context"?, "response", "category"?}; fields instruction, context,
    /// category.
    /// longwriter: JSONL lines {"id"?, "prompt", "length", "type"?}; fields prompt, length, type.
    /// prompts: JSONL lines {"id"?, "prompt" or "messages", "continuation"?, "options"?}, or a .txt file with one
    /// prompt per line; field prompt, which is the whole prompt if no template is given. Messages are rendered by the
    /// chat template only. With mode = multiple-choice the lines have "choices"? and "answer"?, see choices.hpp.
    ///
    /// openai-batch: requests of OpenAI's batch API (batch_requests.hpp); their id is "custom_id".
    ///
    /// Ids are strings or integers. The default id is the line number; the id of a segment is DOCID:SEGID. Blank lines
    /// are skipped, but in parallel files they are items that fail.
    static std::unique_ptr<DataSet> open(const Settings& settings);

    virtual ~DataSet() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;  ///< number of items, after `limit`
    /// Approximate length of the prompt in bytes, without reading the item. The scheduler uses it to start long prompts
    /// first.
    [[nodiscard]] virtual std::int64_t prompt_bytes(std::int64_t index) const = 0;
    /// Id of an item; reads at most the item's line.
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    /// Reads and tokenizes one item. Never throws for a bad item: see Prompt::error. `max_positions` is the context of
    /// the model; see make_prompt.
    ///
    /// Continuation: for pg19 the tokens that follow in the book; for prompts "continuation" as it is; for other tasks
    /// the reference, after a blank if the prompt does not end in white space. Its tokens are those after the prompt's
    /// in the encoding of both together. If that encoding does not begin with the prompt's tokens, the continuation is
    /// encoded alone.
    ///
    /// Choices: like a continuation, behind a blank if neither the prompt ends nor the choice begins with white space.
    /// Blanks that end the prompt belong to the choices, whose first token usually has one.
    [[nodiscard]] virtual Prompt prompt(std::int64_t index, const engine::Tokenizer& tokenizer,
                                        std::int64_t max_positions) const = 0;
    /// The reference text of an item; for a book the max-tokens tokens after the prompt. nullopt if the task or the
    /// data has none, or the item is bad.
    [[nodiscard]] virtual std::optional<std::string> reference(std::int64_t index,
                                                               const engine::Tokenizer& tokenizer) const = 0;
    /// Words that the prompt of an item asks for (longwriter); nullopt if the data does not say, or the item is bad.
    [[nodiscard]] virtual std::optional<std::int64_t> required_words(std::int64_t /*index*/) const {
        return std::nullopt;
    }
    /// One line that identifies what decides the prompts: XXH3-64 (hexadecimal) of all bytes that the items are made
    /// from, then the fingerprint of the template and the identity of the chat template, if used. Covers the whole data
    /// regardless of `limit`, and the references only if they are continuations. Reads everything, so call it on one
    /// rank. Throws InputError if that fails.
    [[nodiscard]] virtual std::string fingerprint() const = 0;
    /// Lines for the user about the data as a whole, without "note: ". May read everything, so call it on one rank.
    [[nodiscard]] virtual std::vector<std::string> notices(const engine::Tokenizer& tokenizer) const = 0;
};

}  // namespace longhaul::runner
