// The faults that `longhaul check` finds: each row breaks a good job in some ways and lists all of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/launch/job_check.hpp"
#include "runner/run/run_folder.hpp"
#include "tests/runner/key_values.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t all = 1000000;

struct CheckTest : testing::Test {
    TemporaryFolder temporary;
    fs::path folder = temporary.path();

    void SetUp() override {
        write("job.cfg", good_job());
        write("p.jsonl", good_data());
    }

    void write(const std::string& name, const std::string& text) const {
        std::ofstream(folder / name, std::ios::binary) << text;
    }

    static std::string good_job() {
        return "task = prompts\ndata = p.jsonl\noutput = out\nmax-tokens = 10\nmodel = " LONGHAUL_DEMO_MODEL "\n";
    }
    static std::string good_data() {
        return "{\"id\": \"a\", \"prompt\": \"one\"}\n{\"id\": \"b\", \"prompt\": \"one two three four five\"}\n"
               "{\"id\": \"c\", \"prompt\": \"one two\"}\n";
    }

    [[nodiscard]] JobReport check(const std::vector<Assignment>& keys = {}, std::int64_t most = all) const {
        return check_job(folder / "job.cfg", keys, most);
    }

    /// The lines of the faults, without the folder's path.
    [[nodiscard]] std::vector<std::string> lines_of(const JobReport& report) const {
        std::vector<std::string> lines;
        for (const JobFault& fault : report.faults) {
            std::string line = fault.line;
            const std::string place = folder.string() + "/";
            for (std::size_t at = 0; (at = line.find(place)) != std::string::npos;) line.erase(at, place.size());
            lines.push_back(fault.part + " | " + line);
        }
        return lines;
    }
};

TEST_F(CheckTest, AGoodJobIsCountedAndLeavesNothingBehind) {
    const JobReport report = check({{"samples", "2", "command line"}});
    EXPECT_EQ(report.code(), ExitCode::done) << testing::PrintToString(lines_of(report));
    ASSERT_TRUE(report.items);
    EXPECT_EQ(report.items->inputs, 3);
    EXPECT_EQ(report.items->failed, 0);
    EXPECT_EQ(report.longest_id, "b");
    EXPECT_LT(report.items->prompt_tokens.quantile(0.5), report.items->prompt_tokens.largest());
    EXPECT_EQ(report.items->new_tokens, 3 * 2 * 10);
    ASSERT_TRUE(report.memory);
    EXPECT_GT(report.memory->weights, 0);
    // 4 of the 6 items at a time, each in one page
    EXPECT_EQ(report.memory->batch_kv, 4 * report.memory->longest_kv);
    ASSERT_TRUE(report.disk);
    EXPECT_GT(report.disk->checkpoints, 0);
    EXPECT_FALSE(fs::exists(folder / "out"));
}

// With choice-gap: the prompt up to the gap, and each choice with what follows it.
TEST_F(CheckTest, ShowsChoicesWhereTheyStand) {
    write("p.jsonl",
          R"({"prompt": "The ship hit the rock, so the _ sank.", "choices": ["ship", "old rock"], "answer": 0})");
    write("job.cfg", good_job() + "mode = multiple-choice\nchoice-gap = _\n");
    const JobReport report = check();
    ASSERT_TRUE(report.first_prompt) << testing::PrintToString(lines_of(report));
    EXPECT_EQ(report.first_prompt->text, "<|begin_of_text|>The ship hit the rock, so the");
    ASSERT_EQ(report.first_prompt->choices.size(), 2U);
    EXPECT_EQ(report.first_prompt->choices[0].text, " ship sank.");
    EXPECT_TRUE(report.first_prompt->choices[0].is_right);
    EXPECT_EQ(report.first_prompt->choices[1].text, " old rock sank.");
    EXPECT_FALSE(report.first_prompt->choices[1].is_right);
}

