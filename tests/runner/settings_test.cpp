// The vocabulary: what each key takes, what is refused and in which words. The rows are the documentation.
#include "runner/settings.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>

#include "engine/error.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

const std::vector<Assignment> whole_job{{"task", "prompts", "j.cfg:1"},
                                        {"data", "p.jsonl", "j.cfg:2"},
                                        {"model", "m", "j.cfg:3"},
                                        {"output", "out", "j.cfg:4"}};

std::vector<Assignment> on_command_line(const std::string& key, const std::string& value) {
    return {{key, value, "command line"}};
}

Settings with(const std::string& key, const std::string& value) {
    return parse_settings(whole_job, on_command_line(key, value), "/jobs");
}

std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UsageError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::usage);
        return error.what();
    }
    return "(no error)";
}

TEST(Settings, DefaultsAreThoseOfTheDesign) {
    const Settings job = parse_settings(whole_job, {}, "/jobs");
    const std::vector<Assignment> expected{{"seed", "1", ""},
                                           {"limit", "0", ""},
                                           {"prompt-tokens", "512", ""},
                                           {"max-tokens", "1024", ""},
                                           {"ignore-eos", "false", ""},
                                           {"samples", "1", ""},
                                           {"add-bos", "auto", ""},
                                           {"overlong", "error", ""},
                                           {"logprobs", "0", ""},
                                           {"precision", "bf16", ""},
                                           {"batch", "4", ""},
                                           {"tensor-parallel", "1", ""},
                                           {"threads", "0", ""},
                                           {"kernels", "auto", ""},
                                           {"packed-weights", "off", ""},
                                           {"memory", "auto", ""},
                                           {"temperature", "1", ""},
                                           {"top-k", "0", ""},
                                           {"top-p", "1", ""},
                                           {"min-p", "0", ""},
                                           {"eta", "0", ""},
                                           {"repetition-penalty", "1", ""},
                                           {"draft", "ngram", ""},
                                           {"ngram-order", "4", ""},
                                           {"penalty-window", "1024", ""},
                                           {"ngram-top", "20", ""},
                                           {"verify", "coupled", ""},
                                           {"partial-cache-mode", "dynamic", ""},
                                           {"partial-cache", "4096", ""},
                                           {"baseline", "false", ""},
                                           {"checkpoint-tokens", "2000", ""},
                                           {"lease-seconds", "30", ""},
                                           {"token-ids", "false", ""},
                                           {"checkpoint-seconds", "60", ""},
                                           {"max-failures", "0", ""},
                                           {"retry-failed", "false", ""},
                                           {"checkpoint-kv", "store", ""},
                                           {"watchdog-seconds", "60", ""},
                                           {"checkpoint-quota", "0", ""},
                                           {"teacher-forced", "false", ""},
                                           {"mode", "generate", ""},
                                           {"window", "0", ""},
                                           {"stride", "0", ""},
                                           {"resample-threshold", "0", ""},
                                           {"allow-device-change", "false", ""},
                                           {"draft-temperature", "target", ""}};
    for (const Assignment& key : expected) {
        const auto& table = vocabulary();
        const auto entry =
            std::find_if(table.begin(), table.end(), [&](const KeyInfo& info) { return info.key == key.key; });
        ASSERT_NE(entry, table.end()) << key.key;
        EXPECT_EQ(entry->default_text, key.value) << key.key;
        // A default that is typed is no other than the one that is not.
        EXPECT_EQ(with(key.key, key.value), job) << key.key;
    }
    EXPECT_EQ(job.kv_precision, "bf16");
    EXPECT_EQ(job.device, "cpu");
    EXPECT_EQ(with("precision", "fp32").kv_precision, "fp32");
    EXPECT_EQ(with("kv-precision", "int8").kv_precision, "int8");
}

