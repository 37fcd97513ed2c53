// Questions in flight: one item per choice, one result per question.
#include "runner/launch/questions.hpp"

#include <gtest/gtest.h>

#include <cmath>

namespace longhaul::runner {
namespace {

Prompt question(const std::string& id, const std::vector<std::string>& texts, std::optional<std::int64_t> right = {}) {
    Prompt prompt{.id = id, .tokens = {1, 2, 3}, .error = {}};
    std::int32_t token = 10;
    for (const std::string& text : texts)
        prompt.choices.push_back({text, {token++, 5}, static_cast<std::int64_t>(text.size())});
    if (right) prompt.right_choices = {*right};
    prompt.group = "of " + id;
    return prompt;
}

engine::FinishedItem result(const engine::WorkItem& item, double nll, const std::string& error = {}) {
    engine::FinishedItem done;
    done.number = item.number;
    done.sample = item.sample;
    done.prompt_tokens = 3;
    done.error = error;
    done.statistics.steps = 2;
    done.statistics.seconds = 1 + nll;
    done.statistics.cached_tokens = 1;
    done.statistics.loss.add(3, -nll / 2, false);
    done.statistics.loss.add(4, -nll / 2, false);
    return done;
}

TEST(Questions, AreItemsOfTheirChoices) {
    Questions questions;
    const auto options = std::make_shared<const engine::GenerationOptions>();
    questions.add(7, question("a", {"x", "y"}), options);
    for (std::int64_t choice = 0; choice < 2; ++choice) {
        const auto item = questions.next();
        ASSERT_TRUE(item);
        EXPECT_EQ(item->number, 7);
        EXPECT_EQ(item->sample, choice);
        EXPECT_EQ(item->checkpoint_key, "a#" + std::to_string(choice)) << "unique among those in flight";
        EXPECT_EQ(item->prompt, (std::vector<std::int32_t>{1, 2, 3}));
        EXPECT_EQ(item->continuation, (std::vector<std::int32_t>{10 + static_cast<std::int32_t>(choice), 5}));
        EXPECT_EQ(item->options, options);
    }
    EXPECT_FALSE(questions.next());
}

TEST(Questions, AreDoneWithTheirLastChoice) {
    Questions questions;
    questions.add(0, question("a", {"a long one", "b"}, 1), {});
    questions.add(1, question("b", {"c", "d"}), {});
    std::vector<engine::WorkItem> items;
    while (auto item = questions.next()) items.push_back(std::move(*item));
    ASSERT_EQ(items.size(), 4U);
    EXPECT_FALSE(questions.finished(result(items[1], 2)));
    EXPECT_FALSE(questions.finished(result(items[2], 4)));
    const auto first = questions.finished(result(items[0], 6));
    ASSERT_TRUE(first && first->scores);
    EXPECT_EQ(first->item.number, 0);
    EXPECT_EQ(first->item.reason, engine::FinishReason::stop);
    EXPECT_EQ(first->item.text, "b");
    EXPECT_EQ(first->scores->logprobs, (std::vector<double>{-6, -2}));
    EXPECT_EQ(first->scores->chosen, 1);
    EXPECT_EQ(first->scores->chosen_norm, 0) << "-0.6 per character are more than -2";
    EXPECT_EQ(first->scores->right, (std::vector<std::int64_t>{1}));
    EXPECT_EQ(first->scores->mc2, std::nullopt);
    EXPECT_EQ(first->scores->group, "of a");
    EXPECT_EQ(first->num_tokens, 4);
    EXPECT_EQ(first->item.prompt_tokens, 6);
    EXPECT_EQ(first->item.statistics.cached_tokens, 2);
    EXPECT_EQ(first->item.statistics.steps, 4);
    EXPECT_EQ(first->item.statistics.seconds, 7) << "both were in flight at once";
    const auto second = questions.finished(result(items[3], 4));
    ASSERT_TRUE(second && second->scores);
    EXPECT_EQ(second->scores->chosen, 0) << "the first one of equal choices";
    EXPECT_TRUE(second->scores->right.empty());
}

TEST(Questions, HaveAPromptForEachChoiceThatStandsInIt) {
    Prompt prompt = question("a", {"x", "y"});
    prompt.choices[1].prompt = {1, 4};
    Questions questions;
    questions.add(0, std::move(prompt), {});
    EXPECT_EQ(questions.next()->prompt, (std::vector<std::int32_t>{1, 2, 3}));
    EXPECT_EQ(questions.next()->prompt, (std::vector<std::int32_t>{1, 4}));
}

// Probabilities 0.2, 0.3 and 0.1, of which the first and the last are right: 0.3 of 0.6.
TEST(Questions, SeveralRightChoicesHaveAShareOfTheProbability) {
    Prompt prompt = question("a", {"x", "y", "z"});
    prompt.right_choices = {0, 2};
    prompt.may_have_several_right = true;
    Questions questions;
    questions.add(0, std::move(prompt), {});
    std::optional<Questions::Done> done;
    for (const double probability : {0.2, 0.3, 0.1})
        done = questions.finished(result(*questions.next(), -std::log(probability)));
    ASSERT_TRUE(done && done->scores && done->scores->mc2);
    EXPECT_NEAR(*done->scores->mc2, 0.5, 1e-12);
    EXPECT_EQ(done->scores->chosen, 1);
}

TEST(Questions, FailWithTheirFirstChoiceThatFails) {
    Questions questions;
    questions.add(0, question("a", {"x", "y", "z"}, 0), {});
    const auto x = questions.next(), y = questions.next(), z = questions.next();
    EXPECT_FALSE(questions.finished(result(*z, 1, "of z")));
    EXPECT_FALSE(questions.finished(result(*x, 1)));
    const auto done = questions.finished(result(*y, 1, "of y"));
    ASSERT_TRUE(done);
    EXPECT_EQ(done->item.reason, engine::FinishReason::error);
    EXPECT_EQ(done->item.error, "of y");
    EXPECT_EQ(done->item.text, "");
    EXPECT_FALSE(done->scores);
}

}  // namespace
}  // namespace longhaul::runner