TEST_F(CheckTest, ShowsTheFirstPromptAndWhatALengthCosts) {
    write("p.jsonl", "{\"id\": \"empty\"}\n" + good_data());
    const JobReport report = check();
    ASSERT_TRUE(report.first_prompt);
    EXPECT_EQ(report.first_prompt->id, "a") << "the first that can run";
    EXPECT_EQ(report.first_prompt->text, "<|begin_of_text|>one");
    EXPECT_GT(report.first_prompt->tokens.size(), 1U);
    const std::int64_t longest = report.items->positions.largest();
    ASSERT_EQ(report.lengths.size(), 1U) << "no item is longer than the job's longest";
    EXPECT_EQ(report.lengths[0].positions, longest);
    const JobReport longer = check({{"max-tokens", "50000", "command line"}});
    ASSERT_EQ(longer.lengths.size(), 3U);
    for (std::size_t i = 0; i < 3; ++i) {
        const std::int64_t positions = std::array<std::int64_t, 3>{4096, 32768, longest - 10 + 50000}[i];
        EXPECT_EQ(longer.lengths[i].positions, positions);
        const std::int64_t rows = (positions + 127) / 128 * 128;  // whole pages
        EXPECT_EQ(longer.lengths[i].kv_bytes, rows * 4096) << "8 layers, 2 KV heads of 64 dimensions, bf16";
        EXPECT_GT(longer.lengths[i].read_bytes, longer.lengths[i].kv_bytes) << "the weights, too";
    }
}

TEST_F(CheckTest, TheJobsTimeIsThatOfItsPassesOverTheWeights) {
    const JobReport report = check({{"batch", "1", "command line"}});
    ASSERT_EQ(report.lengths.size(), 1U);
    const auto one_by_one = static_cast<double>(report.items->new_tokens * report.lengths[0].read_bytes);
    EXPECT_GT(report.read_bytes, 0.9 * one_by_one) << "short texts: nearly all of it is weights";
    EXPECT_LT(report.read_bytes, one_by_one);
    const JobReport together = check({{"batch", "5000", "command line"}});
    EXPECT_NEAR(together.read_bytes, report.read_bytes / 3, 0.1 * report.read_bytes) << "three share each pass";
    EXPECT_EQ(check({{"mode", "perplexity", "command line"}}).read_bytes, 0);
}

TEST_F(CheckTest, AllFaultsAreListed) {
    struct Case {
        std::string job, data;  // "": the good one
        std::vector<std::string> faults;
        ExitCode code;
    };
    const std::string job = good_job();
    const Case cases[] = {
        {job + "temprature = 1\nseed 7\nseed = x\ntop-p = 2\ndraft = lyana\nreplay-accept = 0.5\n",
         "",
         {"job | job.cfg:7: expected 'key = value', got 'seed 7'; a comment begins with #",
          "job | job.cfg:6: unknown key 'temprature'; did you mean "
          "'temperature'?",
          "job | job.cfg:8: seed: expected an integer from 0 to 18446744073709551615, got 'x'",
          "job | job.cfg:9: top-p: expected a number above 0 and at most 1, got '2'",
          "job | job.cfg:10: draft: expected " + values_of("draft") + ", got 'lyana'; did you mean 'lyanna'?"},
         ExitCode::usage},
        {"task = prompts\nmodl = m\n",
         "",
         {"job | job.cfg:2: unknown key 'modl'; did you mean 'model'?",
          "job | job.cfg: data: expected a value, got nothing; this key has no default",
          "job | job.cfg: output: expected a value, got nothing; this key has no default"},
         ExitCode::usage},
        {"task = prompts\ndata = none.jsonl\noutput = out\nmodel = none\n",
         "",
         {"model | job.cfg:4: model: expected the folder of a Hugging Face model, got 'none', which does not exist",
          "data | none.jsonl: expected a readable file, got No such file or directory"},
         ExitCode::error},
        {job + "add-bos = perhaps\n",
         "",
         {"job | job.cfg:6: add-bos: expected auto, true or false, got 'perhaps'"},
         ExitCode::usage},
        {job, "{\"id\": 1.5, \"prompt\": \"x\"}\n{\"prompt\": 3}\n", {}, ExitCode::items_failed},
        {job, "\n\n", {"data | p.jsonl: expected at least one item, got blank lines"}, ExitCode::error},
        {job + "output = p.jsonl\n",
         "",
         {"job | job.cfg:6: output: expected every key once, got this key again; it is at job.cfg:3 already"},
         ExitCode::usage},
    };
    for (const Case& row : cases) {
        write("job.cfg", row.job);
        write("p.jsonl", row.data.empty() ? good_data() : row.data);
        const JobReport report = check();
        EXPECT_EQ(lines_of(report), row.faults) << row.job;
        EXPECT_EQ(report.code(), row.code) << row.job;
    }
}