TEST(Settings, ASinkHearsEveryFaultAndTheRestIsRead) {
    std::vector<std::string> keys, lines;
    const FaultSink sink = [&](const std::string& key, const std::string& line) {
        keys.push_back(key);
        lines.push_back(line);
    };
    const Settings job =
        parse_settings({{"task", "prompts", "j.cfg:1"},
                        {"data", "", "j.cfg:2"},
                        {"bach", "2", "j.cfg:3"},
                        {"top-p", "0", "j.cfg:4"},
                        {"seed", "7", "j.cfg:5"},
                        {"model", "m", "j.cfg:6"},
                        {"replay-accept", "0.5", "j.cfg:7"}},
                       on_command_line("seed", "8"), "/jobs", {"task", "data", "model", "output"}, sink);
    EXPECT_EQ(keys, (std::vector<std::string>{"data", "batch", "top-p", "output", "replay-accept"}))
        << testing::PrintToString(lines);
    EXPECT_EQ(lines[3], "j.cfg: output: expected a value, got nothing; this key has no default");
    EXPECT_EQ(job.seed, 8U);
    EXPECT_EQ(job.model, "/jobs/m");
    EXPECT_EQ(job.top_p, Settings().top_p);
}

TEST(Settings, EveryKeyExplainsItself) {
    std::set<std::string> keys;
    for (const KeyInfo& info : vocabulary()) {
        EXPECT_TRUE(keys.insert(info.key).second) << info.key << " is there twice";
        EXPECT_GE(info.help.size(), 10U) << info.key;
        EXPECT_FALSE(info.value_name.empty()) << info.key;
        EXPECT_FALSE(info.section.empty()) << info.key;
    }
    // The table of the design: these stay, more may come.
    const std::set<std::string> stay{"task",
                                     "data",
                                     "reference",
                                     "template",
                                     "chat",
                                     "chat-template",
                                     "model",
                                     "output",
                                     "seed",
                                     "limit",
                                     "prompt-tokens",
                                     "max-tokens",
                                     "ignore-eos",
                                     "stop",
                                     "samples",
                                     "shard",
                                     "add-bos",
                                     "overlong",
                                     "logprobs",
                                     "teacher-forced",
                                     "mode",
                                     "window",
                                     "stride",
                                     "max-failures",
                                     "retry-failed",
                                     "precision",
                                     "kv-precision",
                                     "device",
                                     "batch",
                                     "tensor-parallel",
                                     "threads",
                                     "kernels",
                                     "packed-weights",
                                     "memory",
                                     "temperature",
                                     "top-k",
                                     "top-p",
                                     "min-p",
                                     "eta",
                                     "repetition-penalty",
                                     "penalty-window",
                                     "draft",
                                     "replay-run",
                                     "replay-accept",
                                     "draft-model",
                                     "draft-tree",
                                     "draft-temperature",
                                     "draft-parallel",
                                     "resample-threshold",
                                     "partial-cache",
                                     "partial-cache-mode",
                                     "ngram-order",
                                     "ngram-top",
                                     "verify",
                                     "checkpoint-tokens",
                                     "checkpoint-seconds",
                                     "checkpoint-kv",
                                     "checkpoint-quota",
                                     "watchdog-seconds",
                                     "lease-seconds",
                                     "token-ids",
                                     "baseline",
                                     "allow-device-change"};
    EXPECT_EQ(keys, stay);
}

