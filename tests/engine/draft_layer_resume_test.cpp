// Resumed drafts of a layer (EAGLE, Lyanna) in a whole replica: its keys and values come from checkpoints, so a few
// tokens are read again, and the whole text only where they are missing or damaged. The text stays the same.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <functional>

#include "tests/engine/draft_layer_harness.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
namespace fs = std::filesystem;

constexpr const char* chain_layer_config = R"(, "draft_layer": "lyanna", "token_info_rank": 4})";

/// Interrupted runs of three items in a checkpoint folder of their own.
class DraftLayerResume : public ::testing::TestWithParam<const char*> {
  protected:
    ~DraftLayerResume() override { fs::remove_all(folder); }

    [[nodiscard]] Job job_of(VerifyRule verify) const {
        Job job = layer_job(GetParam(), verify, *layer);
        job.items = 3;
        job.generation.max_tokens = 300;
        return job;
    }

    /// The first launch, which stops in the middle of all items.
    void interrupt(Job job) {
        fs::remove_all(folder);
        prepare(job, 1);
        job.stop_after = 300;
        ASSERT_TRUE(launch(job).items.empty());
    }
    [[nodiscard]] JobResult resume(Job job, int epoch = 2) const {
        prepare(job, epoch);
        return launch(job);
    }
    void prepare(Job& job, int epoch) const {
        job.options.checkpoint.folder = folder;
        job.options.checkpoint.epoch = epoch;
        job.options.checkpoint.every_tokens = 64;
    }

    [[nodiscard]] std::vector<fs::path> draft_files() const {
        std::vector<fs::path> files;
        for (const auto& entry : fs::directory_iterator(folder)) {
            if (entry.path().string().find(".draft.h5") != std::string::npos) files.push_back(entry.path());
        }
        return files;
    }

    const bool chains = std::string(GetParam()) == "lyanna";
    const std::unique_ptr<TensorsFolder> layer =
        chains ? std::make_unique<TensorsFolder>(with_token_info(layer_tensors()), config_with("}", chain_layer_config))
               : std::make_unique<TensorsFolder>(layer_tensors(), layer_config);
    const fs::path folder = fs::temp_directory_path() / ("draft_layer_resume_test." + std::to_string(getpid()));
};

/// Tokens that a resume reads again: those of pairs that were pending, and under `recursive` those of the last chain.
constexpr std::int64_t max_read_again = 12;

TEST_P(DraftLayerResume, ReadsAFewTokensAgain) {
    for (const VerifyRule::Value rule : {VerifyRule::recursive, VerifyRule::coupled}) {
        const Job job = job_of(rule);
        const auto texts = tokens_of(launch(job).items);
        interrupt(job);
        EXPECT_FALSE(draft_files().empty());
        Job last = job;
        last.results_durable = true;
        const JobResult result = resume(last);
        EXPECT_EQ(tokens_of(result.items), texts);
        EXPECT_TRUE(result.damage.empty()) << result.damage.front();
        EXPECT_EQ(result.sum.resumes, 3);
        EXPECT_GE(result.sum.recomputed_rows, 3);
        EXPECT_LE(result.sum.recomputed_rows, 3 * max_read_again);
        for (const fs::path& file : draft_files()) EXPECT_EQ(file.filename().string().rfind("0-1-", 0), 0U) << file;
    }
}

TEST_P(DraftLayerResume, OnOtherRanks) {
    for (const VerifyRule::Value rule : {VerifyRule::recursive, VerifyRule::coupled}) {
        Job job = job_of(rule);
        const auto texts = tokens_of(launch(job).items);
        constexpr auto sharded = DraftLayer::Parallel::sharded, replicated = DraftLayer::Parallel::replicated;
        struct Launch {
            int ranks;
            DraftLayer::Parallel parallel = sharded;
        };
        for (const auto& [before, after] : {std::pair<Launch, Launch>{{2}, {1}},
                                            {{1}, {4}},
                                            {{8}, {2}},
                                            {{4, replicated}, {2}},
                                            {{2}, {4, replicated}}}) {
            job.ranks = before.ranks;
            job.layer_parallel = before.parallel;
            interrupt(job);
            job.ranks = after.ranks;
            job.layer_parallel = after.parallel;
            const JobResult result = resume(job);
            EXPECT_EQ(tokens_of(result.items), texts) << before.ranks << " ranks, then " << after.ranks;
            EXPECT_LE(result.sum.recomputed_rows, 3 * max_read_again);
        }
    }
}

