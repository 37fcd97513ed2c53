// Hidden states of scored texts (key `hidden-states`): those of a plain pass over the text, whatever the batch, the
// split, the passes and the interruptions; and their file.
#include <gtest/gtest.h>
#include <unistd.h>

#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/checkpoint/hidden_states.hpp"
#include "engine/error.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "kernels/convert.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using States = std::map<std::int64_t, std::shared_ptr<const TextStates>>;

class HiddenStatesOfTexts : public ::testing::Test {
  protected:
    ~HiddenStatesOfTexts() override { std::filesystem::remove_all(folder); }

    static Job job_with(ScoringWindows windows, std::int64_t tokens = 150) {
        Job job{base_options()};
        job.items = 3;
        job.generation.max_tokens = tokens;
        for (std::int64_t item = 0; item < job.items; ++item) {
            for (std::int64_t i = 0; i < tokens - item; ++i)
                job.continuations[item].push_back(static_cast<std::int32_t>((i * i / 3 + 7 * item) % 90));
        }
        job.options.scoring = windows;
        job.options.keeps_states = true;
        return job;
    }
    static States states_of(const JobResult& result) {
        States states;
        for (const auto& [index, item] : result.items) states[index] = item.states;
        return states;
    }
    static void expect_same(const States& got, const States& expected) {
        ASSERT_EQ(got.size(), expected.size());
        for (const auto& [index, states] : expected) {
            ASSERT_NE(got.at(index), nullptr);
            EXPECT_EQ(got.at(index)->tokens, states->tokens);
            EXPECT_EQ(got.at(index)->hidden, states->hidden);
            EXPECT_EQ(got.at(index)->top_ids, states->top_ids);
            EXPECT_EQ(got.at(index)->top_logprobs, states->top_logprobs);
        }
    }

    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("hidden_states_test." + std::to_string(getpid()));
};

TEST_F(HiddenStatesOfTexts, AreThoseOfAPlainPass) {
    const Job job = job_with({.window = 400, .stride = 200});
    const States states = states_of(launch(job));
    const auto device = kernels::make_cpu_device(job.variant, 1);
    const auto group = make_local_group();
    const auto model = Model::load(job.model, job.precision, *device, *group);
    PagePool pool(*device, model->kv_layout(), std::int64_t{1} << 30);
    for (const auto& [index, got] : states) {
        std::vector<std::int32_t> text = prompt_of(index);
        const std::size_t first = text.size() - 1;
        text.insert(text.end(), job.continuations.at(index).begin(), job.continuations.at(index).end());
        EXPECT_TRUE(std::equal(got->tokens.begin(), got->tokens.end(),
                               text.begin() + static_cast<std::ptrdiff_t>(first), text.end()));
        KvSequence kv(pool);
        ASSERT_TRUE(kv.reserve(std::ssize(text)));
        std::vector<ForwardRow> rows;
        Tap tap{.at = Tap::At::last_hidden, .rows = {}};
        for (std::size_t at = 0; at + 1 < text.size(); ++at) {
            rows.push_back(text_row(text[at], static_cast<std::int64_t>(at)));
            rows.back().of_prompt = true;
            rows.back().wants_logits = at >= first;
            if (at >= first) tap.rows.push_back(static_cast<std::int32_t>(at));
        }
        const KvView view = kv.view();
        PassResult result =
            model->forward({.rows = rows, .sequences = std::span(&view, 1), .taps = std::span(&tap, 1)});
        const HiddenStates& hidden = result.taps.front();
        ASSERT_EQ(got->num_rows(), hidden.num_rows());
        ASSERT_EQ(std::ssize(got->hidden), hidden.num_rows() * hidden.width());
        for (std::size_t i = 0; i < got->hidden.size(); ++i)
            ASSERT_EQ(got->hidden[i], kernels::f32_to_bf16(hidden.data()[i])) << i;
        LogSoftmax log_softmax(model->config().vocab_size);
        for (std::int64_t row = 0; row < got->num_rows(); ++row) {
            log_softmax.set(result.logits.row(row));
            const std::span<const std::int32_t> best = log_softmax.best(64);
            for (std::int64_t i = 0; i < 64; ++i) {
                ASSERT_EQ(got->top_ids[static_cast<std::size_t>(row * 64 + i)], best[static_cast<std::size_t>(i)]);
                ASSERT_EQ(got->top_logprobs[static_cast<std::size_t>(row * 64 + i)],
                          static_cast<float>(log_softmax(best[static_cast<std::size_t>(i)])));
            }
        }
    }
}