TEST(Settings, BadValuesAreRefusedWithTheirKey) {
    struct Case {
        const char* key;
        const char* value;
        const char* message;  // after "command line: "
    };
    const char* const count = "9223372036854775807";
    const Case cases[] = {
        // Shares of a job.
        {"shard", "8/8",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '8/8'; 0/8 to 7/8 are the eight "
         "shards of a job"},
        {"shard", "3",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '3'; 0/8 to 7/8 are the eight "
         "shards of a job"},
        {"shard", "0/10001",
         "shard: expected off, or I/K with I from 0 to K - 1 and K at most 10000, got '0/10001'; 0/8 to 7/8 are the "
         "eight shards of a job"},
        // Keys.
        {"temprature", "1",
         "unknown key 'temprature': expected a known key, got 'temprature'; did you mean 'temperature'?"},
        {"max_tokens", "1",
         "unknown key 'max_tokens': expected a known key, got 'max_tokens'; did you mean 'max-tokens'?"},
        {"Seed", "1", "unknown key 'Seed': expected a known key, got 'Seed'; did you mean 'seed'?"},
        {"zzzzzzzz", "1",
         "unknown key 'zzzzzzzz': expected a known key, got 'zzzzzzzz'; `longhaul run --help` lists them"},
        {"\x1B[31m", "1",
         R"(unknown key '\x1b[31m': expected a known key, got '\x1b[31m'; `longhaul run --help` lists them)"},
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
        {"task", "pg-19", "task: expected pg19, wmt, xsum, dolly or prompts, got 'pg-19'; did you mean 'pg19'?"},
        {"chat-template", "llama",
         "chat-template: expected auto, llama2, llama3, llama3.1 or qwen2.5, got 'llama'; did you mean 'llama2'?"},
        {"overlong", "truncate", "overlong: expected error or truncate-left, got 'truncate'"},
        {"kernels", "avx3", "kernels: expected auto, reference, avx2 or avx512, got 'avx3'; did you mean 'avx2'?"},
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
        // Of the vocabulary, but not yet done.
        {"draft", "eagle",
         "draft: expected ar, ngram, sd, spectr, specinfer, rsd-c, rsd-s or replay, got 'eagle'; it is not in this "
         "version"},
        {"draft", "replay", "replay-run: expected the run folder to replay, got nothing"},
        {"draft-model", "/d",
         "draft-model: expected no draft model with draft = ngram, got '/d'; this draft method needs none"},
        {"replay-accept", "0.5", "replay-accept: expected draft = replay, got draft = ngram"},
        {"draft-tree", "2,2,1",
         "draft-tree: expected width x depth, such as 4x3 or 4x3:12, with draft = ngram, got '2,2,1'"},
        {"draft-tree", "99999x99999",
         "draft-tree: expected auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes, got "
         "'99999x99999'"},
        {"draft-temperature", "0.5",
         "draft-temperature: expected its default with draft = ngram, got a number; only draft models have a "
         "temperature"},
        {"draft-parallel", "both", "draft-parallel: expected auto, replicated or sharded, got 'both'"},
        {"resample-threshold", "3",
         "resample-threshold: expected its default, got '3'; the draft methods it belongs to are not in this version"},
        {"partial-cache-mode", "static",
         "partial-cache-mode: expected its default, got 'static'; the draft methods it belongs to are not in this "
         "version"},
        {"verify", "rejection",
         "verify: expected coupled with draft = ngram, got rejection, which needs one sampled draft a node (draft = "
         "sd); what it emitted would not be distributed as the model"},
        {"verify", "tokenswift-paper",
         "verify: expected coupled, rejection, multi-round, k-seq or recursive, got 'tokenswift-paper'; it is not in "
         "this version"},
        {"kv-precision", "int4", "kv-precision: expected auto, bf16, fp32 or int8, got 'int4'; did you mean 'int8'?"},
        {"device", "cuda",
         "device: expected auto or cpu, got 'cuda'; built without CUDA support: cuda is not in this version"},
        {"logprobs", "1001", "logprobs: expected an integer from 0 to 1000, got '1001'"},
        {"mode", "perplexty", "mode: expected generate or perplexity, got 'perplexty'; did you mean 'perplexity'?"},
    };
    for (const Case& row : cases) {
        const std::string message = message_of([&] { with(row.key, row.value); });
        EXPECT_EQ(message, std::string("command line: ") + row.message) << row.key << " = " << row.value;
    }
}

