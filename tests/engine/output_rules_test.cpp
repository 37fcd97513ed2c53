// Reasoning before an answer: where it ends, what it may hold, and what its limit writes.
#include "engine/grammar/output_rules.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/grammar/output_grammar.hpp"
#include "engine/replica/sequence.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

class Reasoned : public ::testing::Test {
  protected:
    const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(LONGHAUL_DEMO_MODEL);
    const std::int64_t vocab_size = tokenizer->vocab_size() + 3;  // as models have padding
    const std::int32_t end_of_text = tokenizer->encode("<|end_of_text|>").front();

    /// One token for each byte.
    [[nodiscard]] Tokens bytes(const std::string& text) const {
        Tokens tokens;
        for (const char byte : text) {
            std::int32_t token = 0;
            while (tokenizer->token_bytes(token) != std::string(1, byte)) ++token;
            tokens.push_back(token);
        }
        return tokens;
    }
    [[nodiscard]] Tokens encode(const std::string& text) const { return tokenizer->encode(text); }

    /// The number of tokens up to the one that ends the reasoning, and what that has behind the end.
    [[nodiscard]] std::optional<std::pair<std::size_t, std::string>> find(const std::string& end,
                                                                          const Tokens& tokens) const {
        const ReasoningEnd search(end, *tokenizer);
        std::int32_t matched = 0;
        for (std::size_t i = 0; i < tokens.size(); ++i)
            if (const auto rest = search.next(matched, tokens[i])) return std::pair(i + 1, std::string(*rest));
        return std::nullopt;
    }

    [[nodiscard]] std::shared_ptr<OutputRules> rules(const std::string& regex, const std::string& end,
                                                     std::int64_t limit) const {
        std::shared_ptr<TokenGrammar> grammar;
        if (!regex.empty())
            grammar = std::make_shared<TokenGrammar>(grammar_of({OutputFormat::Kind::regex, {regex}}, true),
                                                     std::make_shared<TokenTexts>(*tokenizer, vocab_size));
        return std::make_shared<OutputRules>(grammar, ReasoningEnd(end, *tokenizer), limit, vocab_size);
    }

    static AllowedTokens allowed(const std::shared_ptr<OutputRules>& rules, const Tokens& output,
                                 const Tokens& path = {}) {
        return OutputConstraint(rules, {}).allowed(output, path);
    }

    [[nodiscard]] std::optional<std::string> answer(const std::string& text, const std::string& end,
                                                    const Tokens& output, const Tokens& prompt = {}) const {
        return answer_in(text, end, *tokenizer, prompt, output);
    }
};

TEST_F(Reasoned, EndsBehindItsTextHoweverItIsWritten) {
    for (const std::string end : {"</think>", "aab", "aabaa", "\n\nAnswer:", "ü"}) {
        for (const std::string before : {"", "a", "aa", "aaaabaab", "so </thin", "<</think", "ü é"}) {
            const std::string text = before + end + "aab</think>";
            const std::size_t wanted = text.find(end) + end.size();
            ASSERT_EQ(find(end, bytes(text)), std::pair(wanted, std::string())) << end << " in " << text;
            const Tokens tokens = encode(text);
            const auto found = find(end, tokens);
            ASSERT_TRUE(found);
            std::string up_to;
            for (std::size_t i = 0; i < found->first; ++i) up_to += tokenizer->token_bytes(tokens[i]);
            EXPECT_EQ(up_to.size() - found->second.size(), wanted) << end << " in " << text;
        }
        EXPECT_FALSE(find(end, bytes(end.substr(0, end.size() - 1) + " and so on"))) << end;
    }
    EXPECT_EQ(find("<|end_of_text|>", {end_of_text, end_of_text}), std::pair(std::size_t{1}, std::string()));
    EXPECT_EQ(find("k<|end_of_text|>\n", {encode("k").front(), end_of_text, encode("\n").front()}),
              std::pair(std::size_t{3}, std::string()));
    EXPECT_FALSE(find("a", {-1, static_cast<std::int32_t>(vocab_size)})) << "no tokens of the tokenizer";
}

TEST_F(Reasoned, IsOverWhereThePromptEndsIt) {
    const ReasoningEnd end("</think>\n", *tokenizer);
    for (const char* over :
         {"Q</think>", "Q<think></think>\n\n", "</think> \n", "a</think></think>", "</think>\n\n\n\n \n\n"})
        EXPECT_TRUE(end.is_at_end_of(encode(over))) << over;
    for (const char* open : {"", "Q", "Q<think>\n", "<think>a</think>\nb<think>", "think>", " \n"})
        EXPECT_FALSE(end.is_at_end_of(encode(open))) << open;
}

TEST_F(Reasoned, HasAnyTokenButAnEndOfTheOutputBeforeAFormat) {
    const auto output = rules("[0-9]+", "so:", 0);
    for (const char* text : {"", "s", "so", "this is so", "12"}) {
        const AllowedTokens next = allowed(output, encode(text));
        EXPECT_FALSE(next.end) << text;
        EXPECT_EQ(next.count, std::count(next.tokens.begin(), next.tokens.end(), true));
        for (std::int32_t token = 0; token < tokenizer->vocab_size(); ++token) {
            const std::string behind = std::string(text) + tokenizer->token_bytes(token);
            const std::size_t end = behind.find("so:");
            const bool begins_wrongly = end != std::string::npos && end + 3 < behind.size() &&
                                        std::string(" \n0123456789").find(behind[end + 3]) == std::string::npos;
            EXPECT_EQ(next.has(token), !begins_wrongly) << text << " and " << tokenizer->token_bytes(token);
        }
    }
    for (const std::string text : {"so:", "this is so:", "so: ", "so:\n", "so:\n\n", "so: 1", "so:12"}) {
        const Tokens tokens = bytes(text);
        for (const AllowedTokens& next : {allowed(output, tokens), allowed(output, {}, tokens)}) {
            EXPECT_TRUE(next.has(bytes("7").front())) << text;
            EXPECT_FALSE(next.has(bytes("s").front())) << text;
            EXPECT_FALSE(next.has(end_of_text)) << text;
            EXPECT_EQ(next.end, std::isdigit(text.back()) != 0) << text;
        }
    }
    EXPECT_FALSE(allowed(output, bytes("so:\n\n\n")).any_but({})) << "two line ends at most";
    const Tokens prompt = encode("Is it so:");
    EXPECT_FALSE(OutputConstraint(output, prompt).allowed({}, {}).has(bytes("s").front())) << "the prompt ends it";
}