TEST_F(CheckTest, FaultsOfOneKindDoNotHideThoseOfAnother) {
    write("job.cfg", good_job() + "temprature = 1\n");
    write("p.jsonl", good_data() + "{\"id\": \"a\", \"prompt\": \"again\"}\n");
    const JobReport report = check();
    EXPECT_EQ(report.code(), ExitCode::usage) << "the gravest";
    ASSERT_TRUE(report.items) << "no misspelt key that could shape a prompt";
    EXPECT_EQ(report.items->failed, 1);
    write("job.cfg", good_job() + "max-tokenz = 1\n");
    EXPECT_FALSE(check().items) << "what the items come to is not known";
}

TEST_F(CheckTest, ABadItemInTheMiddleIsOneFailure) {
    std::string data;
    for (int i = 0; i < 500; ++i)
        data += "{\"id\": " + std::to_string(i) + ", \"prompt\": \"word " + std::to_string(i) + "\"}\n";
    write("p.jsonl",
          data + "{\"id\": \"bad\", \"prompt\": 7}\n{\"id\": \"half\n" + data.substr(0, data.find('\n') + 1));
    const JobReport report = check();
    EXPECT_EQ(report.code(), ExitCode::items_failed);
    EXPECT_EQ(report.items->inputs, 503);
    ASSERT_EQ(report.items->failed, 3);
    const auto& failures = report.items->failures;
    EXPECT_EQ(failures[0].index, 500);
    EXPECT_EQ(failures[0].id, "bad");
    EXPECT_EQ(failures[0].error, folder.string() + "/p.jsonl:501: prompt: expected a string, got 7");
    EXPECT_EQ(failures[1].index, 501);
    EXPECT_EQ(failures[2].id, "0") << "an id that was there already";
    EXPECT_EQ(check({}, 1).items->failures.size(), 1U) << "as many as asked for";
    EXPECT_EQ(check({}, 1).items->failed, 3);
}

TEST_F(CheckTest, PromptsWithoutRoomFail) {
    const JobReport report = check({{"max-tokens", "1000000000", "command line"}});
    EXPECT_EQ(report.code(), ExitCode::items_failed);
    EXPECT_EQ(report.items->failed, 3);
    EXPECT_FALSE(report.longest_id.size());
}

TEST_F(CheckTest, FoldersThatAreNoModelsAreNamedByTheirKey) {
    fs::create_directories(folder / "empty");
    write("empty/m.safetensors", "");
    write("m.gguf", "GGUF");
    const std::string job = "task = prompts\ndata = p.jsonl\noutput = out\nmodel = ";
    const std::string expected = "model | job.cfg:4: model: expected the folder of a Hugging Face model, got ";
    const std::vector<std::pair<std::string, std::string>> cases{
        {"owner/Name-1.0",
         "'owner/Name-1.0', which does not exist; a model of the hub: download it first (`hf download owner/Name-1.0 "
         "--local-dir FOLDER`)"},
        {"./owner/name", "'owner/name', which does not exist"},
        {"m.gguf", "'m.gguf'; GGUF is not read: jobs/convert_gguf.py FILE FOLDER writes a model folder from it"},
        {"empty/m.safetensors", "the file 'empty/m.safetensors'; give its folder"},
        {"empty", "'empty', which has no config.json"}};
    for (const auto& [model, got] : cases) {
        write("job.cfg", job + model + "\n");
        EXPECT_EQ(lines_of(check()), std::vector<std::string>{expected + got});
    }
}

