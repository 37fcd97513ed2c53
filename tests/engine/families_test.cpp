// Whole replicas over tiny models of every family: the greedy text of Hugging Face transformers, with drafts, in
// batches, split over ranks, and interrupted. Some texts cross a sliding window, longrope's original length, or
// positions where queries begin to grow.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/folder_check.hpp"
#include "engine/json.hpp"
#include "engine/model/split.hpp"
#include "tests/engine/model_harness.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using testing::Job;

struct FamilyGolden {
    std::vector<std::int32_t> prompt, text;
};

FamilyGolden golden_of(const std::string& name) {
    const Json json = read_json(std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / name / "golden.json");
    FamilyGolden golden;
    golden.prompt = json["tokens"].get<std::vector<std::int32_t>>();
    golden.prompt.resize(json["prompt"].get<std::size_t>());
    golden.text = json["greedy"].get<std::vector<std::int32_t>>();
    return golden;
}

class Families : public ::testing::TestWithParam<const char*> {
  protected:
    /// Item 0 is the golden's; another one beside it has a shorter prompt.
    [[nodiscard]] Job job() const {
        Job job{testing::base_options()};
        job.model = std::filesystem::path(LONGHAUL_TEST_DATA "/parity") / GetParam();
        job.precision = Precision::fp32;
        job.generation.max_tokens = std::ssize(golden_.text);
        job.generation.sampling = {};
        job.generation.sampling.temperature = 0;
        job.items = 2;
        job.prompts[0] = golden_.prompt;
        job.prompts[1] = {golden_.prompt.begin(), golden_.prompt.begin() + 7};
        job.options.draft.method = "ar";
        return job;
    }
    void expect_golden(const Job& job) const {
        const testing::JobResult result = testing::launch(job);
        EXPECT_EQ(result.items.at(0).tokens, golden_.text);
    }

    const FamilyGolden golden_ = golden_of(GetParam());
};

TEST_P(Families, ContinueAsTransformersDoes) {
    Job plain = job();
    expect_golden(plain);
    for (const int ranks : {2, 4, 8}) {
        if (!Split::obstacle(ModelConfig::load(plain.model), ranks).empty()) continue;
        plain.ranks = ranks;
        expect_golden(plain);
    }
}

TEST_P(Families, DraftsDoNotChangeTheText) {
    Job drafted = job();
    drafted.options.draft.method = "ngram";
    drafted.options.draft.tree = "3x4:8";
    expect_golden(drafted);
    drafted.options.draft.method = "rsd-s";
    drafted.options.draft.tree = "3x4";
    drafted.draft_models = {drafted.model};
    expect_golden(drafted);
    drafted.ranks = 2;
    expect_golden(drafted);
}

/// Not a bit of them, although trees of accepted drafts end where keys change (longrope) and windows begin.
TEST_P(Families, DraftsDoNotChangeLogprobs) {
    Job plain = job();
    plain.generation.logprobs = 3;
    const testing::JobResult expected = testing::launch(plain);
    Job drafted = plain;
    drafted.options.draft.method = "rsd-s";
    drafted.options.draft.tree = "1x7";
    drafted.draft_models = {drafted.model};
    const testing::JobResult result = testing::launch(drafted);
    for (const std::int64_t item : {0, 1}) {
        EXPECT_EQ(result.items.at(item).tokens, expected.items.at(item).tokens);
        EXPECT_EQ(result.items.at(item).logprobs, expected.items.at(item).logprobs);
    }
}

/// Draft passes read a selection of the positions, in every way of selecting.
TEST_P(Families, SelfDraftsDoNotChangeTheText) {
    Job drafted = job();
    drafted.options.draft.method = "self";
    drafted.options.draft.tree = "4";
    drafted.copy = Precision::int8;
    for (const PartialMode::Value mode : {PartialMode::window, PartialMode::dynamic}) {
        drafted.options.draft.partial_cache = {.mode = mode, .max_positions = 1};
        expect_golden(drafted);
    }
}

TEST_P(Families, SamplingRulesGiveOneText) {
    Job drafted = job();
    drafted.generation = testing::base_generation();
    drafted.generation.max_tokens = 120;
    drafted.options.verify = VerifyRule::recursive;
    drafted.options.draft.method = "rsd-s";
    drafted.options.draft.tree = "2x3";
    drafted.draft_models = {drafted.model};
    testing::expect_one_text(drafted);
}

/// Stops of any kind: resumed on another number of ranks, with keys and values stored or not, and preempted in between.
TEST_P(Families, InterruptionsDoNotChangeTheText) {
    const auto folder = std::filesystem::temp_directory_path() / ("families_test." + std::to_string(::getpid()));
    Job one = job(), two = job();
    one.options.draft.method = "ngram";
    two.ranks = 2;
    for (const bool store_kv : {true, false}) {
        std::filesystem::remove_all(folder);
        one.options.checkpoint.store_kv = two.options.checkpoint.store_kv = store_kv;
        const testing::JobResult result = testing::launch_in_parts({one, two}, folder, 61);
        EXPECT_EQ(result.items.at(0).tokens, golden_.text);
        EXPECT_GT(result.sum.resumes, 2);
    }
    std::filesystem::remove_all(folder);
}