// What a draft method needs, the trees it has, and the rules that may check it.
TEST(Settings, DraftKeysGoTogether) {
    struct Case {
        std::vector<std::pair<std::string, std::string>> keys;
        std::string message;  // after "j.cfg:N: " of the last key; "" where they are good
    };
    const std::string one = "draft-model: expected the folder of a draft model with draft = ";
    const std::string not_lossless = "; what it emitted would not be distributed as the model";
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
         "draft-tree: expected children a node for each level, such as 2,2,1, with draft = rsd-c, got '3x2'"},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-tree", "2,2"}},
         "draft-tree: expected width x depth, such as 4x3, with draft = rsd-s, got '2,2'"},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"draft-tree", "12x5"}, {"verify", "recursive"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "rsd-s"}, {"verify", "k-seq"}},
         "verify: expected coupled with draft = rsd-s, got k-seq, which needs independent drafts of one model (draft = "
         "sd, spectr, or specinfer with one draft-model)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "rsd-c"}, {"verify", "multi-round"}},
         "verify: expected coupled with draft = rsd-c, got multi-round, which needs independent drafts (draft = sd, "
         "spectr or specinfer)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "spectr"}, {"verify", "recursive"}},
         "verify: expected coupled with draft = spectr, got recursive, which needs drafts drawn without replacement "
         "(draft = sd, rsd-c or rsd-s) or certain ones (ngram)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft-model", "/e"}, {"draft", "specinfer"}, {"verify", "k-seq"}},
         "verify: expected coupled with draft = specinfer, got k-seq, which needs independent drafts of one model "
         "(draft = sd, spectr, or specinfer with one draft-model)" +
             not_lossless},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-temperature", "0.5"}}, ""},
        {{{"draft", "ngram"}, {"verify", "recursive"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"draft-tree", "auto"}}, ""},
        {{{"draft", "ngram"}, {"draft-tree", "auto"}}, ""},
        {{{"draft-model", "/d"}, {"draft", "sd"}, {"verify", "rejection"}, {"draft-tree", "auto"}},
         "draft-tree: expected a shape with verify = rejection, got auto; what it chooses depends on measured time, "
         "and "
         "with this rule trees decide the text"},
        // Plain decoding may be asked of any job, to compare with.
        {{{"draft", "ar"}, {"draft-model", "/d"}, {"draft-tree", "2,2"}, {"verify", "k-seq"}}, ""},
    };
    for (const Case& row : cases) {
        std::vector<Assignment> file = whole_job;
        for (const auto& [key, value] : row.keys)
            file.push_back({key, value, "j.cfg:" + std::to_string(file.size() + 1)});
        const std::string message = message_of([&] { parse_settings(file, {}, "/jobs"); });
        const std::size_t place = message.find(": ");
        EXPECT_EQ(row.message.empty() ? message : message.substr(place + 2),
                  row.message.empty() ? "(no error)" : row.message)
            << message;
    }
}

// Tokens that are given leave nothing to what chooses tokens.
TEST(Settings, ContradictionsWithGivenTokensAreRefused) {
    struct Case {
        std::vector<Assignment> keys;
        std::string message;
    };
    const Assignment scores{"mode", "perplexity", "j.cfg:7"}, forced{"teacher-forced", "true", "j.cfg:8"};
    const std::vector<Case> cases{
        {{scores, forced}, "j.cfg:8: teacher-forced: expected false with mode = perplexity, got true"},
        {{scores, {"logprobs", "2", "j.cfg:9"}}, "j.cfg:9: logprobs: expected 0 with mode = perplexity, got 2"},
        {{scores, {"baseline", "true", "j.cfg:9"}},
         "j.cfg:9: baseline: expected false with mode = perplexity, got true"},
        {{scores, {"samples", "2", "j.cfg:9"}}, "j.cfg:9: samples: expected 1 with mode = perplexity, got 2"},
        {{forced, {"samples", "2", "j.cfg:9"}}, "j.cfg:9: samples: expected 1 with teacher-forced = true, got 2"},
        {{forced, {"window", "9", "j.cfg:9"}}, "j.cfg:9: window: expected 0 with teacher-forced = true, got 9"},
        {{{"stride", "9", "j.cfg:9"}}, "j.cfg:9: stride: expected 0 with mode = generate, got 9"},
        {{scores, {"window", "1", "j.cfg:9"}},
         "j.cfg:9: window: expected 0, or at least 2 tokens with mode = perplexity, got 1"},
        {{scores, {"window", "8", "j.cfg:9"}, {"stride", "9", "j.cfg:10"}},
         "j.cfg:10: stride: expected at most the window's 8 tokens with mode = perplexity, got 9"}};
    for (const Case& row : cases) {
        std::vector<Assignment> file = whole_job;
        file.insert(file.end(), row.keys.begin(), row.keys.end());
        EXPECT_EQ(message_of([&] { parse_settings(file, {}, "/jobs"); }), row.message);
    }
    std::vector<Assignment> good = whole_job;
    good.insert(good.end(), {scores, {"window", "8", "j.cfg:9"}, {"stride", "8", "j.cfg:10"}});
    EXPECT_EQ(parse_settings(good, {}, "/jobs").stride, 8);
}

