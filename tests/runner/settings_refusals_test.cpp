// Refused job settings and their messages: single values, keys that do not go together, and keys of other tasks.
#include <gtest/gtest.h>

#include <fstream>

#include "runner/job/settings.hpp"
#include "tests/runner/key_values.hpp"
#include "tests/runner/settings_fixture.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

TEST(Settings, BadValuesAreRefusedWithTheirKey) {
    struct Case {
        const char* key;
        const char* value;
        std::string message;  // after "command line: "
    };
    const char* const count = "9223372036854775807";
    const Case cases[] = {
        // Shards of a job.
        {"shard", "8/8",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '8/8'; 0/8 to 7/8 are the eight "
         "shards of a job"},
        {"shard", "3",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '3'; 0/8 to 7/8 are the eight "
         "shards of a job"},
        {"shard", "0/10001",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '0/10001'; 0/8 to 7/8 are the "
         "eight shards of a job"},
        // Data.
        {"column", "question", "column: expected FIELD=NAME, such as prompt=question, got 'question'"},
        {"column", "=question", "column: expected FIELD=NAME, such as prompt=question, got '=question'"},
        {"column", "prompt=", "column: expected FIELD=NAME, such as prompt=question, got 'prompt='"},
        {"split", "data/train", "split: expected the name of a split, got 'data/train'"},
        {"split", "..", "split: expected the name of a split, got '..'"},
        // Keys.
        {"temprature", "1", "unknown key 'temprature'; did you mean 'temperature'?"},
        {"max_tokens", "1", "unknown key 'max_tokens'; did you mean 'max-tokens'?"},
        {"Seed", "1", "unknown key 'Seed'; did you mean 'seed'?"},
        {"zzzzzzzz", "1", "unknown key 'zzzzzzzz'; `longhaul run --help` lists them"},
        {"\x1B[31m", "1", R"(unknown key '\x1b[31m'; `longhaul run --help` lists them)"},
        // Numbers.
        {"seed", "-1", "seed: expected an integer from 0 to 18446744073709551615, got '-1'"},
        {"seed", "18446744073709551616",
         "seed: expected an integer from 0 to 18446744073709551615, got '18446744073709551616'"},
        {"seed", "0x10", "seed: expected an integer from 0 to 18446744073709551615, got '0x10'"},
        {"seed", "", "seed: expected a value, got nothing"},
        {"limit", "-1", "limit: expected an integer from 0 on, got '-1'"},
        {"limit", "9223372036854775808", "limit: expected an integer from 0 on, got '9223372036854775808'"},
        {"max-tokens", "0", "max-tokens: expected an integer from 1 to 2147483647, got '0'"},
        {"max-tokens", "1e3", "max-tokens: expected an integer from 1 to 2147483647, got '1e3'"},
        {"max-tokens", count, "max-tokens: expected an integer from 1 to 2147483647, got '9223372036854775807'"},
        {"reasoning-end", R"(" \n")", R"(reasoning-end: expected a text that is not white space alone, got '" \n"')"},
        {"reasoning-end", "\xFF", "reasoning-end: expected UTF-8 text of at most 256 bytes, got '\\xff'"},
        {"max-reasoning-tokens", "-1", "max-reasoning-tokens: expected an integer from 0 to 2147483647, got '-1'"},
        {"max-reasoning-tokens", "9",
         "max-reasoning-tokens: expected 0 without reasoning-end, got 9; reasoning-end = </think>, or what the model "
         "writes"},
        {"stop-loops", "-1", "stop-loops: expected an integer from 0 to 2147483647, got '-1'"},
        {"stop-loops", "64.5", "stop-loops: expected an integer from 0 to 2147483647, got '64.5'"},
        {"prompt-tokens", "12 ", "prompt-tokens: expected an integer from 1 to 2147483647, got '12 '"},
        {"samples", "0", "samples: expected an integer from 1 to 1000000, got '0'"},
        {"batch", "0", "batch: expected an integer from 1 to 65536, got '0'"},
        {"threads", "-2", "threads: expected an integer from 0 to 4096, got '-2'"},
        {"tensor-parallel", "3", "tensor-parallel: expected 1, 2, 4 or 8, got '3'"},
        {"ngram-order", "1", "ngram-order: expected an integer from 2 to 16, got '1'"},
        {"temperature", "-0.5", "temperature: expected a number from 0 to 1e+06, got '-0.5'"},
        {"temperature", "nan", "temperature: expected a number from 0 to 1e+06, got 'nan'"},
        {"temperature", "inf", "temperature: expected a number from 0 to 1e+06, got 'inf'"},
        {"temperature", "1e400", "temperature: expected a number from 0 to 1e+06, got '1e400'"},
        {"temperature", "0,8", "temperature: expected a number from 0 to 1e+06, got '0,8'"},
        {"temperature", "1e-9", "temperature: expected 0 (greedy) or a number from 1e-06 to 1e+06, got '1e-9'"},
        {"top-p", "0", "top-p: expected a number above 0 and at most 1, got '0'"},
        {"top-p", "1.01", "top-p: expected a number above 0 and at most 1, got '1.01'"},
        {"min-p", "-0.1", "min-p: expected a number from 0 to 1, got '-0.1'"},
        {"min-p", "2", "min-p: expected a number from 0 to 1, got '2'"},
        {"top-k", "-1", "top-k: expected an integer from 0 on, got '-1'"},
        {"repetition-penalty", "0", "repetition-penalty: expected a number above 0 and at most 1000, got '0'"},
        {"presence-penalty", "2.5", "presence-penalty: expected a number from -2 to 2, got '2.5'"},
        {"frequency-penalty", "-3", "frequency-penalty: expected a number from -2 to 2, got '-3'"},
        {"dry-multiplier", "-0.1", "dry-multiplier: expected a number from 0 to 1000, got '-0.1'"},
        {"dry-base", "0.9", "dry-base: expected a number from 1 to 1000, got '0.9'"},
        {"dry-allowed-length", "0", "dry-allowed-length: expected an integer from 1 to 2147483647, got '0'"},
        {"dry-window", "-1", "dry-window: expected an integer from 0 to 2147483647, got '-1'"},
        {"dry-breakers", "\"\"", "dry-breakers: expected none, or a text of 1 to 40 bytes, got '\"\"'"},
        {"dry-breakers", "", "dry-breakers: expected a value, got nothing"},
        {"dry-breakers", "12345678901234567890123456789012345678901",
         "dry-breakers: expected none, or a text of 1 to 40 bytes, got '12345678901234567890123456789012345678901'"},
        {"dry-breakers", "\xC3", "dry-breakers: expected UTF-8 text, got '\\xc3'"},
        {"checkpoint-seconds", "0", "checkpoint-seconds: expected a number above 0, got '0'"},
        {"watchdog-seconds", "inf", "watchdog-seconds: expected a number above 0, got 'inf'"},
        {"memory", "0", "memory: expected 'auto' or a size of at least 1 byte, got '0'"},
        {"memory", "8GB", "memory: expected a size in bytes below 2^63, such as 1048576, 512MiB or 1.5GiB, got '8GB'"},
        {"memory", "-1G", "memory: expected a size in bytes below 2^63, such as 1048576, 512MiB or 1.5GiB, got '-1G'"},
        {"memory", "9000000T",
         "memory: expected a size in bytes below 2^63, such as 1048576, 512MiB or 1.5GiB, got '9000000T'"},
        {"checkpoint-quota", "lots",
         "checkpoint-quota: expected a size in bytes below 2^63, such as 1048576, 512MiB or 1.5GiB, got 'lots'"},
        // Words.
        {"baseline", "yes", "baseline: expected true or false, got 'yes'"},
        {"task", "pg-19", "task: expected " + values_of("task") + ", got 'pg-19'; did you mean 'pg19'?"},
        {"chat-template", "llama",
         "chat-template: expected auto, llama2, llama3, llama3.1, qwen2.5 or a .jinja file, got 'llama'; did you mean "
         "'llama2'?"},
        {"template-variable", "enable_thinking",
         "template-variable: expected NAME=VALUE with a name other than messages and add_generation_prompt, got "
         "'enable_thinking'; for example enable_thinking=false"},
        {"template-date", "26 Jul 2024", "template-date: expected a date such as 2024-07-26, got '26 Jul 2024'"},
        {"overlong", "truncate", "overlong: expected error or truncate-left, got 'truncate'"},
        {"kernels", "avx3",
         "kernels: expected auto, reference, avx2, avx512, amx, amx-bf16, cuda, cuda-exact or cuda-cublas, got 'avx3'; "
         "did you "
         "mean "
         "'avx2'?"},
        {"draft-tree", "wide",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got 'wide'"},
        {"draft-tree", "2,,1",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got '2,,1'"},
        {"draft-tree", "2,0,1",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got '2,0,1'"},
        {"draft-tree", "32,32",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got '32,32'"},
        // Texts and paths.
        {"stop", R"("\q")",
         R"(stop: expected text with \n \t \r \\ or \" as the only escapes, got '"\q"'; a backslash itself is \\)"},
        {"stop", R"("open)",
         R"(stop: expected one text in double quotes, got '"open'; a quotation mark inside it is \")"},
        {"stop", R"("")", R"(stop: expected a text of at least one character, got '""')"},
        {"stop", "\xFF", R"(stop: expected UTF-8 text, got '\xff')"},
        {"output", "~/runs",
         "output: expected a path, got '~/runs'; write the home folder out: '~' means nothing here (./~ for such a "
         "name)"},
        {"draft", "replay", "replay-run: expected the run folder to replay, got nothing"},
        {"replay-accept", "0.5", "replay-accept: expected draft = replay, got draft = self"},
        {"draft-tree", "2,2,1",
         "draft-tree: expected width x depth, such as 4x3 or 4x3:12, with draft = self, got '2,2,1'; draft = auto "
         "chose self"},
        {"draft-tree", "99999x99999",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got "
         "'99999x99999'"},
        {"draft-parallel", "both", "draft-parallel: expected auto, replicated or sharded, got 'both'"},
        {"resample-threshold", "3",
         "resample-threshold: expected its default with draft = self, got '3'; only draft = lyanna has it; draft = "
         "auto chose self"},
        {"resample", "separate",
         "resample: expected its default with draft = self, got 'separate'; only draft = lyanna has it; draft = auto "
         "chose self"},
        {"resample", "twice", "resample: expected fused, separate or off, got 'twice'"},
        {"resample-tree", "2,2", "resample-tree: expected width x depth, such as 4x2, or 4x2:4, got '2,2'"},
        {"resample-tree", "auto", "resample-tree: expected width x depth, such as 4x2, or 4x2:4, got 'auto'"},
        {"resample-tree", "4x1:2",
         "resample-tree: expected its default with draft = self, got '4x1:2'; only draft = lyanna has it; draft = auto "
         "chose self"},
        {"partial-cache", "16", "partial-cache: expected an integer from 17 to 2147483647, got '16'"},
        {"verify", "rejection",
         "verify: expected coupled or recursive with draft = ngram, got rejection, which needs chains, with one "
         "sampled draft per node (draft = sd, self); the output would not follow the model's distribution; draft = "
         "auto chose ngram"},
        {"verify", "tokenswift-paper",
         "verify: expected coupled or recursive with draft = ngram, got tokenswift-paper, which needs the drafts it "
         "was published with (draft = tokenswift); draft = auto chose ngram"},
        {"kv-precision", "int4", "kv-precision: expected auto, bf16, fp32 or int8, got 'int4'; did you mean 'int8'?"},
        {"device", "gpu", "device: expected auto, cpu or cuda, got 'gpu'; did you mean 'cuda'?"},
        {"logprobs", "1001", "logprobs: expected an integer from 0 to 1000, got '1001'"},
        {"mode", "perplexty",
         "mode: expected generate, perplexity or multiple-choice, got 'perplexty'; did you mean 'perplexity'?"},
    };
    for (const Case& row : cases) {
        const std::string message = message_of([&] { with(row.key, row.value); });
        EXPECT_EQ(message, std::string("command line: ") + row.message) << row.key << " = " << row.value;
    }
}

TEST(Settings, TooManyBreakersAreRefused) {
    std::vector<Assignment> keys = whole_job;
    for (int i = 0; i < 64; ++i) keys.push_back({"dry-breakers", std::to_string(i), "j.cfg:" + std::to_string(9 + i)});
    EXPECT_EQ(parse_settings(keys, {}, "/jobs/j.cfg").dry_breakers->size(), 64U);
    keys.push_back({"dry-breakers", "x", "j.cfg:80"});
    EXPECT_EQ(message_of([&] { parse_settings(keys, {}, "/jobs/j.cfg"); }),
              "j.cfg:80: dry-breakers: expected at most 64 sequence breakers, got 'x'");
}

TEST(Settings, KernelsAreOfTheDevice) {
    const auto message = [](const char* device, const char* kernels) {
        return message_of([&] {
            parse_settings(whole_job, {{"device", device, "command line"}, {"kernels", kernels, "command line"}},
                           "/jobs/j.cfg");
        });
    };
    EXPECT_EQ(
        message("cpu", "cuda"),
        "command line: kernels: expected auto, reference, avx2, avx512, amx or amx-bf16 with device = cpu, got 'cuda'");
    EXPECT_EQ(message("cuda", "avx2"),
              "command line: kernels: expected auto, cuda, cuda-exact or cuda-cublas with device = cuda, got 'avx2'");
    EXPECT_EQ(message("cuda", "cuda-exact"), "(no error)");
    EXPECT_EQ(message("auto", "cuda"), "(no error)");
}

TEST(Settings, NcclAddsForGpusAlone) {
    const auto message = [](const char* device) {
        return message_of([&] {
            parse_settings(whole_job, {{"device", device, "command line"}, {"all-reduce", "nccl", "command line"}},
                           "/jobs/j.cfg");
        });
    };
    EXPECT_EQ(message("cpu"),
              "command line: all-reduce: expected ordered with device = cpu, got 'nccl'; NCCL connects NVIDIA GPUs");
    EXPECT_EQ(message("cuda"), "(no error)");
}

// A job that names no method.
TEST(Settings, TheDraftMethodIsChosen) {
    const auto chosen = [](std::vector<Assignment> more) {
        std::vector<Assignment> file = whole_job;
        file.insert(file.end(), more.begin(), more.end());
        const Settings settings = parse_settings(file, {}, "/jobs/j.cfg");
        return settings.draft->name + " " + settings.draft_tree.text();
    };
    EXPECT_EQ(chosen({}), "self auto");
    EXPECT_EQ(chosen({{"draft", "auto", ""}}), "self auto");
    EXPECT_EQ(chosen({{"draft-tree", "4x3:8", ""}}), "self 4x3:8");
    EXPECT_EQ(chosen({{"draft-model", "/d", ""}}), "self-or-sd auto");
    EXPECT_EQ(chosen({{"draft-model", "/d", ""}, {"draft-tree", "5", ""}}), "sd 5") << "a shape is that of one method";
    EXPECT_EQ(chosen({{"draft-model", "/d", ""}, {"draft-model", "/e", ""}}), "specinfer auto");
    EXPECT_EQ(chosen({{"verify", "recursive", ""}}), "ngram 4x8:16");
    EXPECT_EQ(chosen({{"verify", "rejection", ""}, {"draft-model", "/d", ""}}), "sd 4");
    Settings settings = parse_settings(whole_job, {}, "/jobs/j.cfg");
    EXPECT_EQ(settings.draft_precision, settings.device == "cuda" ? "same" : "int4");
    EXPECT_EQ(parse_settings(whole_job, {{"draft", "ngram", ""}}, "/jobs/j.cfg").draft_precision, "auto");
}

// Published TokenSwift models hold their heads.
TEST(Settings, AModelWithChainedHeadsDraftsWithThem) {
    const TemporaryFolder model;
    const auto chosen = [&](const std::string& config, std::vector<Assignment> more = {}) {
        std::ofstream(model.path() / "config.json") << config;
        std::vector<Assignment> file = whole_job;
        for (Assignment& key : file) {
            if (key.key == "model") key.value = model.path();
        }
        file.insert(file.end(), more.begin(), more.end());
        return parse_settings(file, {}, "/jobs/j.cfg").draft->name;
    };
    EXPECT_EQ(chosen(R"({"medusa_heads": 3})"), "self") << "the heads were left out of the weights";
    const std::string header =
        R"({"model.medusa_layers.0.linear.weight":{"dtype":"BF16","shape":[1],"data_offsets":[0,2]}})";
    std::string size(sizeof(std::uint64_t), '\0');
    size.front() = static_cast<char>(header.size());
    std::ofstream(model.path() / "model.safetensors", std::ios::binary) << size << header << "ab";
    EXPECT_EQ(chosen(R"({"medusa_heads": 3})"), "tokenswift");
    EXPECT_EQ(chosen(R"({"medusa_heads": 3, "chained": true})"), "tokenswift");
    EXPECT_EQ(chosen(R"({"medusa_heads": 3, "chained": false})"), "self") << "heads of medusa";
    EXPECT_EQ(chosen(R"({"hidden_size": 8})"), "self");
    EXPECT_EQ(chosen("{"), "self") << "whoever loads the model reports the fault";
    EXPECT_EQ(chosen(R"({"medusa_heads": 3})", {{"draft-tree", "4x3:8", ""}}), "self") << "a tree of self";
    EXPECT_EQ(chosen(R"({"medusa_heads": 3})", {{"verify", "recursive", ""}}), "ngram");
}

TEST(Settings, AModelsOwnLayerDraftsWhereNothingElseIsAskedFor) {
    const std::string model = LONGHAUL_TEST_DATA "/mtp/qwen3-next";
    const auto chosen = [&](std::vector<Assignment> keys) {
        keys.push_back({"model", model, ""});
        return parse_settings(whole_job, keys, "/jobs/j.cfg");
    };
    EXPECT_EQ(chosen({}).draft->name, "mtp");
    EXPECT_EQ(draft_folders(chosen({})).layer, model);
    EXPECT_EQ(chosen({{"draft-tree", "4x3:8", ""}}).draft->name, "mtp");
    EXPECT_EQ(chosen({{"verify", "recursive", ""}}).draft->name, "ngram");
    EXPECT_EQ(chosen({{"draft", "self", ""}}).draft->name, "self");
    for (const auto& [key, value] : std::vector<std::pair<const char*, const char*>>{
             {"draft-precision", "same"}, {"partial-cache", "512"}, {"draft-temperature", "1"}, {"adapter", "/a"}})
        EXPECT_EQ(chosen({{key, value, ""}}).draft->name, "self") << key;
    EXPECT_EQ(
        parse_settings(whole_job, {{"model", LONGHAUL_TEST_DATA "/parity/glm4-moe", ""}}, "/jobs/j.cfg").draft->name,
        "self")
        << "only a part of the layer is there";
    EXPECT_EQ(chosen({{"draft-model", "/d", ""}}).draft->name, "self-or-sd");
    try {
        chosen({{"draft", "mtp", ""}, {"draft-model", "/d", ""}});
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_NE(
            std::string(error.what())
                .find("draft-model: expected no draft model with draft = mtp, got '/d'; this draft method needs none"),
            std::string::npos)
            << error.what();
    }
}

TEST(Settings, ADraftLayerDraftsWithItsMethodAndIsNoModel) {
    const std::filesystem::path demo = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path();
    for (const std::string method : {"eagle", "lyanna"}) {
        const std::string folder = (demo / method).string();
        const std::string hint = "; it holds a draft layer; that is the draft-model of draft = " + method;
        EXPECT_EQ(parse_settings(whole_job, {{"draft-model", folder, ""}}, "/jobs/j.cfg").draft->name, method);
        const auto message = [](const std::vector<Assignment>& keys) -> std::string {
            try {
                parse_settings(whole_job, keys, "/jobs/j.cfg");
            } catch (const UsageError& error) {
                return error.what();
            }
            return "(no error)";
        };
        EXPECT_EQ(
            message({{"draft-model", folder, ""}, {"draft", "sd", "cl"}}),
            ": draft-model: expected the folder of a language model with draft = sd, got '" + folder + "'" + hint);
        EXPECT_EQ(message({{"model", folder, "cl"}}),
                  "cl: model: expected the folder of a language model, got '" + folder + "'" + hint);
    }
}

TEST(Settings, HeadsAreNoLanguageModel) {
    const std::filesystem::path demo = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path();
    for (const std::string method : {"medusa", "tokenswift"}) {
        const std::string folder = (demo / method).string();
        EXPECT_EQ(message_of([&] { parse_settings(whole_job, on_command_line("draft-model", folder), "/jobs/j.cfg"); }),
                  "command line: draft-model: expected the folder of a language model with draft = self-or-sd, got '" +
                      folder + "'; it holds draft heads; set draft = " + method + "; draft = auto chose self-or-sd");
        const std::vector<Assignment> named{{"draft-model", folder, ""}, {"draft", method, ""}};
        EXPECT_EQ(message_of([&] { parse_settings(whole_job, named, "/jobs/j.cfg"); }), "(no error)");
    }
}

// The keys that a draft method needs, its trees, and the rules that may verify it.
TEST(Settings, DraftKeysGoTogether) {
    struct Case {
        std::vector<std::pair<std::string, std::string>> keys;
        std::string message;  // after "j.cfg:N: " of the last key; "" if they are valid
    };
    const std::string one = "draft-model: expected the folder of a draft model with draft = ";
    const std::string not_lossless = "; the output would not follow the model's distribution";
    const std::vector<Case> cases{
        {{{"draft", "sd"}}, one + "sd, got nothing"},
        {{{"draft", "spectr"}}, one + "spectr, got nothing"},
        {{{"draft", "rsd-c"}}, one + "rsd-c, got nothing"},
        {{{"draft", "rsd-s"}}, one + "rsd-s, got nothing"},
        {{{"draft", "specinfer"}},
         "draft-model: expected 1 to 8 folders of draft models with draft = specinfer, got nothing"},
        {{{"draft", "sd"}, {"draft-model", "/d"}, {"draft-model", "/e"}}, one + "sd, got 2 of them"},
        {{{"draft", "specinfer"}, {"draft-model", "/d"}, {"draft-model", "/e"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-tree", "3x2"}},
         "draft-tree: expected the length of a chain, such as 5, with draft = sd, got '3x2'"},
        {{{"draft-model", "/d"}, {"draft", "spectr"}, {"draft-tree", "2,2"}},
         "draft-tree: expected chains x length, such as 4x3, with draft = spectr, got '2,2'"},
        {{{"draft-model", "/d"}, {"draft", "rsd-c"}, {"draft-tree", "3x2"}},
         "draft-tree: expected children per node of each level, such as 2,2,1, with draft = rsd-c, got '3x2'"},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-tree", "2,2"}},
         "draft-tree: expected width x depth, such as 4x3, with draft = rsd-s, got '2,2'"},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-tree", "12x5"}, {"verify", "recursive"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"verify", "k-seq"}},
         "verify: expected coupled or recursive with draft = rsd-s, got k-seq, which needs independent drafts of one "
         "model (draft = sd, spectr, specinfer, self)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "rsd-c"}, {"verify", "multi-round"}},
         "verify: expected coupled or recursive with draft = rsd-c, got multi-round, which needs independent drafts "
         "(draft = sd, spectr, specinfer, self)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "spectr"}, {"verify", "recursive"}},
         "verify: expected coupled, multi-round or k-seq with draft = spectr, got recursive, which needs drafts drawn "
         "without replacement or certain ones (draft = ngram, sd, rsd-c, rsd-s, self, medusa, tokenswift, mtp, "
         "eagle, lyanna, triforce, replay)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft-model", "/e"}, {"draft", "specinfer"}, {"verify", "k-seq"}},
         "verify: expected coupled or multi-round with draft = specinfer, got k-seq, which needs independent drafts of "
         "one model (draft = sd, spectr, specinfer, self)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "0.5"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "0"}, {"verify", "rejection"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "0"}, {"draft-tree", "auto"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-temperature", "0"}, {"draft-tree", "1x4"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-temperature", "0"}},
         "draft-temperature: expected more than 0 with draft-tree = 3x4, got 0; greedy drafts have one token per node, "
         "so they need a chain, such as draft-tree = 4"},
        {{{"draft", "self"}, {"draft-temperature", "0"}},
         "draft-temperature: expected more than 0 with draft-tree = auto, got 0; greedy drafts have one token per "
         "node, so they need a chain, such as draft-tree = 4"},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "1e-7"}},
         "draft-temperature: expected 0 or a number from 1e-06 to 1e+06, got '1e-7'"},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "-1"}},
         "draft-temperature: expected a number from 0 to 1e+06, got '-1'"},
        {{{"draft", "ngram"}, {"verify", "recursive"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-tree", "auto"}}, ""},
        {{{"draft", "ngram"}, {"draft-tree", "auto"}}, ""},
        {{{"draft", "tokenswift"}, {"verify", "tokenswift-paper"}}, ""},
        {{{"draft", "tokenswift"}, {"verify", "rejection"}},
         "verify: expected coupled or recursive with draft = tokenswift, got rejection, which needs chains, with one "
         "sampled draft per node (draft = sd, self); the output would not follow the model's distribution"},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"verify", "rejection"}, {"draft-tree", "auto"}},
         "draft-tree: expected a shape with verify = rejection, got auto; what it chooses depends on measured time, "
         "and "
         "with this rule trees decide the text"},
        {{{"draft", "self"}}, ""},
        {{{"draft", "self"}, {"verify", "rejection"}}, ""},
        {{{"draft", "self"}, {"draft-tree", "3x2"}, {"verify", "recursive"}}, ""},
        {{{"draft", "self"}, {"draft-tree", "3x2"}, {"verify", "rejection"}},
         "verify: expected coupled or recursive with draft = self, got rejection, which needs chains, with one sampled "
         "draft per node (draft = sd, self)" +
             not_lossless},
        {{{"draft", "self"}, {"partial-cache-mode", "dynamic"}}, ""},
        {{{"draft", "self-or-sd"}, {"draft-model", "/d"}}, ""},
        {{{"draft", "self-or-sd"}, {"draft-model", "/d"}, {"draft-precision", "int8"}, {"draft-temperature", "1"}}, ""},
        {{{"draft", "self-or-sd"}},
         "draft-model: expected the folder of a draft model with draft = self-or-sd, got nothing"},
        {{{"draft", "self-or-sd"}, {"draft-model", "/d"}, {"draft-tree", "4"}},
         "draft-tree: expected auto with draft = self-or-sd, got '4'"},
        {{{"draft", "self"}, {"partial-cache-mode", "dynamic"}, {"partial-cache", "200"}},
         "partial-cache: expected at least 256 with partial-cache-mode = dynamic, got 200"},
        {{{"draft", "self"}, {"partial-cache-mode", "recent"}},
         "partial-cache-mode: expected window, full, dynamic or static, got 'recent'"},
        {{{"draft", "self"}, {"precision", "int4"}, {"draft-precision", "int8"}},
         "draft-precision: expected int4, same or auto with precision = int4, got 'int8'; a copy above the model's "
         "precision costs more than the model itself"},
        {{{"draft", "ngram"}, {"draft-model", "/d"}},
         "draft-model: expected no draft model with draft = ngram, got '/d'; this draft method needs none"},
        {{{"draft", "ngram"}, {"draft-temperature", "0.5"}},
         "draft-temperature: expected its default with draft = ngram, got a number; only sampled drafts have a "
         "temperature"},
        {{{"draft", "ngram"}, {"partial-cache-mode", "static"}},
         "partial-cache-mode: expected its default with draft = ngram, got 'static'; only draft = self, self-or-sd, "
         "tokenswift and "
         "triforce have it"},
        {{{"draft", "ngram"}, {"draft-precision", "int4"}},
         "draft-precision: expected its default with draft = ngram, got 'int4'; only draft = self, self-or-sd, "
         "tokenswift and "
         "triforce have it"},
        {{{"draft", "self"}, {"draft-passes", "2"}},
         "draft-passes: expected its default with draft = self, got 2; only draft = tokenswift has it"},
        {{{"draft", "ngram"}, {"draft-passes", "2"}},
         "draft-passes: expected its default with draft = ngram, got 2; only draft = tokenswift has it"},
        {{{"draft", "tokenswift"}, {"draft-passes", "2"}, {"draft-precision", "int8"}}, ""},
        {{{"draft", "tokenswift"}, {"draft-passes", "0"}}, "draft-passes: expected an integer from 1 to 16, got '0'"},
        {{{"draft", "triforce"}, {"draft-model", "/d"}, {"draft-precision", "int8"}}, ""},
        {{{"draft", "triforce"}, {"draft-model", "/d"}, {"draft-tree", "auto"}},
         "draft-tree: expected a shape, such as 6, with draft = triforce, got 'auto'"},
        {{{"draft", "triforce"}}, one + "triforce, got nothing"},
        {{{"draft-corpus", "/c"}}, ""},
        {{{"draft", "tokenswift"}, {"draft-tree", "1,3,3,3"}, {"draft-corpus", "/c"}}, ""},
        {{{"draft", "ngram"}, {"draft-corpus", "/c"}}, ""},
        {{{"draft", "ar"}, {"draft-corpus", "/c"}}, ""},
        {{{"draft", "sd"}, {"draft-model", "/d"}, {"draft-corpus", "/c"}},
         "draft-corpus: expected none with draft = sd, got '/c'; it drafts without n-grams"},
        {{{"draft", "ngram"}, {"verify", "recursive"}, {"draft-tree", "1x4:4"}, {"draft-corpus", "/c"}},
         "draft-corpus: expected none with verify = recursive, got '/c'; with this rule drafts decide the text"},
        {{{"draft", "ngram"}, {"ngram-top", "0"}, {"draft-corpus", "/c"}},
         "draft-corpus: expected none with ngram-top = 0, got '/c'"},
        {{{"draft", "self"}, {"draft-tree", "5"}, {"draft-corpus", "/c"}},
         "draft-corpus: expected none with draft-tree = 5, got '/c'; n-grams extend the trees of draft-tree = auto"},
        // Earlier versions wrote these into every job file.
        {{{"draft", "ngram"}, {"partial-cache", "4096"}, {"partial-cache-mode", "dynamic"}}, ""},
        {{{"draft", "ngram"}, {"partial-cache", "4096"}, {"partial-cache-mode", "static"}},
         "partial-cache-mode: expected its default with draft = ngram, got 'static'; only draft = self, self-or-sd, "
         "tokenswift and "
         "triforce have it"},
        {{{"draft", "ar"}, {"partial-cache", "2048"}, {"draft-precision", "int4"}}, ""},
        // Plain decoding is allowed for any job, for comparison.
        {{{"draft", "ar"}, {"draft-model", "/d"}, {"draft-tree", "2,2"}, {"verify", "k-seq"}}, ""},
    };
    for (const Case& row : cases) {
        std::vector<Assignment> file = whole_job;
        for (const auto& [key, value] : row.keys)
            file.push_back({key, value, "j.cfg:" + std::to_string(file.size() + 1)});
        const std::string message = message_of([&] { parse_settings(file, {}, "/jobs/j.cfg"); });
        const std::size_t place = message.find(": ");
        EXPECT_EQ(row.message.empty() ? message : message.substr(place + 2),
                  row.message.empty() ? "(no error)" : row.message)
            << message;
    }
}

