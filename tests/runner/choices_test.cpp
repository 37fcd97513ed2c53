// Multiple-choice questions (mode = multiple-choice): the forms in which published data has choices and answers, and
// what the choices are behind a prompt.
#include "runner/data/choices.hpp"

#include "runner/data/item_survey.hpp"
#include "tests/runner/dataset_fixture.hpp"

namespace longhaul::runner {
namespace {

class ChoicesTest : public DataSetTest {
  protected:
    Settings questions(const std::string& data, const std::vector<std::string>& columns = {}) {
        Settings job = settings("prompts", write("q.jsonl", data));
        job.mode = Mode::multiple_choice;
        job.column = columns;
        return job;
    }
    static Settings with_choices(Settings job, const std::vector<std::string>& texts) {
        job.format = {engine::OutputFormat::Kind::choice, texts};
        return job;
    }
    Settings with_template(Settings job, const std::string& text) {
        job.prompt_template = write("t.txt", text);
        return job;
    }

    /// "prompt|choice|*right choice", or "! error".
    std::string shown(const Settings& job, std::int64_t index = 0) {
        const auto data = DataSet::open(job);
        const Prompt prompt = data->prompt(index, tokenizer_, long_context);
        if (!prompt.error.empty()) return "! " + short_form(prompt.error);
        std::string text = text_of(prompt.tokens);
        std::int64_t number = 0;
        const auto& right = prompt.right_choices;
        for (const PromptChoice& choice : prompt.choices) {
            const bool is_right = std::find(right.begin(), right.end(), number++) != right.end();
            text += (is_right ? "|*" : "|") + (choice.prompt.empty() ? "" : text_of(choice.prompt) + "~") +
                    text_of(choice.tokens);
        }
        return text;
    }
};

TEST_F(ChoicesTest, TextsOfTheDataFollowThePromptBehindABlank) {
    EXPECT_EQ(shown(questions(R"({"prompt": "The sea is", "choices": ["wet", "dry"], "answer": 0})")),
              "The sea is|* wet| dry");
    EXPECT_EQ(shown(questions(R"({"prompt": "A:\n", "choices": ["wet", "dry"]})")), "A:\n|wet|dry")
        << "as it is behind a line end; the answer need not be known";
    EXPECT_EQ(shown(questions(R"({"prompt": "The sea is", "choices": [" wet", "\ndry"]})")), "The sea is| wet|\ndry");
    EXPECT_EQ(shown(questions(R"({"prompt": "The sea is  ", "choices": ["wet", "dry"]})")), "The sea is|  wet|  dry")
        << "blanks that end the prompt begin the choices, as tokens do";
}

TEST_F(ChoicesTest, KnowTheTextOfTheData) {
    const auto data = DataSet::open(questions(R"({"prompt": "The sea is", "choices": [" wet", "dry"], "answer": 0}
{"prompt": "The sea is", "choices": [" wet", "s\u00e8che"]})"));
    const Prompt prompt = data->prompt(0, tokenizer_, long_context);
    EXPECT_EQ(prompt.choices[0].text, " wet");
    EXPECT_EQ(prompt.choices[1].text, "dry") << "without the blank";
    EXPECT_EQ(prompt.choices[0].num_characters, 4);
    EXPECT_EQ(data->prompt(1, tokenizer_, long_context).choices[1].num_characters, 5) << "and 6 bytes";
    EXPECT_EQ(data->reference(0, tokenizer_), " wet");
    EXPECT_EQ(data->reference(1, tokenizer_), std::nullopt);
}

TEST_F(ChoicesTest, AnswersAreAPlaceALabelOrAText) {
    const auto right = [&](const std::string& choices, const std::string& answer) -> std::string {
        const Settings job = questions(R"({"prompt": "Q", "choices": )" + choices + R"(, "answer": )" + answer + "}");
        std::string text = shown(job);
        const std::size_t star = text.find('*');
        if (text.starts_with("!")) return text;
        return star == std::string::npos ? "not known" : text.substr(star + 1, text.find('|', star) - star - 1);
    };
    const std::string words = R"(["wet", "dry", "hot"])", numbers = "[1, 2.5, 3]";
    const std::string labelled = R"({"text": ["wet", "dry", "hot"], "label": ["1", "2", "3"]})";
    EXPECT_EQ(right(words, "2"), " hot");
    EXPECT_EQ(right(words, R"("2")"), " hot");
    EXPECT_EQ(right(words, R"("B")"), " dry");
    EXPECT_EQ(right(words, R"("dry")"), " dry");
    EXPECT_EQ(right(words, R"(" dry\n")"), " dry");
    EXPECT_EQ(right(words, "true"), " dry");
    EXPECT_EQ(right(words, "false"), " wet");
    EXPECT_EQ(right(labelled, R"("2")"), " dry") << "a label comes before a place";
    EXPECT_EQ(right(labelled, "2"), " dry");
    EXPECT_EQ(right(labelled, R"("hot")"), " hot");
    EXPECT_EQ(right(numbers, "1"), " 2.5") << "a number is a place";
    EXPECT_EQ(right(numbers, R"("3")"), " 3");
    EXPECT_EQ(right(numbers, R"("1")"),
              "! q.jsonl:1: answer: expected the place or the text of a choice, got '1', which is both; give places as "
              "numbers");
    EXPECT_EQ(right(words, "2.0"), " hot") << "a column with gaps";
    EXPECT_EQ(right(words, "-1.0"), "not known");
    EXPECT_EQ(right(words, "1.5"),
              "! q.jsonl:1: answer: expected 0 to 2, the place of the right choice, or its text, got '1.5'");
    for (const char* unknown : {"null", R"("")", "-1", R"("-1")"}) EXPECT_EQ(right(words, unknown), "not known");
    EXPECT_EQ(right(words, "3"),
              "! q.jsonl:1: answer: expected 0 to 2, the place of the right choice, or its text, got '3'; first-choice "
              "= 1 counts places from 1");
    EXPECT_EQ(right(labelled, R"("D")"),
              "! q.jsonl:1: answer: expected 0 to 2, the place of the right choice, or its label or text, got 'D'");
    EXPECT_EQ(right(words, "[1]"), "! q.jsonl:1: answer: expected a text, number or boolean, got an array of 1");
}

TEST_F(ChoicesTest, ColumnsNameThemInTheData) {
    // HellaSwag, ARC
    EXPECT_EQ(
        shown(with_template(questions(R"({"ctx": "A man runs. He", "endings": ["stops.", "flies."], "label": "0"})",
                                      {"choices=endings", "answer=label"}),
                            "{ctx}")),
        "A man runs. He|* stops.| flies.");
    EXPECT_EQ(
        shown(with_template(
            questions(
                R"({"question": "Wet?", "choices": {"text": ["sea", "sand"], "label": ["A", "B"]}, "answerKey": "A"})",
                {"answer=answerKey"}),
            "Question: {question}\nAnswer:\n")),
        "Question: Wet?\nAnswer:|* sea| sand");
}

TEST_F(ChoicesTest, AJobMayHaveItsOwn) {
    // MMLU: the template shows the data's choices, and letters are scored.
    const Settings letters =
        with_choices(with_template(questions(R"({"question": "Wet?", "choices": ["sea", "sand"], "answer": 1})"),
                                   "{question}\nA. {choices.0}\nB. {choices.1}\nAnswer:"),
                     {"A", "B"});
    EXPECT_EQ(shown(letters), "Wet?\nA. sea\nB. sand\nAnswer:| A|* B");
    // PIQA, SciQ: choices in columns of their own.
    EXPECT_EQ(
        shown(with_choices(
            with_template(questions(R"({"goal": "Open", "sol1": "push", "sol2": "eat", "label": 0})", {"answer=label"}),
                          "{goal}:"),
            {"{sol1}", "{sol2} it"})),
        "Open:|* push| eat it");
    EXPECT_EQ(shown(with_choices(questions(R"({"prompt": "Open", "good": "push", "bad": "eat"})", {"answer=good"}),
                                 {"{bad}", "{good}"})),
              "Open| eat|* push");
    Settings lines = settings("prompts", write("q.txt", "The sea is wet:\n"));
    lines.mode = Mode::multiple_choice;
    EXPECT_EQ(shown(with_choices(lines, {"yes", "no"})), "The sea is wet:| yes| no") << "lines of text";
    EXPECT_EQ(shown(with_choices(lines, {"{prompt}", "{{no}}"})), "The sea is wet:| The sea is wet:| {no}");
}

TEST_F(ChoicesTest, FaultsOfTheJobEndIt) {
    const std::string data = R"({"prompt": "Q", "good": "push"})";
    const auto fault = [&](const std::vector<std::string>& texts) {
        return message_of([&] { DataSet::open(with_choices(questions(data), texts)); });
    };
    EXPECT_EQ(fault({"{goood}", "x"}),
              "job: choice: expected fields of the data ('good', 'prompt'), got 'goood'; did you mean 'good'?");
    EXPECT_EQ(fault({"{", "x"}), "job: choice: expected a field such as {prompt}, or {{ for a brace, got a lone {");
    EXPECT_EQ(message_of([&] {
                  Settings lines = settings("prompts", write("q.txt", "Q\n"));
                  lines.mode = Mode::multiple_choice;
                  DataSet::open(with_choices(lines, {"{good}", "x"}));
              }),
              "job: choice: expected the field prompt, got 'good'; lines of text have only {prompt}; other fields need "
              "JSONL or Parquet");
}

TEST_F(ChoicesTest, FaultsOfALineAreItsOwn) {
    const auto fault = [&](const std::string& line) { return shown(questions(line)); };
    EXPECT_EQ(
        fault(R"({"prompt": "Q", "endings": ["a", "b"]})"),
        "! q.jsonl:1: choices: expected an array of texts, got nothing, the line has 'endings', 'prompt'; column = "
        "choices=NAME names another");
    EXPECT_EQ(fault(R"({"prompt": "Q", "choices": ["a"]})"),
              "! q.jsonl:1: choices: expected an array of at least 2 texts, got an array of 1");
    EXPECT_EQ(
        fault(R"({"prompt": "Q", "choices": "ab"})"),
        "! q.jsonl:1: choices: expected an array of at least 2 texts, got \"ab\"; choice = {FIELD} in the job makes "
        "choices of texts");
    EXPECT_EQ(fault(R"({"prompt": "Q", "choices": ["a", {"b": 1}]})"),
              "! q.jsonl:1: choices.1: expected a text, number or boolean, got an object of 1");
    EXPECT_EQ(fault(R"({"prompt": "Q", "choices": ["a", " "]})"), "! q.jsonl:1: choices.1: expected a text, got none");
    EXPECT_EQ(
        fault(R"({"prompt": "Q", "choices": {"label": ["A", "B"]}})"),
        R"(! q.jsonl:1: choices: expected an array of at least 2 texts, {"text": texts, "label": labels} or {"choices": texts, "labels": 1 or 0 for each}, got an object without text and choices)");
    EXPECT_EQ(fault(R"({"prompt": "Q", "choices": {"text": ["a", "b"], "labels": ["A", "B"]}})"), "Q| a| b")
        << "labels of other data";
    EXPECT_EQ(fault(R"({"prompt": "Q", "choices": {"text": ["a", "b"], "label": ["A", "B", "C"]}})"),
              "! q.jsonl:1: choices.label: expected 2 labels, one for each text, got 3");
    const std::string longer = R"({"prompt": "Q", "choices": ["a", ")" + std::string(200, 'b') + R"("]})";
    EXPECT_EQ(fault(longer), "! q.jsonl:1: choices: expected at most max-tokens (100) tokens, got 201");
}

TEST_F(ChoicesTest, MayBeCalledOptions) {
    const std::string line = R"({"prompt": "Q", "options": ["a", "b"], "answer_idx": "B"})";
    const std::vector<std::string> columns{"choices=options", "answer=answer_idx"};
    EXPECT_EQ(shown(questions(line, columns)), "Q| a|* b");
    EXPECT_EQ(shown(with_template(questions(line, columns), "{prompt}\nA. {options.0}:")), "Q\nA. a:| a|* b");
    EXPECT_EQ(shown(questions(R"({"prompt": "Q", "choices": ["a", "b"], "options": {"max-tokens": 1}})")),
              "! q.jsonl:1: choices: expected at most max-tokens (1) tokens, got 2")
        << "of generation, as elsewhere";
}

TEST_F(ChoicesTest, AnswersThatNobodyKnowsAreNoticed) {
    const std::string line = R"({"prompt": "Q", "choices": ["a", "b"], "label": 1})";
    const auto notices = [&](const std::vector<std::string>& columns) {
        return DataSet::open(questions(line, columns))->notices(tokenizer_);
    };
    EXPECT_EQ(notices({"answer=label"}), std::vector<std::string>{});
    EXPECT_EQ(notices({}), std::vector<std::string>{"no question has an answer, so there is no accuracy; column = "
                                                    "answer=NAME names the field that has them"});
    EXPECT_EQ(message_of([&] { DataSet::open(questions(line, {"answer=lable"})); }),
              "job: column: expected fields of the data ('choices', 'label', 'prompt'), got 'lable'; did you mean "
              "'label'?");
}

TEST_F(ChoicesTest, LongPromptsLoseTheSameForAllChoices) {
    Settings job = questions(R"({"prompt": "0123456789", "choices": ["a", "bcde"]})");
    EXPECT_EQ(DataSet::open(job)->prompt(0, tokenizer_, 12).error.substr(folder_.string().size() + 1),
              "q.jsonl:1: prompt: expected at most 7 tokens (context 12 less the continuation's 5), got 10; overlong = "
              "truncate-left keeps the last ones");
    job.overlong = "truncate-left";
    EXPECT_EQ(text_of(DataSet::open(job)->prompt(0, tokenizer_, 12).tokens), "3456789");
}

TEST_F(ChoicesTest, OtherModesReadNone) {
    Settings job = questions(R"({"prompt": "Q", "choices": "none"})");
    job.mode = Mode::generate;
    EXPECT_EQ(shown(job), "Q");
    job.column = {"choices=endings"};
    EXPECT_THROW(DataSet::open(job), UsageError);
}

TEST_F(ChoicesTest, SurveyCountsEachChoice) {
    const Settings job = questions(R"({"prompt": "0123", "choices": ["a", "bcd", "ef"]})");
    const ItemSurvey survey = survey_items(*DataSet::open(job), tokenizer_, job, long_context, 1, 10);
    EXPECT_EQ(survey.inputs, 1);
    EXPECT_EQ(survey.choices, 3);
    EXPECT_EQ(survey.prompt_tokens.sum(), 4);
    EXPECT_EQ(survey.new_tokens, 2 + 4 + 3);
    EXPECT_EQ(survey.positions.largest(3), (std::vector<std::int64_t>{8, 7, 6}));
}

// WinoGrande: the choices stand within the prompt, and what follows them is scored.
TEST_F(ChoicesTest, MayStandWithinThePrompt) {
    const std::string data =
        R"({"s": "The ship hit the rock, so the _ sank. Or _'s gone.", "a": "ship", "b": "old rock", "answer": "1"}
{"s": "No gap here.", "a": "ship", "b": "rock", "answer": "2"}
{"s": "The end is _ ", "a": "near", "b": "far", "answer": ""}
{"s": "One _ two", "a": "and", "b": "or", "answer": "3"}
{"s": "Wet _sand ", "a": "sea ", "b": "sun", "answer": "1"})";
    Settings job = with_choices(with_template(questions(data), "Sea: {s}"), {"{a}", "{b}"});
    job.choice_gap = "_";
    job.first_choice = 1;
    EXPECT_EQ(shown(job),
              "Sea: The ship hit the rock, so the old rock"
              "|*Sea: The ship hit the rock, so the ship~ sank. Or _'s gone."
              "|Sea: The ship hit the rock, so the old rock~ sank. Or _'s gone.")
        << "in the first gap; the longest prompt is the question's";
    EXPECT_EQ(DataSet::open(job)->prompt(0, tokenizer_, long_context).choices[1].num_characters, 19);
    EXPECT_EQ(shown(job, 1), "! q.jsonl:2: prompt: expected the text of choice-gap, '_', got none");
    EXPECT_EQ(shown(job, 2),
              "! q.jsonl:3: prompt: expected text behind choice-gap, '_', got none; without choice-gap the choices are "
              "what follows the prompt");
    EXPECT_EQ(shown(job, 3),
              "! q.jsonl:4: answer: expected 1 to 2, the place of the right choice, or its text, got '3'");
    EXPECT_EQ(shown(job, 4), "Sea: Wet sea|*Sea: Wet sea~ sand |Sea: Wet sun~sand ")
        << "blanks are scored, as elsewhere";
    job.max_tokens = 18;
    EXPECT_EQ(shown(job), "! q.jsonl:1: prompt: expected at most max-tokens (18) tokens behind choice-gap, got 19");
    job.max_tokens = 100;
    job.few_shot = 1;
    job.few_shot_data = write("e.jsonl", R"({"s": "Wet _, dry sand.", "a": "sea", "b": "sun", "answer": "1"})");
    job.introduction = "Fill in the _ about {a}.\n\n";
    EXPECT_EQ(shown(job, 1), "! q.jsonl:2: prompt: expected the text of choice-gap, '_', got none")
        << "the introduction's is not the question's";
    EXPECT_EQ(text_of(DataSet::open(job)->prompt(0, tokenizer_, long_context).choices[0].prompt),
              "Fill in the _ about ship.\n\nSea: Wet sea, dry sand.\n\nSea: The ship hit the rock, so the ship");
    job.few_shot_data = write("e.jsonl", R"({"s": "Wet sea.", "a": "sea", "b": "sun", "answer": "1"})");
    EXPECT_EQ(message_of([&] { DataSet::open(job); }),
              "e.jsonl:1: prompt: expected the text of choice-gap, '_', got none");
}

// TruthfulQA: of each choice the data says whether it is right.
TEST_F(ChoicesTest, SeveralMayBeRight) {
    const auto with = [&](const std::string& labels) {
        return questions(
            R"({"prompt": "Wet?", "mc2_targets": {"choices": ["sea", "sky", "rain"], "labels": )" + labels + "}}",
            {"choices=mc2_targets"});
    };
    EXPECT_EQ(shown(with("[1, 0, 1]")), "Wet?|* sea| sky|* rain");
    EXPECT_EQ(shown(with("[false, true, false]")), "Wet?| sea|* sky| rain");
    for (const char* labels : {"null", "[null, null, null]", "[-1, -1, -1]"})
        EXPECT_EQ(shown(with(labels)), "Wet?| sea| sky| rain") << "not known: " << labels;
    const auto data = DataSet::open(with("[1, 0, 1]"));
    EXPECT_TRUE(data->prompt(0, tokenizer_, long_context).may_have_several_right);
    EXPECT_EQ(data->reference(0, tokenizer_), "sea");
    const std::string expected =
        "! q.jsonl:1: choices.labels: expected an array of 3 numbers 0 or 1, with at least one 1 and one 0, got ";
    for (const auto& [labels, got] : std::map<std::string, std::string>{{"[1, 0]", "an array of 2"},
                                                                        {"[1, 1, 1]", "only 1"},
                                                                        {"[0, 0, 0]", "only 0"},
                                                                        {"[1, 0, 2]", "2"},
                                                                        {R"("110")", R"("110")"}})
        EXPECT_EQ(shown(with(labels)), expected + got) << labels;
}

}  // namespace
}  // namespace longhaul::runner