// A run that an earlier version began goes on: what it did not know of is at its default.
TEST(Settings, LaterKeysAreIdentityOnlyWhereTheyAreUsed) {
    const auto has = [](const Settings& settings, const std::string& key) {
        const auto identity = identity_of(settings);
        return std::any_of(identity.begin(), identity.end(), [&](const Assignment& a) { return a.key == key; });
    };
    for (const char* key : {"mode", "window", "stride"}) EXPECT_FALSE(has(Settings(), key));
    Settings scores;
    scores.mode = "perplexity";
    scores.window = 64;
    EXPECT_TRUE(has(scores, "mode"));
    EXPECT_TRUE(has(scores, "window"));
    EXPECT_TRUE(has(scores, "teacher-forced"));
}

TEST(Settings, KeysOfOtherTasksAreRefused) {
    const auto message = [](const std::string& task, const std::string& key, const std::string& value) {
        std::vector<Assignment> keys = whole_job;
        for (Assignment& entry : keys) entry.value = entry.key == "task" ? task : entry.value;
        return message_of([&] { parse_settings(keys, {{key, value, "command line"}}, "/jobs"); });
    };
    EXPECT_EQ(message("pg19", "chat", "true"),
              "command line: chat: expected false with task = pg19, got 'true'; its prompts are tokens of a book");
    EXPECT_EQ(message("pg19", "template", "/t.txt"),
              "command line: template: expected auto with task = pg19, got '/t.txt'; its prompts are tokens of a book");
    EXPECT_EQ(message("dolly", "reference", "/r.en"),
              "command line: reference: expected none with task = dolly, got '/r.en'; only wmt and xsum read their "
              "references from a file of their own");
    EXPECT_EQ(parse_settings(whole_job, {{"template", "auto", "command line"}}, "/jobs").prompt_template, "");
}

/// The job files that users fill in, with the sampling of the paper they name.
TEST(Settings, JobFilesOfTheTasks) {
    const auto load = [](const char* name) {
        const auto jobs = std::filesystem::path(LONGHAUL_DEMO_MODEL).parent_path().parent_path();
        return load_settings(jobs / name, {});
    };
    EXPECT_EQ(load("wmt.cfg").temperature, 0.3);
    EXPECT_EQ(load("wmt.cfg").reference.filename(), "newstest2018.en");
    EXPECT_EQ(load("xsum.cfg").temperature, 0.3);
    EXPECT_EQ(load("xsum.cfg").stop, (std::vector<std::string>{"\n"}));
    EXPECT_EQ(load("dolly.cfg").temperature, 1);
    EXPECT_EQ(load("dolly.cfg").top_p, 0.95);
    EXPECT_TRUE(load("dolly.cfg").chat);
}

TEST(Settings, PlacesAreNamed) {
    const auto message = [](std::vector<Assignment> file, const std::vector<Assignment>& command_line) {
        return message_of([&] { parse_settings(file, command_line, "/jobs"); });
    };
    std::vector<Assignment> twice = whole_job;
    twice.push_back({"seed", "1", "j.cfg:7"});
    twice.push_back({"seed", "1", "j.cfg:9"});
    EXPECT_EQ(message(twice, {}),
              "j.cfg:9: seed: expected every key once, got this key again; it is at j.cfg:7 already");
    EXPECT_EQ(message(whole_job, {{"seed", "1", "command line"}, {"seed", "2", "command line"}}),
              "command line: seed: expected every key once, got this key again");
    EXPECT_EQ(message({whole_job.begin(), whole_job.end() - 1}, {}),
              "j.cfg: output: expected a value, got nothing; this key has no default");
    EXPECT_EQ(message({}, {}), "command line: task: expected a value, got nothing; this key has no default");
    // An overridden value is checked all the same: the file is wrong whatever the command line says.
    std::vector<Assignment> wrong = whole_job;
    wrong.push_back({"top-p", "7", "j.cfg:5"});
    EXPECT_EQ(message(wrong, on_command_line("top-p", "0.9")),
              "j.cfg:5: top-p: expected a number above 0 and at most 1, got '7'");
}