TEST_F(Reasoned, IsEndedAtItsLimit) {
    for (const std::string regex : {"", "[0-9]+"}) {
        for (const std::string end : {"</think>", "\n\nThe answer is", "<|end_of_text|>\n", "..."}) {
            for (const std::size_t written : {0, 2}) {  // bytes of the end before the limit
                if (written > 0 && end.starts_with("<|")) continue;
                OutputConstraint output(rules(regex, end, 5), {});
                Tokens tokens = bytes(std::string("abcde").substr(written) + end.substr(0, written));
                EXPECT_TRUE(output.allowed(std::span(tokens).first(4), {}).count > 1);
                std::string forced = end.substr(0, written);
                while (forced != end) {
                    const AllowedTokens& next = output.allowed(tokens, {});
                    ASSERT_EQ(next.count, 1) << end << ": " << forced;
                    ASSERT_TRUE(!next.end && output.is_at_limit());
                    const auto one = std::find(next.tokens.begin(), next.tokens.end(), true) - next.tokens.begin();
                    tokens.push_back(static_cast<std::int32_t>(one));
                    forced += tokenizer->token_bytes(tokens.back());
                    ASSERT_TRUE(end.starts_with(forced)) << forced;
                }
                EXPECT_LT(tokens.size() - 5, std::max<std::size_t>(end.size(), 3)) << "the longest tokens";
                const AllowedTokens& answer = output.allowed(tokens, {});
                EXPECT_EQ(answer.has(bytes("a").front()), regex.empty());
                EXPECT_TRUE(answer.has(bytes("1").front()));
                EXPECT_EQ(answer.end, regex.empty());
                EXPECT_FALSE(output.is_at_limit());
            }
        }
    }
    const Tokens wrong = bytes("abcdeXYZ so it goes on");  // a draft that leaves the text of the end
    for (std::size_t n = 5; n <= wrong.size(); ++n)
        EXPECT_LE(allowed(rules("", "so:", 5), {}, {wrong.begin(), wrong.begin() + n}).count, 1);
}

// A device may choose the tokens that nothing is said of.
TEST_F(Reasoned, IsFreeUpToItsLimitAndBehindItsEnd) {
    const Tokens tokens = encode("so: this is a long answer, and it has no limit");
    OutputConstraint output(rules("", "so:", 5), {});
    EXPECT_EQ(output.num_free(), 5);
    for (std::size_t n = 0; n <= tokens.size(); ++n) {
        const AllowedTokens& next = output.allowed(std::span(tokens).first(n), {});
        EXPECT_TRUE(next.count == vocab_size && next.end) << n;
    }
    EXPECT_EQ(output.num_free(), std::numeric_limits<std::int64_t>::max());
    OutputConstraint open(rules("", "no such text", 5), {});
    for (std::size_t n = 0; n <= 5; ++n)
        EXPECT_EQ(open.allowed(std::span(tokens).first(n), {}).count == vocab_size, n < 5) << n;
    EXPECT_EQ(OutputConstraint(rules("[0-9]+", "so:", 5), {}).num_free(), 0) << "no end comes before the format";
}

TEST_F(Reasoned, TheAnswerIsWhatFollows) {
    EXPECT_EQ(answer("hm</think>\n\nyes\n", "</think>", encode("hm</think>\n\nyes\n")), "yes\n");
    EXPECT_EQ(answer("hm, yes", "</think>", encode("hm, yes")), std::nullopt);
    EXPECT_EQ(answer("yes", "</think>", encode("yes"), encode("<think>\n\n</think>\n\n")), "yes");
    EXPECT_EQ(answer("hm</think>", "</think>", encode("hm</think>")), "");
    EXPECT_EQ(answer("a</think>b</think>c", "</think>", encode("a</think>b</think>c")), "b</think>c") << "the first";
    EXPECT_EQ(answer("hmyes", "<|end_of_text|>", encode("hm<|end_of_text|>yes")), "yes") << "not in the text";
    EXPECT_EQ(answer("hm", "</think>", encode("hm</think>yes")), std::nullopt) << "a stop string cut the text";
    EXPECT_EQ(answer("hm</thi", "nk>yes", encode("hm</think>yes, no")), std::nullopt);
    EXPECT_EQ(
        answer("hm\n\nyes", "<|end_of_text|>\n",
               {bytes("h").front(), bytes("m").front(), end_of_text, encode("\n\n").front(), encode("yes").front()}),
        "yes");
    // The end within a token, and characters of several tokens around it.
    for (const char* text : {"é the answer", "the theatre é", "tthe 😀"}) {
        const Tokens tokens = encode(text);
        const std::string whole = text;
        const std::string wanted = whole.substr(whole.find("th") + 2);
        EXPECT_EQ(answer(text, "th", tokens), wanted) << text;
        EXPECT_EQ(answer(text, "th", bytes(text)), wanted) << text;
    }
}

}  // namespace
}  // namespace longhaul::engine
