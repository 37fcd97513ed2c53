// DRY against llama.cpp's sampler (tests/data/dry, made by tests/tools/make_dry_goldens.py) and against its definition
// written out; the same at a tree node however its context is split into sequence and path.
#include "engine/sampling/dry.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include "engine/json.hpp"
#include "engine/replica/dry_breakers.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;
using Penalties = std::map<std::int32_t, float>;

/// The definition, with every match counted token by token. `breakers`: heads with their tails.
Penalties expected(const SamplingParams& params, const Tokens& whole, const std::vector<Tokens>& breakers) {
    const auto window = static_cast<std::size_t>(params.dry.window > 0 ? params.dry.window : INT32_MAX);
    const Tokens text(whole.end() - static_cast<std::ptrdiff_t>(std::min(window, whole.size())), whole.end());
    const std::int64_t size = std::ssize(text);
    std::int64_t limit = size;
    for (std::int64_t head = size - 1; head >= 0 && limit == size; --head) {
        std::int64_t longest = -1;
        for (const Tokens& breaker : breakers) {
            const std::int64_t length = std::ssize(breaker);
            if (head + length <= size && std::equal(breaker.begin(), breaker.end(), text.begin() + head))
                longest = std::max(longest, length - 1);
        }
        if (longest >= 0) limit = size - 1 - head - longest;
    }
    std::map<std::int32_t, std::int64_t> lengths;
    for (std::int64_t last = 0; last + 1 < size; ++last) {
        std::int64_t length = 0;
        while (length <= last &&
               text[static_cast<std::size_t>(last - length)] == text[static_cast<std::size_t>(size - 1 - length)])
            ++length;
        auto& longest = lengths[text[static_cast<std::size_t>(last + 1)]];
        longest = std::max(longest, std::min(length, limit));
    }
    Penalties penalties;
    for (const auto& [token, length] : lengths) {
        const bool breaks = std::find(breakers.begin(), breakers.end(), Tokens{token}) != breakers.end();
        if (length < params.dry.allowed_length || breaks) continue;
        const double most = 88.7228391 / std::log(params.dry.base);
        const double exponent = std::min(static_cast<double>(length - params.dry.allowed_length), std::floor(most));
        const auto multiplier = static_cast<float>(params.dry.multiplier), base = static_cast<float>(params.dry.base);
        penalties[token] = static_cast<float>(multiplier * std::pow(static_cast<double>(base), exponent));
    }
    return penalties;
}

Penalties found(DryMatcher& matcher, const SamplingParams& params, std::span<const std::int32_t> sequence,
                std::span<const std::int32_t> path = {}) {
    Penalties penalties;
    for (const DryPenalty& one : matcher.find(params, sequence, path)) {
        EXPECT_FALSE(penalties.contains(one.token)) << "a token is penalised once";
        penalties[one.token] = one.amount;
    }
    return penalties;
}

SamplingParams dry(const DryParams& params, const DryBreakers* breakers = nullptr) {
    SamplingParams sampling;
    sampling.dry = params;
    sampling.dry_breakers = breakers;
    return sampling;
}

Tokens random_tokens(std::mt19937& random, std::size_t size, int alphabet) {
    Tokens tokens(size);
    for (auto& token : tokens) token = static_cast<std::int32_t>(random() % static_cast<unsigned>(alphabet));
    return tokens;
}

TEST(Dry, ByHand) {
    DryMatcher matcher(10);
    const SamplingParams params = dry({.multiplier = 0.5, .base = 2, .allowed_length = 2, .window = 0});
    // The context ends with 1 2 3; 1 2 3 stood before 4, and 2 3 before 5.
    EXPECT_EQ(found(matcher, params, Tokens{1, 2, 3, 4, 2, 3, 5, 1, 2, 3}), (Penalties{{4, 1.0F}, {5, 0.5F}}));
    EXPECT_EQ(found(matcher, params, Tokens{1, 2, 3, 4, 2, 3, 5}, Tokens{1, 2, 3}), (Penalties{{4, 1.0F}, {5, 0.5F}}));
    const DryBreakers two(std::vector<Tokens>{{2}});
    EXPECT_EQ(found(matcher, dry(params.dry, &two), Tokens{1, 2, 3, 4, 2, 3, 5, 1, 2, 3}), Penalties{})
        << "only the 3 is behind the breaker";
    const DryBreakers one(std::vector<Tokens>{{9}, {1}}), four(std::vector<Tokens>{{4}});
    EXPECT_EQ(found(matcher, dry(params.dry, &one), Tokens{1, 2, 3, 4, 2, 3, 5, 1, 2, 3}),
              (Penalties{{4, 0.5F}, {5, 0.5F}}));
    EXPECT_EQ(found(matcher, dry(params.dry, &four), Tokens{1, 2, 3, 4, 2, 3, 5, 1, 2, 3}), (Penalties{{5, 0.5F}}))
        << "a breaker is not penalised";
    EXPECT_EQ(found(matcher, dry({.multiplier = 0}), Tokens{1, 1, 1, 1}), Penalties{});
    EXPECT_EQ(found(matcher, params, Tokens{}), Penalties{});
}

