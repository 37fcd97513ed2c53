// The vocabulary of the job file: what each key accepts, what is refused, and the messages. The rows are the
// documentation.
#include "runner/job/settings.hpp"
#include "runner/job/device_choice.hpp"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>

#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"
#include "tests/runner/settings_fixture.hpp"

namespace longhaul::runner {
namespace {

TEST(Settings, DefaultsAreThoseOfTheDesign) {
    const Settings job = parse_settings(whole_job, {}, "/jobs/j.cfg");
    const std::vector<Assignment> expected{{"seed", "1", ""},
                                           {"limit", "0", ""},
                                           {"prompt-tokens", "512", ""},
                                           {"max-tokens", "1024", ""},
                                           {"min-tokens", "0", ""},
                                           {"ignore-eos", "false", ""},
                                           {"max-reasoning-tokens", "0", ""},
                                           {"stop-loops", "0", ""},
                                           {"presence-penalty", "0", ""},
                                           {"frequency-penalty", "0", ""},
                                           {"dry-multiplier", "0", ""},
                                           {"dry-base", "1.75", ""},
                                           {"dry-allowed-length", "2", ""},
                                           {"dry-window", "4096", ""},
                                           {"samples", "1", ""},
                                           {"add-bos", "auto", ""},
                                           {"overlong", "error", ""},
                                           {"logprobs", "0", ""},
                                           {"precision", "bf16", ""},
                                           {"batch", "4", ""},
                                           {"tensor-parallel", "1", ""},
                                           {"threads", "0", ""},
                                           {"kernels", "auto", ""},
                                           {"all-reduce", "ordered", ""},
                                           {"packed-weights", "off", ""},
                                           {"memory", "auto", ""},
                                           {"host-memory", "0", ""},
                                           {"temperature", "1", ""},
                                           {"top-k", "0", ""},
                                           {"top-p", "1", ""},
                                           {"min-p", "0", ""},
                                           {"eta", "0", ""},
                                           {"repetition-penalty", "1", ""},
                                           {"draft", "auto", ""},
                                           {"ngram-order", "4", ""},
                                           {"penalty-window", "1024", ""},
                                           {"ngram-top", "20", ""},
                                           {"verify", "coupled", ""},
                                           {"partial-cache-mode", "window", ""},
                                           {"partial-cache", "auto", ""},
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
                                           {"resample", "fused", ""},
                                           {"resample-tree", "4x2:4", ""},
                                           {"resample-threshold", "0", ""},
                                           {"allow-device-change", "false", ""},
                                           {"draft-temperature", "target", ""}};
    for (const Assignment& key : expected) {
        const auto& table = vocabulary();
        const auto entry =
            std::find_if(table.begin(), table.end(), [&](const KeyInfo& info) { return info.key == key.key; });
        ASSERT_NE(entry, table.end()) << key.key;
        EXPECT_EQ(entry->default_text, key.value) << key.key;
        // A default value that is given explicitly is the same as one that is not given.
        EXPECT_EQ(with(key.key, key.value), job) << key.key;
    }
    EXPECT_EQ(job.kv_precision, "bf16");
    EXPECT_EQ(job.device, gpus_here().visible > 0 ? "cuda" : "cpu");
    EXPECT_EQ(with("precision", "fp32").kv_precision, "fp32");
    EXPECT_EQ(with("kv-precision", "int8").kv_precision, "int8");
}

TEST(Settings, ASinkHearsEveryFaultAndTheRestIsRead) {
    std::vector<std::string> keys, lines;
    const FaultSink sink = [&](const std::string& key, const std::string& line) {
        keys.push_back(key);
        lines.push_back(line);
    };
    const Settings job = parse_settings({{"task", "prompts", "j.cfg:1"},
                                         {"data", "", "j.cfg:2"},
                                         {"bach", "2", "j.cfg:3"},
                                         {"top-p", "0", "j.cfg:4"},
                                         {"seed", "7", "j.cfg:5"},
                                         {"model", "m", "j.cfg:6"},
                                         {"replay-accept", "0.5", "j.cfg:7"}},
                                        on_command_line("seed", "8"), "/jobs/j.cfg", required_keys(), sink);
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
    // These keys must stay, more may be added: job files and run folders of earlier versions have them.
    const std::set<std::string> stay{"task",
                                     "data",
                                     "reference",
                                     "template",
                                     "chat",
                                     "chat-template",
                                     "template-variable",
                                     "template-date",
                                     "model",
                                     "adapter",
                                     "output",
                                     "seed",
                                     "limit",
                                     "prompt-tokens",
                                     "max-tokens",
                                     "min-tokens",
                                     "ignore-eos",
                                     "stop",
                                     "stop-token-ids",
                                     "json-schema",
                                     "regex",
                                     "choice",
                                     "grammar",
                                     "reasoning-end",
                                     "max-reasoning-tokens",
                                     "logit-bias",
                                     "stop-loops",
                                     "presence-penalty",
                                     "frequency-penalty",
                                     "dry-multiplier",
                                     "dry-base",
                                     "dry-allowed-length",
                                     "dry-window",
                                     "dry-breakers",
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
                                     "host-memory",
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
                                     "draft-corpus",
                                     "draft-model",
                                     "draft-tree",
                                     "draft-temperature",
                                     "draft-parallel",
                                     "resample",
                                     "resample-tree",
                                     "resample-threshold",
                                     "draft-precision",
                                     "draft-passes",
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
                                     "allow-device-change",
                                     "hidden-states",
                                     "all-reduce",
                                     "column",
                                     "split",
                                     "few-shot",
                                     "few-shot-data",
                                     "few-shot-split",
                                     "few-shot-group",
                                     "introduction",
                                     "choice-gap",
                                     "first-choice"};
    EXPECT_EQ(keys, stay);
}

// A run started by an earlier version can be continued: keys unknown to it have their defaults.
TEST(Settings, LaterKeysAreIdentityOnlyWhereTheyAreUsed) {
    const auto has = [](const Settings& settings, const std::string& key) {
        const auto identity = identity_of(settings);
        return std::any_of(identity.begin(), identity.end(), [&](const Assignment& a) { return a.key == key; });
    };
    for (const char* key : {"mode", "window", "stride", "stop-loops", "presence-penalty", "frequency-penalty",
                            "dry-multiplier", "dry-base", "dry-allowed-length", "dry-window", "dry-breakers",
                            "all-reduce", "reasoning-end", "max-reasoning-tokens"})
        EXPECT_FALSE(has(Settings(), key));
    Settings by_nccl;
    by_nccl.all_reduce = "nccl";
    EXPECT_TRUE(has(by_nccl, "all-reduce"));
    EXPECT_FALSE(has(Settings(), "adapter"));
    Settings adapted;
    adapted.adapter = "/adapters/first";
    EXPECT_TRUE(has(adapted, "adapter"));
    const auto first = identity_of(adapted);
    adapted.adapter = "/elsewhere/second";
    const auto second = identity_of(adapted);  // its fingerprint tells which one it is
    EXPECT_TRUE(std::equal(first.begin(), first.end(), second.begin(), second.end(),
                           [](const Assignment& a, const Assignment& b) { return a.value == b.value; }));
    Settings scores;
    scores.mode = Mode::perplexity;
    scores.window = 64;
    EXPECT_TRUE(has(scores, "mode"));
    EXPECT_TRUE(has(scores, "window"));
    EXPECT_TRUE(has(scores, "teacher-forced"));
    Settings stops;
    stops.stop_loops = 64;
    EXPECT_TRUE(has(stops, "stop-loops"));
    Settings repeats;
    repeats.frequency_penalty = -0.1;
    repeats.dry_multiplier = 0.8;
    repeats.dry_breakers.emplace();
    EXPECT_TRUE(has(repeats, "frequency-penalty"));
    EXPECT_TRUE(has(repeats, "dry-multiplier"));
    EXPECT_TRUE(has(repeats, "dry-breakers"));
    EXPECT_FALSE(has(Settings(), "column"));
    Settings renamed;
    renamed.column = {"prompt=question"};
    EXPECT_TRUE(has(renamed, "column"));
    Settings sampled;
    sampled.verify = "recursive";
    EXPECT_FALSE(has(sampled, "partial-cache"));
    sampled.draft = "self";
    EXPECT_TRUE(has(sampled, "partial-cache"));
    EXPECT_TRUE(has(sampled, "draft-precision"));
    sampled.draft = "tokenswift";
    EXPECT_FALSE(has(sampled, "draft-passes"));
    sampled.draft_passes = 2;
    EXPECT_TRUE(has(sampled, "draft-passes"));
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
    EXPECT_TRUE(load("longwriter.cfg").chat);
    EXPECT_EQ(load("longwriter.cfg").max_tokens, 32768);
    EXPECT_EQ(load("openai-batch.cfg").task, "openai-batch");
}

TEST(Settings, PlacesAreNamed) {
    const auto message = [](std::vector<Assignment> file, const std::vector<Assignment>& command_line) {
        return message_of([&] { parse_settings(file, command_line, "/jobs/j.cfg"); });
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
    EXPECT_EQ(message({}, {}), "/jobs/j.cfg: task: expected a value, got nothing; this key has no default")
        << "an empty job file";
    EXPECT_EQ(message_of([] { parse_settings({}, {}, {}); }),
              "command line: task: expected a value, got nothing; this key has no default");
    // Later messages name the place, too.
    const Settings job = parse_settings(whole_job, on_command_line("output", "o"), "/jobs/j.cfg");
    EXPECT_EQ(job.origins.of("data"), "j.cfg:2");
    EXPECT_EQ(job.origins.of("output"), "command line");
    EXPECT_EQ(job.origins.of("seed"), "j.cfg") << "a default";
    EXPECT_TRUE(job.origins.has_value("output", "o"));
    EXPECT_FALSE(job.origins.has_value("output", "out")) << "the command line replaces it";
    // An overridden value is still checked: the file is wrong whatever the command line says.
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
    EXPECT_EQ(parse_settings(file, {}, "/jobs/j.cfg").stop, (std::vector<std::string>{"from the file", "also"}));
    const Settings job =
        parse_settings(file, {{"seed", "6", "command line"}, {"stop", "mine", "command line"}}, "/jobs/j.cfg");
    EXPECT_EQ(job.seed, 6U);
    EXPECT_EQ(job.stop, std::vector<std::string>{"mine"});
}

TEST(Settings, AnEmptyPathIsNone) {
    std::vector<Assignment> file = whole_job;
    file.front().value = "wmt";
    file.push_back({"reference", "p.en", "j.cfg:5"});
    file.push_back({"draft-model", "d", "j.cfg:6"});
    EXPECT_EQ(parse_settings(file, {}, "/jobs/j.cfg").reference, "/jobs/p.en");
    const Settings job =
        parse_settings(file, {{"reference", "", "command line"}, {"draft-model", "", "command line"}}, "/jobs/j.cfg");
    EXPECT_EQ(job.reference, "");
    EXPECT_TRUE(job.draft_model.empty());
    EXPECT_EQ(message_of([&] { parse_settings(file, on_command_line("data", ""), "/jobs/j.cfg"); }),
              "command line: data: expected a value, got nothing");
}

TEST(Settings, AnEmptyStopIsNone) {
    std::vector<Assignment> file = whole_job;
    file.push_back({"stop", "from the file", "j.cfg:5"});
    const Settings job = parse_settings(file, on_command_line("stop", ""), "/jobs/j.cfg");
    EXPECT_EQ(job.stop, std::vector<std::string>{});
    EXPECT_NE(format_settings(job).find("\n# stop =\n"), std::string::npos);
    file.push_back({"stop", "", "j.cfg:6"});
    EXPECT_EQ(parse_settings(file, {}, "/jobs/j.cfg").stop, std::vector<std::string>{});
    file.push_back({"stop", "another", "j.cfg:7"});
    EXPECT_EQ(parse_settings(file, {}, "/jobs/j.cfg").stop, std::vector<std::string>{"another"});
}

TEST(Settings, BreakersReplaceTheDefault) {
    using Texts = std::vector<std::string>;
    EXPECT_EQ(with("seed", "1").dry_breakers, (Texts{"\n", ":", "\"", "*"}));
    EXPECT_EQ(with("dry-breakers", R"(\n\n)").dry_breakers, Texts{"\n\n"});
    EXPECT_EQ(with("dry-breakers", "none").dry_breakers, Texts{});
    EXPECT_EQ(with("dry-breakers", "\"none\"").dry_breakers, Texts{"none"});
    std::vector<Assignment> file = whole_job;
    file.push_back({"dry-breakers", "a", "j.cfg:5"});
    file.push_back({"dry-breakers", "b", "j.cfg:6"});
    EXPECT_EQ(parse_settings(file, {}, "/jobs/j.cfg").dry_breakers, (Texts{"a", "b"}));
    EXPECT_EQ(parse_settings(file, on_command_line("dry-breakers", "none"), "/jobs/j.cfg").dry_breakers, Texts{});
    const std::string resolved = format_settings(with("dry-breakers", "none"));
    EXPECT_NE(resolved.find("\ndry-breakers = none\n"), std::string::npos) << resolved;
}

TEST(Settings, PathsAreRelativeToWhereTheyStand) {
    const Settings job = parse_settings(whole_job, on_command_line("output", "here/../out"), "/jobs/a/j.cfg");
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
                                       {"reasoning-end", R"("\n</think> # ")", "j.cfg:5"},
                                       {"max-reasoning-tokens", "77", "j.cfg:5"},
                                       {"dry-breakers", R"("\n\n")", "j.cfg:16"},
                                       {"dry-breakers", R"("none")", "j.cfg:17"},
                                       {"temperature", "0.30000000000000004", "j.cfg:7"},
                                       {"memory", "7MiB", "j.cfg:8"},
                                       {"precision", "fp32", "j.cfg:9"},
                                       {"seed", "18446744073709551615", "j.cfg:10"},
                                       {"draft-tree", "4x3:12", "j.cfg:11"},
                                       {"checkpoint-seconds", "0.25", "j.cfg:12"},
                                       {"template", "my template.txt", "j.cfg:13"},
                                       {"chat", "true", "j.cfg:14"},
                                       {"chat-template", "my chat.jinja", "j.cfg:15"},
                                       {"template-variable", "enable_thinking=false", "j.cfg:16"},
                                       {"template-variable", R"(a="x # y")", "j.cfg:17"},
                                       {"template-date", "2025-01-02", "j.cfg:18"}};
    keys.insert(keys.end(), more.begin(), more.end());
    const Settings job = parse_settings(keys, {}, "/jobs/j.cfg");

    const auto folder = std::filesystem::temp_directory_path() / ("longhaul-settings-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "job.cfg") << format_settings(job);
    EXPECT_EQ(load_settings(folder / "job.cfg", {}), job) << format_settings(job);
    std::filesystem::remove_all(folder);
}

TEST(Settings, PackedWeightsAreOffInTheCacheOrInAFolder) {
    const auto folder = [](const char* value) {
        return parse_settings(whole_job, {{"packed-weights", value, "command line"}}, "/jobs/j.cfg").packed_weights;
    };
    EXPECT_EQ(folder("off"), "");
    EXPECT_EQ(folder("auto"), "auto");
    EXPECT_EQ(folder("/fast/weights"), "/fast/weights");
    EXPECT_TRUE(folder("auto/").is_absolute());  // a folder of that name
}

TEST(Settings, KindsOfKeys) {
    const Settings job = parse_settings(whole_job, {}, "/jobs/j.cfg");
    for (const char* key : {"batch",
                            "tensor-parallel",
                            "threads",
                            "kernels",
                            "packed-weights",
                            "memory",
                            "host-memory",
                            "baseline",
                            "checkpoint-tokens",
                            "checkpoint-kv",
                            "watchdog-seconds",
                            "lease-seconds",
                            "max-failures",
                            "retry-failed",
                            "data",
                            "model",
                            "adapter",
                            "output",
                            "draft",
                            "ngram-order",
                            "draft-tree",
                            "allow-device-change"}) {
        EXPECT_TRUE(is_execution_key(key, job)) << key;
    }
    for (const char* key : {"task",
                            "seed",
                            "prompt-tokens",
                            "temperature",
                            "precision",
                            "kv-precision",
                            "device",
                            "verify",
                            "stop",
                            "stop-token-ids",
                            "json-schema",
                            "regex",
                            "choice",
                            "grammar",
                            "min-tokens",
                            "logit-bias",
                            "ignore-eos",
                            "token-ids",
                            "add-bos",
                            "overlong",
                            "penalty-window",
                            "stop-loops",
                            "dry-multiplier",
                            "dry-base",
                            "dry-allowed-length",
                            "dry-window",
                            "dry-breakers",
                            "presence-penalty",
                            "frequency-penalty",
                            "all-reduce",
                            "reasoning-end",
                            "max-reasoning-tokens",
                            "no-such-key"}) {
        EXPECT_EQ(kind_of(key, job), KeyKind::identity) << key;
    }
    for (const char* key : {"limit", "samples", "max-tokens"}) EXPECT_EQ(kind_of(key, job), KeyKind::extension) << key;
    // How much of a prompt is truncated depends on max-tokens.
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
    EXPECT_TRUE(identity.contains("device = " + with("stop", "x").device));
    EXPECT_TRUE(identity.contains("stop = \"x\""));
    EXPECT_FALSE(identity.contains("max-tokens = 1024"));
    EXPECT_TRUE(lines(identity_of(with("stop", "x"), true)).contains("max-tokens = 1024"));
    EXPECT_TRUE(lines(identity_of(with("template-date", "2025-01-02"))).contains("template-date = 2025-01-02"));
    EXPECT_TRUE(lines(identity_of(with("template-variable", "a=1"))).contains("template-variable = \"a=1\""));
    for (const std::string& line : identity) EXPECT_FALSE(line.starts_with("template-")) << "as in earlier versions";
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