TEST(Settings, TheCommandLineWins) {
    std::vector<Assignment> file = whole_job;
    file.push_back({"seed", "5", "j.cfg:5"});
    file.push_back({"stop", "from the file", "j.cfg:6"});
    file.push_back({"stop", "also", "j.cfg:7"});
    EXPECT_EQ(parse_settings(file, {}, "/jobs").stop, (std::vector<std::string>{"from the file", "also"}));
    const Settings job =
        parse_settings(file, {{"seed", "6", "command line"}, {"stop", "mine", "command line"}}, "/jobs");
    EXPECT_EQ(job.seed, 6U);
    EXPECT_EQ(job.stop, std::vector<std::string>{"mine"});
}

TEST(Settings, PathsAreRelativeToWhereTheyStand) {
    const Settings job = parse_settings(whole_job, on_command_line("output", "here/../out"), "/jobs/a");
    EXPECT_EQ(job.data, "/jobs/a/p.jsonl");
    EXPECT_EQ(job.output, std::filesystem::current_path() / "out");
    EXPECT_EQ(with("data", "/abs/x").data, "/abs/x");
    EXPECT_EQ(with("data", "\"/a b/\\\"x\\\"\"").data, "/a b/\"x\"");
}

TEST(Settings, ValuesAreReadExactly) {
    EXPECT_EQ(with("seed", "18446744073709551615").seed, UINT64_MAX);
    EXPECT_EQ(with("memory", "1.5GiB").memory, 1610612736);
    EXPECT_EQ(with("memory", "2K").memory, 2048);
    EXPECT_EQ(with("memory", "3 M").memory, 3 << 20);
    EXPECT_EQ(with("memory", "9223372036854775807").memory, INT64_MAX);
    EXPECT_EQ(with("stop", R"(\n\n)").stop.front(), "\n\n");
    EXPECT_EQ(with("stop", R"(" \"quoted\"\t\\ ")").stop.front(), " \"quoted\"\t\\ ");
    EXPECT_EQ(with("stop", "THE END").stop.front(), "THE END");
    EXPECT_EQ(with("temperature", "0.1").temperature, 0.1);
    EXPECT_TRUE(with("baseline", "true").baseline);
}