// Given tokens leave nothing to choose, so keys that choose tokens are refused.
TEST(Settings, ContradictionsWithGivenTokensAreRefused) {
    struct Case {
        std::vector<Assignment> keys;
        std::string message;
    };
    const Assignment scores{"mode", "perplexity", "j.cfg:7"}, chooses{"mode", "multiple-choice", "j.cfg:7"},
        forced{"teacher-forced", "true", "j.cfg:8"};
    const std::vector<Case> cases{
        {{scores, forced}, "j.cfg:8: teacher-forced: expected false with mode = perplexity, got true"},
        {{scores, {"logprobs", "2", "j.cfg:9"}}, "j.cfg:9: logprobs: expected 0 with mode = perplexity, got 2"},
        {{scores, {"baseline", "true", "j.cfg:9"}},
         "j.cfg:9: baseline: expected false with mode = perplexity, got true"},
        {{scores, {"samples", "2", "j.cfg:9"}}, "j.cfg:9: samples: expected 1 with mode = perplexity, got 2"},
        {{forced, {"samples", "2", "j.cfg:9"}}, "j.cfg:9: samples: expected 1 with teacher-forced = true, got 2"},
        {{forced, {"window", "9", "j.cfg:9"}}, "j.cfg:9: window: expected 0 with teacher-forced = true, got 9"},
        {{{"stride", "9", "j.cfg:9"}}, "j.cfg:9: stride: expected 0 with mode = generate, got 9"},
        {{{"hidden-states", "/s", "j.cfg:9"}}, "j.cfg:9: hidden-states: expected none with mode = generate, got '/s'"},
        {{chooses, {"window", "9", "j.cfg:9"}}, "j.cfg:9: window: expected 0 with mode = multiple-choice, got 9"},
        {{chooses, {"samples", "2", "j.cfg:9"}}, "j.cfg:9: samples: expected 1 with mode = multiple-choice, got 2"},
        {{chooses, {"token-ids", "true", "j.cfg:9"}},
         "j.cfg:9: token-ids: expected false with mode = multiple-choice, got true"},
        {{chooses, {"hidden-states", "/s", "j.cfg:9"}},
         "j.cfg:9: hidden-states: expected none with mode = multiple-choice, got '/s'"},
        {{scores, {"window", "1", "j.cfg:9"}},
         "j.cfg:9: window: expected 0, or at least 2 tokens with mode = perplexity, got 1"},
        {{scores, {"window", "8", "j.cfg:9"}, {"stride", "9", "j.cfg:10"}},
         "j.cfg:10: stride: expected at most the window's 8 tokens with mode = perplexity, got 9"}};
    for (const Case& row : cases) {
        std::vector<Assignment> file = whole_job;
        file.insert(file.end(), row.keys.begin(), row.keys.end());
        EXPECT_EQ(message_of([&] { parse_settings(file, {}, "/jobs/j.cfg"); }), row.message);
    }
    EXPECT_EQ(message_of([&] {
                  parse_settings(whole_job,
                                 {{"mode", "multiple-choice", "command line"}, {"task", "dolly", "command line"}},
                                 "/jobs/j.cfg");
              }),
              "command line: task: expected prompts with mode = multiple-choice, got dolly");
    EXPECT_EQ(message_of([&] {
                  parse_settings(whole_job,
                                 {{"mode", "multiple-choice", "command line"},
                                  {"task", "prompts", "command line"},
                                  {"choice", "A", "command line"}},
                                 "/jobs/j.cfg");
              }),
              "command line: choice: expected at least 2 of them, or none with mode = multiple-choice, got 1");
    std::vector<Assignment> good = whole_job;
    good.insert(good.end(), {scores, {"window", "8", "j.cfg:9"}, {"stride", "8", "j.cfg:10"}});
    EXPECT_EQ(parse_settings(good, {}, "/jobs/j.cfg").stride, 8);
}

