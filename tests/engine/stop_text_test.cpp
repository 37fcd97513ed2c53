// Stop strings in a growing text, with a tokenizer whose newlines and emoji are runs of byte tokens (Llama 2).
#include <gtest/gtest.h>

#include "engine/replica/sequence.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {
namespace {

struct Output {
    std::vector<std::int32_t> prompt, tokens;
};

class StopTextTest : public ::testing::Test {
  protected:
    std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(LONGHAUL_TEST_DATA "/tokenizer/llama2");

    /// The tokens of `text` after those of `prompt`.
    [[nodiscard]] Output output(const std::string& prompt, const std::string& text) const {
        Output out;
        out.prompt = tokenizer_->encode(prompt);
        const auto both = tokenizer_->encode(prompt + text);
        EXPECT_TRUE(std::equal(out.prompt.begin(), out.prompt.end(), both.begin())) << "the prompt ends inside a token";
        out.tokens.assign(both.begin() + static_cast<std::ptrdiff_t>(out.prompt.size()), both.end());
        return out;
    }

    /// The text, and the number of tokens pushed before the one that completes a stop string (all tokens if none does).
    [[nodiscard]] std::pair<std::string, std::size_t> run(const Output& out,
                                                          const std::vector<std::string>& stops) const {
        StopText text(*tokenizer_, stops, out.prompt);
        std::size_t pushed = 0;
        while (pushed < out.tokens.size() && !text.push(out.tokens[pushed])) ++pushed;
        return {text.take(), pushed};
    }
};

TEST_F(StopTextTest, WithoutAHitItIsTheTextOfTheOutput) {
    for (const char* text : {" sea\nship\n", " night \xF0\x9F\x98\x80", "\n\n", " old"}) {
        const Output out = output("The man", text);
        EXPECT_EQ(run(out, {"never"}), std::pair(output_text(*tokenizer_, out.prompt, out.tokens), out.tokens.size()));
        EXPECT_EQ(run(out, {"never"}).first, text);
    }
}

TEST_F(StopTextTest, StopsAtTheByteTokenItself) {
    const Output out = output("The man", " sea\nship and more");
    const std::size_t newline = output("The man", " sea\n").tokens.size() - 1;
    EXPECT_EQ(run(out, {"\n"}), std::pair(std::string(" sea"), newline));
    // Also if it is the last token that max-tokens allows.
    EXPECT_EQ(run(output("The man", " sea\n"), {"\n"}), std::pair(std::string(" sea"), newline));
}

TEST_F(StopTextTest, TheFirstOfSeveralAcrossTokens) {
    const Output out = output("The man", " was the captain of the ship");
    EXPECT_EQ(run(out, {"ship", "tain of"}).first, " was the cap");
    EXPECT_EQ(run(out, {"captain", "tain of"}).first, " was the ");
}

TEST_F(StopTextTest, ALeadingSpaceCountsAndThePromptDoesNot) {
    const Output out = output("The man", " man was here");
    EXPECT_EQ(run(out, {" man"}).first, "");
    EXPECT_EQ(run(out, {"man man"}).first, " man was here") << "half of it is prompt";
}

}  // namespace
}  // namespace longhaul::engine