/// Groups of layers differ in how many ranks share a head, and so in which ranks write it to checkpoints.
class TwoKindsOfHeads : public Families {};

TEST_P(TwoKindsOfHeads, AreResumedOnAnyNumberOfRanks) {
    const auto folder = std::filesystem::temp_directory_path() / ("two_kinds_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    std::vector<Job> jobs(4, job());
    for (std::size_t i = 0; i < jobs.size(); ++i) jobs[i].ranks = std::array{8, 1, 4, 2}[i];
    const testing::JobResult result = testing::launch_in_parts(jobs, folder, 67);
    EXPECT_EQ(result.items.at(0).tokens, golden_.text);
    EXPECT_GT(result.sum.resumes, 4);
    EXPECT_EQ(result.sum.recomputed_rows, 0) << "all heads were stored";
    std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Models, TwoKindsOfHeads, ::testing::Values("gemma4"),
                         [](const auto& info) { return std::string(info.param); });

/// A text so long that windows have used their pages again, several times.
class LongTexts : public Families {
  protected:
    [[nodiscard]] Job long_job() const {
        Job long_job = job();
        long_job.generation.max_tokens = 2200;
        long_job.items = 1;
        return long_job;
    }
    /// Whether `text` is greedy, by a model that keeps the keys and values of all positions.
    void expect_greedy(const std::vector<std::int32_t>& text) const {
        std::vector<std::int32_t> tokens = golden_.prompt;
        tokens.insert(tokens.end(), text.begin(), text.end() - 1);
        std::vector<std::int64_t> positions;
        for (std::int64_t p = std::ssize(golden_.prompt) - 1; p < std::ssize(tokens); ++p) positions.push_back(p);
        const auto run = testing::run_model(job().model, Precision::fp32, kernels::available_cpu_variants().back(),
                                            tokens, positions);
        const std::size_t vocab = run.logits().size() / positions.size();
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const auto row = std::span(run.logits()).subspan(i * vocab, vocab);
            ASSERT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), text[i]) << "token " << i;
        }
    }
};

TEST_P(LongTexts, WindowsUseTheirPagesAgain) {
    const auto text = testing::launch(long_job()).items.at(0).tokens;
    ASSERT_EQ(text.size(), 2200U);
    expect_greedy(text);

    Job drafted = long_job();
    drafted.options.draft.method = "ngram";
    drafted.ranks = 2;
    EXPECT_EQ(testing::launch(drafted).items.at(0).tokens, text);

    Job self = long_job();
    self.options.draft.method = "self";
    self.options.draft.tree = "4";
    self.options.draft.partial_cache = {.mode = PartialMode::dynamic, .max_positions = 512};
    EXPECT_EQ(testing::launch(self).items.at(0).tokens, text);
}