// Every node of a tree: the context in all splits, with matches, windows and breakers that begin in sequence or path.
TEST(Dry, EqualsItsDefinitionHoweverTheContextIsSplit) {
    std::mt19937 random(5);
    DryMatcher kept(4), limited(3);
    std::size_t penalised = 0;
    for (int trial = 0; trial < 1500; ++trial) {
        const Tokens context = random_tokens(random, random() % 40, 1 + static_cast<int>(random() % 4));
        std::vector<Tokens> breakers(random() % 3);
        for (Tokens& breaker : breakers) breaker = random_tokens(random, 1 + random() % 3, 4);
        const DryBreakers found_breakers(breakers);
        const SamplingParams params = dry({.multiplier = 0.8,
                                           .base = trial % 5 == 0 ? 1.0 : 1.5,
                                           .allowed_length = static_cast<std::int64_t>(1 + random() % 3),
                                           .window = static_cast<std::int64_t>(random() % 40)},
                                          &found_breakers);
        const Penalties right = expected(params, context, breakers);
        penalised += right.size();
        for (std::size_t split = 0; split <= context.size(); ++split) {
            const Penalties got =
                found(kept, params, std::span(context).first(split), std::span(context).subspan(split));
            ASSERT_EQ(got, right) << ::testing::PrintToString(context) << " split at " << split << ", window "
                                  << params.dry.window << ", breakers " << ::testing::PrintToString(breakers);
        }
        Penalties known = right;  // tokens beyond the vocabulary are not penalised
        known.erase(3);
        EXPECT_EQ(found(limited, params, context), known);
    }
    EXPECT_GT(penalised, 1000U);
}

// Nodes of two trees in turn, one of whose sequences has grown: what is kept of a sequence belongs to it alone.
TEST(Dry, SequencesTakeTurns) {
    std::mt19937 random(6);
    DryMatcher matcher(5);
    const SamplingParams params = dry({.multiplier = 1, .base = 1.25, .window = 30});
    std::vector<Tokens> sequences{random_tokens(random, 50, 3), random_tokens(random, 20, 3)};
    for (int turn = 0; turn < 200; ++turn) {
        Tokens& sequence = sequences[static_cast<std::size_t>(random() % 2)];
        const Tokens path = random_tokens(random, random() % 5, 3);
        Tokens whole = sequence;
        whole.insert(whole.end(), path.begin(), path.end());
        ASSERT_EQ(found(matcher, params, sequence, path), expected(params, whole, {})) << "turn " << turn;
        if (turn % 3 == 0) sequence = whole;
        if (turn % 7 == 0) sequence.back() = (sequence.back() + 1) % 3;
    }
}

TEST(Dry, LongMatchesStayFinite) {
    DryMatcher matcher(3);
    const Tokens loop(5000, 1);
    const SamplingParams params = dry({.multiplier = 1000, .base = 10, .allowed_length = 1, .window = 0});
    const Penalties got = found(matcher, params, loop);
    ASSERT_EQ(got.size(), 1U);
    EXPECT_EQ(got.at(1), std::numeric_limits<float>::max());
    LogitsPipeline pipeline(params, 3);
    EXPECT_LT(pipeline.apply(std::vector<float>{0, 50, -1}, {loop, {}}).probability(1), 1e-300);
}

// Behind the repetition penalty, before everything else.
TEST(Dry, IsAppliedBehindThePenalty) {
    SamplingParams params = dry({.multiplier = 3, .base = 1, .allowed_length = 1, .window = 0});
    params.repetition_penalty = 2;
    params.temperature = 0.5;
    const Tokens context{0, 1, 0};  // 0 and 1 are penalised, and 1 would repeat
    const Distribution got = LogitsPipeline(params, 3).apply(std::vector<float>{2, 8, 1}, {context, {}});
    ASSERT_EQ(got.ids.size(), 3U);
    EXPECT_EQ(got.log_weights, (std::vector<double>{1 / 0.5, (8.0 / 2 - 3) / 0.5, 1 / 0.5}));
    params.temperature = 0;
    params.repetition_penalty = 1;
    EXPECT_EQ(LogitsPipeline(params, 3).apply(std::vector<float>{6, 8, 1}, {context, {}}).ids, Tokens{0});
    EXPECT_FALSE(LogitsPipeline::fits_device(params, 0));
    EXPECT_TRUE(LogitsPipeline::fits_device({}, 0));
}

