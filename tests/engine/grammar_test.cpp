// Output formats as grammars: regular expressions against std::regex, JSON schemas by what they accept and refuse, and
// the tokens of a vocabulary that may follow.
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <random>
#include <regex>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/grammar/grammar_matcher.hpp"
#include "engine/grammar/output_grammar.hpp"
#include "engine/grammar/output_rules.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {
namespace {

using Kind = OutputFormat::Kind;
using State = GrammarMatcher::State;

GrammarMatcher matcher_of(Kind kind, std::vector<std::string> texts) {
    return GrammarMatcher(grammar_of({kind, std::move(texts)}));
}

bool accepts(GrammarMatcher& matcher, std::string_view text) {
    State state = matcher.start();
    for (const char byte : text) state = matcher.next(state, static_cast<std::uint8_t>(byte));
    return matcher.accepts(state);
}

std::string fault_of(Kind kind, const std::string& text) {
    try {
        (void)grammar_of({kind, {text}});
        return "";
    } catch (const BadFormat& bad) {
        return bad.fault;
    }
}

TEST(RegexGrammar, MatchesWhatStdRegexMatches) {
    const std::string alphabet = "ab1- ";
    std::vector<std::string> texts{""};
    for (std::size_t i = 0; texts.size() < 4000; ++i) {
        for (const char c : alphabet) texts.push_back(texts[i] + c);
    }
    for (const char* expression : {"a",          "ab|b",
                                   "a*",         "(ab)+",
                                   "a?b",        "[ab]{2,3}",
                                   "[^a]b*",     "a{2}",
                                   "a{1,}b",     "\\d+",
                                   "\\w*-\\s?",  "\\D\\S\\W",
                                   ".",          ".*1.*",
                                   "^a(b|-)$",   "(a*)*",
                                   "(a|b*)*1",   "(?:a|1)(b|)",
                                   "[a-b1\\-]+", "[\\d-]+",
                                   "a|",         "((a|b)(1|-)){0,2}",
                                   "(a?){3}b",   "[^\\w]+",
                                   "a+?b*?",     "(|a)+b"}) {
        GrammarMatcher matcher = matcher_of(Kind::regex, {expression});
        const std::regex wanted(expression);
        for (const std::string& text : texts)
            ASSERT_EQ(accepts(matcher, text), std::regex_match(text, wanted)) << expression << " on '" << text << "'";
    }
}

TEST(RegexGrammar, CharactersAreUnicodes) {
    GrammarMatcher any = matcher_of(Kind::regex, {"."});
    for (const char* one : {"a", "é", "€", "😀", "\xEF\xBF\xBF", "\xF4\x8F\xBF\xBF", "\x7F", "\xC2\x80"})
        EXPECT_TRUE(accepts(any, one)) << one;
    for (const char* none : {"", "\n", "ab", "\xC3", "\xED\xA0\x80", "\xF4\x90\x80\x80", "\xC0\x80", "\xFF"})
        EXPECT_FALSE(accepts(any, none)) << none;
    GrammarMatcher some = matcher_of(Kind::regex, {"[а-яё]+|[^\\x00-\\u20AB]"});
    EXPECT_TRUE(accepts(some, "привет"));
    EXPECT_TRUE(accepts(some, "€"));
    EXPECT_FALSE(accepts(some, "Привет"));
    EXPECT_FALSE(accepts(some, "é"));
    // Every two-byte character is in exactly one of a class and its opposite.
    GrammarMatcher in = matcher_of(Kind::regex, {"[à-ÿĀ-߾]"}), out = matcher_of(Kind::regex, {"[^à-ÿĀ-߾]"});
    for (int lead = 0xC2; lead <= 0xDF; ++lead) {
        for (int tail = 0x80; tail <= 0xBF; ++tail) {
            const std::string text{static_cast<char>(lead), static_cast<char>(tail)};
            EXPECT_NE(accepts(in, text), accepts(out, text));
        }
    }
}

TEST(RegexGrammar, WhatItDoesNotHaveIsNamed) {
    for (const auto& [expression, fault] : std::vector<std::pair<std::string, std::string>>{
             {"a(?=b)", "at byte 3: look-around and flags are not supported"},
             {"(?<!a)b", "at byte 2: look-around and flags are not supported"},
             {"\\bword", "at byte 2: \\b is not supported"},
             {"(a)\\1", "at byte 5: \\1 is not supported"},
             {"a^b", "at byte 1: ^ and $ stand only at the beginning and the end"},
             {"(a", "at byte 2: '(' without ')'"},
             {"a)", "at byte 1: ')' without '('"},
             {"[a", "at byte 2: '[' without ']'"},
             {"*a", "at byte 0: nothing before a quantifier"},
             {"a{3,1}", "at byte 6: a number of repeats from large to small"},
             {"a{x}", "at byte 2: no number of repeats"},
             {"a{100000}", "at byte 7: more than 65536 repeats"},
             {"a\\", "at byte 2: it ends too early"},
             {"[b-a]", "at byte 4: a range from large to small"},
             {"[^\\d\\D]", "at byte 7: a class without a character"},
             {"(?P:a)", "at byte 3: look-around and flags are not supported"},
             {"^$", "it allows no text but the empty one"},
             {"(((){65536}){65536}){65536}", "it allows no text but the empty one"},
             {"\\ud800", "at byte 6: half a surrogate pair"},
             {"((a{999}){999}){999}", "it is too large, with its repeats more than 1048576 parts"},
             {std::string(65, '(') + std::string(65, ')'), "at byte 65: more than 64 groups within each other"},
             {"\xFF", "it is not UTF-8"}})
        EXPECT_EQ(fault_of(Kind::regex, expression), fault) << expression;
}

struct SchemaCase {
    const char* schema;
    std::vector<std::string> good, bad;
};

class Schemas : public ::testing::TestWithParam<SchemaCase> {};

TEST_P(Schemas, AcceptAndRefuse) {
    const auto& [schema, good, bad] = GetParam();
    GrammarMatcher matcher = matcher_of(Kind::json_schema, {schema});
    for (const std::string& text : good) EXPECT_TRUE(accepts(matcher, text)) << schema << ": " << text;
    for (const std::string& text : bad) EXPECT_FALSE(accepts(matcher, text)) << schema << ": " << text;
}

INSTANTIATE_TEST_SUITE_P(
    All, Schemas,
    ::testing::Values(
        SchemaCase{R"({})",
                   {"1", "-0.5e+10", "\"\"", "null", "true", "[]", "{}", R"({"a": [1, {"b":null}], "c":"d"})",
                    "{\n  \"a\": [\n    1,\n    2\n  ]\n}", R"("\u00e9\ud83d\ude00\n\/")"},
                   {"", "01", ".5", "1.", "+1", "nul", "[1,]", "{\"a\"}", "{'a':1}", "\"\n\"", R"("\ud83d")", R"("\x")",
                    "[1  ,2]", "1 "}},
        SchemaCase{R"({"type": "object"})", {"{}", R"({"a":1,"b":{"c":[]}})"}, {"1", "[]", "\"{}\""}},
        SchemaCase{
            R"({"type": "object", "properties": {"z": {"type": "string"}, "a": {"type": "integer"}, "m": {"type": "boolean"}}, "required": ["z", "m"]})",
            {R"({"z":"","a":-3,"m":true})", R"({"z": "x", "m": false})", "{\n\t\"z\": \"x\",\n\t\"m\": false\n}"},
            {"{}", R"({"a":1,"z":"","m":true})", R"({"z":"","a":1})", R"({"z":"","m":true,"b":1})",
             R"({"z":"","a":1.5,"m":true})"}},
        SchemaCase{
            R"({"type": "object", "properties": {"a": {"type": "null"}, "b": {"type": "null"}, "c": {"type": "null"}}})",
            {"{}", R"({"a":null})", R"({"b":null,"c":null})", R"({"a":null,"c":null})",
             R"({"a":null,"b":null,"c":null})"},
            {R"({"c":null,"a":null})", R"({,"a":null})", R"({"a":null,})"}},
        SchemaCase{
            R"({"properties": {"ab": {"type": "integer"}}, "additionalProperties": {"type": "string"}})",
            {R"({"ab":1})", R"({"ab":1,"x":"y"})", R"({"abc":"y","a":"","":""})", R"({"b":"1"})"},
            {R"({"ab":"1"})", R"({"x":"y","ab":1})", R"({"ab":1,"ab":"x"})", R"({"\u0061b":"x"})", R"({"x":1})"}},
        SchemaCase{R"({"properties": {"a": {}}, "required": ["b"], "additionalProperties": {"type": "integer"}})",
                   {R"({"a":[],"b":1})", R"({"b":2})", R"({"b":1,"c":2})"},
                   {R"({"a":1})", R"({"b":1,"c":"2"})", R"({"b":"1"})"}},
        SchemaCase{R"({"type": ["string", "null"], "enum": ["a", 1, null, 1.5]})", {"\"a\"", "null"}, {"1", "1.5"}},
        SchemaCase{R"({"type": "integer", "enum": [1, 1.5, 2.0]})", {"1", "2.0"}, {"1.5"}},
        SchemaCase{R"({"prefixItems": [{}, {}], "maxItems": 1})", {"[1]"}, {"[]", "[1,2]"}},
        SchemaCase{R"({"type": "string", "pattern": "^.\\S$"})",
                   {"\"ab\"", "\"é€\""},
                   {"\"a\u00a0\"", "\"\u2028a\"", R"("\ra")"}},
        SchemaCase{R"({"type": "string", "pattern": "^[^\\s]\\s$"})", {"\"a \""}, {"\"\u00a0 \"", "\"  \""}},
        SchemaCase{R"({"format": "date"})",
                   {"\"2024-02-29\"", "\"2000-02-29\"", "\"2023-04-30\""},
                   {"\"2023-02-29\"", "\"1900-02-29\"", "\"2023-04-31\"", "\"0000-01-01\"", "1"}},
        SchemaCase{R"({"type": "array", "items": {"enum": ["x", 1, null]}, "minItems": 1, "maxItems": 3})",
                   {R"(["x"])", "[1,null]", R"([ "x", "x", 1 ])"},
                   {"[]", "[1,1,1,1]", R"(["y"])"}},
        SchemaCase{R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "items": {"type": "null"}})",
                   {"[1,\"a\"]", "[1,\"a\",null,null]"},
                   {"[1,2]", "[1,\"a\",1]", "[1]"}},
        SchemaCase{R"({"prefixItems": [{"type": "integer"}, {"type": "string"}], "minItems": 0, "items": false})",
                   {"[]", "[1]", "[1,\"a\"]"},
                   {"[1,\"a\",null]", "[\"a\"]"}},
        SchemaCase{R"({"type": "array", "maxItems": 0})", {"[]", "[ ]"}, {"[1]"}},
        SchemaCase{R"({"type": "array", "minItems": 2})", {"[1,[]]", "[1,2,3]"}, {"[]", "[1]"}},
        SchemaCase{R"({"const": {"b": [1, "x"], "a": null}})",
                   {R"({"b":[1,"x"],"a":null})"},
                   {R"({"a":null,"b":[1,"x"]})", "{}"}},
        SchemaCase{R"({"anyOf": [{"type": "integer"}, {"type": "array", "items": {"$ref": "#"}}]})",
                   {"1", "[1,[2,[]]]"},
                   {"null", "[null]"}},
        SchemaCase{
            R"({"$defs": {"node": {"type": "object", "properties": {"v": {"type": "integer"}, "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]}}, "required": ["v", "next"]}}, "$ref": "#/$defs/node"})",
            {R"({"v":1,"next":null})", R"({"v":1,"next":{"v":2,"next":{"v":3,"next":null}}})"},
            {R"({"v":1})", R"({"v":1,"next":{}})"}},
        SchemaCase{R"({"allOf": [{"$ref": "#/definitions/a~1b"}], "definitions": {"a/b": {"type": "boolean"}}})",
                   {"true"},
                   {"1"}},
        SchemaCase{R"({"type": ["integer", "string", "null"], "maximum": 3, "maxLength": 2})",
                   {"3", "\"ab\"", "null"},
                   {"4", "\"abc\"", "true"}},
        SchemaCase{R"({"type": "string", "minLength": 2, "maxLength": 3})",
                   {"\"ab\"", "\"é€😀\"", R"("\n\"\u00e9")", R"("\ud83d\ude00a")"},
                   {"\"a\"", "\"abcd\"", R"("\n\n\n\n")"}},
        SchemaCase{
            R"({"type": "string", "pattern": "^[A-Z]{2}\\d+$"})", {"\"AB1\""}, {"\"AB\"", "\"xAB1\"", "\"AB1 \""}},
        SchemaCase{R"({"type": "string", "pattern": "b\"c"})",
                   {R"("b\"c")", R"("ab\"cd")", R"("\nb\"c")"},
                   {"\"b\"c\"", R"("bc")"}},
        SchemaCase{R"({"type": "string", "pattern": ""})", {"\"\"", "\"x\""}, {"x"}},
        SchemaCase{R"({"type": "string", "format": "date"})", {"\"2026-11-28\""}, {"\"2026-13-01\"", "\"28.11.2026\""}},
        SchemaCase{R"({"type": "string", "format": "date-time"})",
                   {"\"2026-11-28T23:59:59Z\"", "\"2026-11-28T03:00:00.5+01:00\""},
                   {"\"2026-11-28\"", "\"2026-11-28T24:00:00Z\""}},
        SchemaCase{R"({"type": "string", "format": "something"})", {"\"x\""}, {"1"}},
        SchemaCase{R"({"title": "T", "description": "d", "default": 1, "type": "integer"})", {"1"}, {"1.0"}}));