TEST(Settings, TheResolvedJobIsTheSameJob) {
    std::vector<Assignment> keys = whole_job;
    keys[1].value = "\"/data/a # b \\\"c\\\".jsonl\"";
    const std::vector<Assignment> more{{"stop", R"("a # b\n\"\\")", "j.cfg:5"},
                                       {"stop", "\xC3\xA9", "j.cfg:6"},
                                       {"temperature", "0.30000000000000004", "j.cfg:7"},
                                       {"memory", "7MiB", "j.cfg:8"},
                                       {"precision", "fp32", "j.cfg:9"},
                                       {"seed", "18446744073709551615", "j.cfg:10"},
                                       {"draft-tree", "4x3:12", "j.cfg:11"},
                                       {"checkpoint-seconds", "0.25", "j.cfg:12"},
                                       {"template", "my template.txt", "j.cfg:13"},
                                       {"chat", "true", "j.cfg:14"},
                                       {"chat-template", "llama3.1", "j.cfg:15"}};
    keys.insert(keys.end(), more.begin(), more.end());
    const Settings job = parse_settings(keys, {}, "/jobs");

    const auto folder = std::filesystem::temp_directory_path() / ("longhaul-settings-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "job.cfg") << format_settings(job);
    EXPECT_EQ(load_settings(folder / "job.cfg", {}), job) << format_settings(job);
    std::filesystem::remove_all(folder);
}

TEST(Settings, PackedWeightsAreOffInTheCacheOrInAFolder) {
    const auto folder = [](const char* value) {
        return parse_settings(whole_job, {{"packed-weights", value, "command line"}}, "/jobs").packed_weights;
    };
    EXPECT_EQ(folder("off"), "");
    EXPECT_EQ(folder("auto"), "auto");
    EXPECT_EQ(folder("/fast/weights"), "/fast/weights");
    EXPECT_TRUE(folder("auto/").is_absolute());  // a folder of that name
}

TEST(Settings, KindsOfKeys) {
    const Settings job = parse_settings(whole_job, {}, "/jobs");
    for (const char* key :
         {"batch",         "tensor-parallel", "threads",           "kernels",       "packed-weights",
          "memory",        "baseline",        "checkpoint-tokens", "checkpoint-kv", "watchdog-seconds",
          "lease-seconds", "max-failures",    "retry-failed",      "data",          "model",
          "output",        "draft",           "ngram-order",       "draft-tree",    "allow-device-change"}) {
        EXPECT_TRUE(is_execution_key(key, job)) << key;
    }
    for (const char* key :
         {"task", "seed", "prompt-tokens", "temperature", "precision", "kv-precision", "device", "verify", "stop",
          "ignore-eos", "token-ids", "add-bos", "overlong", "penalty-window", "no-such-key"}) {
        EXPECT_EQ(kind_of(key, job), KeyKind::identity) << key;
    }
    for (const char* key : {"limit", "samples", "max-tokens"}) EXPECT_EQ(kind_of(key, job), KeyKind::extension) << key;
    // What is left of a truncated prompt depends on how much room the new tokens want.
    EXPECT_EQ(kind_of("max-tokens", with("overlong", "truncate-left")), KeyKind::identity);
}

TEST(Settings, IdentityHoldsWhatDecidesTheTextAndNoPath) {
    const auto lines = [](const std::vector<Assignment>& identity) {
        std::set<std::string> set;
        for (const Assignment& key : identity) set.insert(key.key + " = " + key.value);
        return set;
    };
    const auto identity = lines(identity_of(with("stop", "x")));
    EXPECT_TRUE(identity.contains("seed = 1"));
    EXPECT_TRUE(identity.contains("device = cpu"));
    EXPECT_TRUE(identity.contains("stop = \"x\""));
    EXPECT_FALSE(identity.contains("max-tokens = 1024"));
    EXPECT_TRUE(lines(identity_of(with("stop", "x"), true)).contains("max-tokens = 1024"));
    for (const std::string& line : identity) EXPECT_EQ(line.find('/'), std::string::npos) << line;
    EXPECT_EQ(lines(identity_of(with("draft", "ar"))), lines(identity_of(with("batch", "8"))));
    EXPECT_NE(lines(identity_of(with("seed", "2"))), lines(identity_of(with("batch", "8"))));
}

TEST(Values, SlipsFindTheNearestWord) {
    const std::vector<std::string> words{"temperature", "top-p", "top-k", "threads"};
    EXPECT_EQ(nearest_word("temprature", words), "temperature");
    EXPECT_EQ(nearest_word("tpo-k", words), "top-k");
    EXPECT_EQ(nearest_word("thread", words), "threads");
    EXPECT_EQ(nearest_word("x", words), "");
    EXPECT_EQ(nearest_word(std::string(100000, 't'), words), "");
}

TEST(Values, TextIsUtf8WithoutNul) {
    EXPECT_TRUE(is_text("plain \xC3\xA9 \xF0\x9F\x98\x80"));
    EXPECT_EQ(first_bad_byte(std::string_view("ab\0c", 4)), 2U);
    EXPECT_EQ(first_bad_byte("ab\xC3"), 2U);
    EXPECT_EQ(first_bad_byte("a\xED\xA0\x80"), 1U);     // a surrogate
    EXPECT_EQ(first_bad_byte("\xC0\xAF"), 0U);          // overlong
    EXPECT_EQ(first_bad_byte("\xF4\x90\x80\x80"), 0U);  // beyond U+10FFFF
    for (std::size_t cut = 0; cut <= 8; ++cut) {
        const std::string_view text = "a\xC3\xA9\xF0\x9F\x98\x80z";
        EXPECT_TRUE(is_text(whole_characters(text, cut))) << cut;
        EXPECT_LE(whole_characters(text, cut).size(), cut);
    }
}

}  // namespace
}  // namespace longhaul::runner
