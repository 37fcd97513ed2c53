// GBNF: grammars against std::regex where they are regular, what recursion allows, and what is refused.
#include <gtest/gtest.h>

#include <regex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/grammar/grammar_matcher.hpp"
#include "engine/grammar/output_grammar.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

/// The texts of one grammar.
class Gbnf {
  public:
    explicit Gbnf(std::string text) : matcher_(grammar_of({OutputFormat::Kind::gbnf, {std::move(text)}})) {}

    bool accepts(std::string_view text) { return matcher_.accepts(behind(text)); }
    /// Whether some text of the grammar begins so.
    bool begins(std::string_view text) { return behind(text) != GrammarMatcher::dead; }

  private:
    GrammarMatcher::State behind(std::string_view text) {
        GrammarMatcher::State state = matcher_.start();
        for (const char byte : text) state = matcher_.next(state, static_cast<std::uint8_t>(byte));
        return state;
    }

    GrammarMatcher matcher_;
};

std::string fault_in(const std::string& text) {
    try {
        check_format({OutputFormat::Kind::gbnf, {text}});
        return "";
    } catch (const BadFormat& bad) {
        return bad.fault;
    }
}

TEST(GbnfGrammar, RegularOnesMatchWhatStdRegexMatches) {
    const std::string alphabet = "ab1- ";
    std::vector<std::string> texts{""};
    for (std::size_t i = 0; texts.size() < 4000; ++i) {
        for (const char c : alphabet) texts.push_back(texts[i] + c);
    }
    for (const auto& [rules, expression] : std::vector<std::pair<std::string, std::string>>{
             {R"(root ::= "a")", "a"},
             {R"(root ::= "ab" | "b")", "ab|b"},
             {R"(root ::= "ab"*)", "(ab)*"},
             {R"(root ::= "ab"+ [1-]?)", "(ab)+[1-]?"},
             {R"(root ::= [^a]{2,3})", "[^a]{2,3}"},
             {R"(root ::= [ab]{2} "1"{ 1, } "-"{ , 2 })", "[ab]{2}1+-{0,2}"},
             {R"~(root ::= ("a" | "b" "1")+)~", "(a|b1)+"},
             {"root ::= ( \"a\" # the first\n | \"b\"\n \"1\" ) *", "(a|b1)*"},
             {"# both\nroot ::=\n  \"a\"\r\n\r\n  | \"b\"\n\n  |\n  other\n\nother ::= \"1\"\n", "a|b|1"},
             {R"(root ::= [\x61\u0062] "\x2D" "\U00000020"?)", "[ab]- ?"},
             {R"(root ::= [a\-1] . [\]\[b])", "[a\\-1].b"},
             {"root ::= x \"-\" x\nx ::= [ab]*", "[ab]*-[ab]*"},
             {"root ::= \"a\" |", "a|"},
             {"root ::= x{2}\nx ::= \"a\" | \"\"", "a?a?"},
             {"root ::= (x | y)* \"1\"\nx ::= \"a\"*\ny ::= x \"b\"?", "[ab]*1"},
             {"root ::= (\"a\"*)* (\"\" | \"1\")+", "a*1*"},
             {"root ::= rest\nrest ::= \"a\" rest | \"b\" rest | \"-\"", "[ab]*-"},
             {"root ::= a-1 _b\na-1 ::= \"a\"\n_b ::= \"b\"", "ab"}}) {
        Gbnf grammar(rules);
        const std::regex wanted(expression);
        for (const std::string& text : texts)
            ASSERT_EQ(grammar.accepts(text), std::regex_match(text, wanted)) << rules << " on '" << text << "'";
    }
}

TEST(GbnfGrammar, RulesMayNest) {
    Gbnf arithmetic(R"~(
root  ::= sum
sum   ::= term (ws [-+] ws term)*
term  ::= value (ws [*/] ws value)*
value ::= [0-9]+ | "(" ws sum ws ")"
ws    ::= " "?
)~");
    for (const char* text : {"1", "12+3", "(1 + 2) * 3", "((4)) - 5*6/(7)"})
        EXPECT_TRUE(arithmetic.accepts(text)) << text;
    for (const char* text : {"", "1+", "(1", "1)", "1  + 2", "()"}) EXPECT_FALSE(arithmetic.accepts(text)) << text;
    EXPECT_TRUE(arithmetic.begins("(((1+2"));
    EXPECT_FALSE(arithmetic.begins("(((1+2a"));

    Gbnf lists("root ::= item\nitem ::= \"x\" | \"[\" (item (\",\" item)*)? \"]\"");
    std::string deep = "x";
    for (int i = 0; i < 200; ++i) deep = "[" + deep + ",x]";
    EXPECT_TRUE(lists.accepts(deep));
    EXPECT_FALSE(lists.accepts(deep + "]"));
}

TEST(GbnfGrammar, CharactersAreUnicodes) {
    Gbnf grammar("root ::= \"für \" [α-ω]+ \"\\u20AC\\U0001F600\" [^a]");
    EXPECT_TRUE(grammar.accepts("für αβγ€😀ß"));
    EXPECT_TRUE(grammar.begins("für α\xCE"));
    EXPECT_FALSE(grammar.begins("für α\xCC"));
    EXPECT_FALSE(grammar.accepts("für α€😀a"));
    EXPECT_TRUE(Gbnf("root ::= .").accepts("\n"));
}