TEST(Settings, KeysOfOtherTasksAreRefused) {
    const auto message = [](const std::string& task, const std::string& key, const std::string& value) {
        std::vector<Assignment> keys = whole_job;
        for (Assignment& entry : keys) entry.value = entry.key == "task" ? task : entry.value;
        return message_of([&] { parse_settings(keys, {{key, value, "command line"}}, "/jobs/j.cfg"); });
    };
    EXPECT_EQ(message("pg19", "chat", "true"),
              "command line: chat: expected false with task = pg19, got 'true'; its prompts are tokens of a book");
    EXPECT_EQ(message("pg19", "template", "/t.txt"),
              "command line: template: expected auto with task = pg19, got '/t.txt'; its prompts are tokens of a book");
    const std::string batch = " with task = openai-batch, got ";
    const std::string says = "; the url of each request says whether it is a chat";
    EXPECT_EQ(message("pg19", "column", "text=book"),
              "command line: column: expected none with task = pg19, got 'text=book'");
    EXPECT_EQ(message("openai-batch", "split", "train"),
              "command line: split: expected none with task = openai-batch, got 'train'");
    EXPECT_EQ(message_of([] {
                  parse_settings(whole_job,
                                 {{"column", "prompt=a", "command line"}, {"column", "prompt=b", "command line"}},
                                 "/jobs/j.cfg");
              }),
              "command line: column: expected one name per field, got 'prompt=b'");
    EXPECT_EQ(message_of([] {
                  parse_settings(whole_job,
                                 {{"template-variable", "tools=[]", "command line"},
                                  {"template-variable", "tools=[1]", "command line"}},
                                 "/jobs/j.cfg");
              }),
              "command line: template-variable: expected one value per variable, got 'tools=[1]'");
    EXPECT_EQ(message("openai-batch", "chat", "true"), "command line: chat: expected false" + batch + "true" + says);
    EXPECT_EQ(message("openai-batch", "template", "/t.txt"),
              "command line: template: expected auto" + batch + "'/t.txt'" + says);
    EXPECT_EQ(message("openai-batch", "teacher-forced", "true"),
              "command line: teacher-forced: expected false" + batch + "true; its data has no continuations");
    EXPECT_EQ(message("openai-batch", "mode", "perplexity"),
              "command line: mode: expected generate" + batch + "perplexity; its data has no continuations");
    EXPECT_EQ(message("dolly", "reference", "/r.en"),
              "command line: reference: expected none with task = dolly, got '/r.en'; only wmt and xsum read their "
              "references from a file of their own");
    EXPECT_EQ(parse_settings(whole_job, {{"template", "auto", "command line"}}, "/jobs/j.cfg").prompt_template, "");
}

