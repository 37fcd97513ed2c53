// The items of a job, in the order of the input. Readers stream: an item costs an index entry until it is asked for.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "engine/tokenizer/tokenizer.hpp"
#include "runner/settings.hpp"

namespace longhaul::runner {

/// One prompt, ready for the engine, or the reason why it cannot be run.
struct Prompt {
    std::string id;                    ///< UTF-8; unique in the data, but for items that fail because theirs is not
    std::vector<std::int32_t> tokens;  ///< begin-of-text token included; at least one where there is no error
    std::string error;                 ///< non-empty: the item is recorded as failed with this line
    /// Tokens of the data's own continuation, at most `max-tokens`; filled where `teacher-forced` or `mode = perplexity`
    /// ask for it.
    std::vector<std::int32_t> continuation{};
    std::shared_ptr<const Settings> settings{};  ///< null: the job's; else the job's with what this item overrides
};

/// Whether `settings` and the tokenizer together put a begin-of-text token before every prompt. Throws UsageError where
/// it is asked for and the tokenizer has none; check once before the first item.
bool puts_bos(const Settings& settings, const engine::Tokenizer& tokenizer);

/// The prompt that `ids` (a text's tokens) make: begin-of-text token in front where `puts_bos`, and room for
/// `max-tokens` new tokens in a context of `max_positions`; without room, what `overlong` says. `label` names the text
/// in messages. Throws InputError; UsageError as puts_bos does.
std::vector<std::int32_t> make_prompt(std::vector<std::int32_t> ids, const std::string& label, const Settings& settings,
                                      const engine::Tokenizer& tokenizer, std::int64_t max_positions);

/// All calls are const and may come from several threads.
class DataSet {
  public:
    /// Opens the data of `settings` (task, data, limit and the keys that shape prompts). Throws InputError when nothing
    /// can be read at all (missing, empty, unreadable).
    ///
    /// Task pg19: a folder of books NAME.txt (in byte order of the names; no subfolders, no hidden files), one book, or
    /// JSONL lines {"id"?, "text"}. The prompt is the first `prompt-tokens` tokens of the book, a shorter book as it
    /// is. Task prompts: JSONL lines {"id"?, "prompt"}, or a .txt file with a prompt a line. Ids are strings or
    /// integers; an absent one is the line number. Blank lines are no items.
    static std::unique_ptr<DataSet> open(const Settings& settings);

    virtual ~DataSet() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;  ///< after `limit`
    /// Approximate prompt length in bytes: longest first is decided by it, without reading the item.
    [[nodiscard]] virtual std::int64_t prompt_bytes(std::int64_t index) const = 0;
    /// Id of an item; reads the item's line at most.
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    /// Reads and tokenises one item. Never throws for a bad item. `max_positions`: the model's context; a prompt that
    /// leaves no room for `max-tokens` is an error, or under overlong = truncate-left loses tokens from its beginning
    /// (a begin-of-text token stays in front).
    [[nodiscard]] virtual Prompt prompt(std::int64_t index, const engine::Tokenizer& tokenizer,
                                        std::int64_t max_positions) const = 0;
    /// XXH3-64, hexadecimal, of all bytes the items are made from (whatever `limit` says): the data's identity. Reads
    /// everything: for one rank of a launch. Throws InputError where that fails.
    [[nodiscard]] virtual std::string fingerprint() const = 0;
};

}  // namespace longhaul::runner
