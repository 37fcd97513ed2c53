// Prefix caching: items whose prompts begin alike copy keys and values from each other. Texts and losses are those of
// prompts that are computed as a whole, on any number of ranks, with any drafts, windows, memory and interruptions.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "tests/engine/heads_folder.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using Tokens = std::vector<std::int32_t>;

const std::filesystem::path parity_models = LONGHAUL_TEST_DATA "/parity";

/// `count` tokens that are the same for the same `seed`.
Tokens tokens_like(std::int64_t seed, std::int64_t count) {
    Tokens tokens;
    for (std::int64_t i = 0; i < count; ++i)
        tokens.push_back(static_cast<std::int32_t>((i * i + 7 * seed + i / 5) % 90));
    return tokens;
}

Tokens joined(Tokens first, const Tokens& second) {
    first.insert(first.end(), second.begin(), second.end());
    return first;
}

/// Six items: examples of 70 tokens and a question of another length each, `shortest` or more; items 4 and 5 have the
/// prompt of item 1.
Job few_shot_job(std::int64_t shortest = 5) {
    Job job{base_options()};
    job.items = 6;
    job.options.batch = 6;
    job.options.draft.method = "ar";
    for (std::int64_t item = 0; item < 4; ++item)
        job.prompts[item] = joined(tokens_like(0, 70), tokens_like(item + 1, shortest + 9 * item));
    job.prompts[4] = job.prompts[5] = job.prompts[1];
    return job;
}

std::int64_t num_cached(const JobResult& result) {
    std::int64_t sum = 0;
    for (const auto& [index, item] : result.items) sum += item.statistics.cached_tokens;
    return sum;
}

/// The texts of few_shot_job without drafts and without prefix caching.
const std::map<std::int64_t, Tokens>& few_shot_texts() {
    static const auto texts = [] {
        Job job = few_shot_job();
        job.options.prefix_caching = false;
        return tokens_of(launch(job).items);
    }();
    return texts;
}

/// Of each item the drafted and accepted tokens.
std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> drafts_of(const JobResult& result) {
    std::map<std::int64_t, std::pair<std::int64_t, std::int64_t>> drafts;
    for (const auto& [index, item] : result.items) drafts[index] = {item.statistics.drafted, item.statistics.accepted};
    return drafts;
}

/// Runs `job` with and without prefix caching, and expects the same texts and drafts and `cached` copied tokens.
void expect_cached(Job job, std::int64_t cached, const std::string& what) {
    const JobResult with = launch(job);
    job.options.prefix_caching = false;
    const JobResult without = launch(job);
    EXPECT_EQ(tokens_of(with.items), tokens_of(without.items)) << what;
    if (job.options.draft.method->name != "ngram") {  // what n-grams propose depends on what others had accepted
        EXPECT_EQ(drafts_of(with), drafts_of(without)) << what;
    }
    EXPECT_EQ(num_cached(with), cached) << what;
    EXPECT_EQ(num_cached(without), 0) << what;
    EXPECT_EQ(with.outcome.progress.prefilled_tokens + cached, without.outcome.progress.prefilled_tokens) << what;
}

// Each of items 1 to 3 takes over the 70 tokens of the examples; of items 4 and 5 the last token alone is computed.
constexpr std::int64_t cached_of_few_shot = 3 * 70 + 2 * (70 + 14 - 1);

TEST(PrefixCaching, CommonBeginningsAreComputedOnce) {
    for (const int ranks : {1, 2}) {
        for (const std::int64_t batch : {3, 8}) {
            Job job = few_shot_job();
            job.ranks = ranks;
            job.options.batch = batch;
            const std::string what = std::to_string(ranks) + " ranks, batch " + std::to_string(batch);
            expect_cached(job, cached_of_few_shot, what);
            job.options.draft.method = "ngram";
            EXPECT_EQ(tokens_of(launch(job).items), few_shot_texts()) << what;
        }
    }
}

// One by one, an item finds the last one alone: item 4 has the examples in common with item 3, item 5 all of item 4.
TEST(PrefixCaching, TheLastItemThatFinishedServesTheNext) {
    Job job = few_shot_job();
    job.options.batch = 1;
    expect_cached(job, 4 * 70 + (70 + 14 - 1), "batch 1");
}

TEST(PrefixCaching, OtherPromptsAreComputed) {
    Job job{base_options()};
    for (std::int64_t item = 0; item < 5; ++item)
        job.prompts[item] = joined(tokens_like(0, 15), tokens_like(item + 1, 40));
    expect_cached(job, 0, "15 tokens in common");
    for (std::int64_t item = 0; item < 5; ++item)
        job.prompts[item] = joined(tokens_like(0, 16), tokens_like(item + 1, 40));
    expect_cached(job, 4 * 16, "16 tokens in common");
}

