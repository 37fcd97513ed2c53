// The items of a job, in the order of the input. Readers stream: an item costs an index entry until it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// One prompt, ready for the engine, or the reason why it cannot be run.
struct Prompt {
    std::string id;                    ///< UTF-8; unique in the data, but for items that fail because theirs is not
    std::vector<std::int32_t> tokens;  ///< begin-of-text token included; at least one where there is no error
    std::string error;                 ///< non-empty: the item is recorded as failed with this line
    /// Where `wants_continuation`: tokens of what the data has behind the prompt, 1 to max-tokens; else empty.
    std::vector<std::int32_t> continuation{};
    /// The job's settings with the item's own "options"; null where it has none.
    std::shared_ptr<const Settings> settings{};
};

/// Whether `settings` and the tokenizer together put a begin-of-text token before every prompt. Throws UsageError where
/// it is asked for and the tokenizer has none; check once before the first item.
bool puts_bos(const Settings& settings, const engine::Tokenizer& tokenizer);

/// What make_prompt is told about a prompt beside its tokens.
struct PromptForm {
    std::string label;              ///< names the text in messages
    bool chat = false;              ///< rendered by a chat template: that alone decides on a begin-of-text token
    std::int64_t continuation = 0;  ///< tokens that will follow; 0: max-tokens will
};

/// The prompt that `ids` (a text's tokens) make: begin-of-text token in front where `puts_bos`, and room for the new
/// tokens in a context of `max_positions`; without room, what `overlong` says (a begin-of-text token stays in front).
/// Throws InputError; UsageError as puts_bos does.
std::vector<std::int32_t> make_prompt(std::vector<std::int32_t> ids, const PromptForm& form, const Settings& settings,
                                      const engine::Tokenizer& tokenizer, std::int64_t max_positions);

/// All calls are const and may come from several threads.
class DataSet {
  public:
    /// Opens the data of `settings` (task, data, reference, limit and the keys that shape prompts). Throws InputError
    /// when nothing can be read at all (missing, empty, unreadable), for two parallel files of different length, for
    /// template files with mistakes, and where `chat` asks for a chat template that is not there.
    ///
    /// pg19: a folder of books NAME.txt (in byte order of the names; no subfolders, no hidden files), one book, or
    /// JSONL lines {"id"?, "text"}. The prompt is the first `prompt-tokens` tokens of the book, a shorter book as it
    /// is; its continuation what follows them in the book.
    ///
    /// The prompts of the others are texts of a template (jobs/templates, or the file that `template` names), whose
    /// fields are named here; with `chat` the chat template's rendering of that text as one user message:
    /// wmt: two files of parallel lines or SGM segments, see find_parallel_files; field source.
    /// xsum: JSONL lines {"id"?, "document", "summary"}, or parallel lines; field document.
    /// dolly: JSONL lines {"id"?, "instruction", "context"?, "response", "category"?}; fields instruction, context,
    /// category.
    /// prompts: JSONL lines {"id"?, "prompt" or "messages", "continuation"?, "options"?}, or a .txt file with a prompt
    /// a line; field prompt, which is the whole prompt where no template is named. Messages are rendered by the chat
    /// template alone.
    ///
    /// Ids are strings or integers; an absent one is the line number, a segment's is DOCID:SEGID. Blank lines are no
    /// items, but of parallel files they are items that fail.
    static std::unique_ptr<DataSet> open(const Settings& settings);

    virtual ~DataSet() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;  ///< after `limit`
    /// Approximate prompt length in bytes: longest first is decided by it, without reading the item.
    [[nodiscard]] virtual std::int64_t prompt_bytes(std::int64_t index) const = 0;
    /// Id of an item; reads the item's line at most.
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    /// Reads and tokenises one item. Never throws for a bad item. `max_positions`: the model's context; see
    /// make_prompt.
    ///
    /// The continuation of other tasks than pg19 is the reference, behind a blank where the prompt does not end in
    /// white space; of prompts, "continuation" as it is. Its tokens are those that follow the prompt's in the encoding
    /// of both together, or, where that encoding begins otherwise, those of the continuation alone.
    [[nodiscard]] virtual Prompt prompt(std::int64_t index, const engine::Tokenizer& tokenizer,
                                        std::int64_t max_positions) const = 0;
    /// The text that the data has as the right answer, for a book the max-tokens tokens behind the prompt; nullopt
    /// where the task, the data or a bad item has none.
    [[nodiscard]] virtual std::optional<std::string> reference(std::int64_t index,
                                                               const engine::Tokenizer& tokenizer) const = 0;
    /// The identity of what decides the prompts, one line: XXH3-64, hexadecimal, of all bytes the items are made from
    /// (whatever `limit` says; references only where they are continuations), then the fingerprint of the template and
    /// the chat template's name where they are used. Reads everything: for one rank of a launch. Throws InputError
    /// where that fails.
    [[nodiscard]] virtual std::string fingerprint() const = 0;
};

}  // namespace longhaul::runner
