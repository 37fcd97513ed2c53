// Log-probabilities of raw logits against libm, and the rows from which results are built.
#include "engine/sampling/log_softmax.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "engine/scoring.hpp"
#include "engine/token_tree.hpp"
#include "engine/verify/verifier.hpp"

namespace longhaul::engine {
namespace {

std::vector<float> random_logits(std::size_t vocab, std::uint32_t seed) {
    std::mt19937 random(seed);
    std::vector<float> logits(vocab);
    for (float& logit : logits) logit = static_cast<float>(random() % 4001) / 200 - 10;  // with ties
    return logits;
}

TEST(LogSoftmax, IsTheLogarithmOfTheSoftmax) {
    for (const std::size_t vocab : {1, 5, 16, 33, 1000}) {
        const std::vector<float> logits = random_logits(vocab, static_cast<std::uint32_t>(vocab));
        LogSoftmax log_softmax(static_cast<std::int64_t>(vocab));
        log_softmax.set(logits);
        long double sum = 0;
        for (const float logit : logits) sum += std::exp(static_cast<long double>(logit));
        for (std::size_t v = 0; v < vocab; ++v) {
            const auto expected = static_cast<double>(static_cast<long double>(logits[v]) - std::log(sum));
            EXPECT_NEAR(log_softmax(static_cast<std::int32_t>(v)), expected, 1e-10);
        }
    }
}

TEST(LogSoftmax, BestFirstAndTheLowerIdAtTies) {
    const std::vector<float> logits = random_logits(2000, 3);
    std::vector<std::int32_t> order(logits.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
        return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    LogSoftmax log_softmax(2000);
    log_softmax.set(logits);
    for (const std::int64_t count : {0, 1, 2, 20, 1000, 2000, 5000}) {
        const auto best = log_softmax.best(count);
        ASSERT_EQ(best.size(), static_cast<std::size_t>(std::min<std::int64_t>(count, 2000)));
        EXPECT_TRUE(std::equal(best.begin(), best.end(), order.begin())) << count;
    }
}

TEST(LogSoftmax, BrokenLogitsGiveNumbers) {
    constexpr float infinity = std::numeric_limits<float>::infinity();
    LogSoftmax log_softmax(4);
    log_softmax.set(std::vector<float>{NAN, 1, -infinity, 1});
    EXPECT_EQ(log_softmax(0), min_log_probability);
    EXPECT_EQ(log_softmax(2), min_log_probability);
    EXPECT_NEAR(log_softmax(1), -std::log(2.0), 1e-12);
    EXPECT_EQ(log_softmax.best(2)[0], 1);
    log_softmax.set(std::vector<float>{NAN, NAN, NAN, NAN});
    EXPECT_EQ(log_softmax(3), min_log_probability);
    log_softmax.set(std::vector<float>{infinity, 0, -3e38F, infinity});
    EXPECT_NEAR(log_softmax(0), -std::log(2.0), 1e-12);
    EXPECT_EQ(log_softmax(2), min_log_probability);
}

TEST(Logprobs, RowsHoldTheChosenTokenAndTheBestOnce) {
    LogSoftmax log_softmax(4);
    log_softmax.set(std::vector<float>{0, 3, 2, 1});
    std::vector<std::int32_t> rows;
    append_logprobs(log_softmax, 2, 2, rows);
    append_logprobs(log_softmax, 0, 2, rows);
    ASSERT_EQ(rows.size(), 2 * static_cast<std::size_t>(logprob_words(2)));
    const auto among = read_logprobs(std::span(rows).first(5), 2);
    ASSERT_EQ(among.size(), 2U) << "the chosen token is one of the best";
    EXPECT_EQ(among[0].token, 2);
    EXPECT_EQ(among[1].token, 1);
    EXPECT_FLOAT_EQ(among[0].value, static_cast<float>(log_softmax(2)));
    EXPECT_FLOAT_EQ(among[1].value, static_cast<float>(log_softmax(1)));
    const auto beside = read_logprobs(std::span(rows).last(5), 0);
    ASSERT_EQ(beside.size(), 3U);
    EXPECT_EQ(beside[0].token, 0);
    EXPECT_EQ(beside[1].token, 1);
    EXPECT_EQ(beside[2].token, 2);
    EXPECT_EQ(logprob_words(0), 0);
}

TEST(Forced, WalksAlongTheGivenTokens) {
    TokenTree tree;
    tree.reset(1);
    const auto a = tree.add(0, 5, Origin::ngram);
    tree.add(0, 6, Origin::ngram);
    const auto b = tree.add(a, 7, Origin::ngram);
    tree.add(b, 9, Origin::ngram);
    const auto walk = [&](std::vector<std::int32_t> coming) { return ForcedVerifier(coming).verify(tree, {}, 0, 0); };
    Verdict verdict = walk({5, 7, 8, 1});
    EXPECT_EQ(verdict.nodes, (std::vector<std::int32_t>{a, b}));
    EXPECT_EQ(verdict.next_token, 8);
    verdict = walk({4, 7});
    EXPECT_TRUE(verdict.nodes.empty());
    EXPECT_EQ(verdict.next_token, 4);
    verdict = walk({5, 7});  // the tree is deeper than the remaining tokens
    EXPECT_EQ(verdict.nodes, std::vector<std::int32_t>{a});
    EXPECT_EQ(verdict.next_token, 7);
}

// Every position is scored by exactly one window, the first that contains it, like the sliding window of the Hugging
// Face documentation (perplexity of fixed-length models).
TEST(ScoringWindows, ScoreEachPositionOnce) {
    for (const auto& [window, stride] : {std::pair(8, 4), std::pair(8, 3), std::pair(8, 8), std::pair(8, 1)}) {
        const ScoringWindows windows{.window = window, .stride = stride};
        std::int64_t previous_end = 0;
        for (std::int64_t begin = 0; begin < 100; begin += stride) {
            for (std::int64_t position = previous_end; position < begin + window; ++position)
                EXPECT_EQ(windows.begin_of(position), begin) << position << " " << window << " " << stride;
            previous_end = begin + window;
        }
    }
}

TEST(LossByPosition, BucketsArePowersOfTwo) {
    LossByPosition loss;
    for (const std::int64_t position : {1, 2, 3, 4, 7, 8, 1000}) loss.add(position, -1.5, position < 4);
    ASSERT_EQ(loss.buckets.size(), 10U);
    EXPECT_EQ(loss.buckets[0].count, 1);
    EXPECT_EQ(loss.buckets[1].count, 2);
    EXPECT_EQ(loss.buckets[2].count, 2);
    EXPECT_EQ(loss.buckets[3].count, 1);
    EXPECT_EQ(loss.buckets[9].count, 1);
    EXPECT_EQ(loss.num_tokens(), 7);
    EXPECT_EQ(loss.nll(), 7 * 1.5);
    EXPECT_EQ(loss.greedy_tokens, 3);
    EXPECT_EQ(loss.is_greedy(), false);
    EXPECT_EQ(LossByPosition().is_greedy(), std::nullopt);
}

TEST(LogSoftmax, TheBestTokenIsTheFirstOfTheGreatest) {
    LogSoftmax log_softmax(5);
    log_softmax.set(std::vector<float>{1, 7, std::numeric_limits<float>::quiet_NaN(), 7, 3});
    for (const std::int32_t token : {0, 2, 3, 4}) EXPECT_FALSE(log_softmax.is_best(token)) << token;
    EXPECT_TRUE(log_softmax.is_best(1));
}

}  // namespace
}  // namespace longhaul::engine