/// few_shot_job with drafts of this kind.
Job drafted_job(const std::string& name, const char* tree, const HeadsFolder& heads) {
    Job job = few_shot_job();
    job.options.draft.method = name;
    job.options.draft.tree = tree;
    const DraftMethod& method = *job.options.draft.method;
    if (method.part == DraftPart::heads) job.heads = heads.path();
    if (method.part == DraftPart::language_model) job.draft_models = {parity_models / "llama-yarn-bf16"};
    if (method.part == DraftPart::layer)
        job.layer =
            LONGHAUL_TEST_DATA + std::string(method.chains_states ? "/lyanna/lyanna-llama" : "/eagle/eagle1-llama");
    return job;
}

// What a draft model or a draft layer has of the tokens is copied, too: the drafts are those of a prompt that is read.
TEST(PrefixCaching, EveryKindOfDraft) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    struct Case {
        const char* method;
        const char* tree;
        std::int64_t lost;  ///< rows that are computed for their hidden states
    };
    // Of heads that of the last row, where nothing else is missing. A layer's last pair has a token of the item's own.
    for (const Case& one : {Case{"sd", "4", 0}, Case{"rsd-s", "3x4", 0}, Case{"triforce", "4", 0}, Case{"self", "4", 0},
                            Case{"medusa", "2,2,1", 2}, Case{"eagle", "2x3", 5}, Case{"lyanna", "2x3", 5}}) {
        Job job = drafted_job(one.method, one.tree, heads);
        expect_cached(job, cached_of_few_shot - one.lost, one.method);
        job.ranks = 2;
        EXPECT_EQ(tokens_of(launch(job).items), few_shot_texts()) << one.method;
    }
}

TEST(PrefixCaching, DraftsOfTheLastItemThatFinishedServeTheNext) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    for (const auto& [method, lost] : std::map<std::string, std::int64_t>{{"sd", 0}, {"eagle", 5}, {"lyanna", 5}}) {
        Job job = drafted_job(method, method == "sd" ? "4" : "2x3", heads);
        job.options.batch = 1;
        expect_cached(job, 4 * 70 + (70 + 14 - 1) - lost, method);
    }
}

// Where drafts decide the text, it shows whether copied keys and values of drafts are those that would be computed.
TEST(PrefixCaching, DraftsThatDecideTheText) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    for (const auto& [method, lost] : std::map<std::string, std::int64_t>{{"rsd-s", 0}, {"eagle", 5}, {"lyanna", 5}}) {
        for (const std::int64_t batch : {1, 6}) {
            Job job = drafted_job(method, "2x3", heads);
            job.options.verify = VerifyRule::recursive;
            job.options.batch = batch;
            const std::int64_t cached = batch == 1 ? 4 * 70 + (70 + 14 - 1) : cached_of_few_shot;
            expect_cached(job, cached - lost, method + ", batch " + std::to_string(batch));
        }
    }
}

TEST(PrefixCaching, LayersForMultiTokenPrediction) {
    for (const char* model : {"glm4-moe", "deepseek-v3"}) {
        Job job = few_shot_job();
        job.model = job.layer = std::string(LONGHAUL_TEST_DATA "/mtp/") + model;
        job.options.draft.method = "mtp";
        job.options.draft.tree = "2x3";
        expect_cached(job, cached_of_few_shot - 5, model);
    }
}

// A pause in drafting drops what the layer has of the text, but not what others copy of the prompt.
TEST(PrefixCaching, PausesInDraftingLeaveThePrompt) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    for (const char* method : {"sd", "eagle", "lyanna"}) {
        Job job = drafted_job(method, "auto", heads);
        job.options.batch = 1;
        job.generation.max_tokens = 300;
        const JobResult with = launch(job);
        job.options.prefix_caching = false;
        EXPECT_EQ(tokens_of(with.items), tokens_of(launch(job).items)) << method;
        EXPECT_GE(num_cached(with), 4 * 70 + (70 + 14 - 1) - 5) << method;
    }
}

// A text that has gone on has overwritten the windows that its prompt ended with. What is left of them decides.
TEST(PrefixCaching, SlidingWindows) {
    for (const char* model : {"gemma3-bf16", "mistral-window"}) {
        Job job = few_shot_job();
        job.model = parity_models / model;
        for (auto& [item, prompt] : job.prompts) prompt = joined(tokens_like(9, 700), prompt);
        job.generation.max_tokens = 20;
        job.options.batch = 2;
        expect_cached(job, 5 * 700 + 4 * 70 + (70 + 14 - 1), model);

        job.options.batch = 1;  // every prompt follows a text of another length
        job.generation.max_tokens = 1500;
        job.prompts = {{0, job.prompts[0]}, {1, job.prompts[1]}};
        job.items = 2;
        expect_cached(job, 0, model);
        job.generation.max_tokens = 300;
        expect_cached(job, 770, model);
    }
}

