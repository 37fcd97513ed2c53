// Few-shot examples (few-shot = N): what stands before the prompts, and what is refused.
#include "runner/data/few_shot.hpp"

#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

class FewShotTest : public DataSetTest {
  protected:
    const fs::path data_ = write("test.jsonl", R"({"q": "2+2", "a": "4", "subject": "sums"}
{"q": "Wet?", "a": "sea", "subject": "words"}
{"q": "7-1", "a": "6", "subject": "signs"})");
    const fs::path examples_ = write("dev.jsonl", R"({"q": "1+1", "a": "2", "subject": "sums"}
{"q": "Dry?", "a": " sand", "subject": "words"}
{"q": "3+2", "a": "5", "subject": "sums"}
{"q": "Hot?", "a": "sun", "subject": "words"})");

    Settings job(std::int64_t count) {
        Settings job = settings("prompts", data_);
        job.prompt_template = write("t.txt", "Q: {q}\nA:\n");
        job.column = {"continuation=a"};
        job.few_shot = count;
        job.few_shot_data = examples_;
        return job;
    }
};

TEST_F(FewShotTest, TheFirstExamplesStandBeforeEveryPrompt) {
    const auto data = DataSet::open(job(2));
    const std::string examples = "Q: 1+1\nA: 2\n\nQ: Dry?\nA: sand\n\n";
    EXPECT_EQ(show(*data, 0), "1: " + examples + "Q: 2+2\nA:");
    EXPECT_EQ(show(*data, 1), "2: " + examples + "Q: Wet?\nA:");
    EXPECT_EQ(data->reference(0, tokenizer_), "4") << "the prompt's own";
}

TEST_F(FewShotTest, OrTheFirstOfItsGroup) {
    Settings grouped = job(2);
    grouped.few_shot_group = "subject";
    const auto data = DataSet::open(grouped);
    EXPECT_EQ(show(*data, 0), "1: Q: 1+1\nA: 2\n\nQ: 3+2\nA: 5\n\nQ: 2+2\nA:");
    EXPECT_EQ(show(*data, 1), "2: Q: Dry?\nA: sand\n\nQ: Hot?\nA: sun\n\nQ: Wet?\nA:");
    EXPECT_EQ(show(*data, 2),
              "3! test.jsonl:3: few-shot: expected 2 examples whose subject is 'signs', got 0; few-shot-data has too "
              "few of them");
}

// Its fields are those of the prompt; examples need not have them.
TEST_F(FewShotTest, AnIntroductionStandsBeforeAll) {
    Settings introduced = job(1);
    introduced.introduction = "About {subject}.\n\n";
    introduced.few_shot_data = write("e.jsonl", R"({"q": "1+1", "a": "2"})");
    EXPECT_EQ(show(*DataSet::open(introduced), 1), "2: About words.\n\nQ: 1+1\nA: 2\n\nQ: Wet?\nA:");
    // Examples are read as the prompts are: any values, and options that are those of a question.
    introduced.prompt_template.clear();
    introduced.data = write("p.jsonl", R"({"prompt": 3, "subject": "sums"})");
    introduced.few_shot_data = write("e.jsonl", R"({"prompt": 1, "a": 2, "options": ["2", "3"]})");
    EXPECT_EQ(show(*DataSet::open(introduced), 0), "1: About sums.\n\n1 2\n\n3");
    introduced.data = write("m.jsonl", R"({"messages": [{"role": "user", "content": "Wet?"}], "subject": "words"})");
    EXPECT_EQ(message_of([&] { DataSet::open(introduced); }),
              "m.jsonl: expected fields of the data ('messages', 'subject'), got 'prompt'; with messages, template, "
              "introduction, few-shot-group and choice name no field");
}

TEST_F(FewShotTest, AnswersAreTheRightChoices) {
    Settings questions = settings("prompts", write("q.jsonl", R"({"prompt": "Wet?", "choices": ["sea", "sand"]})"));
    questions.mode = Mode::multiple_choice;
    questions.few_shot = 1;
    questions.few_shot_data = write("e.jsonl", R"({"prompt": "Hot?", "choices": ["ice", "sun"], "answer": 1})");
    const Prompt prompt = DataSet::open(questions)->prompt(0, tokenizer_, long_context);
    EXPECT_EQ(text_of(prompt.tokens), "Hot? sun\n\nWet?");
    EXPECT_EQ(text_of(prompt.choices[0].tokens), " sea");
    questions.few_shot_data = write("e.jsonl", R"({"prompt": "Hot?", "choices": ["ice", "sun"]})");
    EXPECT_EQ(message_of([&] { DataSet::open(questions); }),
              "e.jsonl:1: answer: expected the answer of an example, got nothing; column = answer=NAME names another "
              "field");
}

