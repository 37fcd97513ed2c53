// The parts of a tokenizer tested separately: merging, patterns, splitting, normal forms, UTF-8.
#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "engine/error.hpp"
#include "engine/tokenizer/bpe.hpp"
#include "engine/tokenizer/normalizer.hpp"
#include "engine/tokenizer/pre_tokenizer.hpp"
#include "engine/tokenizer/regex.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

using Ids = std::vector<std::int32_t>;
using Words = std::vector<std::string>;

// --- merging ---

struct RandomBpe {
    Vocabulary vocabulary;
    std::vector<Merge> merges;

    // Letters a to f, and merges of random tokens.
    explicit RandomBpe(std::mt19937& random) {
        for (std::int32_t id = 0; id < 6; ++id) vocabulary.add(std::string(1, static_cast<char>('a' + id)), id);
        for (int i = 0; i < 40; ++i) {
            const auto pick = [&] {
                return static_cast<std::int32_t>(random() % static_cast<unsigned>(vocabulary.size()));
            };
            const std::int32_t left = pick();
            const std::int32_t right = pick();
            const std::string text = vocabulary.text(left) + vocabulary.text(right);
            vocabulary.add(text, vocabulary.size());  // an existing text keeps its id
            merges.push_back({left, right, *vocabulary.find(text), i});
        }
    }

    // The definition, implemented without optimisation.
    [[nodiscard]] Ids by_definition(const std::string& word) const {
        Ids ids;
        for (const char c : word) ids.push_back(c - 'a');
        while (true) {
            std::int32_t best_rank = -1;
            std::size_t best_at = 0;
            std::int32_t merged = 0;
            for (std::size_t at = 0; at + 1 < ids.size(); ++at) {
                for (auto merge = merges.rbegin(); merge != merges.rend(); ++merge) {  // the later of equal merges wins
                    if (merge->left != ids[at] || merge->right != ids[at + 1]) continue;
                    if (best_rank < 0 || merge->rank < best_rank) {
                        best_rank = merge->rank;
                        best_at = at;
                        merged = merge->merged;
                    }
                    break;
                }
            }
            if (best_rank < 0) return ids;
            ids[best_at] = merged;
            ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_at) + 1);
        }
    }
};