// Damage of each kind in the layer's files, of all rounds or one. Under `recursive` the whole text is then read again,
// under `coupled` at most 128 tokens of it.
TEST_P(DraftLayerResume, DamagedKeysAndValuesCostTime) {
    const std::function<void(const fs::path&)> damages[] = {
        [](const fs::path& file) { fs::remove(file); },
        [](const fs::path& file) { fs::resize_file(file, fs::file_size(file) / 2); },
        [](const fs::path& file) {
            std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(fs::file_size(file) / 2)
                << "damage";
        }};
    for (const VerifyRule::Value rule : {VerifyRule::recursive, VerifyRule::coupled}) {
        const Job job = job_of(rule);
        const auto texts = tokens_of(launch(job).items);
        for (const auto& damage : damages) {
            for (const bool all : {true, false}) {
                if (!all && &damage != &damages[0]) continue;
                interrupt(job);
                std::vector<fs::path> files = draft_files();
                std::sort(files.begin(), files.end());
                if (!all) files.resize(1);
                for (const fs::path& file : files) damage(file);
                const JobResult result = resume(job);
                EXPECT_EQ(tokens_of(result.items), texts);
                EXPECT_FALSE(result.damage.empty());
                for (const std::string& line : result.damage) EXPECT_NE(line.find(".draft.h5: "), std::string::npos);
                if (rule == VerifyRule::recursive) {
                    EXPECT_GT(result.sum.recomputed_rows, 100);
                } else {
                    EXPECT_LE(result.sum.recomputed_rows, all ? 3 * 128 : 3 * max_read_again);
                }
            }
        }
    }
}

// The target's own keys and values may be shorter than the layer's.
TEST_P(DraftLayerResume, DamagedKeysAndValuesOfTheTarget) {
    Job job = job_of(VerifyRule::recursive);
    const auto texts = tokens_of(launch(job).items);
    job.step = std::chrono::milliseconds(1);
    interrupt(job);
    job.step = std::chrono::milliseconds(0);
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.ends_with(".0.h5")) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end(), [](const fs::path& a, const fs::path& b) {
        return std::pair(a.string().size(), a.string()) < std::pair(b.string().size(), b.string());
    });
    ASSERT_GT(files.size(), 1U);
    fs::remove(files.back());
    const JobResult result = resume(job);
    EXPECT_EQ(tokens_of(result.items), texts);
    ASSERT_FALSE(result.damage.empty());
    EXPECT_EQ(result.damage.front().find(".draft.h5"), std::string::npos) << result.damage.front();
    EXPECT_LT(result.sum.recomputed_rows, 300) << "not the whole text";
}

// Under `coupled` a resume may draft with something else; what the layer has stored is then of no use, nor in the way.
TEST_P(DraftLayerResume, WithAnotherMethodBetween) {
    const Job job = job_of(VerifyRule::coupled);
    const auto texts = tokens_of(launch(job).items);
    interrupt(job);
    Job other = job;
    other.options.draft.method = "ngram";
    other.stop_after = 150;
    EXPECT_LT(resume(other).items.size(), 3U);
    const JobResult result = resume(job, 3);
    EXPECT_TRUE(result.damage.empty());
    for (const auto& [item, done] : result.items) EXPECT_EQ(done.tokens, texts.at(item));
    const TensorsFolder unlike(with_token_info(layer_tensors(), {1, 2, 3}), config_with("}", chain_layer_config));
    interrupt(job);
    Job fresh = layer_job("lyanna", VerifyRule::coupled, unlike);
    fresh.items = job.items;
    fresh.generation = job.generation;
    const JobResult anew = resume(fresh);
    EXPECT_EQ(tokens_of(anew.items), texts);
    EXPECT_TRUE(anew.damage.empty());
}

INSTANTIATE_TEST_SUITE_P(Methods, DraftLayerResume, ::testing::Values("eagle", "lyanna"),
                         [](const auto& method) { return std::string(method.param); });

}  // namespace
}  // namespace longhaul::engine
