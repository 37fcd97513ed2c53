// Few-shot examples: prompts with their answers, which stand before every prompt of a job (few-shot = N).
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/tokenizer/chat_template.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

class FewShot {
  public:
    /// What stands before a prompt.
    struct Examples {
        std::int64_t count = 0;
        bool has_messages = false;                    ///< some example consists of messages: then there is no text
        std::string text{};                           ///< of each example the prompt, its answer and an empty line
        std::vector<engine::ChatMessage> messages{};  ///< the same as a conversation
    };

    /// Reads the first `few-shot` examples of the job, or the first of each group, from few-shot-data and
    /// few-shot-split. Throws InputError if there are not as many, or one has a fault or no answer.
    explicit FewShot(const Settings& settings);

    /// The examples of an item. `fields`: its names and their texts. Throws InputError if its group has not enough.
    [[nodiscard]] const Examples& before(const Record& record, const std::vector<std::string>& names,
                                         const std::string& where) const;

    /// What few-shot-group is for the item; "" without it.
    [[nodiscard]] std::string group_of(const Record& record, const std::vector<std::string>& names) const;

    [[nodiscard]] std::uint64_t fingerprint() const { return hash_.value(); }  ///< of all examples

  private:
    void add(Examples& examples, const std::string& prompt, const Record& record, const std::string& answer,
             const std::string& where);

    std::int64_t wanted_;
    std::string gap_;                         ///< choice-gap, where answers stand; "": behind the prompts
    std::string group_field_;                 ///< "": all items have the same examples
    std::map<std::string, Examples> groups_;  ///< by the text of `group_field_`
    engine::Hash hash_;
};

}  // namespace longhaul::runner