TEST(Settings, ExamplesAreOtherDataThanThePrompts) {
    const auto message = [](const std::vector<std::pair<std::string, std::string>>& keys) {
        std::vector<Assignment> given;
        given.reserve(keys.size() + 1);
        for (const auto& [key, value] : keys) given.push_back({key, value, "command line"});
        if (keys.front().first != "task") given.push_back({"task", "prompts", "command line"});
        return message_of([&] { parse_settings(whole_job, given, "/jobs/j.cfg"); });
    };
    const std::string among =
        "command line: few-shot: expected 0 without few-shot-data or few-shot-split, got 5; set one of them: a prompt "
        "that "
        "is among the examples would have its answer there";
    EXPECT_EQ(message({{"few-shot", "5"}}), among);
    EXPECT_EQ(message({{"few-shot", "5"}, {"data", "/d"}, {"few-shot-data", "/d"}}), among);
    EXPECT_EQ(message({{"few-shot", "5"}, {"split", "test"}, {"few-shot-split", "test"}}), among);
    EXPECT_EQ(message({{"few-shot", "5"}, {"split", "test"}, {"few-shot-split", "dev"}}), "(no error)");
    EXPECT_EQ(message({{"few-shot", "5"}, {"few-shot-data", "/e.jsonl"}}), "(no error)");
    EXPECT_EQ(message({{"few-shot-data", "/e.jsonl"}, {"few-shot-group", "subject"}}), "(no error)")
        << "without examples they have no effect, so that few-shot can be swept from 0";
    EXPECT_EQ(message({{"task", "dolly"}, {"few-shot", "5"}, {"few-shot-data", "/e.jsonl"}}),
              "command line: few-shot: expected 0 with task = dolly, got 5; the templates of other tasks have their "
              "examples");
}

