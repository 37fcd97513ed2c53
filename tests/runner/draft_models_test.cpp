// Draft models: where each is held; ranks that see different files fail together; the default trees of a job.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <fstream>
#include <string>
#include <thread>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/model_plan.hpp"
#include "runner/job/vocabulary.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/launch/engine_options.hpp"
#include "tests/engine/thread_group.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

const fs::path draft_folder = LONGHAUL_DEMO_MODEL "/../draft";

Settings drafting(const fs::path& folder) {
    Settings settings;
    settings.draft = "sd";
    settings.draft_model = {folder};
    settings.kv_precision = "bf16";
    settings.tensor_parallel = 2;
    return settings;
}

/// The error that each of two ranks throws, "" if none.
std::array<std::string, 2> load_on_two_ranks(const std::array<Settings, 2>& settings) {
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    auto groups = engine::testing::make_thread_groups(2);
    std::array<std::string, 2> lines;
    const auto load = [&](std::size_t rank) {
        const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
        const auto target = engine::Model::load(LONGHAUL_DEMO_MODEL, engine::Precision::bf16, *device, *groups[rank]);
        DraftModels drafts;
        try {
            drafts.load(settings[rank], *target, *tokenizer, *device, *groups[rank]);
        } catch (const Error& error) {
            lines[rank] = error.what();
        }
    };
    std::thread second(load, 1);
    load(0);
    second.join();
    return lines;
}

// A node-local folder may be missing on some nodes: no rank may wait for the ranks that lack it.
TEST(DraftModels, WhatOneRankLacksAllRanksRefuse) {
    const TemporaryFolder temporary;
    const fs::path config_alone = temporary.path() / "no-weights";
    fs::create_directories(config_alone);
    fs::copy_file(draft_folder / "config.json", config_alone / "config.json");
    for (const fs::path& bad : {temporary.path() / "none", config_alone}) {
        for (const char* place : {"sharded", "replicated"}) {
            std::array<Settings, 2> settings{drafting(draft_folder), drafting(bad)};
            for (Settings& of_rank : settings) of_rank.draft_parallel = place;
            const std::array<std::string, 2> lines = load_on_two_ranks(settings);
            EXPECT_NE(lines[0].find(bad.string()), std::string::npos) << place << ": " << lines[0];
            EXPECT_EQ(lines[1], lines[0]) << place;
        }
    }
}

// Two different models at the same path are detected later; until then both ranks must act alike.
TEST(DraftModels, RanksThatSeeOtherModelsHoldThemAlike) {
    std::array<Settings, 2> settings{drafting(draft_folder), drafting(draft_folder)};
    settings[0].draft_parallel = "sharded";
    EXPECT_EQ(load_on_two_ranks(settings), (std::array<std::string, 2>{}));
}

// Points of a sweep share draft models. A layer that was loaded for one method is checked again for another.
TEST(DraftModels, ALayerIsOfOneMethod) {
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto alone = engine::make_local_group();
    const auto target = engine::Model::load(LONGHAUL_DEMO_MODEL, engine::Precision::bf16, *device, *alone);
    Settings settings = drafting(LONGHAUL_DEMO_MODEL "/../eagle");
    settings.tensor_parallel = 1;
    settings.draft = "eagle";
    DraftModels drafts;
    drafts.load(settings, *target, *tokenizer, *device, *alone);
    settings.draft = "lyanna";
    try {
        drafts.load(settings, *target, *tokenizer, *device, *alone);
        FAIL() << "Lyanna drafts with a layer of EAGLE";
    } catch (const Error& error) {
        EXPECT_NE(std::string(error.what()).find("give a folder that was trained for draft = lyanna"),
                  std::string::npos)
            << error.what();
    }
}

TEST(DraftModels, AutoSharesLargeOnesThatCanBeSplit) {
    engine::ModelConfig opt;  // of the shape of OPT-125M as far as it matters here
    opt.vocab_size = 50272;
    opt.hidden_size = 768;
    opt.intermediate_size = 3072;
    opt.num_layers = 12;
    opt.num_heads = opt.num_kv_heads = 12;
    opt.head_dim = 64;
    ASSERT_GT(engine::num_parameters(opt), 100'000'000);
    Settings settings = drafting("small");
    settings.tensor_parallel = 4;
    EXPECT_TRUE(is_draft_sharded(settings, "small", opt));
    settings.tensor_parallel = 8;
    EXPECT_FALSE(is_draft_sharded(settings, "small", opt)) << "12 heads";
    settings.draft_parallel = "sharded";
    try {
        is_draft_sharded(settings, "small", opt);
        FAIL() << "12 heads over 8 ranks";
    } catch (const UsageError& error) {
        EXPECT_EQ(std::string(error.what()),
                  "draft-parallel: expected auto or replicated with tensor-parallel = 8, got sharded: "
                  "small/config.json: 12 query heads do not divide by it");
    }
    settings.draft_parallel = "auto";
    settings.tensor_parallel = 2;
    EXPECT_FALSE(is_draft_sharded(settings, draft_folder, engine::ModelConfig::load(draft_folder))) << "a small one";
}

