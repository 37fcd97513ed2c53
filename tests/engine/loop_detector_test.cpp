// Loops in growing texts, against the definition written out and the cases that analysis/ shares.
#include "engine/replica/loop_detector.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <random>
#include <sstream>

#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

/// Number of tokens when the text first ends in a loop of `length` tokens; -1: never.
std::int64_t end_by_definition(const Tokens& text, std::int64_t length) {
    for (std::int64_t end = 1; end <= std::ssize(text); ++end) {
        for (std::int64_t period = 1; period <= length && period + length <= end; ++period) {
            const auto last = text.begin() + end - length;
            if (std::equal(last, last + length, last - period)) return end;
        }
    }
    return -1;
}

std::int64_t end_by_detector(const Tokens& text, std::int64_t length) {
    LoopDetector detector(length);
    for (std::int64_t i = 0; i < std::ssize(text); ++i) {
        if (detector.push(text[static_cast<std::size_t>(i)])) return i + 1;
    }
    return -1;
}

TEST(LoopDetector, CasesThatAnalysisShares) {
    std::ifstream file(LONGHAUL_TEST_DATA "/loops.json");
    std::stringstream text;
    text << file.rdbuf();
    const Json data = Json::parse(text.str());
    ASSERT_GE(data.at("cases").size(), 18U);
    for (const Json& one : data.at("cases")) {
        const auto characters = one.at("text").get<std::string>();
        EXPECT_EQ(end_by_detector(Tokens(characters.begin(), characters.end()), one.at("length")), one.at("end"))
            << one.dump();
    }
}

TEST(LoopDetector, RandomTextsOfFewTokens) {
    std::mt19937 random(1);
    int found = 0;
    for (int trial = 0; trial < 6000; ++trial) {
        const std::int32_t alphabet = 1 + static_cast<std::int32_t>(random() % 4);
        Tokens text(random() % 80);
        for (std::int32_t& token : text) token = static_cast<std::int32_t>(random()) % alphabet;
        const auto length = static_cast<std::int64_t>(1 + random() % 16);
        const std::int64_t expected = end_by_definition(text, length);
        found += expected > 0 ? 1 : 0;
        ASSERT_EQ(end_by_detector(text, length), expected) << ::testing::PrintToString(text) << " length " << length;
    }
    EXPECT_GT(found, 1000);
    EXPECT_LT(found, 5000);
}

// A prefix without order, then a loop of each period, broken off or not.
TEST(LoopDetector, ConstructedLoops) {
    std::mt19937 random(2);
    const std::int64_t length = 12;
    for (std::int64_t period = 1; period <= 16; ++period) {
        for (std::int64_t repeated = length - 2; repeated <= length + 2; ++repeated) {
            Tokens text;
            for (int i = 0; i < 50; ++i) text.push_back(1000 + static_cast<std::int32_t>(random() % 100000));
            const std::int64_t start = std::ssize(text);
            for (std::int64_t i = 0; i < period + repeated; ++i) text.push_back(static_cast<std::int32_t>(i % period));
            text.push_back(7777);
            const bool loops = period <= length && repeated >= length;
            EXPECT_EQ(end_by_detector(text, length), loops ? start + period + length : -1)
                << "period " << period << ", repeated " << repeated;
        }
    }
}

// Windows whose rolling hashes are equal although they differ: Thue-Morse words collide under every base modulo 2^64.
TEST(LoopDetector, EqualHashesAreCompared) {
    const std::int64_t length = 2048;
    Tokens word{0};
    while (std::ssize(word) < length) {
        const auto half = word.size();
        for (std::size_t i = 0; i < half; ++i) word.push_back(1 - word[i]);
    }
    Tokens text = word;
    for (const std::int32_t token : word) text.push_back(1 - token);  // its complement has the same hash
    EXPECT_EQ(end_by_detector(text, length), -1);
    text.insert(text.end(), text.end() - length, text.end());
    EXPECT_EQ(end_by_detector(text, length), 3 * length);
}

TEST(LoopDetector, ALongTextTakesConstantTimePerToken) {
    LoopDetector detector(1 << 20);
    std::mt19937 random(3);
    for (int i = 0; i < 300000; ++i) ASSERT_FALSE(detector.push(static_cast<std::int32_t>(random() % 3)));
    LoopDetector small(64);
    for (int i = 0; i < 300000; ++i) ASSERT_FALSE(small.push(static_cast<std::int32_t>(random() % 3)));
}

}  // namespace
}  // namespace longhaul::engine