TEST(SchemaGrammar, BoundsOfNumbersAreExact) {
    struct Bounds {
        int low, high;
        bool low_open, high_open;
    };
    constexpr int none = 1 << 20;
    for (const Bounds& b : {Bounds{-12, 5, false, false},
                            {0, 1, false, false},
                            {0, 2, true, true},
                            {3, 120, false, true},
                            {-100, -7, true, false},
                            {99, 1001, false, false},
                            {-1, 0, false, true},
                            {7, 7, false, false},
                            {10, none, false, false},
                            {0, none, true, false},
                            {-none, -3, false, false},
                            {-none, 12, false, true},
                            {-5, none, true, false}}) {
        std::string keywords;
        if (b.low != -none)
            keywords +=
                std::string(", \"") + (b.low_open ? "exclusiveMinimum" : "minimum") + "\": " + std::to_string(b.low);
        if (b.high != none)
            keywords +=
                std::string(", \"") + (b.high_open ? "exclusiveMaximum" : "maximum") + "\": " + std::to_string(b.high);
        GrammarMatcher integers = matcher_of(Kind::json_schema, {R"({"type": "integer")" + keywords + "}"});
        GrammarMatcher numbers = matcher_of(Kind::json_schema, {R"({"type": "number")" + keywords + "}"});
        for (int i = -1200; i <= 1200; ++i) {
            const auto fits = [&](double value) {
                return (b.low_open ? value > b.low : value >= b.low) &&
                       (b.high_open ? value < b.high : value <= b.high);
            };
            const std::string text = std::to_string(i);
            EXPECT_EQ(accepts(integers, text), fits(i)) << keywords << ": " << text;
            for (const char* fraction : {"", ".0", ".5", ".125", ".00"}) {
                for (const char* sign : {"", "-"}) {
                    const std::string number = sign + text + fraction;
                    if (number.starts_with("--")) continue;
                    if (number.starts_with("-0") && std::stod(number) == 0) continue;  // 0 has no sign
                    EXPECT_EQ(accepts(numbers, number), fits(std::stod(number))) << keywords << ": " << number;
                }
            }
            EXPECT_FALSE(i >= 0 && accepts(integers, "0" + text));
        }
    }
    EXPECT_EQ(fault_of(Kind::json_schema, R"({"type": "integer", "exclusiveMinimum": 0, "exclusiveMaximum": 1})"),
              "its bounds allow no number");
    GrammarMatcher any = matcher_of(Kind::json_schema, {R"({"type": "integer"})"});
    EXPECT_TRUE(accepts(any, "-9999999999999999"));
    EXPECT_FALSE(accepts(any, "12345678901234567")) << "beyond what a double holds";
}

