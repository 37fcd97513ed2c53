// Task prompts with a template of any fields, on data as it is published: columns that are called options or
// continuation, numbers, and what is missing.
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

class PromptFieldsTest : public DataSetTest {
  protected:
    Settings job(const fs::path& data, const std::string& prompt_template,
                 const std::vector<std::string>& column = {}) {
        Settings job = settings("prompts", data);
        job.prompt_template = write("t.txt", prompt_template);
        job.column = column;
        return job;
    }
    std::string temperature(const Settings& job, std::int64_t index) {
        const auto own = DataSet::open(job)->prompt(index, tokenizer_, long_context).settings;
        return own ? std::to_string(own->temperature).substr(0, 4) : "the job's";
    }
};

TEST_F(PromptFieldsTest, OptionsMayBeTheAnswersToChooseFrom) {
    const auto path = write("q.jsonl", R"({"question": "a", "options": ["x", "y"], "hint": "few"})"
                                       "\n"
                                       R"({"question": "b", "options": {"temperature": 0.25}})"
                                       "\n"
                                       R"({"question": "c", "options": {"0": "x", "A": "z"}})"
                                       "\n");
    const Settings plain = job(path, "{question}");
    EXPECT_EQ(show(*DataSet::open(plain), 0), "1: a");
    EXPECT_EQ(temperature(plain, 0), "the job's");
    EXPECT_EQ(temperature(plain, 1), "0.25");
    EXPECT_NE(show(*DataSet::open(plain), 2).find("3! q.jsonl:3: options"), std::string::npos);

    const Settings named = job(path, "{question} {?options.0}{options.0}{/options.0}");
    EXPECT_EQ(show(*DataSet::open(named), 0), "1: a x");
    EXPECT_EQ(temperature(named, 1), "the job's");
    EXPECT_EQ(show(*DataSet::open(named), 2), "3: c x");
    const Settings renamed = job(path, "{question} {?first}{first}{/first}", {"first=options.0"});
    EXPECT_EQ(show(*DataSet::open(renamed), 2), "3: c x");
    const Settings whole = job(write("w.jsonl", R"({"options": "x or y"})"), "{options}");
    EXPECT_EQ(show(*DataSet::open(whole), 0), "1: x or y");

    const Settings chosen = job(path, "{question}", {"options=hint"});
    EXPECT_EQ(show(*DataSet::open(chosen), 0), "1! q.jsonl:1: options: expected an object, got \"few\"");
}

TEST_F(PromptFieldsTest, AReferenceMayBeANumberAndMattersOnlyIfItIsScored) {
    const auto path = write("q.jsonl", R"({"question": "a", "answer": 1})"
                                       "\n"
                                       R"({"question": "b", "answer": 2.50})"
                                       "\n"
                                       R"({"question": "c", "answer": true})"
                                       "\n"
                                       R"({"question": "d", "answer": ["x", "y"]})"
                                       "\n");
    Settings scored = job(path, "{question}", {"continuation=answer"});
    const auto data = DataSet::open(scored);
    EXPECT_EQ(data->reference(0, tokenizer_), "1");
    EXPECT_EQ(data->reference(1, tokenizer_), "2.50");
    EXPECT_EQ(data->reference(2, tokenizer_), "true");
    EXPECT_EQ(show(*data, 3), "4: d");
    EXPECT_EQ(data->reference(3, tokenizer_), std::nullopt);
    scored.teacher_forced = true;
    EXPECT_EQ(text_of(DataSet::open(scored)->prompt(1, tokenizer_, long_context).continuation), "2.50");
    EXPECT_EQ(show(*DataSet::open(scored), 3),
              "4! q.jsonl:4: continuation: expected a text, number or boolean, got an array of 2; column = "
              "continuation=answer.0 names its first element");
    const auto own = write("c.jsonl", R"({"question": "a", "continuation": {"x": 1}})");
    EXPECT_EQ(show(*DataSet::open(job(own, "{question}")), 0), "1: a");
}

TEST_F(PromptFieldsTest, NumbersAreSpelledAsInTheData) {
    const auto path =
        write("n.jsonl", R"({"id": 7, "big": 12345678901234567890123, "f": 1e5, "n": -0, "p": [1.50, 2E-3], )"
                         R"("s": "\"1.50\\", "-1": "\\", "m": {"a.b": 0.10}, "yes": true, )"
                         R"("options": {"temperature": 0.50}})");
    const Settings spelled = job(path, "{big} {f} {n} {p.0} {p.1} {s} {-1} {m.a.b} {yes} {id}");
    EXPECT_EQ(show(*DataSet::open(spelled), 0), R"(7: 12345678901234567890123 1e5 -0 1.50 2E-3 "1.50\ \ 0.10 true 7)");
    EXPECT_EQ(temperature(spelled, 0), "0.50");
    EXPECT_EQ(show(*DataSet::open(job(path, "{price}", {"price=p.0"})), 0), "7: 1.50");
}

TEST_F(PromptFieldsTest, WhatIsMissingIsNamed) {
    const auto path = write("q.jsonl", R"({"question": "a", "length": 1, "a": {"b": "x"}, "arr": 1})"
                                       "\n"
                                       R"({"questions": "b", "a": {}, "arr": 1})"
                                       "\n");
    EXPECT_EQ(show(*DataSet::open(job(path, "{question}")), 1),
              "2! q.jsonl:2: question: expected a text, number or boolean, got nothing, the line has 'a', 'arr', "
              "'questions'; did you mean column = question=questions?");
    EXPECT_EQ(show(*DataSet::open(job(path, "{length}")), 1),
              "2! q.jsonl:2: length: expected a text, number or boolean, got nothing, the line has 'a', 'arr', "
              "'questions'; column = length=NAME names another");
    EXPECT_EQ(show(*DataSet::open(job(path, "{a.b}")), 1),
              "2! q.jsonl:2: a.b: expected a text, number or boolean, got nothing, the line has 'a', 'arr', "
              "'questions'");
}

TEST_F(PromptFieldsTest, LinesOfTextHaveOneField) {
    const auto path = write("l.txt", "one\ntwo\n");
    EXPECT_EQ(show(*DataSet::open(job(path, "Q: {prompt}")), 1), "2: Q: two");
    EXPECT_EQ(message_of([&] { DataSet::open(job(path, "Q:\n{question} {prompt}")); }),
              "t.txt:2: expected the field prompt, got 'question'; lines of text have only {prompt}; other fields need "
              "JSONL or Parquet");
}

}  // namespace
}  // namespace longhaul::runner
