// Tokenizers of every kind against the Python packages (tests/data/tokenizer, made by
// tests/tools/make_tokenizer_goldens.py), and the other settings of a model folder.
#include "engine/tokenizer/tokenizer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <thread>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "tests/engine/tokenizer_folder.hpp"

namespace longhaul::engine {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<std::int32_t>;

std::string stream(const Tokenizer& tokenizer, const Ids& ids, bool skip_special) {
    Detokenizer detokenizer(tokenizer, skip_special);
    std::string text;
    for (const auto id : ids) text += detokenizer.push(id);
    return text + detokenizer.finish();
}

class TokenizerKind : public testing::TestWithParam<const char*> {
  protected:
    const fs::path folder_ = fs::path(LONGHAUL_TEST_DATA) / "tokenizer" / GetParam();
    const std::unique_ptr<Tokenizer> tokenizer_ = Tokenizer::load(folder_);
    const Json goldens_ = read_json(folder_ / "goldens.json");
};

TEST_P(TokenizerKind, EncodesHardStringsAsThePackageDoes) {
    ASSERT_GE(goldens_.at("encode").size(), 100U);
    for (const Json& golden : goldens_.at("encode"))
        EXPECT_EQ(tokenizer_->encode(golden.at(0).get<std::string>()), golden.at(1).get<Ids>()) << golden.at(0);
}

TEST_P(TokenizerKind, DecodesAsThePackageDoesWholeAndTokenByToken) {
    for (const Json& golden : goldens_.at("encode")) {
        EXPECT_EQ(tokenizer_->decode(golden.at(1).get<Ids>(), false), golden.at(2).get<std::string>()) << golden.at(1);
        EXPECT_EQ(stream(*tokenizer_, golden.at(1).get<Ids>(), false), golden.at(2).get<std::string>());
    }
    ASSERT_GE(goldens_.at("decode").size(), 100U);
    for (const Json& golden : goldens_.at("decode")) {
        const auto ids = golden.at(0).get<Ids>();
        for (const bool skip_special : {true, false}) {
            const auto expected = golden.at(skip_special ? 1 : 2).get<std::string>();
            EXPECT_EQ(tokenizer_->decode(ids, skip_special), expected) << golden.at(0);
            EXPECT_EQ(stream(*tokenizer_, ids, skip_special), expected) << golden.at(0);
        }
    }
}

TEST_P(TokenizerKind, ADetokenizerMayBeUsedAgainAndCopied) {
    const Ids ids = tokenizer_->encode("na\xC3\xAFve \xF0\x9F\x98\x80!");
    const std::string expected = tokenizer_->decode(ids, true);
    Detokenizer detokenizer(*tokenizer_);
    for (int round = 0; round < 2; ++round) {
        std::string text;
        for (const auto id : ids) {
            Detokenizer copy = detokenizer;  // changes to a copy do not affect the original
            copy.push(ids.front());
            text += detokenizer.push(id);
        }
        EXPECT_EQ(text + detokenizer.finish(), expected);
    }
}

TEST_P(TokenizerKind, TokenBytesMakeUpTheText) {
    const std::string text = "It was na\xC3\xAFve \xE6\xBC\xA2\xE5\xAD\x97 \xF0\x9F\x98\x80\n  so it was.";
    std::string bytes;
    for (const auto id : tokenizer_->encode(text)) bytes += tokenizer_->token_bytes(id);
    if (bytes.starts_with(' ')) bytes.erase(0, 1);  // the one that SentencePiece prepends
    EXPECT_EQ(bytes, text);
    EXPECT_EQ(tokenizer_->token_bytes(-1), "");
    EXPECT_EQ(tokenizer_->token_bytes(tokenizer_->vocab_size()), "");
    EXPECT_FALSE(tokenizer_->is_special(-1));
    EXPECT_FALSE(tokenizer_->is_special(tokenizer_->vocab_size()));
    EXPECT_EQ(tokenizer_->decode(Ids{-1, tokenizer_->vocab_size(), 2'000'000'000}, false), "");
}

/// What EncodedText::encode_behind is defined as.
Ids behind_as_a_whole(const Tokenizer& tokenizer, const std::string& text, const std::string& more) {
    const Ids ids = tokenizer.encode(text), all = tokenizer.encode(text + more);
    if (all.size() <= ids.size() || !std::equal(ids.begin(), ids.end(), all.begin())) return tokenizer.encode(more);
    return {all.begin() + std::ssize(ids), all.end()};
}

TEST_P(TokenizerKind, TokensBehindALongTextAreThoseOfTheWhole) {
    std::vector<std::string> hard;
    for (const Json& golden : goldens_.at("encode")) hard.push_back(golden.at(0).get<std::string>());
    const std::string plain = "It was the best of times, it was the worst of times; so it was in 1859.\n";
    for (std::size_t i = 0; i < hard.size(); ++i) {
        const std::string& other = hard[(7 * i + 3) % hard.size()];
        std::string text = hard[i] + plain;
        // With and without blanks near the end.
        while (text.size() < 1500) text += other + (i % 3 == 0 ? plain : i % 3 == 1 ? " " : "\xE6\xBC\xA2\xE5\xAD\x97");
        for (const std::string& end : {std::string(), hard[i]}) {
            for (const std::string& more : {std::string(" It"), other, std::string("\n"), " " + hard[i]}) {
                EXPECT_EQ(EncodedText(*tokenizer_, text + end).encode_behind(more),
                          behind_as_a_whole(*tokenizer_, text + end, more))
                    << text << end << "|" << more;
            }
        }
    }
    EXPECT_EQ(EncodedText(*tokenizer_, "It was").encode_behind(" so"), behind_as_a_whole(*tokenizer_, "It was", " so"));
}

TEST_P(TokenizerKind, RefusesTextThatIsNotUtf8) {
    for (const char* text : {"\xFF", "a\xC3", "\xC0\x80", "\xED\xA0\x80", "\xF4\x90\x80\x80", "ok\xE2\x82"})
        EXPECT_THROW(tokenizer_->encode(text), std::invalid_argument) << text;
}

TEST_P(TokenizerKind, ManyThreadsMayEncodeAtOnce) {
    const std::string text = "It was the best of times, it was the worst of times. 1234 \xE2\x80\x9Cquoted\xE2\x80\x9D";
    const Ids expected = tokenizer_->encode(text);
    std::vector<std::thread> threads;
    std::atomic<int> num_wrong = 0;
    for (int i = 0; i < 4; ++i)
        threads.emplace_back([&] {
            for (int round = 0; round < 50; ++round) num_wrong += tokenizer_->encode(text) == expected ? 0 : 1;
        });
    for (auto& thread : threads) thread.join();
    EXPECT_EQ(num_wrong, 0);
}

// Texts that are one long word, all white space, or combining marks in the wrong order: each has made some tokenizer
// take quadratic time. The bound is loose for slow machines; quadratic time would be minutes.
TEST_P(TokenizerKind, LongTextsOfAnyKindTakeSeconds) {
    const auto repeat = [](std::string_view part, std::size_t num_bytes) {
        std::string text = "a";
        while (text.size() < num_bytes) text += part;
        return text;
    };
    for (const char* part : {"a", "ab", " ", "\n", " \n", "\xCC\x81\xCC\xA3", "\xE6\xBC\xA2", "<s>",
                             "It was the best of times. ", "\xE2\x96\x81", "<", "1", "'"}) {
        const std::string text = repeat(part, 300'000);
        const auto start = std::chrono::steady_clock::now();
        EXPECT_GT(tokenizer_->encode(text).size(), 1000U);
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 10.0) << part;
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, TokenizerKind,
                         testing::Values("gemma3", "gpt2", "llama2", "llama2-metaspace", "llama3", "opt", "phi4",
                                         "qwen2", "sentencepiece", "tekken", "gpt-oss"),
                         [](const auto& info) {
                             std::string name = info.param;
                             std::replace(name.begin(), name.end(), '-', '_');
                             return name;
                         });

std::unique_ptr<Tokenizer> load_kind(const char* kind) {
    return Tokenizer::load(fs::path(LONGHAUL_TEST_DATA) / "tokenizer" / kind);
}

TEST(Tokenizer, KnowsTheBeginOfTextTokenAndWhoAsksForIt) {
    struct Case {
        const char* kind;
        const char* bos;
        bool adds;
    };
    for (const Case& c : {Case{"llama3", "<|begin_of_text|>", true},  // set by its template
                          Case{"qwen2", "", false}, Case{"gpt2", "<|endoftext|>", false},
                          Case{"opt", "</s>", true},  // set by tokenizer_config.json
                          Case{"llama2", "<s>", true}, Case{"sentencepiece", "<s>", true},
                          Case{"gemma3", "<bos>", true}, Case{"tekken", "<s>", true},
                          Case{"phi4", "<|endoftext|>", false}, Case{"gpt-oss", "<|startoftext|>", false}}) {
        const auto tokenizer = load_kind(c.kind);
        EXPECT_EQ(tokenizer->adds_bos(), c.adds) << c.kind;
        EXPECT_EQ(tokenizer->bos_id() ? tokenizer->token_bytes(*tokenizer->bos_id()) : "", c.bos) << c.kind;
        EXPECT_EQ(tokenizer->is_special(tokenizer->bos_id().value_or(-1)), c.bos[0] != '\0') << c.kind;
    }
}

TEST(Tokenizer, TheConfigurationWinsOverTheTemplate) {
    TokenizerFolder folder("llama3");
    folder.edit("tokenizer_config.json", [](Json& json) { json["add_bos_token"] = false; });
    EXPECT_FALSE(folder.load()->adds_bos());
    EXPECT_TRUE(folder.load()->bos_id());
    folder.remove("tokenizer_config.json");
    EXPECT_TRUE(folder.load()->adds_bos());
    folder.write("special_tokens_map.json", R"({"bos_token": {"content": "<|end_of_text|>"}})");
    EXPECT_EQ(folder.load()->token_bytes(*folder.load()->bos_id()), "<|end_of_text|>");
}

TEST(Tokenizer, SpecialTokensAreTheSpecialOnes) {
    const auto tokenizer = load_kind("qwen2");
    const Ids ids = tokenizer->encode("<|im_start|>x<tool_call>");
    ASSERT_EQ(ids.size(), 3U);
    EXPECT_TRUE(tokenizer->is_special(ids[0]));
    EXPECT_FALSE(tokenizer->is_special(ids[1]));
    EXPECT_FALSE(tokenizer->is_special(ids[2]));  // added, but part of results
    EXPECT_EQ(tokenizer->decode(ids, true), "x<tool_call>");
}

// As in Gemma 1 and 2. A character of several bytes still falls back to its bytes.
TEST(Tokenizer, AByteTokenMayBeMissingIfItsCharacterIsAToken) {
    const auto tokenizer = load_kind("gemma3");
    const Ids ids = tokenizer->encode("\xE0\xA4\x89\t");
    ASSERT_EQ(ids.size(), 4U);
    EXPECT_EQ(tokenizer->token_bytes(ids[0]), "\xE0");
    EXPECT_EQ(tokenizer->token_bytes(ids[3]), "\t");
    TokenizerFolder folder("gemma3");
    folder.edit("tokenizer.json", [](Json& json) {
        json["model"]["vocab"]["<a>"] = json["model"]["vocab"]["<0x0B>"];
        json["model"]["vocab"].erase("<0x0B>");
    });
    EXPECT_EQ(
        folder.error(),
        "tokenizer.json: model.vocab: expected tokens <0x00> to <0xFF> for all bytes, since byte_fallback is true, "
        "got no <0x0B>");
}

TEST(Tokenizer, OfSeveralFilesTheRichestCounts) {
    TokenizerFolder folder("sentencepiece");
    const auto sentencepiece = folder.load()->fingerprint();
    folder.copy("opt", "vocab.json");
    EXPECT_EQ(folder.load()->fingerprint(), sentencepiece);  // without merges.txt
    folder.copy("opt", "merges.txt");
    const auto opt = folder.load()->fingerprint();
    EXPECT_NE(opt, sentencepiece);
    folder.copy("gpt2", "tokenizer.json");
    EXPECT_NE(folder.load()->fingerprint(), opt);
}

TEST(Tokenizer, TheFingerprintIsThatOfWhatCounts) {
    TokenizerFolder folder("llama3");
    const auto before = folder.load()->fingerprint();
    EXPECT_EQ(TokenizerFolder("llama3").load()->fingerprint(), before);
    folder.edit("tokenizer_config.json", [](Json& json) { json["chat_template"] = "{{ other }}"; });
    EXPECT_EQ(folder.load()->fingerprint(), before);
    folder.edit("tokenizer_config.json", [](Json& json) { json["add_bos_token"] = false; });
    EXPECT_NE(folder.load()->fingerprint(), before);
}

TEST(Tokenizer, IdsMayHaveHoles) {
    TokenizerFolder folder("gpt2");
    folder.edit("tokenizer.json", [](Json& json) {
        json["model"]["vocab"]["\xC4\xA0the"] = 70'000;
        json["added_tokens"] = Json::array();
    });
    const auto tokenizer = folder.load();
    EXPECT_EQ(tokenizer->vocab_size(), 70'001);
    EXPECT_EQ(tokenizer->encode(" the"), (Ids{70'000}));
    EXPECT_EQ(tokenizer->token_bytes(69'999), "");
}

TEST(Tokenizer, MergesMayBePairs) {
    TokenizerFolder folder("gpt2");
    const auto before = folder.load()->encode("It was the best of times");
    folder.edit("tokenizer.json", [](Json& json) {
        for (Json& merge : json["model"]["merges"]) {
            if (merge.is_array()) {
                merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
            } else {
                const auto text = merge.get<std::string>();
                merge = Json::array({text.substr(0, text.find(' ')), text.substr(text.find(' ') + 1)});
            }
        }
    });
    EXPECT_EQ(folder.load()->encode("It was the best of times"), before);
}

TEST(Tokenizer, QwenSplitsItsOwnWayWithoutATokenizerJson) {
    TokenizerFolder folder("opt");
    const std::string text = "HE'S 12 e\xCC\x81 x\n\n";
    const auto as_gpt2 = folder.load()->encode(text);
    folder.edit("tokenizer_config.json", [](Json& json) { json["tokenizer_class"] = "Qwen2Tokenizer"; });
    EXPECT_NE(folder.load()->encode(text), as_gpt2);
    EXPECT_EQ(folder.load()->decode(folder.load()->encode(text), true), "HE'S 12 \xC3\xA9 x\n\n");
}

// Llama 2's decoder replaces a whole run of bytes with U+FFFD if one of them is invalid, so no text of the run may be
// emitted before it ends.
TEST(Detokenizer, HoldsBackARunOfBytes) {
    const auto tokenizer = load_kind("llama2");
    const Ids bytes = tokenizer->encode("\xF0\x9F\x98\x80");  // a space, then four bytes
    ASSERT_EQ(bytes.size(), 5U);
    Detokenizer detokenizer(*tokenizer);
    for (const auto id : bytes) EXPECT_EQ(detokenizer.push(id), "");
    EXPECT_EQ(detokenizer.push(tokenizer->encode("a").back()),
              "\xF0\x9F\x98\x80" + tokenizer->token_bytes(tokenizer->encode("a").back()));
    EXPECT_EQ(detokenizer.push(bytes[1]), "");
    EXPECT_EQ(detokenizer.finish(), "\xEF\xBF\xBD");
}

TEST(Detokenizer, HoldsBackAnUnfinishedCharacterOnly) {
    const auto tokenizer = load_kind("llama3");
    Detokenizer detokenizer(*tokenizer);
    std::string text;
    for (const auto id : tokenizer->encode("x\xF0\x9F\x98\x80")) {
        text += detokenizer.push(id);
        EXPECT_TRUE(text == "x" || text == "x\xF0\x9F\x98\x80") << text;
    }
    EXPECT_EQ(text, "x\xF0\x9F\x98\x80");
    EXPECT_EQ(detokenizer.finish(), "");
}

}  // namespace
}  // namespace longhaul::engine