// Hostile ones, in the size that a request may have.
TEST(SchemaGrammar, LargeSchemasAreReadOrRefused) {
    std::string chain = R"({"$ref": "#/$defs/0", "$defs": {)";
    constexpr int length = 1000;
    for (int i = 0; i < length; ++i)
        chain += "\"" + std::to_string(i) + R"(": {"items": {"$ref": "#/$defs/)" + std::to_string((i + 1) % length) +
                 "\"}},";
    chain.back() = '}';
    GrammarMatcher arrays = matcher_of(Kind::json_schema, {chain + "}"});
    EXPECT_TRUE(accepts(arrays, "[[[],[]]]"));
    EXPECT_FALSE(accepts(arrays, "[1]"));
    std::string names, values;
    for (int i = 0; i < length; ++i) {
        if (i < 900) names += "\"name " + std::to_string(i) + "\": true,";
    }
    for (int i = 0; i < 20'000; ++i) values += "\"value " + std::to_string(i) + "\",";
    names.pop_back();
    values.pop_back();
    GrammarMatcher object = matcher_of(Kind::json_schema, {R"({"properties": {)" + names + "}}"});
    EXPECT_TRUE(accepts(object, R"({"name 7":1,"name 899":[]})"));
    EXPECT_FALSE(accepts(object, R"({"name 7":1,"name 6":[]})"));
    GrammarMatcher value = matcher_of(Kind::json_schema, {R"({"enum": [)" + values + "]}"});
    EXPECT_TRUE(accepts(value, "\"value 12345\""));
    EXPECT_FALSE(accepts(value, "\"value 20000\""));
    EXPECT_EQ(fault_of(Kind::json_schema,
                       R"({"additionalProperties": true, "properties": {")" + std::string(20'000, 'x') + "\": true}}"),
              "additionalProperties is supported beside at most 16384 bytes of names");
    EXPECT_EQ(fault_of(Kind::json_schema, R"({"type": "string", "pattern": ")" + std::string(20'000, 'a') + "\"}"),
              "pattern: it has more than 16384 bytes");
    EXPECT_EQ(
        fault_of(Kind::json_schema, R"({"items": {"items": {"maxItems": 9999}, "minItems": 9999}, "minItems": 9999})"),
        "");
}

TEST(SchemaGrammar, WhatItDoesNotHaveIsNamed) {
    for (const auto& [schema, fault] : std::vector<std::pair<std::string, std::string>>{
             {"[1]", "a schema is an object, or true"},
             {"{", "it is not JSON: @1: expected string literal, got end of input"},
             {R"({"type": "array", "uniqueItems": true})", "uniqueItems is not supported here"},
             {R"({"properties": {"a": {"type": "number", "multipleOf": 2}}})",
              "properties.a: multipleOf is not supported here"},
             {R"({"properties": {"a": {"items": {"not": {}}}}})", "properties.a.items: not is not supported here"},
             {R"({"type": "text"})", "type is one of array, boolean, integer, null, number, object, string"},
             {R"({"type": "string", "minimum": 1})", "minimum is not supported here"},
             {R"({"$ref": "other.json"})", "$ref: only references within the schema are supported"},
             {R"({"$ref": "#/$defs/x"})", "$ref: there is no #/$defs/x"},
             {R"({"$ref": "#"})", "a schema refers to itself with nothing between"},
             {R"({"type": "array", "items": {"$ref": "#"}, "minItems": 1})", "each text of it would go on without end"},
             {R"({"anyOf": [{"type": "null"}, {"$ref": "#"}]})", "a schema refers to itself with nothing between"},
             {R"({"anyOf": []})", "anyOf: it is a list of schemas"},
             {R"({"anyOf": [{}], "properties": {}})", "properties is not supported here"},
             {R"({"allOf": [{}, {}]})", "allOf is supported with one schema"},
             {R"({"enum": []})", "enum is a list of values"},
             {R"({"type": "string", "const": 1})", "none of its values has its type"},
             {R"({"type": "foo", "enum": [1]})",
              "type is one of array, boolean, integer, null, number, object, string"},
             {R"({"type": ["object", "null", "object"]})", "type names object twice"},
             {R"({"properties": {}, "required": ["a"], "additionalProperties": false})",
              "it requires a, which it does not allow"},
             {R"({"$ref": "#/$defs/a\nb", "$defs": {"a\nb": {"if": {}}}})",
              "#/$defs/a\\x0ab: if is not supported here"},
             {R"({"type": "integer", "minimum": 0.5})", "minimum is supported as an integer from -10^15 to 10^15"},
             {R"({"type": "integer", "minimum": 3, "maximum": 2})", "its bounds allow no number"},
             {R"({"type": "array", "minItems": 3, "maxItems": 2})",
              "it allows no array: more items are needed than may be"},
             {R"({"type": "string", "maxLength": -1})", "maxLength is an integer from 0 to 65536"},
             {R"({"type": "string", "pattern": "a", "maxLength": 3})",
              "a length is not supported beside a pattern or a format"},
             {R"~({"type": "string", "pattern": "a(?=b)"})~",
              "pattern: at byte 3: look-around and flags are not supported"},
             {R"({"properties": {"a": false}})", "properties.a: a schema is an object, or true"}})
        EXPECT_EQ(fault_of(Kind::json_schema, schema), fault) << schema;
}

/// A text of the grammar whose bytes are drawn at random; "" if it becomes too long.
std::string random_text(GrammarMatcher& matcher, std::mt19937& random) {
    std::string text;
    for (State state = matcher.start(); text.size() < 4000;) {
        std::vector<int> bytes;
        for (int byte = 0; byte < 256; ++byte) {
            if (matcher.next(state, static_cast<std::uint8_t>(byte)) != GrammarMatcher::dead) bytes.push_back(byte);
        }
        if (matcher.accepts(state) && (bytes.empty() || random() % 4 == 0)) return text;
        // Ends of strings, arrays and objects are as likely as all else together.
        std::vector<int> ends;
        for (const int byte : bytes)
            if (byte == '"' || byte == ']' || byte == '}') ends.push_back(byte);
        const std::vector<int>& from = !ends.empty() && random() % 2 == 0 ? ends : bytes;
        text += static_cast<char>(from[random() % from.size()]);
        state = matcher.next(state, static_cast<std::uint8_t>(text.back()));
    }
    return "";
}

// parse_json is strict: UTF-8, no lone surrogates, no key twice in an object of a schema's own keys.
TEST(SchemaGrammar, EveryTextIsJson) {
    std::mt19937 random(1);
    for (
        const char* schema :
        {R"({"type": "array"})", R"({"items": {"type": ["string", "number", "boolean"]}})",
         R"({"properties": {"k": {"type": "string"}, "\"q\n": {"type": "number"}, "o": {"type": "array", "items": {"type": "string", "pattern": ".[\"\\\\]"}}}})"}) {
        GrammarMatcher matcher = matcher_of(Kind::json_schema, {schema});
        int finished = 0;
        for (int i = 0; i < 300; ++i) {
            const std::string text = random_text(matcher, random);
            if (text.empty()) continue;
            ++finished;
            try {
                parse_json(text, "");
            } catch (const InputError& error) {
                EXPECT_NE(std::string(error.what()).find("every key once"), std::string::npos) << error.what() << "\n"
                                                                                               << text;
            }
        }
        EXPECT_GT(finished, 100);
    }
}

class TokenGrammars : public ::testing::Test {
  protected:
    const std::unique_ptr<Tokenizer> tokenizer = Tokenizer::load(LONGHAUL_DEMO_MODEL);
    const std::int64_t vocab_size = tokenizer->vocab_size() + 3;  // as models have padding
    const std::shared_ptr<const TokenTexts> texts = std::make_shared<TokenTexts>(*tokenizer, vocab_size);

    std::shared_ptr<TokenGrammar> grammar(Kind kind, std::vector<std::string> of) {
        return std::make_shared<TokenGrammar>(grammar_of({kind, std::move(of)}), texts);
    }
    std::shared_ptr<OutputRules> rules(const std::shared_ptr<TokenGrammar>& of) {
        return std::make_shared<OutputRules>(of, std::nullopt, 0, vocab_size);
    }
};

TEST_F(TokenGrammars, AllowTheTokensWhoseTextsGoOn) {
    const char* schema =
        R"({"type": "object", "properties": {"answer": {"type": "string"}, "score": {"type": "integer"}}, "required": ["answer", "score"]})";
    for (const auto& [kind, format, text] :
         {std::tuple{Kind::json_schema, schema, R"({"answer": "It is the best", "score": 12})"},
          {Kind::regex, "[a-z ]+(, [a-z ]+)*\\.", "once upon a time, there was a time."},
          {Kind::choice, "the only one", "the only one"},
          {Kind::gbnf, "root ::= word+ \".\"\nword ::= [a-z]+ \" \"?", "so it is done."}}) {
        OutputConstraint output(rules(grammar(kind, {format})), {});
        GrammarMatcher matcher(grammar_of({kind, {format}}));
        const std::vector<std::int32_t> tokens = tokenizer->encode(text);
        for (std::size_t n = 0; n <= tokens.size(); ++n) {
            const std::span<const std::int32_t> before = std::span(tokens).first(n);
            State state = matcher.start();
            for (const std::int32_t token : before)
                for (const char byte : tokenizer->token_bytes(token))
                    state = matcher.next(state, static_cast<std::uint8_t>(byte));
            // The last tokens as a draft's path.
            const std::size_t in_path = std::min<std::size_t>(n, n % 3);
            const AllowedTokens& allowed = output.allowed(before.first(n - in_path), before.last(in_path));
            ASSERT_EQ(std::ssize(allowed.tokens), vocab_size);
            bool any = false;
            for (std::int32_t token = 0; token < vocab_size; ++token) {
                State behind = token < tokenizer->vocab_size() && !tokenizer->is_special(token) &&
                                       !tokenizer->token_bytes(token).empty()
                                   ? state
                                   : GrammarMatcher::dead;
                if (behind != GrammarMatcher::dead)
                    for (const char byte : tokenizer->token_bytes(token))
                        behind = matcher.next(behind, static_cast<std::uint8_t>(byte));
                ASSERT_EQ(allowed.tokens[static_cast<std::size_t>(token)], behind != GrammarMatcher::dead)
                    << text << " at " << n << ": token " << token;
                any = any || behind != GrammarMatcher::dead;
            }
            EXPECT_EQ(allowed.any_but({}), any);
            EXPECT_EQ(allowed.end, matcher.accepts(state)) << n;
            EXPECT_EQ(allowed.end, n == tokens.size()) << n;
        }
        EXPECT_FALSE(output.allowed(tokens, {}).count > 0) << "complete";
        const std::vector<std::int32_t> wrong{tokens.back(), tokens.back()};
        EXPECT_FALSE(output.allowed({}, wrong).count > 0 || output.allowed({}, wrong).end);
    }
}

// What many repeats of alternatives that begin alike may read in thousands of ways is given up, soon.
TEST_F(TokenGrammars, AmbiguousFormatsAreGivenUp) {
    for (const char* expression :
         {"(.?){9999}", "((a|aa|aaa){1,99}){1,99}", "((.|..)*a){0,999}(a?){9000}", "(a?){9000}"}) {
        OutputConstraint output(rules(grammar(Kind::regex, {expression})), {});
        const std::vector<std::int32_t> a(9000, tokenizer->encode("a").front());
        std::size_t n = 0;
        while (n < a.size() && !output.allowed(std::span(a).first(n), {}).unknown) ++n;
        EXPECT_LT(n, a.size()) << expression;
        EXPECT_FALSE(output.allowed(std::span(a).first(n), {}).count > 0);
        EXPECT_TRUE(output.allowed(a, {}).unknown) << "and stays so";
    }
    std::vector<std::string> labels;
    for (int i = 0; i < 20'000; ++i) labels.push_back("label " + std::to_string(i * i));
    OutputConstraint choices(rules(grammar(Kind::choice, labels)), {});
    EXPECT_TRUE(choices.allowed({}, {}).count > 0) << "many choices are not many ways";
}

// What is known of states is forgotten when it takes too much memory; the answers stay.
TEST_F(TokenGrammars, LongTextsTakeBoundedMemory) {
    const auto shared = grammar(Kind::regex, {"a{0,60000}b{0,60000}c?"});
    OutputConstraint first(rules(shared), {}), second(rules(shared), {});
    const std::vector<std::int32_t> a = tokenizer->encode("a"), b = tokenizer->encode("b"), c = tokenizer->encode("c");
    ASSERT_EQ(a.size() + b.size() + c.size(), 3);
    std::vector<std::int32_t> tokens(60000, a.front());
    EXPECT_TRUE(second.allowed(tokens, {}).tokens[static_cast<std::size_t>(c.front())]);
    EXPECT_FALSE(second.allowed(tokens, {}).tokens[static_cast<std::size_t>(a.front())]);
    tokens.insert(tokens.end(), 60000, b.front());
    EXPECT_TRUE(first.allowed(tokens, {}).tokens[static_cast<std::size_t>(c.front())]);
    first.allowed(tokens, c);
    EXPECT_GT(shared->num_limited(), 1) << "more than the bound";
    EXPECT_FALSE(first.allowed(tokens, {}).tokens[static_cast<std::size_t>(b.front())]);
    tokens.resize(60001);
    EXPECT_TRUE(second.allowed(tokens, {}).tokens[static_cast<std::size_t>(b.front())]);
    EXPECT_FALSE(second.allowed(tokens, {}).tokens[static_cast<std::size_t>(a.front())]);
}

}  // namespace
}  // namespace longhaul::engine