// A layer of 17 M parameters with an output head of its own (EAGLE-3) is as large as both together.
TEST(DraftModels, AnOwnHeadCountsInTheSizeOfADraftLayer) {
    const TemporaryFolder folder;
    const std::string tensors =
        R"({"midlayer.self_attn.q_proj.weight": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}})";
    std::ofstream file(folder.path() / "model.safetensors", std::ios::binary);
    const std::uint64_t size = tensors.size();
    file.write(reinterpret_cast<const char*>(&size), sizeof size);
    file << tensors << std::string(4, '\0');
    file.close();
    const auto parallel_of = [&](std::int64_t vocab) {
        const engine::Json json = {
            {"model_type", "llama"},  {"hidden_size", 1024},      {"intermediate_size", 2048},
            {"num_hidden_layers", 1}, {"num_attention_heads", 8}, {"num_key_value_heads", 8},
            {"rms_norm_eps", 1e-5},   {"vocab_size", vocab},      {"max_position_embeddings", 64}};
        std::ofstream(folder.path() / "config.json") << json;
        engine::ModelConfig target = engine::ModelConfig::load(folder.path());
        target.num_layers = 8;
        target.layers.resize(8, target.layers.front());
        Settings settings = drafting(folder.path());
        settings.draft = "eagle";
        return layer_parallel(settings, folder.path(), target);
    };
    EXPECT_EQ(parallel_of(1'000), engine::DraftLayer::Parallel::replicated);
    EXPECT_EQ(parallel_of(100'000), engine::DraftLayer::Parallel::sharded);
}

/// What a replica drafts with.
engine::DraftOptions options_with(const Settings& settings, bool with_copy, DraftModels& drafts, engine::Model& target,
                                  engine::Group& group) {
    const auto tokenizer = engine::Tokenizer::load(LONGHAUL_DEMO_MODEL);
    drafts.load(settings, target, *tokenizer, target.device(), group, with_copy);
    engine::DraftOptions options = draft_of(settings);
    drafts.give_to(options);
    return options;
}

TEST(DraftModels, ACopyThatDoesNotFitLeavesTheDraftModel) {
    const auto device = kernels::make_cpu_device(kernels::available_cpu_variants().back(), 1);
    const auto group = engine::make_local_group();
    const auto target = engine::Model::load(LONGHAUL_DEMO_MODEL, engine::Precision::bf16, *device, *group);
    Settings settings = drafting(draft_folder);
    settings.model = LONGHAUL_DEMO_MODEL;
    settings.packed_weights = "";
    settings.tensor_parallel = 1;
    settings.draft = "self-or-sd";
    settings.draft_tree = "auto";
    settings.draft_precision = "int4";
    engine::ItemStatistics mixed;
    mixed.target_calls = 10;
    mixed.draft_calls = 20;
    mixed.decode_tokens = 30;
    DraftModels drafts;
    const engine::DraftOptions both = options_with(settings, true, drafts, *target, *group);
    EXPECT_EQ(both.method->name, "self-or-sd");
    ASSERT_EQ(both.models.size(), 2U);
    EXPECT_NE(both.models[1], target.get());
    EXPECT_EQ(drafts.notice(), "");
    const DraftCost cost = drafts.cost(target->config(), both);
    const double by_copy = cost.mbsu(mixed);
    mixed.draft_model_calls = 20;
    EXPECT_GT(cost.mbsu(mixed), by_copy) << "the draft model is smaller than the copy";
    const engine::DraftOptions one = options_with(settings, false, drafts, *target, *group);
    EXPECT_EQ(one.method->name, "sd");
    EXPECT_TRUE(one.chooses_tree());
    EXPECT_EQ(one.models.size(), 1U);
    EXPECT_EQ(drafts.notice(),
              "draft: expected memory for the model's copy of draft-precision = int4 and as much for keys and values, "
              "got less; draft = sd runs alone");
    settings.draft_precision = "same";
    EXPECT_EQ(options_with(settings, true, drafts, *target, *group).models.back(), target.get());
    EXPECT_EQ(drafts.notice(), "");
}

// Under the sampling rules the tree decides the text, so the resolved job names it.
TEST(DraftTrees, AMethodsOwnTreeIsNamed) {
    const auto tree_of = [](const std::string& draft, const std::string& verify) {
        std::vector<Assignment> keys{{"draft", draft, "j.cfg:1"}, {"verify", verify, "j.cfg:2"}};
        if (draft != "ngram" && draft != "ar") keys.push_back({"draft-model", "/d", "j.cfg:3"});
        return parse_settings(keys, {}, "/jobs/j.cfg", {}).draft_tree.text();
    };
    EXPECT_EQ(tree_of("sd", "rejection"), "4");
    EXPECT_EQ(tree_of("spectr", "k-seq"), "3x4");
    EXPECT_EQ(tree_of("rsd-c", "recursive"), "2,2,1");
    EXPECT_EQ(tree_of("rsd-s", "coupled"), "3x4");
    EXPECT_EQ(tree_of("self-or-sd", "coupled"), "auto");
    EXPECT_EQ(tree_of("ngram", "coupled"), "auto");
    EXPECT_EQ(tree_of("ngram", "recursive"), "4x8:16") << "measured time must not decide the text";
    EXPECT_EQ(tree_of("ar", "coupled"), "");
    const auto help = std::find_if(vocabulary().begin(), vocabulary().end(),
                                   [](const KeyInfo& key) { return key.key == "draft-tree"; });
    EXPECT_NE(help->help.find("ngram: auto (else 4x8:16); sd: 4; "), std::string::npos) << help->help;
}

}  // namespace
}  // namespace longhaul::runner