TEST_F(CheckTest, AdaptersAreLookedAt) {
    fs::create_directories(folder / "adapter");
    const std::string named = "adapter | job.cfg:6: adapter: expected the folder of a LoRA adapter, got ";
    write("job.cfg", good_job() + "adapter = adapter\n");
    EXPECT_EQ(lines_of(check()), std::vector<std::string>{named + "'adapter', which has no adapter_config.json"});
    EXPECT_EQ(lines_of(check({{"adapter", "", "command line"}})), std::vector<std::string>());
    write("adapter/adapter_config.json", R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "all"})");
    EXPECT_EQ(lines_of(check()),
              std::vector<std::string>{
                  "adapter | adapter/adapter_config.json: bias: expected \"none\", got \"all\"; merge it "
                  "with PEFT (merge_and_unload), and give the merged folder as model"});
    write("job.cfg", good_job() + "adapter = none\n");
    EXPECT_EQ(lines_of(check()), std::vector<std::string>{named + "'none', which does not exist"});
}

TEST_F(CheckTest, DraftModelsAreLookedAt) {
    const std::string job = good_job() + "draft = rsd-s\n";
    write("job.cfg", job + "draft-model = " LONGHAUL_DEMO_MODEL "\n");
    EXPECT_EQ(check().code(), ExitCode::done) << testing::PrintToString(lines_of(check())) << "its own draft";
    write("job.cfg", job + "draft-model = none\n");
    EXPECT_EQ(lines_of(check()),
              std::vector<std::string>{"draft | job.cfg:7: draft-model: expected the folder of a draft "
                                       "model, got 'none', which does not exist"});
    fs::create_directories(folder / "d");
    fs::copy_file(fs::path(LONGHAUL_TEST_DATA) / "parity" / "llama-default" / "config.json",
                  folder / "d" / "config.json");
    write("job.cfg", job + "draft-model = d\n");
    const std::vector<std::string> lines = lines_of(check());
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines.front().find("draft | d/config.json: vocab_size: expected the target's, 4096, got "), 0U)
        << lines.front();
    EXPECT_NE(lines.front().find("; a draft model shares the target's tokenizer"), std::string::npos) << lines.front();
    EXPECT_EQ(check().code(), ExitCode::error);
}

TEST_F(CheckTest, HeadsAreLookedAt) {
    const std::string job = good_job() + "draft = medusa\n";
    const std::string with_heads = job + "draft-model = " LONGHAUL_DEMO_MODEL "/../medusa\n";
    write("job.cfg", good_job() + "draft = ar\n");
    const std::int64_t plain = check().memory.value().weights;
    write("job.cfg", with_heads);
    const JobReport good = check();
    EXPECT_EQ(good.code(), ExitCode::done) << testing::PrintToString(lines_of(good));
    EXPECT_GE(good.memory.value().weights, plain + 3 * 256 * 256 * 2) << "three matrices of bf16";
    write("job.cfg", job);
    EXPECT_EQ(lines_of(check()),
              std::vector<std::string>{"draft | " LONGHAUL_DEMO_MODEL "/config.json: medusa_heads: expected the number "
                                       "of heads, got nothing; give a folder of heads as draft-model, or a model "
                                       "folder that contains heads"});
    write("job.cfg", job + "draft-model = none\n");
    EXPECT_EQ(lines_of(check()),
              std::vector<std::string>{"draft | job.cfg:7: draft-model: expected the folder of trained "
                                       "heads, got 'none', which does not exist"});
    write("job.cfg", with_heads + "draft-tree = 2,2,2,2\n");
    const std::vector<std::string> deep = lines_of(check());
    ASSERT_EQ(deep.size(), 1U);
    EXPECT_EQ(deep.front().find("draft | draft-tree: expected at most 3 levels, one for each head of "), 0U)
        << deep.front();
    fs::create_directories(folder / "h");
    fs::copy_file(fs::path(LONGHAUL_DEMO_MODEL) / ".." / "medusa" / "model.safetensors",
                  folder / "h" / "model.safetensors");
    write("job.cfg", job + "draft-model = h\n");
    write("h/config.json", R"({"medusa_heads": 3, "chained": true})");
    EXPECT_EQ(lines_of(check()),
              std::vector<std::string>{"draft | h/config.json: expected heads for draft = medusa, got heads "
                                       "that were trained for draft = tokenswift; set draft = tokenswift"});
    write("h/config.json", R"({"medusa_heads": 3, "rms_norm_eps": 0})");
    EXPECT_EQ(
        lines_of(check()),
        std::vector<std::string>{"draft | h/config.json: rms_norm_eps: expected a number above 0, at most 1, got 0.0"});
}

