// `stop-loops` in whole replicas: an item ends at the same token whatever drafts, batch, ranks and resumes.
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>

#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

constexpr std::int64_t loop_length = 12;
constexpr std::int64_t max_tokens = 100;

/// A penalty below 1 favours the latest tokens, so the texts soon repeat themselves.
Job looping_job() {
    Job job{base_options()};
    job.generation.max_tokens = max_tokens;
    job.generation.sampling = {.temperature = 0.5, .repetition_penalty = 0.3, .penalty_window = 5};
    return job;
}

/// Number of tokens when the text first ends in a loop of `loop_length` tokens, by the definition; all if it has none.
std::size_t loop_end(const std::vector<std::int32_t>& text) {
    const auto length = static_cast<std::size_t>(loop_length);
    for (std::size_t end = length + 1; end <= text.size(); ++end) {
        const auto last = text.begin() + static_cast<std::ptrdiff_t>(end - length);
        for (std::size_t period = 1; period <= length && period + length <= end; ++period)
            if (std::equal(last, last + loop_length, last - static_cast<std::ptrdiff_t>(period))) return end;
    }
    return text.size();
}

/// The texts without the key, cut where the definition says.
const std::map<std::int64_t, std::vector<std::int32_t>>& expected_cut() {
    static const auto texts = [] {
        auto all = plain_texts(looping_job());
        for (auto& [index, text] : all) text.resize(loop_end(text));
        return all;
    }();
    return texts;
}

Job stopping_job() {
    Job job = looping_job();
    job.generation.stop_loops = loop_length;
    return job;
}

void expect_cut(const std::map<std::int64_t, FinishedItem>& items, const std::string& what) {
    EXPECT_EQ(tokens_of(items), expected_cut()) << what;
    for (const auto& [index, item] : items) {
        const bool loops = std::ssize(item.tokens) < max_tokens;
        EXPECT_EQ(item.reason, loops ? FinishReason::repetition : FinishReason::length) << what << ", item " << index;
        EXPECT_EQ(item.text, NumberTokenizer().decode(item.tokens, true)) << what << ", item " << index;
    }
}

TEST(StopLoops, EndsAtTheFirstTokenThatMakesALoop) {
    std::size_t looping = 0;
    for (const auto& [index, text] : expected_cut()) looping += std::ssize(text) < max_tokens ? 1 : 0;
    ASSERT_GE(looping, 3U) << "the model does not loop: nothing would be tested";
    Job job = stopping_job();
    for (const std::int64_t batch : {1, 3}) {
        job.options.batch = batch;
        job.options.draft.method = "ar";
        expect_cut(launch(job).items, "plain, batch " + std::to_string(batch));
        job.options.draft.method = "ngram";
        for (const char* tree : {"9", "3x4:8"}) {
            job.options.draft.tree = tree;
            const JobResult result = launch(job);
            expect_cut(result.items, std::string("ngram ") + tree + ", batch " + std::to_string(batch));
            EXPECT_GT(result.sum.accepted, 20) << "several tokens in a pass";
        }
    }
    job.ranks = 2;
    expect_cut(launch(job).items, "2 ranks");
}

// No token of the loop is emitted behind its end, also where one pass accepts more of them.
TEST(StopLoops, CutsAnAcceptedPath) {
    Job job = stopping_job();
    job.options.draft.method = "replay";
    job.options.draft.tree = "7";
    static const auto whole = plain_texts(looping_job());
    job.options.draft.recorded = [](const std::string& id, std::int64_t) { return whole.at(std::stoll(id.substr(5))); };
    expect_cut(launch(job).items, "replay");
}

TEST(StopLoops, ResumesFindTheSameEnd) {
    const auto folder = std::filesystem::temp_directory_path() / ("stop_loops_test." + std::to_string(::getpid()));
    std::filesystem::remove_all(folder);
    Job plain = stopping_job();
    plain.options.draft.method = "ar";
    const JobResult result = launch_in_parts({stopping_job(), plain}, folder, 83);
    std::filesystem::remove_all(folder);
    expect_cut(result.items, "resumed");
    EXPECT_GT(result.sum.resumes, 1);
}

TEST(StopLoops, OtherEndsAndGivenTexts) {
    const auto& [index, text] = *std::find_if(expected_cut().begin(), expected_cut().end(),
                                              [](const auto& entry) { return std::ssize(entry.second) < max_tokens; });
    Job job = stopping_job();
    // At max-tokens too the reason is the loop: with a larger limit the item would end here as well.
    job.generation.max_tokens = std::ssize(text);
    EXPECT_EQ(launch(job).items.at(index).reason, FinishReason::repetition);
    job.generation.max_tokens = std::ssize(text) - 1;
    EXPECT_EQ(launch(job).items.at(index).reason, FinishReason::length);
    // A stop string that ends at the same token comes first.
    job.generation.max_tokens = max_tokens;
    job.generation.stop = {NumberTokenizer().decode(text, true)};
    EXPECT_EQ(launch(job).items.at(index).reason, FinishReason::stop);
    EXPECT_EQ(launch(job).items.at(index).text, "");
    // A given text is not ended.
    job.generation.stop.clear();
    for (int item = 0; item < job.items; ++item) job.continuations[item] = std::vector<std::int32_t>(60, 5);
    for (const auto& [given, item] : launch(job).items) {
        EXPECT_EQ(item.tokens.size(), 60U);
        EXPECT_EQ(item.reason, FinishReason::stop);
    }
}

// The prompt does not count: a prompt that loops, with an output that does not continue it.
TEST(StopLoops, ThePromptDoesNotCount) {
    Job job = stopping_job();
    job.items = 1;
    job.prompts[0] = std::vector<std::int32_t>(60, 5);
    Job plain = job;
    plain.generation.stop_loops = 0;
    const auto text = plain_texts(plain).at(0);
    const FinishedItem item = launch(job).items.at(0);
    EXPECT_GE(std::ssize(item.tokens), loop_length + 1);
    EXPECT_EQ(item.tokens.size(), loop_end(text));
}

}  // namespace
}  // namespace longhaul::engine