TEST(Dry, EqualsLlamaCpp) {
    std::ifstream file(LONGHAUL_TEST_DATA "/dry/goldens.json");
    std::stringstream text;
    text << file.rdbuf();
    const Json data = Json::parse(text.str());
    const auto tokenizer = Tokenizer::load(LONGHAUL_DEMO_MODEL);
    BreakerMaker maker(*tokenizer);
    const std::int64_t vocab = tokenizer->vocab_size();
    std::size_t penalised = 0;
    for (const Json& one : data.at("cases")) {
        const auto breakers = maker.of(one.at("breakers").get<std::vector<std::string>>());
        SamplingParams params = dry({.multiplier = one.at("multiplier"),
                                     .base = one.at("base"),
                                     .allowed_length = one.at("allowed_length"),
                                     .window = one.at("window")},
                                    breakers.get());
        const auto context = one.at("context").get<Tokens>();
        std::vector<float> logits(static_cast<std::size_t>(vocab));  // as make_dry_goldens.py has them
        for (std::size_t v = 0; v < logits.size(); ++v) logits[v] = static_cast<float>(v * 7919 % 1000) / 64 - 8;
        std::vector<double> right(logits.begin(), logits.end());
        for (const auto& [token, logit] : one.at("changed").get<std::vector<std::pair<std::int32_t, float>>>())
            right[static_cast<std::size_t>(token)] = static_cast<double>(logit);
        penalised += one.at("changed").size();
        const std::size_t split = context.size() - std::min<std::size_t>(context.size(), 3);
        LogitsPipeline pipeline(params, vocab);
        const Distribution& got =
            pipeline.apply(logits, {std::span(context).first(split), std::span(context).subspan(split)});
        ASSERT_EQ(got.log_weights, right) << one.dump();
    }
    EXPECT_GT(penalised, 90U);
}

/// Tokens of a vocabulary made for the test.
class WordTokenizer final : public Tokenizer {
  public:
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view text) const override {
        std::vector<std::int32_t> tokens;
        while (!text.empty()) {  // the longest token that fits
            std::int32_t best = 0;
            for (std::int32_t token = 1; token < vocab_size(); ++token) {
                const std::string& word = token_bytes(token);
                if (text.starts_with(word) && word.size() > token_bytes(best).size()) best = token;
            }
            if (best == 0) throw std::invalid_argument("a text that no token begins");
            tokens.push_back(best);
            text.remove_prefix(token_bytes(best).size());
        }
        return tokens;
    }
    [[nodiscard]] const std::string& token_bytes(std::int32_t token) const override {
        static const std::vector<std::string> words{"",    "a",  "b",    "ab",   "xa",   "c",
                                                    "cab", "bc", "\xE2", "\x80", "\x94", "\xE2\x80\x94!"};
        return words.at(static_cast<std::size_t>(token));
    }
    [[nodiscard]] bool is_special(std::int32_t) const override { return false; }
    [[nodiscard]] std::string decode(std::span<const std::int32_t>, bool) const override { return {}; }
    void decode_next(DecodeState&, std::int32_t, std::string&) const override {}
    void decode_rest(DecodeState&, std::string&) const override {}
    [[nodiscard]] std::int32_t vocab_size() const override { return 12; }
    [[nodiscard]] std::optional<std::int32_t> bos_id() const override { return {}; }
    [[nodiscard]] bool adds_bos() const override { return false; }
    [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }
};

TEST(Dry, BreakersAreFoundInTheTokensThatHoldThem) {
    const WordTokenizer tokenizer;
    using Sequences = std::vector<Tokens>;
    EXPECT_EQ(breaker_sequences(tokenizer, "ab"), (Sequences{{1, 2}, {3}, {4, 2}, {6}}));
    EXPECT_EQ(breaker_sequences(tokenizer, "abc"), (Sequences{{1, 7}, {3, 5}, {4, 7}, {6, 5}}));
    EXPECT_EQ(breaker_sequences(tokenizer, "q"), Sequences{});
    // A character of several tokens.
    EXPECT_EQ(breaker_sequences(tokenizer, "\xE2\x80\x94"), (Sequences{{8, 9, 10}, {11}}));
    // A rest of more than 20 tokens is cut.
    EXPECT_EQ(breaker_sequences(tokenizer, "c" + std::string(30, 'a')).front().size(), 21U);
}

}  // namespace
}  // namespace longhaul::engine
