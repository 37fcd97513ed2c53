#include "runner/launch/questions.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

namespace longhaul::runner {
namespace {

std::int64_t index_of_max(const std::vector<double>& values) {
    return std::max_element(values.begin(), values.end()) - values.begin();  // the first one of equal values
}

/// Of the probability of all choices together the share of those listed.
double share_of(const std::vector<std::int64_t>& listed, const std::vector<double>& logprobs) {
    const double largest = *std::max_element(logprobs.begin(), logprobs.end());
    double all = 0, part = 0;
    for (const double logprob : logprobs) all += std::exp(logprob - largest);
    for (const std::int64_t index : listed) part += std::exp(logprobs[static_cast<std::size_t>(index)] - largest);
    return part / all;
}

}  // namespace

void Questions::add(std::int64_t number, Prompt prompt,
                    const std::shared_ptr<const engine::GenerationOptions>& options) {
    Question& question = questions_[number];
    question.right = std::move(prompt.right_choices);
    question.may_have_several_right = prompt.may_have_several_right;
    question.group = std::move(prompt.group);
    question.results.resize(prompt.choices.size());
    for (PromptChoice& choice : prompt.choices) {
        engine::WorkItem item;
        item.number = number;
        item.id = prompt.id;
        item.sample = std::ssize(question.texts);
        item.checkpoint_key = checkpoint_key(prompt.id, item.sample);
        item.prompt = choice.prompt.empty() ? prompt.tokens : std::move(choice.prompt);
        item.continuation = std::move(choice.tokens);
        item.options = options;
        waiting_.push_back(std::move(item));
        question.texts.push_back(std::move(choice.text));
        question.num_characters.push_back(choice.num_characters);
    }
}

std::optional<engine::WorkItem> Questions::next() {
    if (waiting_.empty()) return std::nullopt;
    engine::WorkItem item = std::move(waiting_.front());
    waiting_.pop_front();
    return item;
}

std::optional<Questions::Done> Questions::finished(const engine::FinishedItem& choice) {
    const auto at = questions_.find(choice.number);
    std::vector<std::optional<engine::FinishedItem>>& results = at->second.results;
    results.at(static_cast<std::size_t>(choice.sample)) = choice;
    if (!std::all_of(results.begin(), results.end(), [](const auto& result) { return result.has_value(); }))
        return std::nullopt;
    Done all = done(at->second);
    questions_.erase(at);
    return all;
}

Questions::Done Questions::done(const Question& question) {
    Done done;
    engine::FinishedItem& item = done.item;
    item.number = question.results.front()->number;
    item.reason = engine::FinishReason::stop;
    ChoiceScores scores{.logprobs = {},
                        .right = question.right,
                        .may_have_several_right = question.may_have_several_right,
                        .group = question.group};
    std::vector<double> per_character;
    for (const auto& result : question.results) {
        const engine::LossByPosition& loss = result->statistics.loss;
        const std::int64_t characters = question.num_characters[per_character.size()];
        scores.logprobs.push_back(-loss.nll());
        per_character.push_back(scores.logprobs.back() / static_cast<double>(characters));
        done.num_tokens += loss.num_tokens();
        item.prompt_tokens += result->prompt_tokens;
        item.max_tokens = result->max_tokens;
        item.statistics.seconds = std::max(item.statistics.seconds, result->statistics.seconds);
        item.statistics.steps += result->statistics.steps;
        item.statistics.cached_tokens += result->statistics.cached_tokens;
        if (item.error.empty()) item.error = result->error;
    }
    if (!item.error.empty()) {
        item.reason = engine::FinishReason::error;
        return done;
    }
    scores.chosen = index_of_max(scores.logprobs);
    scores.chosen_norm = index_of_max(per_character);
    if (question.may_have_several_right) scores.mc2 = share_of(question.right, scores.logprobs);
    item.text = question.texts[static_cast<std::size_t>(scores.chosen)];
    done.scores = std::move(scores);
    return done;
}

}  // namespace longhaul::runner