TEST_F(FewShotTest, AreTurnsOfAConversation) {
    Settings chat = job(1);
    chat.chat = true;
    chat.chat_template = write("c.jinja", "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}").string();
    EXPECT_EQ(show(*DataSet::open(chat), 0), "1: <user>Q: 1+1\nA:<assistant>2<user>Q: 2+2\nA:");
    // Data with messages, whose examples are prompts or messages
    chat.chat = false;
    chat.prompt_template.clear();
    chat.column.clear();
    chat.model = folder_;
    chat.data = write("m.jsonl", R"({"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "a"}]}
{"prompt": "b"})");
    chat.few_shot_data = write("e.jsonl", R"({"prompt": "x", "continuation": "y"})");
    EXPECT_EQ(show(*DataSet::open(chat), 0), "1: <user>x<assistant>y<system>S<user>a");
    EXPECT_EQ(show(*DataSet::open(chat), 1), "2: x y\n\nb");
    chat.few_shot_data = write("e.jsonl", R"({"messages": [{"role": "user", "content": "x"}], "continuation": "y"})");
    EXPECT_EQ(show(*DataSet::open(chat), 0), "1: <user>x<assistant>y<system>S<user>a");
    EXPECT_EQ(show(*DataSet::open(chat), 1),
              "2! m.jsonl:2: few-shot: expected examples that are prompts, as this is one, got messages");
    // One system message at most
    Settings introduced = job(1);
    introduced.chat = true;
    introduced.chat_template = chat.chat_template;
    introduced.introduction = "I";
    EXPECT_EQ(show(*DataSet::open(introduced), 0), "1: <system>I<user>Q: 1+1\nA:<assistant>2<user>Q: 2+2\nA:");
    introduced.prompt_template.clear();
    introduced.column.clear();
    introduced.data = write("p.jsonl", R"({"prompt": "b"})");
    introduced.few_shot_data =
        write("s.jsonl", R"({"messages": [{"role": "system", "content": "S"}], "continuation": "y"})");
    EXPECT_EQ(show(*DataSet::open(introduced), 0),
              "1! p.jsonl:1: messages: expected no system message, because the job has an introduction, got one");
}

TEST_F(FewShotTest, ChangeTheFingerprint) {
    const std::string none = DataSet::open(settings("prompts", write("p.txt", "a\n")))->fingerprint();
    const std::string two = DataSet::open(job(2))->fingerprint(), one = DataSet::open(job(1))->fingerprint();
    EXPECT_NE(one, two);
    EXPECT_EQ(none.find("few-shot"), std::string::npos);
    write("dev.jsonl", R"({"q": "1+1", "a": "3", "subject": "sums"})");
    EXPECT_NE(DataSet::open(job(1))->fingerprint(), one);
    // The same examples in other groups, or with other parts of messages
    const auto print = [&](const std::string& example, const std::string& group) {
        Settings other = settings("prompts", write("m.jsonl", R"({"prompt": "b", "subject": "s"})"));
        other.few_shot = 1;
        other.few_shot_group = group;
        other.few_shot_data = write("e.jsonl", example);
        return DataSet::open(other)->fingerprint();
    };
    EXPECT_NE(print(R"({"prompt": "a", "continuation": "b", "subject": "s"})", "subject"),
              print(R"({"prompt": "a", "continuation": "b", "subject": "t"})", "subject"));
    EXPECT_NE(
        print(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}], "continuation": "y"})",
              ""),
        print(R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "z"}]}], "continuation": "y"})",
              ""));
}

// An example shows how an answer stands behind its prompt, so what is scored stands there likewise.
TEST_F(FewShotTest, ContinuationsFollowAsTheAnswersDo) {
    Settings scored = job(1);
    scored.mode = Mode::perplexity;
    EXPECT_EQ(text_of(DataSet::open(scored)->prompt(0, tokenizer_, long_context).continuation), " 4");
    scored.few_shot = 0;
    EXPECT_EQ(text_of(DataSet::open(scored)->prompt(0, tokenizer_, long_context).continuation), "4") << "as it is";
}

TEST_F(FewShotTest, FaultsEndTheJob) {
    const auto fault = [&](const Settings& settings) { return message_of([&] { DataSet::open(settings); }); };
    EXPECT_EQ(fault(job(5)), "dev.jsonl: few-shot: expected 5 examples, got 4");
    Settings other = job(1);
    other.column.clear();
    EXPECT_EQ(fault(other),
              "dev.jsonl:1: continuation: expected the answer of an example, got nothing; column = continuation=NAME "
              "names another field");
    other = job(1);
    other.few_shot_group = "topic";
    EXPECT_EQ(fault(other), "job: few-shot-group: expected fields of the data ('a', 'q', 'subject'), got 'topic'");
    other = job(1);
    other.few_shot_split = "dev";
    std::string of_split;
    try {
        DataSet::open(other);
    } catch (const UsageError& error) {
        of_split = error.what();
    }
    EXPECT_EQ(of_split,
              "job: few-shot-split: expected none with data of one file or of lines, got 'dev'; few-shot-data names a "
              "file of examples");
    other = job(1);
    other.few_shot_data = folder_ / "none.jsonl";
    EXPECT_EQ(fault(other), "none.jsonl: expected a readable file, got No such file or directory");
}

}  // namespace
}  // namespace longhaul::runner
