// Prompt templates: their syntax and the messages for errors in them.
#include "runner/data/prompt_template.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "engine/error.hpp"

namespace longhaul::runner {
namespace {

const std::vector<std::string> fields{"instruction", "context", "category"};

std::string render(std::string_view text, const std::vector<std::string>& values) {
    return PromptTemplate::parse(text, "t.txt", fields).render(values);
}

std::string message(std::string_view text) {
    try {
        PromptTemplate::parse(text, "t.txt", fields);
    } catch (const InputError& error) {
        return error.what();
    }
    return "(no error)";
}

TEST(PromptTemplate, FieldsSectionsAndBraces) {
    EXPECT_EQ(render("Q: {instruction}\nA:\n", {"why", "", ""}), "Q: why\nA:");
    EXPECT_EQ(render("A:\n\n", {"", "", ""}), "A:\n") << "one line end does not count";
    EXPECT_EQ(render("a\r\nb\r\n", {"", "", ""}), "a\nb");
    EXPECT_EQ(render("\xEF\xBB\xBFx", {"", "", ""}), "x");
    EXPECT_EQ(render("{{{instruction}}} {{}}", {"i", "", ""}), "{i} {}");
    const std::string sections = "{?context}C: {context}{?category} ({category}){/category};{/context}{instruction}!";
    EXPECT_EQ(render(sections, {"i", "c", "k"}), "C: c (k);i!");
    EXPECT_EQ(render(sections, {"i", "c", ""}), "C: c;i!");
    EXPECT_EQ(render(sections, {"i", "", "k"}), "i!");
    EXPECT_EQ(render("{?context}a{/context}b", {"", "", ""}), "b") << "text behind a section is not in it";
    EXPECT_EQ(render("{?context}{/context}b", {"", "", ""}), "b");
    EXPECT_EQ(render("{instruction}", {"{context} {{", "c", ""}), "{context} {{") << "values are no templates";
    EXPECT_EQ(render("", {"i", "", ""}), "");
}

TEST(PromptTemplate, MistakesAreNamed) {
    const std::string three = "one of the fields instruction, context or category, got ";
    EXPECT_EQ(message("a\n{instructoin}"), "t.txt:2: expected " + three + "'instructoin'; did you mean 'instruction'?");
    EXPECT_EQ(message("{summary}"), "t.txt:1: expected " + three + "'summary'; a brace itself is {{");
    EXPECT_EQ(message("{}"), "t.txt:1: expected " + three + "none; a brace itself is {{");
    EXPECT_EQ(message("\n\n{?context}x"), "t.txt:3: expected {/context} to end {?context}, got the end of the file");
    EXPECT_EQ(message("{/context}"), "t.txt:1: expected {?context} before {/context}, got none");
    EXPECT_EQ(message("{?context}\n{?category}{/context}"),
              "t.txt:2: expected {/category} to end the section of line 2, got {/context}");
    EXPECT_EQ(message("a } b"), "t.txt:1: expected a field such as {instruction}, or }} for a brace, got a lone }");
    EXPECT_EQ(message("a { b\n}"), "t.txt:1: expected a field such as {instruction}, or {{ for a brace, got a lone {");
    EXPECT_EQ(message("{instruction"),
              "t.txt:1: expected a field such as {instruction}, or {{ for a brace, got a lone {");
    EXPECT_EQ(message("caf\xE9"), R"(t.txt: @3: expected UTF-8 text, got byte \xe9)");
    EXPECT_EQ(message(std::string_view("a\0", 2)), "t.txt: @1: expected UTF-8 text, got a NUL byte");
}

TEST(PromptTemplate, FieldsOfAFile) {
    const auto path = std::filesystem::path(::testing::TempDir()) / "template_test.txt";
    std::ofstream(path) << "{{x}} {b}\n{?a}{a} {?c}{b}{/c}{/a}\n{c}";
    const auto found = PromptTemplate::fields_in(path);
    ASSERT_EQ(found.size(), 3U);
    const PromptTemplate::Field expected[] = {
        {"b", path.string() + ":1", false}, {"a", path.string() + ":2", true}, {"c", path.string() + ":2", false}};
    for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(found[i].name, expected[i].name);
        EXPECT_EQ(found[i].place, expected[i].place);
        EXPECT_EQ(found[i].optional, expected[i].optional);
    }
    std::ofstream(path) << "a {} b";
    EXPECT_THROW(PromptTemplate::fields_in(path), InputError);
    std::filesystem::remove(path);
}

TEST(PromptTemplate, FingerprintIsOfWhatCounts) {
    const auto print = [](std::string_view text) { return PromptTemplate::parse(text, "t", fields).fingerprint(); };
    EXPECT_EQ(print("a\nb\n"), print("\xEF\xBB\xBF"
                                     "a\r\nb"));
    EXPECT_NE(print("a\nb\n"), print("a\nb\n\n"));
}

TEST(PromptTemplate, TheTasksOwn) {
    const auto own = [](const std::string& name, const std::vector<std::string>& names,
                        const std::vector<std::string>& values) {
        return PromptTemplate::parse(built_in_template(name), name, names).render(values);
    };
    const std::string wmt = own("wmt", {"source"}, {"Guten Tag."});
    EXPECT_TRUE(wmt.starts_with("German: ")) << wmt;
    EXPECT_TRUE(wmt.ends_with("\n\nGerman: Guten Tag.\nEnglish:")) << wmt;
    EXPECT_TRUE(own("wmt-chat", {"source"}, {"Guten Tag."}).ends_with("\n\nGuten Tag."));
    EXPECT_TRUE(own("xsum", {"document"}, {"Much happened."}).ends_with("\n\nArticle: Much happened.\nSummary:"));
    EXPECT_TRUE(own("xsum-chat", {"document"}, {"Much happened."}).ends_with("\n\nMuch happened."));
    EXPECT_TRUE(own("dolly", fields, {"Why?", "", ""}).ends_with("\n\n### Instruction:\nWhy?\n\n### Response:\n"));
    EXPECT_TRUE(own("dolly", fields, {"Why?", "Since.", ""})
                    .ends_with("### Instruction:\nWhy?\n\n### Context:\nSince.\n\n### Response:\n"));
    EXPECT_EQ(own("dolly-chat", fields, {"Why?", "", ""}), "Why?");
    EXPECT_EQ(own("dolly-chat", fields, {"Why?", "Since.", ""}), "Why?\n\nSince.");
    EXPECT_THROW(built_in_template("pg19"), std::logic_error);
}

}  // namespace
}  // namespace longhaul::runner