TEST_F(CheckTest, ADraftModelThatCannotBeSplitIsRefusedWhereItIsToBe) {
    const std::string job = good_job() + "draft = sd\ndraft-model = " LONGHAUL_DEMO_MODEL "/../draft\n";
    write("job.cfg", job + "tensor-parallel = 8\n");
    EXPECT_EQ(check().code(), ExitCode::done) << testing::PrintToString(lines_of(check()));
    write("job.cfg", job + "tensor-parallel = 8\ndraft-parallel = sharded\n");
    const std::vector<std::string> lines = lines_of(check());
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines.front().find("draft | draft-parallel: expected auto or replicated"), 0U) << lines.front();
    EXPECT_NE(lines.front().find("draft/config.json: 4 query heads do not divide by it"), std::string::npos)
        << lines.front();
    EXPECT_EQ(check().code(), ExitCode::usage);
}

// The layer has four query heads of 64 where the model has eight of 32, so that the model can be split over eight ranks
// and the layer cannot.
TEST_F(CheckTest, ADraftLayerThatCannotBeSplitIsRefusedWhereItIsToBe) {
    const fs::path demo = fs::path(LONGHAUL_DEMO_MODEL) / ".." / "eagle";
    std::stringstream text;
    text << std::ifstream(demo / "config.json").rdbuf();
    engine::Json config = engine::Json::parse(text.str());
    config["num_attention_heads"] = 4;
    config["num_key_value_heads"] = 2;
    config["head_dim"] = 64;
    fs::create_directory(folder / "layer");
    fs::copy_file(demo / "model.safetensors", folder / "layer" / "model.safetensors");
    write("layer/config.json", config.dump());
    const auto lines_with = [&](const std::string& keys) {
        write("job.cfg", good_job() + "tensor-parallel = 8\ndraft = eagle\ndraft-model = layer\n" + keys);
        return lines_of(check());
    };
    EXPECT_EQ(lines_with(""), std::vector<std::string>{}) << "whole on each rank";
    EXPECT_EQ(lines_with("draft-parallel = replicated\n"), std::vector<std::string>{});
    const std::vector<std::string> lines = lines_with("draft-parallel = sharded\n");
    ASSERT_EQ(lines.size(), 1U);
    EXPECT_EQ(lines.front().find("draft | draft-parallel: expected auto or replicated"), 0U) << lines.front();
}

TEST_F(CheckTest, MemoryIsCountedWithDraftModels) {
    const std::string job = good_job() + "draft-model = " LONGHAUL_DEMO_MODEL "\n";
    const auto need = [&](const std::string& keys) {
        write("job.cfg", job + keys);
        const JobReport report = check();
        EXPECT_TRUE(report.memory) << testing::PrintToString(lines_of(report));
        return report.memory.value_or(MemoryNeed{});
    };
    const MemoryNeed alone = need("draft = ar\n"), with = need("draft = sd\n");  // its own draft
    EXPECT_EQ(with.weights, 2 * alone.weights);
    EXPECT_EQ(with.longest_kv, 2 * alone.longest_kv);
    EXPECT_EQ(with.batch_kv, 2 * alone.batch_kv);
    const MemoryNeed half = need("draft = ar\ntensor-parallel = 2\n");
    EXPECT_EQ(need("draft = sd\ntensor-parallel = 2\n").weights, half.weights + alone.weights) << "whole on each";
    const MemoryNeed sharded = need("draft = sd\ntensor-parallel = 2\ndraft-parallel = sharded\n");
    EXPECT_EQ(sharded.weights, 2 * half.weights);
    EXPECT_EQ(sharded.batch_kv, 2 * half.batch_kv);
}

