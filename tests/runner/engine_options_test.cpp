// The translation of settings into engine options.
#include "runner/launch/engine_options.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/error.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

engine::ModelConfig config_of(std::int64_t context) {
    engine::ModelConfig config;
    config.max_positions = context;
    config.eos_ids = {2, 7};
    return config;
}

TEST(GenerationOptions, AreTheSettingsOfAnItem) {
    Settings settings;
    settings.max_tokens = 33;
    settings.seed = 5;
    settings.temperature = 0.25;
    settings.stop = {"END"};
    settings.stop_loops = 64;
    settings.reasoning_end = "</think>";
    settings.max_reasoning_tokens = 9;
    settings.presence_penalty = 1.5;
    settings.frequency_penalty = -0.25;
    settings.dry_multiplier = 0.5;
    settings.dry_base = 2;
    settings.dry_allowed_length = 3;
    settings.dry_window = 99;
    settings.logprobs = 4;
    auto options = generation_options(settings, config_of(100));
    EXPECT_EQ(options->max_tokens, 33);
    EXPECT_EQ(options->seed, 5U);
    EXPECT_EQ(options->sampling.temperature, 0.25);
    EXPECT_EQ(options->stop, settings.stop);
    EXPECT_EQ(options->stop_loops, 64);
    EXPECT_EQ(options->reasoning, (engine::Reasoning{.end = "</think>", .max_tokens = 9}));
    EXPECT_EQ(options->sampling.output.presence, 1.5);
    EXPECT_EQ(options->sampling.output.frequency, -0.25);
    EXPECT_EQ(options->sampling.dry.multiplier, 0.5);
    EXPECT_EQ(options->sampling.dry.base, 2);
    EXPECT_EQ(options->sampling.dry.allowed_length, 3);
    EXPECT_EQ(options->sampling.dry.window, 99);
    EXPECT_EQ(options->dry_breakers, default_dry_breakers);
    settings.dry_breakers = {"END"};
    EXPECT_EQ(generation_options(settings, config_of(100))->dry_breakers, std::vector<std::string>{"END"});
    EXPECT_EQ(options->logprobs, 4);
    EXPECT_EQ(options->eos_ids, (std::vector<std::int32_t>{2, 7}));
    settings.ignore_eos = true;
    EXPECT_TRUE(generation_options(settings, config_of(100))->eos_ids.empty());
}

// Ranks that share a KV head would rank its positions by different query heads: another split, another text.
TEST(ReplicaOptions, RankedPositionsNeedAKvHeadPerRankWhereDraftsDecideTheText) {
    Settings settings;
    settings.draft = "self";
    settings.draft_tree = "4";
    settings.partial_cache_mode = "dynamic";
    settings.tensor_parallel = 4;
    engine::ModelConfig config = config_of(100);
    config.num_kv_heads = 2;
    EXPECT_NO_THROW(replica_options(settings, config)) << "coupled: drafts do not matter";
    settings.verify = "recursive";
    EXPECT_THROW(replica_options(settings, config), UsageError);
    settings.tensor_parallel = 2;
    EXPECT_NO_THROW(replica_options(settings, config));
    settings.tensor_parallel = 4;
    settings.partial_cache_mode = "window";
    EXPECT_NO_THROW(replica_options(settings, config));
}

// Also with coupled drafts: the state of linear attention cannot go back to an earlier position.
TEST(ReplicaOptions, LinearAttentionHasNoPositionsToRank) {
    Settings settings;
    settings.draft = "self";
    settings.partial_cache_mode = "dynamic";
    engine::ModelConfig config = config_of(100);
    config.linear = {.num_key_heads = 2, .num_value_heads = 4, .key_dim = 16, .value_dim = 16, .taps = 4};
    EXPECT_THROW(replica_options(settings, config), UsageError);
    settings.partial_cache_mode = "window";
    EXPECT_NO_THROW(replica_options(settings, config));
}

// The tokens of a recording made under a sampling rule depend on the numbers by which `recursive` accepts them.
TEST(ReplicaOptions, OnlyCoupledRecordingsAreReplayedUnderASamplingRule) {
    const TemporaryFolder folder;
    const std::filesystem::path run = folder.path() / "run";
    std::filesystem::create_directories(run / "launches");
    std::ofstream(run / "identity.json") << "{}";
    Settings settings;
    settings.draft = "replay";
    settings.draft_tree = "4";
    settings.replay_run = run;
    const auto message = [&](const char* recorded, const char* verify) {
        std::ofstream(run / "job.cfg") << "a-key-of-another-version = 1\n" << recorded;
        settings.verify = verify;
        try {
            replica_options(settings, config_of(100));
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    EXPECT_EQ(message("verify = coupled\n", "recursive"), "");
    EXPECT_EQ(message("", "recursive"), "") << "coupled is the default";
    EXPECT_EQ(message("verify = k-seq\n", "coupled"), "");
    EXPECT_EQ(
        message("verify = k-seq\n", "recursive"),
        "replay-run: expected a run with verify = coupled, got " + run.string() +
            " with verify = k-seq; its tokens depend on random numbers that verify = recursive draws again, which "
            "would bias the text (verify = coupled replays any run)");
}

TEST(ReplicaOptions, WindowsFitTheModel) {
    Settings settings;
    EXPECT_FALSE(replica_options(settings, config_of(100)).scoring.has_value());
    EXPECT_EQ(max_item_positions(settings, config_of(100)), 100);
    settings.mode = Mode::perplexity;
    const auto windows = replica_options(settings, config_of(100)).scoring;
    ASSERT_TRUE(windows.has_value());
    EXPECT_EQ(windows->window, 100);
    EXPECT_EQ(windows->stride, 50);
    EXPECT_GT(max_item_positions(settings, config_of(100)), 1'000'000'000'000) << "a document may be of any length";
    settings.window = 64;
    settings.stride = 5;
    EXPECT_EQ(replica_options(settings, config_of(100)).scoring->window, 64);
    EXPECT_EQ(replica_options(settings, config_of(100)).scoring->stride, 5);
    const auto message = [&] {
        try {
            replica_options(settings, config_of(100));
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string();
    };
    settings.window = 101;
    EXPECT_EQ(message(),
              "job: window: expected at most 100 tokens, got 101; the model's context is the longest window");
    settings.window = 0;
    settings.stride = 101;
    EXPECT_EQ(message(),
              "job: stride: expected at most 100 tokens, got 101; the model's context is the longest window");
    settings.stride = 100;
    EXPECT_EQ(message(), "");
    settings.hidden_states = "states";
    EXPECT_EQ(
        message(),
        "job: stride: expected less than the window's 100 tokens with hidden-states, got 100; the states of windows "
        "that do not overlap have gaps");
    settings.stride = 99;
    EXPECT_TRUE(replica_options(settings, config_of(100)).keeps_states);
}

}  // namespace
}  // namespace longhaul::runner
