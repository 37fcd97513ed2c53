// Multiple-choice questions in flight (mode = multiple-choice). The replica scores every choice as an item of its own,
// which copies the keys and values of the prompt from the first one (prefix caching); a question is done with its last
// choice.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/replica/work_item.hpp"
#include "runner/data/dataset.hpp"
#include "runner/run/result_lines.hpp"

namespace longhaul::runner {

class Questions {
  public:
    /// A question with all its choices.
    struct Done {
        engine::FinishedItem item;  ///< of the whole question: its text is the chosen one; counters are sums
        std::int64_t num_tokens = 0;
        std::optional<ChoiceScores> scores;  ///< nullopt: the item has an error
    };

    /// Takes the choices of `prompt`. `number`: index of all its items.
    void add(std::int64_t number, Prompt prompt, const std::shared_ptr<const engine::GenerationOptions>& options);

    /// The next choice to score; nullopt if none is left.
    std::optional<engine::WorkItem> next();

    /// Takes the result of a choice. Returns the question if it is done.
    std::optional<Done> finished(const engine::FinishedItem& choice);

  private:
    struct Question {
        std::vector<std::string> texts;
        std::vector<std::int64_t> num_characters;  // that are scored
        std::vector<std::int64_t> right;
        bool may_have_several_right = false;
        std::string group;
        std::vector<std::optional<engine::FinishedItem>> results;  // by choice
    };
    static Done done(const Question& question);

    std::deque<engine::WorkItem> waiting_;
    std::map<std::int64_t, Question> questions_;  // by number
};

}  // namespace longhaul::runner