// Models of one family may pad their vocabularies differently.
TEST_F(CheckTest, PaddedVocabulariesGoTogether) {
    const fs::path model = LONGHAUL_DEMO_MODEL;
    fs::create_directories(folder / "d");
    std::ifstream in(model / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    config.replace(config.find("\"vocab_size\": 4096"), 18, "\"vocab_size\": 4160");
    write("d/config.json", config);
    fs::copy_file(model / "model.safetensors", folder / "d" / "model.safetensors");
    write("job.cfg", good_job() + "draft = sd\ndraft-model = d\n");
    ASSERT_FALSE(lines_of(check()).empty());
    EXPECT_NE(lines_of(check()).front().find("vocab_size: expected the target's, 4096, got 4160"), std::string::npos)
        << "no tokenizer to tell by";
    fs::copy_file(model / "tokenizer.json", folder / "d" / "tokenizer.json");
    ASSERT_FALSE(lines_of(check()).empty());
    EXPECT_NE(lines_of(check()).front().find("expected shape [4160, 256]"), std::string::npos)
        << "its weights are not padded: " << lines_of(check()).front();
}

TEST_F(CheckTest, AModelsTensorsAreComparedWithItsConfig) {
    fs::create_directories(folder / "m");
    const fs::path parity = fs::path(LONGHAUL_TEST_DATA) / "parity" / "llama-default";
    fs::copy_file(parity / "model.safetensors", folder / "m" / "model.safetensors");
    std::ifstream in(parity / "config.json");
    std::string config{std::istreambuf_iterator<char>(in), {}};
    const auto replace = [&](const std::string& from, const std::string& to) {
        config.replace(config.find(from), from.size(), to);
    };
    replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 3");
    replace("\"intermediate_size\": 40", "\"intermediate_size\": 48");
    write("m/config.json", config);
    const JobReport report = check({{"model", (folder / "m").string(), "command line"}});
    EXPECT_EQ(report.code(), ExitCode::error);
    const std::vector<std::string> lines = lines_of(report);
    // 3 tensors of each of two layers have another shape, 9 of the third are missing, and there is no tokenizer.
    EXPECT_EQ(lines.size(), 16U) << testing::PrintToString(lines);
    EXPECT_EQ(lines.front(),
              "model | m/model.safetensors: model.layers.0.mlp.gate_proj.weight: expected shape [48, 64], as "
              "config.json says, got [40, 64]");
}

TEST_F(CheckTest, MissingShardsAreSaidAtOnce) {
    fs::create_directories(folder / "m");
    fs::copy_file(fs::path(LONGHAUL_TEST_DATA) / "parity" / "llama-default" / "config.json",
                  folder / "m" / "config.json");
    write("m/model.safetensors.index.json",
          R"({"weight_map": {"a": "1.safetensors", "b": "2.safetensors", "c": "3.safetensors"}})");
    const std::vector<std::string> lines = lines_of(check({{"model", (folder / "m").string(), "command line"}}));
    ASSERT_FALSE(lines.empty());
    EXPECT_EQ(lines.front(),
              "model | m/model.safetensors.index.json: weight_map: expected the file 1.safetensors beside it, got no "
              "such file, nor 2 more; fetch the whole folder again");
}

TEST_F(CheckTest, ARunFolderOfAnotherJobIsRefusedAsRunDoes) {
    const RunFolder run{folder / "out"};
    run.create();
    const Settings settings = load_settings(folder / "job.cfg", {});
    write_identity(run, settings, {});
    EXPECT_TRUE(check().is_begun);
    EXPECT_EQ(
        lines_of(check({{"seed", "7", "command line"}})),
        std::vector<std::string>{"output | " + std::string("out: seed: expected 1 (this run was started with it), got "
                                                           "7; change it back, or take another output")});
    write_identity(run, settings, {{"data", "another"}});
    EXPECT_EQ(check().code(), ExitCode::usage);
    write_identity(run, settings, {{"numerics", "2"}});
    EXPECT_NE(lines_of(check()).front().find("finish the run with the one that began it"), std::string::npos);
    write_identity(run, settings, {{"model", "another"}, {"numerics", "2"}});
    EXPECT_NE(lines_of(check()).front().find("finish the run with the one that began it"), std::string::npos)
        << "another version may have other fingerprints";
    fs::create_directories(folder / "thesis");
    write("thesis/thesis.tex", "precious");
    EXPECT_EQ(lines_of(check({{"output", (folder / "thesis").string(), "command line"}})),
              std::vector<std::string>{
                  "output | thesis: output: expected a run folder or an empty one, got a folder of other files"});
    EXPECT_EQ(check({{"output", (folder / "p.jsonl" / "x").string(), "command line"}}).code(), ExitCode::usage);
}

TEST_F(CheckTest, MemoryThatIsTooSmallIsAWarning) {
    EXPECT_TRUE(check().warnings.empty()) << testing::PrintToString(check().warnings);
    const JobReport report = check({{"memory", "1000", "command line"}});
    EXPECT_EQ(report.code(), ExitCode::done);
    ASSERT_EQ(report.warnings.size(), 1U);
    EXPECT_NE(report.warnings.front().find("of the longest item"), std::string::npos) << report.warnings.front();
}

TEST(ItemSurvey, IsTheSameForAnyNumberOfThreads) {
    const TemporaryFolder temporary;
    {
        std::ofstream out(temporary.path() / "p.txt");
        for (int i = 0; i < 1000; ++i)
            out << (i % 97 == 5 ? std::string("\xFF") : std::string(static_cast<std::size_t>(1 + i * 7 % 50), 'a'))
                << "\n";
    }
    Settings settings;
    settings.task = "prompts";
    settings.data = temporary.path() / "p.txt";
    const auto data = DataSet::open(settings);
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    const ItemSurvey one = survey_items(*data, *tokenizer, settings, 4096, 1, 5);
    const ItemSurvey four = survey_items(*data, *tokenizer, settings, 4096, 4, 5);
    EXPECT_EQ(one.failed, 11);
    EXPECT_EQ(four.failed, one.failed);
    EXPECT_EQ(four.longest_index, one.longest_index);
    EXPECT_EQ(four.prompt_tokens.sum(), one.prompt_tokens.sum());
    EXPECT_EQ(four.prompt_tokens.largest(7), one.prompt_tokens.largest(7));
    ASSERT_EQ(one.failures.size(), 5U);
    ASSERT_EQ(four.failures.size(), 5U);
    for (std::size_t i = 0; i < 5; ++i) {
        EXPECT_EQ(one.failures[i].index, 5 + 97 * static_cast<std::int64_t>(i));
        EXPECT_EQ(four.failures[i].index, one.failures[i].index);
    }
}

TEST(Counts, QuantilesAndLargest) {
    Counts counts;
    EXPECT_EQ(counts.quantile(0.5), 0);
    for (const std::int64_t number : {5, 1, 3, 3, 9}) counts.add(number);
    EXPECT_EQ(counts.quantile(0.5), 3);
    EXPECT_EQ(counts.quantile(0.9), 9);
    EXPECT_EQ(counts.quantile(0), 1);
    EXPECT_EQ(counts.sum(), 21);
    EXPECT_EQ(counts.largest(3), (std::vector<std::int64_t>{9, 5, 3}));
    EXPECT_EQ(counts.largest(100).size(), 5U);
}

}  // namespace
}  // namespace longhaul::runner