TEST(Settings, TextsOfPromptsThatAreNone) {
    const auto message = [](const std::vector<std::pair<std::string, std::string>>& keys) {
        std::vector<Assignment> given;
        for (const auto& [key, value] : keys) given.push_back({key, value, "command line"});
        return message_of([&] { parse_settings(whole_job, given, "/jobs/j.cfg"); });
    };
    EXPECT_EQ(message({{"task", "pg19"}, {"introduction", "Once"}}),
              "command line: introduction: expected none with task = pg19, got 'Once'");
    EXPECT_EQ(message({{"task", "dolly"}, {"introduction", "\"Once \\n\""}}), "(no error)");
    EXPECT_EQ(message({{"task", "prompts"}, {"mode", "multiple-choice"}, {"chat", "true"}, {"choice-gap", "_"}}),
              "command line: choice-gap: expected none with chat, got '_'; what follows the gap would be a message of "
              "another kind");
    EXPECT_EQ(message({{"choice-gap", "_"}}), "command line: choice-gap: expected none with mode = generate, got '_'");
    EXPECT_EQ(message({{"first-choice", "1"}}), "command line: first-choice: expected 0 with mode = generate, got 1");
    EXPECT_EQ(message({{"first-choice", "2"}}).substr(0, 27), "command line: first-choice:");
}

}  // namespace
}  // namespace longhaul::runner