/// A long prompt in chunks, and rounds of checkpoints, of which only the windows are stored.
TEST_P(LongTexts, AreResumed) {
    Job part = long_job();
    part.prompts[0] = testing::launch(long_job()).items.at(0).tokens;
    part.generation.max_tokens = 700;
    const auto text = testing::launch(part).items.at(0).tokens;
    const auto folder = std::filesystem::temp_directory_path() / ("long_texts_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    const testing::JobResult resumed = testing::launch_in_parts({part}, folder, 230);
    EXPECT_EQ(resumed.items.at(0).tokens, text);
    EXPECT_GE(resumed.sum.resumes, 2);
    EXPECT_EQ(resumed.sum.recomputed_rows, 0) << "all keys and values that the text needs were stored";
    std::filesystem::remove_all(folder);
}

/// Each round stores the states anew: those of older rounds go.
TEST(StatesOfLinearAttention, AreKeptOfTheLastRoundsAlone) {
    const auto folder = std::filesystem::temp_directory_path() / ("states_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    const auto files = [&](std::string_view ending) {
        return std::count_if(std::filesystem::directory_iterator(folder), std::filesystem::directory_iterator{},
                             [&](const auto& entry) { return entry.path().filename().string().ends_with(ending); });
    };
    Job job{testing::base_options()};
    job.model = LONGHAUL_TEST_DATA "/parity/qwen3.5";
    job.precision = Precision::fp32;
    job.ranks = 2;
    job.items = 1;
    job.prompts[0] = golden_of("qwen3.5").prompt;
    job.generation.max_tokens = 7000;
    job.options.draft.method = "ar";
    job.options.checkpoint.folder = folder;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_seconds = 0;            // all rounds store states
    job.stop_when = [&] { return files(".0.h5") > 4; };  // a slow disk writes few rounds
    job.step = std::chrono::milliseconds(1);
    testing::launch(job);
    EXPECT_GT(files(".0.h5"), 4);
    EXPECT_EQ(files(".state.h5"), 2 * CheckpointIdentity::States::kept_rounds) << "of each of two ranks";
    EXPECT_EQ(check_checkpoints(folder, 1, {}).damage, std::vector<std::string>{});
    std::filesystem::remove_all(folder);
}

/// A state is as large as many positions, so not every round stores it; but the one that ends a launch does.
TEST(StatesOfLinearAttention, AreStoredWhereTheyAreWorthTheirSize) {
    const auto folder = std::filesystem::temp_directory_path() / ("states_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    std::filesystem::create_directories(folder);
    Job job{testing::base_options()};
    job.model = LONGHAUL_TEST_DATA "/parity/qwen3.5";
    job.precision = Precision::fp32;
    job.items = 2;
    job.prompts[0] = job.prompts[1] = golden_of("qwen3.5").prompt;
    job.generation.max_tokens = 500;
    job.options.draft.method = "ngram";
    const auto texts = testing::plain_texts(job);
    job.options.batch = 2;
    job.options.checkpoint.folder = folder;
    job.options.checkpoint.epoch = 1;
    job.options.checkpoint.every_tokens = 16;
    job.options.checkpoint.every_seconds = 1e9;
    job.stop_after = 700;
    job.step = std::chrono::milliseconds(1);
    testing::launch(job);
    std::int64_t rounds = 0, with_states = 0;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
        const std::string name = entry.path().filename();
        if (name.find('.') != name.rfind('.')) continue;  // not a commit
        ++rounds;
        for (const KvFile& file : read_commit(entry.path()).kv_files) with_states += file.of() == KvFile::Of::states;
    }
    EXPECT_GT(with_states, 1);
    EXPECT_LT(with_states, rounds / 2);
    job.stop_after = -1;
    job.options.checkpoint.epoch = 2;
    const testing::JobResult resumed = testing::launch(job);
    EXPECT_EQ(testing::tokens_of(resumed.items), texts);
    EXPECT_EQ(resumed.sum.resumes, 2);
    EXPECT_EQ(resumed.sum.recomputed_rows, 0);
    std::filesystem::remove_all(folder);
}

/// Drafts that read a selection of the positions decide the text: what ranks them must be there after a resume.
TEST_P(LongTexts, RankedDraftsGiveOneText) {
    Job drafted = job();
    drafted.generation = testing::base_generation();
    drafted.generation.max_tokens = 220;
    drafted.options.verify = VerifyRule::recursive;
    drafted.options.draft.method = "self";
    drafted.options.draft.tree = "4";
    drafted.options.draft.partial_cache = {.mode = PartialMode::dynamic, .max_positions = 300};
    drafted.prompts[0] = testing::launch(long_job()).items.at(0).tokens;
    drafted.prompts[0].resize(1100);
    drafted.prompts[1] = {drafted.prompts[0].begin() + 50, drafted.prompts[0].begin() + 800};
    testing::expect_one_text(drafted);
}

INSTANTIATE_TEST_SUITE_P(Models, LongTexts,
                         ::testing::Values("mistral-window", "gemma2", "gemma3-modern", "gemma4", "gemma4-e2b",
                                           "qwen3.5"),
                         [](const auto& info) {
                             std::string name = info.param;
                             std::erase_if(name, [](char c) { return c == '-' || c == '.'; });
                             return name;
                         });

INSTANTIATE_TEST_SUITE_P(
    Models, Families,
    ::testing::Values("qwen3", "qwen3-window", "mistral-window", "mistral3", "gemma3-modern", "gemma4", "gemma4-moe",
                      "gemma4-e2b", "phi3-short", "qwen3-moe", "mixtral", "gpt-oss", "gpt-oss-mxfp4", "glm4-moe",
                      "smollm3", "ministral3", "seed-oss", "deepseek-v3", "deepseek-v2", "glm4-moe-lite", "granite",
                      "glm4", "olmo2", "olmo3", "minimax-m2", "qwen3.5", "qwen3-next", "qwen3.5-moe", "glm", "exaone4",
                      "exaone-moe", "ernie4.5", "ernie4.5-moe", "granite4", "granite4-h", "granite-moe", "olmoe",
                      "dots1", "solar-open", "hy-v3", "qwen2.5-vl", "qwen3-vl-moe", "nemotron-h", "nemotron3",
                      "nemotron3-latent-modern", "arcee", "afmoe", "youtu", "cohere", "cohere2", "exaone", "cwm",
                      "kimi-k25", "gpt2", "gpt-neox", "phi", "starcoder2", "stablelm", "nemotron", "gemma", "gemma2"),
    [](const auto& info) {
        std::string name = info.param;
        for (const char mark : {'-', '.'}) std::replace(name.begin(), name.end(), mark, '_');
        return name;
    });

}  // namespace
}  // namespace longhaul::engine
