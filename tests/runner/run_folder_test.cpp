// The job that a run folder belongs to: refused resumes, extensions, finished runs.
#include "runner/run/run_folder.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/error.hpp"
#include "kernels/numerics.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

struct RunFolderTest : testing::Test {
    TemporaryFolder temporary;
    RunFolder folder{temporary.path() / "run"};
    Settings settings;
    Fingerprints fingerprints{{"data", "d1"}, {"model", "m1"}, {"tokenizer", "t1"}};

    void SetUp() override {
        settings.task = "prompts";
        settings.draft = "ngram";
        settings.limit = 10;
        settings.samples = 2;
        settings.max_tokens = 100;
        settings.device = "cpu";
        settings.kv_precision = "bf16";
        settings.model = temporary.path() / "model";
        fs::create_directory(settings.model);
        folder.create();
        write_identity(folder, settings, fingerprints);
    }

    [[nodiscard]] std::string refusal(const Settings& other, const Fingerprints& prints) const {
        try {
            check_identity(folder, other, prints);
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    }
};

TEST_F(RunFolderTest, FoldersOfOthersAreRefused) {
    const RunFolder foreign{temporary.path() / "thesis"};
    fs::create_directories(foreign.root / "launches");
    std::ofstream(foreign.root / "thesis.tex") << "precious";
    EXPECT_THROW(foreign.create(), UsageError);
    EXPECT_THROW(foreign.must_exist(), UsageError);
    EXPECT_FALSE(fs::exists(foreign.root / "results"));
}

TEST_F(RunFolderTest, WhatALaunchLeftThatDiedEarlyIsWelcome) {
    const RunFolder begun{temporary.path() / "begun"};
    fs::create_directories(begun.root / "launches");
    fs::create_directories(begun.results());
    begun.create();
    EXPECT_TRUE(fs::is_directory(begun.checkpoints()));
    fs::remove_all(folder.root / "launches");
    folder.create();
    EXPECT_TRUE(fs::is_directory(folder.root / "launches")) << "identity.json says that it is a run";
}

TEST_F(RunFolderTest, SameJobIsWelcome) {
    EXPECT_EQ(refusal(settings, fingerprints), "");
    EXPECT_EQ(refusal(settings, {{"data", "d1"}}), "") << "what is not known yet is not compared";
}

TEST_F(RunFolderTest, ExecutionKeysAreFree) {
    Settings other = settings;
    other.batch = 17;
    other.tensor_parallel = 8;
    other.draft = "ar";
    other.checkpoint_tokens = 5;
    other.shard = {.index = 1, .count = 3};
    EXPECT_EQ(refusal(other, fingerprints), "");
}

TEST_F(RunFolderTest, OtherIdentityNamesKeyAndBothValues) {
    Settings other = settings;
    other.seed = 77;
    const std::string line = refusal(other, fingerprints);
    EXPECT_NE(line.find("seed"), std::string::npos) << line;
    EXPECT_NE(line.find("expected 1 "), std::string::npos) << line;
    EXPECT_NE(line.find("got 77"), std::string::npos) << line;
    const std::string model = refusal(settings, {{"data", "d1"}, {"model", "m2"}, {"tokenizer", "t1"}});
    EXPECT_NE(model.find("model"), std::string::npos) << model;
    EXPECT_NE(model.find("m1"), std::string::npos) << model;
    EXPECT_NE(model.find("m2"), std::string::npos) << model;
}

TEST_F(RunFolderTest, ExtensionsGoUpOnly) {
    const auto with = [&](auto change) {
        Settings other = settings;
        change(other);
        return refusal(other, fingerprints);
    };
    EXPECT_EQ(with([](Settings& s) { s.limit = 11; }), "");
    EXPECT_EQ(with([](Settings& s) { s.limit = 0; }), "") << "all";
    EXPECT_EQ(with([](Settings& s) { s.samples = 3; }), "");
    EXPECT_EQ(with([](Settings& s) { s.max_tokens = 101; }), "");
    EXPECT_NE(with([](Settings& s) { s.limit = 9; }), "");
    EXPECT_NE(with([](Settings& s) { s.samples = 1; }), "");
    EXPECT_NE(with([](Settings& s) { s.max_tokens = 99; }), "");
}

TEST_F(RunFolderTest, TheLimitOfTheNewestLaunchIsRecorded) {
    EXPECT_EQ(recorded_max_tokens(folder), 100);
    EXPECT_EQ(recorded_max_tokens(RunFolder{temporary.path() / "none"}), std::nullopt);
    for (const char* damage : {"", "{", "[]", "{}", R"({"extensions":7})", R"({"extensions":{"max-tokens":"x"}})"}) {
        std::ofstream(folder.root / "identity.json") << damage;
        EXPECT_EQ(recorded_max_tokens(folder), std::nullopt) << damage;
    }
}

TEST_F(RunFolderTest, FinishedCountsWhileNothingMoreIsAsked) {
    std::ofstream(folder.root / "results.jsonl") << "";
    EXPECT_FALSE(read_finished(folder, settings).has_value());
    write_finished(folder, settings, {.items = 20, .failed = 1, .baseline = false});
    ASSERT_TRUE(read_finished(folder, settings).has_value());
    EXPECT_EQ(read_finished(folder, settings)->failed, 1);

    Settings more = settings;
    more.max_tokens = 200;
    EXPECT_FALSE(read_finished(folder, more).has_value());
    more = settings;
    more.retry_failed = true;
    EXPECT_FALSE(read_finished(folder, more).has_value());
    more = settings;
    more.baseline = true;
    EXPECT_FALSE(read_finished(folder, more).has_value());

    std::ofstream(settings.model / "config.json") << "{}";  // the model folder changed, so it must be checked again
    EXPECT_FALSE(read_finished(folder, settings).has_value());
}

TEST_F(RunFolderTest, FoldersOfOthersAreLeftAlone) {
    const RunFolder other{temporary.path() / "documents"};
    fs::create_directory(other.root);
    EXPECT_NO_THROW(other.create()) << "empty";
    const RunFolder precious{temporary.path() / "precious"};
    fs::create_directory(precious.root);
    std::ofstream(precious.root / "thesis.tex") << "x";
    EXPECT_THROW(precious.create(), UsageError);
    std::ofstream(temporary.path() / "file") << "x";
    EXPECT_THROW(RunFolder{temporary.path() / "file"}.create(), UsageError);
    EXPECT_THROW(RunFolder{temporary.path() / "nowhere"}.must_exist(), UsageError);
}

// If drafts decide the text, other heads at the same path make another job.
TEST_F(RunFolderTest, OtherHeadsAreAnotherJobUnderASamplingRule) {
    std::ofstream(folder.root / "results.jsonl") << "";
    const std::filesystem::path heads = temporary.path() / "heads";
    std::filesystem::create_directory(heads);
    std::ofstream(heads / "config.json") << "{}";
    settings.draft = "medusa";
    settings.draft_model = {heads};
    for (const char* rule : {"coupled", "recursive"}) {
        settings.verify = rule;
        write_finished(folder, settings, {.items = 20, .failed = 0, .baseline = false});
        EXPECT_TRUE(read_finished(folder, settings).has_value()) << rule;
        std::ofstream(heads / "config.json") << std::string(rule);
        EXPECT_EQ(read_finished(folder, settings).has_value(), settings.is_coupled()) << rule;
    }
}

TEST_F(RunFolderTest, ChangedDataIsRefused) {
    Fingerprints now = fingerprints;
    now["data"] = "0123";
    EXPECT_EQ(refusal(settings, now), folder.root.string() + ": data: expected contents with fingerprint " +
                                          fingerprints.at("data") +
                                          " (this run was started with it), got changed contents, 0123; restore them, "
                                          "or take another output");
}

// Earlier versions did not store the tree of a job that named none.
TEST_F(RunFolderTest, AnIdentityWithoutATreeHasTheMethodsOwn) {
    settings.draft = "sd";
    settings.verify = "rejection";
    settings.draft_tree = "";
    write_identity(folder, settings, fingerprints);
    Settings now = settings;
    now.draft_tree = "4";
    EXPECT_EQ(refusal(now, fingerprints), "");
    EXPECT_EQ(identity_hash(now, fingerprints), identity_hash(settings, fingerprints)) << "its checkpoints count";
    now.draft_tree = "5";
    EXPECT_NE(refusal(now, fingerprints).find("draft-tree: expected 4 (this run was started with it), got 5"),
              std::string::npos)
        << refusal(now, fingerprints);
    write_identity(folder, now, fingerprints);
    EXPECT_EQ(refusal(now, fingerprints), "");
}

// The names of checkpoints' jobs, as earlier versions wrote them.
TEST_F(RunFolderTest, CheckpointsOfEarlierVersionsCount) {
    settings.draft = "rsd-s";
    settings.verify = "recursive";
    settings.draft_tree = "3x4";
    EXPECT_EQ(identity_hash(settings, {{"data", "d1"}, {"model", "m1"}}), "912e6d4f4f690443");
    settings.partial_cache_mode = "full";
    EXPECT_EQ(identity_hash(settings, {{"data", "d1"}, {"model", "m1"}}), "912e6d4f4f690443")
        << "not a key of this method";
}

// Another kind of device gives another text, unless it computes like a CPU. If allowed, the change is recorded, and
// existing checkpoints stay valid.
TEST_F(RunFolderTest, AnotherKindOfDeviceIsRefusedOrRecorded) {
    EXPECT_EQ(device_kinds(folder), std::vector<std::string>{"cpu"});
    Settings now = settings;
    now.device = "cuda";
    now.kernels = "cuda-exact";
    EXPECT_EQ(refusal(now, fingerprints), "");
    write_identity(folder, now, fingerprints);
    EXPECT_EQ(device_kinds(folder), std::vector<std::string>{"cpu"});
    now.kernels = "auto";
    EXPECT_EQ(refusal(now, fingerprints),
              folder.root.string() +
                  ": device: expected cpu (this run was started with it), got cuda; their texts differ: device = cpu, "
                  "or kernels = cuda-exact on a GPU, resumes what a CPU began, --allow-device-change "
                  "resumes anyway");
    now.allow_device_change = true;
    EXPECT_EQ(refusal(now, fingerprints), "");
    EXPECT_EQ(identity_hash(now, fingerprints), identity_hash(settings, fingerprints));
    write_identity(folder, now, fingerprints);
    write_identity(folder, now, fingerprints);
    EXPECT_EQ(device_kinds(folder), (std::vector<std::string>{"cpu", "cuda"}));
    now.allow_device_change = false;
    EXPECT_EQ(refusal(now, fingerprints), "") << "it is a run of this kind now";
    EXPECT_NE(refusal(settings, fingerprints), "");
}

TEST_F(RunFolderTest, ARunInBlocksIsResumedInBlocks) {
    Settings in_blocks = settings;
    in_blocks.kernels = "amx-bf16";
    const std::string kind = "cpu amx-bf16, tile numerics " + std::to_string(kernels::tile_numerics_version);
    EXPECT_EQ(refusal(in_blocks, fingerprints),
              folder.root.string() + ": device: expected cpu (this run was started with it), got " + kind +
                  "; their texts differ: leave out kernels = amx-bf16, --allow-device-change resumes anyway");
    in_blocks.allow_device_change = true;
    write_identity(folder, in_blocks, fingerprints);
    EXPECT_EQ(refusal(settings, fingerprints),
              folder.root.string() + ": device: expected " + kind +
                  " (this run was started with it), got cpu; their texts differ: kernels = amx-bf16 resumes it on any "
                  "processor with AVX2, --allow-device-change resumes anyway");
    in_blocks.allow_device_change = false;
    EXPECT_EQ(refusal(in_blocks, fingerprints), "");
}

TEST_F(RunFolderTest, DamagedIdentityIsAnError) {
    std::ofstream(folder.root / "identity.json") << "[1]";
    EXPECT_THROW(check_identity(folder, settings, fingerprints), InputError);
    std::ofstream(folder.root / "identity.json") << "{\"keys\": 3}";
    EXPECT_THROW(check_identity(folder, settings, fingerprints), InputError);
}

// Without its identity a folder with results would take any job, and mix two texts.
TEST_F(RunFolderTest, LostIdentityIsAnErrorOnceThereIsWork) {
    const fs::path file = folder.root / "identity.json";
    const auto lines = [&] {
        std::string all;
        try {
            check_identity(folder, settings, fingerprints);
        } catch (const InputError& error) {
            all = error.what();
        }
        return all;
    };
    for (const fs::path& work : {folder.results() / "0-1.jsonl", folder.checkpoints() / "0-1-1.h5"}) {
        fs::remove(file);
        EXPECT_EQ(lines(), "") << "a launch that died while it loaded its model";
        std::ofstream(work) << "x";
        const std::string lost = file.string() +
                                 ": expected the identity of a run, got nothing; restore it from a copy, or keep the "
                                 "results and take another output";
        EXPECT_EQ(lines(), lost);
        std::ofstream{file};
        EXPECT_EQ(lines(), lost) << "empty";
        fs::remove(work);
    }
    fs::remove(file);
    fs::create_symlink(file, file);
    EXPECT_NE(lines().find("Too many levels of symbolic links"), std::string::npos) << "unreadable is not absent";
}

// A launch that asks for more writes identity.json before job.cfg, and may die between the two.
TEST_F(RunFolderTest, WhatAsksForMoreIsNotFinished) {
    settings.data = temporary.path() / "p.jsonl";
    settings.output = folder.root;
    std::ofstream(folder.root / "results.jsonl") << "";
    std::ofstream(folder.root / "job.cfg") << format_settings(settings);
    write_finished(folder, settings, {.items = 20, .failed = 0, .baseline = false});
    ASSERT_TRUE(read_last_finish(folder).has_value());
    settings.max_tokens = 200;
    write_identity(folder, settings, fingerprints);
    EXPECT_FALSE(read_last_finish(folder).has_value());
    std::ofstream{folder.root / "job.cfg"};
    EXPECT_THROW(static_cast<void>(folder.settings()), InputError);
}

TEST_F(RunFolderTest, HashTellsJobsApartButNotExecution) {
    Settings other = settings;
    other.batch = 9;
    other.max_tokens = 1000;
    EXPECT_EQ(identity_hash(settings, fingerprints), identity_hash(other, fingerprints));
    other.seed = 3;
    EXPECT_NE(identity_hash(settings, fingerprints), identity_hash(other, fingerprints));
}

}  // namespace
}  // namespace longhaul::runner