// A copy reaches back as far as the copied text had to, so a text that has less in common may copy from it, too.
TEST(PrefixCaching, CopiesOfWindowsAreCopied) {
    Job job{base_options()};
    job.model = parity_models / "gemma3-bf16";
    job.options.draft.method = "ar";
    job.options.batch = 1;
    job.items = 3;
    job.generation.max_tokens = 5;
    const Tokens page = tokens_like(9, 300);
    job.prompts[0] = joined(page, tokens_like(1, 30));
    job.prompts[1] = joined(page, joined(tokens_like(1, 10), tokens_like(2, 20)));
    job.prompts[2] = joined(page, tokens_like(3, 30));
    expect_cached(job, 310 + 300, "less in common with a copy");
}

// Of questions so long that it is worth it to keep a state behind them, too: at least 16 tokens.
constexpr std::int64_t cached_behind_states = 3 * 70 + 2 * (70 + 29 - 1);

// A state belongs to one position. All in flight are known from the start: the first one stops where they branch.
TEST(PrefixCaching, StatesOfLinearAttention) {
    for (const char* model : {"qwen3-next-bf16-modern", "nemotron-h"}) {
        for (const int ranks : {1, 2}) {
            Job job = few_shot_job(20);
            job.model = parity_models / model;
            job.ranks = ranks;
            const std::string what = std::string(model) + ", " + std::to_string(ranks) + " ranks";
            expect_cached(job, cached_behind_states, what);
            job.options.prefill_chunk = 32;
            expect_cached(job, cached_behind_states, what + ", in pieces");
            job.options.draft.method = "ngram";
            expect_cached(job, cached_behind_states, what + ", n-grams");
        }
    }
}

// The second prompt shows where they branch, too late for its own: it is computed, and its state there is kept.
TEST(PrefixCaching, StatesOfItemsThatFinishedServeTheNext) {
    Job job = few_shot_job(20);
    job.model = parity_models / "qwen3-next-bf16-modern";
    job.options.batch = 1;
    job.items = 7;
    job.prompts[6] = job.prompts[5];
    // Item 1 meets the examples again, and item 5 the prompt of item 4.
    expect_cached(job, 4 * 70 + (70 + 29 - 1), "batch 1");
}

// Every beginning of 70 tokens goes on with two others, and these with two more each: passes stop where they branch.
TEST(PrefixCaching, StatesOfBranchesOfBranches) {
    Job job{base_options()};
    job.model = parity_models / "granite4-h";
    job.options.draft.method = "ar";
    job.generation.max_tokens = 4;
    job.items = job.options.batch = 12;
    for (std::int64_t item = 0; item < job.items; ++item)
        job.prompts[item] = joined(joined(tokens_like(item / 6, 70), tokens_like(item / 3, 30)), tokens_like(item, 20));
    expect_cached(job, 10 * 70 + 8 * 30, "all in flight");
    job.options.batch = 3;  // the last ones that finished show where the next three branch, too late for the first
    expect_cached(job, 8 * (70 + 30), "three in flight");
}

// Drafts beside states: what a draft model with a state of its own has of the tokens is computed.
TEST(PrefixCaching, DraftsOfModelsWithLinearAttention) {
    const std::filesystem::path model = parity_models / "qwen3-next-bf16-modern";
    const HeadsFolder heads(ModelConfig::load(model).hidden_size, 3);
    for (const auto& [method, lost] : std::map<std::string, std::int64_t>{{"rsd-s", 0}, {"medusa", 2}}) {
        Job job = few_shot_job(20);
        job.model = model;
        job.options.draft.method = method;
        job.options.draft.tree = method == "medusa" ? "2,2,1" : "3x4";
        job.options.verify = method == "medusa" ? VerifyRule::coupled : VerifyRule::recursive;
        if (method == "medusa") job.heads = heads.path();
        for (const char* draft : {"llama-yarn-bf16", "qwen3-next-bf16-modern"}) {
            if (method != "medusa") job.draft_models = {parity_models / draft};
            expect_cached(job, cached_behind_states - lost, method + " " + draft);
        }
    }
    for (const char* name : {"qwen3-next", "qwen3.5-moe"}) {
        Job job = few_shot_job(20);
        job.model = job.layer = std::string(LONGHAUL_TEST_DATA "/mtp/") + name;
        job.options.draft.method = "mtp";
        job.options.draft.tree = "2x3";
        expect_cached(job, cached_behind_states - 5, name);
    }
}