TEST_F(HiddenStatesOfTexts, AreTheSameInEveryWay) {
    Job job = job_with({.window = 48, .stride = 20});
    job.options.batch = 1;
    const States alone = states_of(launch(job));
    for (const auto& [ranks, batch, chunk] : {std::tuple{1, 3, 7}, {2, 2, 64}, {4, 3, 19}}) {
        job.ranks = ranks;
        job.options.batch = batch;
        job.options.prefill_chunk = chunk;
        expect_same(states_of(launch(job)), alone);
    }
    job.ranks = 1;
    std::map<std::int64_t, FinishedItem> done;
    job.options.checkpoint.folder = folder;
    job.options.checkpoint.every_tokens = 16;
    job.stop_after = 200;  // in the middle of an item, which then starts over
    for (int epoch = 1; epoch < 10 && done.size() < 3; ++epoch) {
        job.options.checkpoint.epoch = epoch;
        const JobResult result = launch(job, done);
        done.insert(result.items.begin(), result.items.end());
    }
    expect_same(states_of({.items = done, .outcome = {}, .sum = {}, .damage = {}}), alone);
}

TEST_F(HiddenStatesOfTexts, AnItemOfTooManyTokensFails) {
    Job job = job_with({.window = 48, .stride = 20});
    job.items = 1;
    job.continuations[0].assign(4'000'000, 5);
    job.generation.max_tokens = 4'000'000;
    const JobResult result = launch(job);
    EXPECT_EQ(
        result.items.at(0).error,
        "hidden-states: expected at most 3334601 tokens per item (2 GiB of states), got 4000000; lower max-tokens");
}

TEST_F(HiddenStatesOfTexts, TheFileHoldsThemAndReplacesAnEarlierOne) {
    const TextStates states{.hidden_size = 3,
                            .num_top = 2,
                            .tokens = {7, 8, 9},
                            .hidden = {1, 2, 3, 4, 5, 65535},
                            .top_ids = {8, 1, 9, 4},
                            .top_logprobs = {-0.5F, -1, -0.25F, -2}};
    const CheckpointIdentity identity{.job = "j", .model = "m", .tokenizer = "t", .kv_dtype = "bf16"};
    TextStates earlier = states;
    earlier.tokens = {1};
    earlier.hidden.clear();
    earlier.top_ids.clear();
    earlier.top_logprobs.clear();
    write_text_states(folder / "new", "a.h5", identity, "first", earlier);
    write_text_states(folder / "new", "a.h5", identity, "first", states);
    const std::filesystem::path file = folder / "new" / "a.h5";
    const hdf5::Reader reader = hdf5::open_reader(file.string(), std::filesystem::file_size(file));
    EXPECT_EQ(reader.text("format"), "longhaul hidden states");
    EXPECT_EQ(reader.number("format_version"), 1);
    EXPECT_EQ(reader.text("model") + reader.text("tokenizer") + reader.text("id"), "mtfirst");
    reader.expect_links("/", {"tokens", "hidden", "top_ids", "top_logprobs"});
    EXPECT_EQ(reader.values<std::int32_t>("tokens"), states.tokens);
    const auto rows = [&](const char* name, hdf5::Type type, auto expected) {
        const auto dataset = reader.open(name, type, 2);
        EXPECT_EQ(dataset.dims, (hdf5::Dims{2, expected.size() / 2})) << name;
        auto got = expected;
        std::fill(got.begin(), got.end(), 0);
        reader.read_block(dataset, type, {0, 0}, dataset.dims, got.data());
        EXPECT_EQ(got, expected) << name;
    };
    rows("hidden", hdf5::Type::u16, states.hidden);
    rows("top_ids", hdf5::Type::i32, states.top_ids);
    rows("top_logprobs", hdf5::Type::f32, states.top_logprobs);
    EXPECT_THROW(write_text_states(file, "b.h5", identity, "first", states), StorageError) << "a file is no folder";
}

}  // namespace
}  // namespace longhaul::engine