// As those of thousands of names, or of characters that do not follow each other.
TEST(GbnfGrammar, HasAnyNumberOfAlternatives) {
    std::string names = "root ::= (", characters = "root ::= [";
    for (int i = 0; i < 5000; ++i) names += (i == 0 ? "\"name" : " | \"name") + std::to_string(i) + "\"";
    for (char32_t c = 0x4E00; c < 0x9E00; c += 2) unicode::append_char(c, characters);
    Gbnf one_name(names + ") \".\""), kanji(characters + "]+");
    for (const char* text : {"name0.", "name77.", "name4999."}) EXPECT_TRUE(one_name.accepts(text)) << text;
    for (const char* text : {"name5000.", "name7", "name."}) EXPECT_FALSE(one_name.accepts(text)) << text;
    EXPECT_TRUE(kanji.accepts("\u4E00\u9DFE\u6000"));
    for (const char* text : {"\u4E01", "\u9E00", "\u6001\u6000"}) EXPECT_FALSE(kanji.accepts(text)) << text;
    std::string ways = "a0";
    for (int i = 1; i < 3000; ++i) ways += " | a" + std::to_string(i);
    for (int i = 0; i < 3000; ++i) ways += "\na" + std::to_string(i) + " ::= \"x\"";
    EXPECT_EQ(fault_in("root ::= " + ways),
              "there are too many ways to begin a text; let alternatives differ in their first characters");
}

TEST(GbnfGrammar, LargeOnesAreReadInTimeThatGrowsWithThem) {
    std::string chain = "root ::= r0\n", groups;
    for (int i = 0; i < 9000; ++i) chain += "r" + std::to_string(i) + " ::= r" + std::to_string(i + 1) + "\n";
    EXPECT_EQ(fault_in(chain + "r9000 ::= \"a\"{65536}"),
              "there are too many ways to begin a text; let alternatives differ in their first characters");
    for (int i = 0; i < 250; ++i) groups += "( ";
    groups += '"' + std::string(60'000, 'a') + '"';
    for (int i = 0; i < 250; ++i) groups += ")?";
    EXPECT_TRUE(Gbnf("root ::= \"b\" " + groups).accepts("b"));
}

// Such a way would never let an item end, so it is not begun.
TEST(GbnfGrammar, WaysWithoutAnEndAreNotAllowed) {
    Gbnf grammar("root ::= \"a\" | \"b\" lost | \"c\" (\"d\" lost)?\nlost ::= \"x\" lost");
    for (const char* text : {"a", "c"}) EXPECT_TRUE(grammar.accepts(text)) << text;
    for (const char* text : {"b", "bx", "cd"}) EXPECT_FALSE(grammar.begins(text)) << text;
}

TEST(GbnfGrammar, FaultsAreNamed) {
    for (const auto& [text, fault] : std::vector<std::pair<std::string, std::string>>{
             {"", "it has no rule root"},
             {"answer ::= \"a\"", "it has no rule root"},
             {"root ::= a\n\nb ::= \"b\"", "line 1: no rule a"},
             {"root ::= \"a\"\nroot ::= \"b\"", "line 2: a second rule root"},
             {"root = \"a\"", "line 1: expected ::= behind root"},
             {"root ::= \"a\"\n\"b\"", "line 2: expected the name of a rule"},
             {"root ::= \"a\" )", "line 1: expected a literal, class, group, name or |, got ')'"},
             {"root ::= \"a\" 'b'", "line 1: expected a literal, class, group, name or |, got '''"},
             {"root ::= \"a\" ü", "line 1: expected a literal, class, group, name or |, got 'ü'"},
             {"root ::= (\"a\"\n| \"b\"", "line 2: '(' without ')'"},
             {"root ::= \"a", "line 1: it ends too early"},
             {"root ::= [a", "line 1: it ends too early"},
             {"root ::= [b-a]", "line 1: a range from large to small"},
             {"root ::= []", "line 1: a class without a character"},
             {"root ::= *", "line 1: expected a literal, class, group, name or |, got '*'"},
             {"root ::= \"a\"{3,1}", "line 1: a number of repeats from large to small"},
             {"root ::= \"a\"*?", "line 1: a quantifier behind a quantifier"},
             {"root ::= \"a\"{}", "line 1: no number of repeats"},
             {"root ::= \"a\"{,}", "line 1: no number of repeats"},
             {"root ::= \"a\"{100000}", "line 1: more than 65536 repeats"},
             {R"(root ::= "\d")", "line 1: '\\d' is not supported"},
             {R"(root ::= "\ä")", "line 1: '\\ä' is not supported"},
             {R"(root ::= "\x4")", "line 1: 2 hexadecimal digits are missing"},
             {R"(root ::= "\uD800")", "line 1: an escape that is no character"},
             {R"(root ::= "\UFFFFFFFF")", "line 1: an escape that is no character"},
             {"root ::= <think> \"a\"", "line 1: tokens (<think>, <[42]>) are not supported"},
             {"root ::= \"a\" | root \"b\"", "line 1: rule root can begin with itself"},
             {"root ::= \"a\" x\nx ::= ws x \"b\" | \"c\"\nws ::= \" \"*", "line 2: rule x can begin with itself"},
             {"root ::= \"a\" x | \"c\"\nx ::= (y | z)*\ny ::= z? x\nz ::= \"b\"",
              "line 2: rule x can begin with itself"},
             {"root ::= \"a\" root", "each text of it would go on without end"},
             {"root ::= \"\" x\nx ::= \"\"?", "it allows no text but the empty one"},
             {"root ::= ((\"a\"{999}){999}){999}", "it is too large, with its repeats more than 1048576 parts"},
             {"root ::= " + std::string(300, '('), "line 1: more than 256 groups within each other"},
             {"root ::= \"\xFF\"", "it is not UTF-8"}})
        EXPECT_EQ(fault_in(text), fault) << text;
}

}  // namespace
}  // namespace longhaul::engine