// Where prompts go on differently a few tokens behind a state, it serves them all: no more passes end there.
TEST(PrefixCaching, StatesStandApart) {
    Job job{base_options()};
    job.model = parity_models / "granite4-h";
    job.options.draft.method = "ar";
    job.generation.max_tokens = 2;
    job.items = job.options.batch = 10;
    for (std::int64_t item = 0; item < job.items; ++item)
        job.prompts[item] = joined(joined(tokens_like(0, 70), tokens_like(1, item)), tokens_like(item + 2, 40));
    expect_cached(job, 9 * 70, "0 to 9 tokens more in common");
}

// States that others wait for may go before they are copied: then the others compute, each at its turn.
TEST(PrefixCaching, RoomForFewStates) {
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);
    const auto group = make_local_group();
    for (const char* model : {"granite4-h", "qwen3-next-bf16-modern"}) {
        Job job = few_shot_job(20);
        job.model = parity_models / model;
        job.options.prefix_caching = false;
        const auto expected = tokens_of(launch(job).items);
        job.options.prefix_caching = true;
        const auto loaded = Model::load(job.model, Precision::bf16, *device, *group);
        const std::int64_t bytes = state_bytes(*state_layout(loaded->kv_layouts()));
        for (const std::int64_t states : {0, 1, 2}) {
            for (const int ranks : {1, 2}) {
                job.ranks = ranks;
                job.options.kv_memory_bytes = (16 * states + 15) * bytes / ranks;
                const JobResult result = launch(job);
                const std::string what = std::string(model) + ", " + std::to_string(states) + " states";
                EXPECT_EQ(tokens_of(result.items), expected) << what << ", " << ranks << " ranks";
                EXPECT_EQ(num_cached(result) > 0, states > 0) << what << ", " << ranks << " ranks";
            }
        }
    }
}

// A prompt of more than 64 tokens has other keys (longrope) than the same tokens in a shorter one.
TEST(PrefixCaching, LongTextsHaveKeysOfTheirOwn) {
    Job job{base_options()};
    job.model = parity_models / "phi3-long";
    job.generation.max_tokens = 8;
    job.items = 4;
    for (std::int64_t item = 0; item < 4; ++item)
        job.prompts[item] = joined(tokens_like(0, 40), tokens_like(item, item < 2 ? 10 : 50));
    expect_cached(job, 2 * 40, "longrope");
}

// Memory for two or three items: what is kept of a finished one goes first, and no item fails for it.
TEST(PrefixCaching, LittleMemoryChangesNothing) {
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);
    const auto group = make_local_group();
    const auto model = Model::load(tiny_model, Precision::bf16, *device, *group);
    const auto page = static_cast<std::int64_t>(device->kv_page_bytes(model->kv_layout()));
    const auto& expected = few_shot_texts();
    for (const std::int64_t pages : {5, 6, 8, 10, 13}) {
        for (const std::int64_t batch : {1, 8}) {
            Job job = few_shot_job();
            job.ranks = 2;
            job.options.batch = batch;
            job.options.kv_memory_bytes = pages * page / 2;
            const JobResult result = launch(job);
            EXPECT_EQ(tokens_of(result.items), expected) << pages << " pages, batch " << batch;
            if (pages >= 10) {
                EXPECT_GE(num_cached(result), 70) << pages << " pages, batch " << batch;
            }
        }
    }
}

/// Runs `job` with interruptions, on one and two ranks by turns, and expects the texts of a run without.
void expect_resumed(Job job, const std::string& what, std::int64_t min_cached = 3 * 69) {
    const auto folder = std::filesystem::temp_directory_path() / ("prefix_test." + std::to_string(::getpid()));
    job.options.prefix_caching = false;
    const auto expected = tokens_of(launch(job).items);
    job.options.prefix_caching = true;
    job.options.batch = 3;
    Job other = job;
    other.ranks = 2;
    std::filesystem::remove_all(folder);
    const JobResult result = launch_in_parts({job, other}, folder, 41);
    EXPECT_EQ(tokens_of(result.items), expected) << what;
    EXPECT_GT(result.sum.resumes, 4) << what;
    EXPECT_EQ(result.damage, std::vector<std::string>()) << what;
    EXPECT_GE(num_cached(result), min_cached) << what;
    std::filesystem::remove_all(folder);
}