TEST(Bpe, ShortAndLongWordsAreMergedByDefinition) {
    std::mt19937 random(11);
    std::size_t num_merged = 0;
    for (int round = 0; round < 60; ++round) {
        const RandomBpe model(random);
        const Bpe bpe(model.vocabulary, model.merges, BpeOptions{});
        for (int i = 0; i < 20; ++i) {
            std::string word;
            for (std::size_t length = 1 + random() % (i % 2 == 0 ? 20 : 200); length > 0; --length)
                word += static_cast<char>('a' + random() % (i % 3 == 0 ? 2 : 6));
            const Ids expected = model.by_definition(word);
            num_merged += word.size() - expected.size();
            for (const std::size_t max_short : {std::size_t{0}, std::size_t{24}, std::size_t{1000}}) {
                Bpe::Session session(bpe);
                session.max_short_symbols = max_short;
                for (int again = 0; again < 2; ++again) {  // the second time from the cache
                    Ids ids;
                    session.encode(word, ids);
                    EXPECT_EQ(ids, expected) << word << ", at most " << max_short;
                }
            }
        }
    }
    EXPECT_GT(num_merged, 5'000U);
}

TEST(Bpe, UnknownCharacters) {
    Vocabulary vocabulary;
    vocabulary.add("a", 0);
    vocabulary.add("<unk>", 1);
    const auto encode = [&](const BpeOptions& options, std::string_view word) {
        const Bpe bpe(vocabulary, {}, options);
        Ids ids;
        Bpe::Session(bpe).encode(word, ids);
        return ids;
    };
    BpeOptions options;
    EXPECT_EQ(encode(options, "xaxxa"), (Ids{0, 0}));  // without an unknown token they are dropped
    options.unk_id = 1;
    EXPECT_EQ(encode(options, "xaxxa"), (Ids{1, 0, 1, 1, 0}));
    options.fuse_unk = true;
    EXPECT_EQ(encode(options, "xaxxa"), (Ids{1, 0, 1, 0}));
}

// --- patterns ---

Words matches(const Regex& regex, std::string_view text) {
    Words words;
    Regex::Matcher matcher(regex);
    matcher.start(text);
    while (const auto match = matcher.next()) words.emplace_back(text.substr(match->begin, match->end - match->begin));
    return words;
}

Words matches(std::string_view pattern, std::string_view text) {
    return matches(Regex(pattern, "f", "p"), text);
}

// These follow Oniguruma; PCRE2 alone differs in each.
TEST(Regex, MeansWhatItMeansInOniguruma) {
    EXPECT_EQ(matches("\\s", "\xE1\xA0\x8E\xC2\x85\xE3\x80\x80"), (Words{"\xC2\x85", "\xE3\x80\x80"}));  // not U+180E
    EXPECT_EQ(matches("[^\\s]", "\xE1\xA0\x8E "), (Words{"\xE1\xA0\x8E"}));
    EXPECT_EQ(matches("\\w+",
                      "a\xCC\x81_\xE2\x80\xBF"
                      "1\xC2\xBD"),
              (Words{"a\xCC\x81_\xE2\x80\xBF"
                     "1"}));
    EXPECT_EQ(matches("\\h+", "fg 09\t"), (Words{"f", "09"}));
    EXPECT_EQ(matches("\\p{Han}", "\xE3\x80\x81\xE6\xBC\xA2"), (Words{"\xE6\xBC\xA2"}));  // not U+3001
    EXPECT_EQ(matches("a.b", "a\nb"), Words{});
    EXPECT_EQ(matches("(?m:a.b)", "a\nb"), (Words{"a\nb"}));
    EXPECT_EQ(matches("^b", "a\nb"), (Words{"b"}));
    EXPECT_EQ(matches("\\u00e9", "\xC3\xA9"), (Words{"\xC3\xA9"}));
    EXPECT_EQ(matches("(?i:'s)", "'S'\xC5\xBF"), (Words{"'S", "'\xC5\xBF"}));
    EXPECT_EQ(matches("\\bword\\b", "word words xword word"), (Words{"word", "word"}));
    EXPECT_EQ(matches("x?", "axa"), (Words{"", "x", ""}));
    EXPECT_EQ(matches("\\p{^L}", "a1"), (Words{"1"}));
    EXPECT_EQ(matches("[{x,]{2}", "{x,"), (Words{"{x"}));
    EXPECT_EQ(matches("\\d{1,3}+", "12345678 1"), (Words{"12345678", "1"}));
    EXPECT_EQ(matches("a{1,3}+a", "aaaa"), (Words{"aaaa"}));
    EXPECT_EQ(matches("a{1,2}++a", "aaaa"), Words{});
    EXPECT_EQ(matches("a{2}+", "aaaaa"), (Words{"aaaa"}));
    EXPECT_EQ(matches("a{2}?b", "aab aaab b"), (Words{"aab", "aab", "b"}));
    EXPECT_EQ(matches("xa{2}??a", "xaaa"), (Words{"xa"}));
    EXPECT_EQ(matches("(?:ab){2}?c", "ababc c"), (Words{"ababc", "c"}));
    EXPECT_EQ(matches("a{1,2}?", "aa"), (Words{"a", "a"}));
    EXPECT_EQ(matches("(?:a|(b)){2}+[^\\]c]{2}+\xC3\xA9{2}+", "abaxxx\xC3\xA9\xC3\xA9"),
              (Words{"abaxxx\xC3\xA9\xC3\xA9"}));
    EXPECT_EQ(matches("(?:a|(b)){2}+[^\\]c]{2}+\xC3\xA9{2}+", "abxx\xC3\xA9\xC3\xA9\xC3\xA9"),
              (Words{"abxx\xC3\xA9\xC3\xA9"}));
    EXPECT_EQ(matches("a{}+", "aa{}}"), (Words{"a{}}"}));
    EXPECT_EQ(matches("a{,2}b", "aaab"), (Words{"aab"}));
    EXPECT_EQ(matches("a{,2}+b", "aaab"), (Words{"aaab"}));
    EXPECT_EQ(matches(Regex::literal(".*[", "f", "p"), "a.*[b"), (Words{".*["}));
}

TEST(Regex, RefusesWhatWouldMeanAnotherThing) {
    for (const char* pattern : {"[a[bc]]", "[a&&b]", "[[:alpha:]]", "[\\W]", "\\Qa\\E", "(*FAIL)", "(?U:a)",
                                "\\p{Nonsense}", "\\pL", "a\\", "\\u00", "[]a]", "(", "a{99999}", "\\C"})
        EXPECT_THROW(Regex(pattern, "f", "p"), InputError) << pattern;
    EXPECT_THROW(Regex(std::string(100'000, 'a'), "f", "p"), InputError);
}

TEST(Regex, NoPatternHangs) {
    const std::string text = std::string(40'000, 'a') + "!";
    for (const char* pattern : {"(a+)+$", "(a|a)*$", "(a*)*b", "(?:a|aa)+$", "(a+a+)+b", "(a?){20}b"}) {
        const auto start = std::chrono::steady_clock::now();
        try {
            matches(pattern, text);
        } catch (const InputError& error) {
            EXPECT_TRUE(std::string(error.what()).starts_with("f: p: expected a pattern that splits")) << error.what();
        }
        EXPECT_LT(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), 40.0) << pattern;
    }
}

// --- splitting ---

Words pieces_of(const Json& json, std::string_view text) {
    PieceList pieces(text);
    PreTokenizer::from_json(JsonView(json, "f")).apply(pieces);
    Words words;
    for (const Piece& piece : pieces.pieces()) words.emplace_back(piece.text);
    return words;
}

TEST(PreTokenizer, Behaviours) {
    const auto split = [](const char* behavior, bool invert = false) {
        return pieces_of(
            {{"type", "Split"}, {"pattern", {{"String", "-"}}}, {"behavior", behavior}, {"invert", invert}},
            "the-final--countdown-");
    };
    EXPECT_EQ(split("Isolated"), (Words{"the", "-", "final", "-", "-", "countdown", "-"}));
    EXPECT_EQ(split("Removed"), (Words{"the", "final", "countdown"}));
    EXPECT_EQ(split("Removed", true), (Words{"-", "-", "-", "-"}));
    EXPECT_EQ(split("MergedWithPrevious"), (Words{"the-", "final-", "-", "countdown-"}));
    EXPECT_EQ(split("MergedWithNext"), (Words{"the", "-final", "-", "-countdown", "-"}));
    EXPECT_EQ(split("Contiguous"), (Words{"the", "-", "final", "--", "countdown", "-"}));
}

TEST(PreTokenizer, Kinds) {
    EXPECT_EQ(pieces_of({{"type", "Digits"}, {"individual_digits", false}}, "a12b"), (Words{"a", "12", "b"}));
    EXPECT_EQ(pieces_of({{"type", "Digits"}, {"individual_digits", true}}, "a12b"), (Words{"a", "1", "2", "b"}));
    EXPECT_EQ(pieces_of({{"type", "Punctuation"}}, "a,-b$"), (Words{"a", ",", "-", "b", "$"}));
    EXPECT_EQ(pieces_of({{"type", "Whitespace"}}, "It's a1. "), (Words{"It", "'", "s", "a1", "."}));
    EXPECT_EQ(pieces_of({{"type", "WhitespaceSplit"}}, " It's  a. "), (Words{"It's", "a."}));
    EXPECT_EQ(pieces_of({{"type", "ByteLevel"}, {"use_regex", false}}, "a b"), (Words{"\xC4\xA0"
                                                                                      "a\xC4\xA0"
                                                                                      "b"}));
    const auto metaspace = [](const Json& more, std::string_view text) {
        Json json{{"type", "Metaspace"}, {"replacement", "_"}};
        json.update(more);
        return pieces_of(json, text);
    };
    EXPECT_EQ(metaspace(Json::object(), "a  b"), (Words{"_a", "_", "_b"}));
    EXPECT_EQ(metaspace({{"prepend_scheme", "never"}}, "a b"), (Words{"a", "_b"}));
    EXPECT_EQ(metaspace({{"add_prefix_space", false}}, "a b"), (Words{"a", "_b"}));
    EXPECT_EQ(metaspace({{"prepend_scheme", "first"}, {"split", false}}, " a b"), (Words{"_a_b"}));
    EXPECT_THROW(metaspace({{"replacement", "ab"}}, ""), InputError);
    EXPECT_THROW(metaspace({{"add_prefix_space", false}, {"prepend_scheme", "always"}}, ""), InputError);
}

// --- normal forms ---

TEST(Normalizer, Steps) {
    const auto apply = [](const Json& json, std::string_view text) {
        return Normalizer::from_json(JsonView(json, "f")).apply(text);
    };
    EXPECT_EQ(apply({{"type", "NFC"}}, "xe\xCC\x81y\xE2\x84\xAB"), "x\xC3\xA9y\xC3\x85");
    EXPECT_EQ(apply({{"type", "NFD"}}, "x\xC3\xA9y"), "xe\xCC\x81y");
    // A ligature, a no-break space, an enclosed number, a full-width letter with an accent. U+32FF is newer than the
    // tables.
    EXPECT_EQ(apply({{"type", "NFKC"}}, "\uFB01\u00A0\u2460\uFF45\u0301\u32FF"), "fi 1\u00E9\u32FF");
    EXPECT_EQ(apply({{"type", "NFKD"}}, "\uFB01\u00E9\uFF21"), "fie\u0301A");
    EXPECT_EQ(apply({{"type", "Lowercase"}}, "AB\xC3\x84\xC4\xB0"), "ab\xC3\xA4i\xCC\x87");
    EXPECT_EQ(apply({{"type", "Strip"}}, " \n a b\xE3\x80\x80"), "a b");
    EXPECT_EQ(apply({{"type", "Prepend"}, {"prepend", "_"}}, ""), "");
    EXPECT_EQ(apply({{"type", "Replace"}, {"pattern", {{"Regex", " +"}}}, {"content", "_"}}, "a  b c"), "a_b_c");
    // U+1ABF is a combining mark of Unicode 13: it stays in place, and nothing composes across it.
    EXPECT_EQ(apply({{"type", "NFC"}}, "a\xE1\xAA\xBF\xCC\x81"), "a\xE1\xAA\xBF\xCC\x81");
}

TEST(Normalizer, StepsThatMultiplyAreStopped) {
    Json steps = Json::array();
    for (int i = 0; i < 40; ++i)
        steps.push_back({{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "aa"}});
    const Json json{{"type", "Sequence"}, {"normalizers", steps}};
    const Normalizer normalizer = Normalizer::from_json(JsonView(json, "f"));
    EXPECT_THROW(normalizer.apply("aaa"), InputError);
}

TEST(Normalizer, SpacesOfSentencePiece) {
    const std::string space = "\xE2\x96\x81";
    EXPECT_EQ(Normalizer::sentencepiece(true, false, true).apply(" a  b "),
              space + space + "a" + space + space + "b" + space);
    EXPECT_EQ(Normalizer::sentencepiece(true, true, true).apply("  a  b "), space + "a" + space + "b");
    EXPECT_EQ(Normalizer::sentencepiece(false, true, false).apply("  a  b "), "a b");
    EXPECT_EQ(Normalizer::sentencepiece(true, true, true).apply("   "), "");
    EXPECT_EQ(Normalizer::sentencepiece(true, true, true).apply(space + "a" + space), space + space + "a");
    EXPECT_EQ(Normalizer::sentencepiece(true, false, true).apply(""), "");
}

// --- UTF-8 ---

TEST(Unicode, InvalidSubpartsBecomeOneReplacementEach) {
    const auto lossy = [](std::string_view bytes) {
        std::string text;
        unicode::append_lossy(bytes, true, text);
        return text;
    };
    const std::string r(unicode::replacement_character);
    EXPECT_EQ(lossy("a\xFF\xFE"
                    "b"),
              "a" + r + r + "b");
    EXPECT_EQ(lossy("\xF0\x9F\x98"), r);          // an incomplete character
    EXPECT_EQ(lossy("\xF0\x9F\x41"), r + "A");    // an invalid one
    EXPECT_EQ(lossy("\xED\xA0\x80"), r + r + r);  // a surrogate
    EXPECT_EQ(lossy("\xC0\xAF"), r + r);          // an overlong form
    EXPECT_EQ(lossy("\xF4\x90\x80\x80"), r + r + r + r);
    std::string text;
    EXPECT_EQ(unicode::append_lossy("ab\xF0\x9F\x98", false, text), 2U);
    EXPECT_EQ(text, "ab");
}

TEST(Unicode, TheByteAlphabetGoesBothWays) {
    for (int byte = 0; byte < 256; ++byte) {
        const std::string& character = unicode::byte_alphabet().at(static_cast<std::size_t>(byte));
        EXPECT_EQ(unicode::byte_of(unicode::first_char(character)), byte);
        EXPECT_GT(unicode::first_char(character), 0x20U);
    }
    EXPECT_EQ(unicode::byte_of(0x20), -1);
    EXPECT_EQ(unicode::byte_of(0x144), -1);
}

}  // namespace
}  // namespace longhaul::engine