// Copied keys and values are stored as computed ones are.
TEST(PrefixCaching, ResumesGoOn) {
    for (const char* model : {"llama-default-bf16", "gemma3-bf16", "qwen3-next-bf16-modern"}) {
        Job job = few_shot_job();
        job.model = parity_models / model;
        expect_resumed(job, model);
    }
}

std::int64_t bytes_of_position(const std::filesystem::path& model) {
    const auto device = kernels::make_cpu_device(Job{}.variant, 1);
    const auto group = make_local_group();
    return position_bytes(Model::load(model, Precision::bf16, *device, *group)->kv_layouts());
}

// A round stores so many positions as fit in memory. Of a prompt that was copied at once the next ones store the rest.
TEST(PrefixCaching, LongCopiesAreStoredInSeveralRounds) {
    for (const char* model : {"llama-default-bf16", "qwen3-next-bf16-modern"}) {
        Job job = few_shot_job();
        job.model = parity_models / model;
        job.options.checkpoint.max_bytes = 80 * bytes_of_position(job.model);
        expect_resumed(job, model, 10);
    }
}

TEST(PrefixCaching, ResumesOfDraftsGoOn) {
    const HeadsFolder heads(ModelConfig::load(tiny_model).hidden_size, 3);
    for (const char* method : {"rsd-s", "eagle", "lyanna"}) {
        Job job = drafted_job(method, "2x3", heads);
        job.options.verify = VerifyRule::recursive;  // drafts decide the text
        expect_resumed(job, method);
    }
}

// A pass has rows of prompts of several items, and output tokens that are computed again: those without stored keys and
// values, and of preempted items.
TEST(PrefixCaching, OutputsAreComputedAgainBesidePrompts) {
    const auto folder = std::filesystem::temp_directory_path() / ("beside_test." + std::to_string(::getpid()));
    for (const bool alike : {false, true}) {
        Job job = few_shot_job();
        if (!alike) job.prompts.clear();
        job.options.prefill_chunk = 256;
        job.options.draft.method = "ngram";
        job.options.prefix_caching = false;
        const auto expected = tokens_of(launch(job).items);
        job.options.prefix_caching = true;
        for (const int ranks : {1, 2}) {
            job.ranks = ranks;
            job.options.checkpoint.store_kv = false;
            std::filesystem::remove_all(folder);
            const JobResult result = launch_in_parts({job}, folder, 37);
            EXPECT_EQ(tokens_of(result.items), expected) << ranks << " ranks";
            EXPECT_GT(result.sum.recomputed_rows, 100);
        }
    }
    std::filesystem::remove_all(folder);
}

/// Scores four endings of each question; several begin in one pass.
Job endings_job() {
    Job job{base_options()};
    job.items = 12;
    job.options.scoring = ScoringWindows{.window = 256, .stride = 128};
    for (std::int64_t item = 0; item < job.items; ++item) {
        job.prompts[item] = joined(tokens_like(0, 70), tokens_like(item / 4 + 1, 20));
        job.continuations[item] = tokens_like(item % 4, 6 + item % 3);
    }
    return job;
}

/// The tokens that are copied when the job runs. They change no loss.
std::int64_t cached_of_endings(Job job) {
    const JobResult with = launch(job);
    job.options.prefix_caching = false;
    const JobResult without = launch(job);
    for (const auto& [index, item] : without.items)
        EXPECT_EQ(with.items.at(index).statistics.loss.nll(), item.statistics.loss.nll()) << index;
    return num_cached(with);
}

TEST(PrefixCaching, EndingsOfOneQuestionAreScored) {
    for (const std::int64_t batch : {1, 3, 12}) {
        Job job = endings_job();
        job.options.batch = batch;
        // The examples are computed once, each question once.
        EXPECT_EQ(cached_of_endings(job), 2 * 70 + 3 * 3 * 89) << "batch " << batch;
    }
}

// With states the second prompt of a kind is computed, if the first one had passed where they branch.
TEST(PrefixCaching, EndingsOfOneQuestionAreScoredBehindStates) {
    for (const auto& [batch, cached] :
         std::map<std::int64_t, std::int64_t>{{1, 3 * 70 + 3 * 2 * 89}, {12, 2 * 70 + 3 * 3 * 89}}) {
        Job job = endings_job();
        job.model = parity_models / "nemotron-h";
        job.options.batch = batch;
        EXPECT_EQ(cached_of_endings(job), cached) << "batch " << batch;
        // Two windows for each text, of which the first begins with the examples.
        job.options.scoring = ScoringWindows{.window = 80, .stride = 40};
        cached_of_endings(job);
    }
}

}  // namespace
}  // namespace longhaul::engine
