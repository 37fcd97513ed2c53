// Token selection on a device: for any logits and filters it selects the tokens of the host's pipeline. Rows it cannot
// decide it leaves to the host, and reports that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/sampling/pipeline.hpp"
#include "tests/engine/device_cases.hpp"
#include "tests/engine/logit_rows.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using kernels::Choice;

/// Rows of logits with their contexts and sampling parameters.
struct Scene {
    std::int64_t vocab = 0, stride = 0;
    std::vector<float> logits{};  ///< [rows, stride]
    std::vector<SamplingParams> params{};
    std::vector<std::vector<std::int32_t>> contexts{};

    void add(std::vector<float> row, const SamplingParams& with, std::vector<std::int32_t> context = {}) {
        row.resize(static_cast<std::size_t>(stride), 1e30F);  // padding that must not be chosen
        logits.insert(logits.end(), row.begin(), row.end());
        params.push_back(with);
        contexts.push_back(std::move(context));
    }
    [[nodiscard]] std::span<const float> row(std::size_t r) const {
        return std::span(logits).subspan(r * static_cast<std::size_t>(stride), static_cast<std::size_t>(vocab));
    }
    [[nodiscard]] static std::uint64_t key(std::size_t row) { return 77 + row % 3; }
    [[nodiscard]] static std::int64_t position(std::size_t row) { return static_cast<std::int64_t>(row) * 7; }
};

std::vector<std::int32_t> on_host(const Scene& scene) {
    LogitsPipeline pipeline({}, scene.vocab);
    std::vector<std::int32_t> tokens;
    for (std::size_t r = 0; r < scene.params.size(); ++r) {
        pipeline.set_params(scene.params[r]);
        const Distribution& target = pipeline.apply(scene.row(r), {scene.contexts[r], {}}, false);
        tokens.push_back(gumbel_argmax(target, NoiseRow(Scene::key(r), Scene::position(r))));
    }
    return tokens;
}

/// Calls ask(logits, choices) with the scene on the device. The choices are in reverse row order, to test that each one
/// names its row.
template <typename Ask>
void ask_device(kernels::Device& device, const Scene& scene, bool silent, const Ask& ask) {
    const std::size_t count = scene.params.size();
    const std::size_t num_bytes = scene.logits.size() * sizeof(float);
    const kernels::Buffer logits(device, num_bytes);
    device.upload(logits.data(), scene.logits.data(), num_bytes);
    LogitsPipeline pipeline({}, scene.vocab);
    std::vector<std::vector<std::int32_t>> penalised(count);
    std::vector<Choice> choices;
    for (std::size_t r = count; r-- > 0;) {
        pipeline.set_params(scene.params[r]);
        choices.push_back(
            pipeline.choice({scene.contexts[r], {}}, NoiseRow(Scene::key(r), Scene::position(r)), penalised[r]));
        choices.back().row = static_cast<std::int64_t>(r);
        choices.back().silent = silent;
    }
    ask(logits.as<float>(), choices);
    std::vector<float> after(scene.logits.size());
    device.download(after.data(), logits.data(), num_bytes);
    EXPECT_EQ(std::memcmp(after.data(), scene.logits.data(), num_bytes), 0) << "logits were changed";
}

std::vector<std::int32_t> on_device(kernels::Device& device, const Scene& scene) {
    std::vector<std::int32_t> tokens(scene.params.size());
    ask_device(device, scene, false, [&](float* logits, std::span<const Choice> choices) {
        device.token_chooser()->choose(logits, scene.stride, scene.vocab, choices, tokens);
    });
    std::reverse(tokens.begin(), tokens.end());
    return tokens;
}

/// The number of rows that the device left to the host. The tokens of the others must be the host's.
int num_left(kernels::Device& device, const Scene& scene) {
    const std::vector<std::int32_t> expected = on_host(scene), chosen = on_device(device, scene);
    int left = 0;
    for (std::size_t r = 0; r < chosen.size(); ++r) {
        left += chosen[r] < 0 ? 1 : 0;
        const SamplingParams& with = scene.params[r];
        if (chosen[r] >= 0) {
            EXPECT_EQ(chosen[r], expected[r])
                << "row " << r << ": temperature " << with.temperature << ", top-k " << with.top_k << ", top-p "
                << with.top_p << ", min-p " << with.min_p << ", eta " << with.eta << ", penalty "
                << with.repetition_penalty << ", min_keep " << with.min_keep;
        }
    }
    return left;
}

class Choosing : public ::testing::TestWithParam<DeviceCase> {
  protected:
    void SetUp() override {
        device_ = GetParam().make();
        if (device_ == nullptr) GTEST_SKIP() << "needs an NVIDIA GPU";
        ASSERT_NE(device_->token_chooser(), nullptr);
    }
    std::unique_ptr<kernels::Device> device_;
};

TEST_P(Choosing, IsThePipelineForEveryFilter) {
    Rows rows(1);
    for (const auto& [vocab, stride] : {std::pair<std::int64_t, std::int64_t>{300, 300}, {5001, 5004}}) {
        Scene scene{.vocab = vocab, .stride = stride};
        for (const SamplingParams& params : all_filters()) {
            scene.add(rows.normal(vocab, 3.0F), params, rows.context(vocab));
            if (vocab > 300) continue;
            scene.add(rows.tied(vocab), params, rows.context(vocab));
            scene.add(rows.with_holes(vocab), params, rows.context(vocab));
        }
        EXPECT_EQ(num_left(*device_, scene), 0) << vocab;
    }
}

TEST_P(Choosing, IsThePipelineWhereFewerThanAskedForAreThere) {
    Rows rows(2);
    Scene scene{.vocab = 60, .stride = 60};
    for (SamplingParams params : all_filters()) {
        std::vector<float> one(60, -infinity);
        scene.add(one, params);  // no token possible: token 0
        one[37] = -2.0F;
        scene.add(one, params);
        std::vector<float> low(60, -300.0F);
        low[5] = low[6] = 300.0F;
        scene.add(low, params);
        params.top_k *= 10;
        scene.add(rows.normal(60, 1.0F), params);
        params.top_p = 0.999;
        scene.add(rows.normal(60, 1.0F), params);
    }
    EXPECT_EQ(num_left(*device_, scene), 0);
}

// In flat rows more tokens may survive the filters than a block sorts. Without top-p no sorting is needed.
TEST_P(Choosing, LeavesFlatRowsToTheHost) {
    Rows rows(3);
    Scene scene{.vocab = 20'000, .stride = 20'000};
    SamplingParams params;
    scene.add(rows.normal(scene.vocab, 0.1F), params);
    params.eta = 1e-3;
    scene.add(rows.normal(scene.vocab, 0.1F), params);
    params = {};
    params.top_k = 50;
    scene.add(rows.normal(scene.vocab, 1.0F), params);
    EXPECT_EQ(num_left(*device_, scene), 0);

    Scene flat{.vocab = 20'000, .stride = 20'000};
    params = {};
    params.top_p = 0.9;
    flat.add(rows.normal(flat.vocab, 0.1F), params);
    params = {};
    params.min_p = 0.01;
    flat.add(rows.normal(flat.vocab, 0.1F), params);
    params = {};
    params.top_k = 50;
    flat.add(std::vector<float>(20'000, 1.0F), params);
    EXPECT_EQ(num_left(*device_, flat), 3);
}

// Few distinct values among many tokens: many tokens tie at the edge of each filter.
TEST_P(Choosing, BreaksTiesAtTheEdgeOfAFilterAsTheHost) {
    Scene scene{.vocab = 2500, .stride = 2500};
    for (const double top_p : {0.01, 0.2, 0.5, 0.77}) {
        for (const std::int64_t top_k : {0, 1, 3, 1500}) {
            SamplingParams params;
            params.top_p = top_p;
            params.top_k = top_k;
            scene.add(std::vector<float>(2500, 1.5F), params);
            params.min_keep = 4;
            scene.add(std::vector<float>(2500, 1.5F), params);
        }
    }
    EXPECT_EQ(num_left(*device_, scene), 0);
}

TEST_P(Choosing, TakesWhateverABrokenModelSays) {
    Rows rows(4);
    Scene scene{.vocab = 300, .stride = 300};
    for (const SamplingParams& params : all_filters()) {
        std::vector<float> row = rows.normal(300, 2.0F);
        row[7] = infinity;
        row[9] = std::numeric_limits<float>::max();
        row[100] = -std::numeric_limits<float>::max();
        scene.add(row, params, {7, 100});
        SamplingParams pushed = params;  // raises logits; the largest float stays what it is
        pushed.repetition_penalty = 0.5;
        scene.add(row, pushed, {7, 9, 100});
        scene.add(std::vector<float>(300, nan), params, {3});
        row = std::vector<float>(300, 1e-40F);  // denormals count as zeros
        row[11] = -1e-41F;
        row[12] = -0.0F;
        scene.add(row, params, {11, 12});
    }
    EXPECT_EQ(num_left(*device_, scene), 0);
    // With min_keep either the host decides or the device finds the same token.
    Scene kept{.vocab = 300, .stride = 300};
    for (SamplingParams params : all_filters()) {
        params.min_keep = 5;
        kept.add(rows.normal(300, 8.0F), params);
    }
    EXPECT_LT(num_left(*device_, kept), static_cast<int>(kept.params.size()));
}

/// What the device draws from each row: 1 + count entries.
std::vector<std::vector<kernels::Drawn>> drawn_on(kernels::Device& device, const Scene& scene, std::int64_t count,
                                                  bool silent) {
    const auto of_row = static_cast<std::size_t>(1 + count);
    std::vector<kernels::Drawn> all(scene.params.size() * of_row);
    ask_device(device, scene, silent, [&](float* logits, std::span<const Choice> choices) {
        device.token_chooser()->draw(logits, scene.stride, scene.vocab, choices, count, all);
    });
    std::vector<std::vector<kernels::Drawn>> rows;
    for (auto at = all.end(); at != all.begin(); at -= static_cast<std::ptrdiff_t>(of_row))
        rows.emplace_back(at - static_cast<std::ptrdiff_t>(of_row), at);
    return rows;
}

/// The number of rows whose draws the device left to the host. The draws of the others must be the host's,
/// probabilities included, and the host must be able to repeat them from the partial distribution that the device
/// returns.
int num_draws_left(kernels::Device& device, const Scene& scene, std::int64_t count, bool silent = false) {
    const std::vector<std::vector<kernels::Drawn>> all = drawn_on(device, scene, count, silent);
    LogitsPipeline pipeline({}, scene.vocab);
    int left = 0;
    for (std::size_t r = 0; r < scene.params.size(); ++r) {
        SCOPED_TRACE("row " + std::to_string(r));
        const std::vector<kernels::Drawn>& drawn = all[r];
        if (drawn.front().token < 0) {
            ++left;
            continue;
        }
        pipeline.set_params(scene.params[r]);
        const Distribution& whole = pipeline.apply(scene.row(r), {scene.contexts[r], {}});
        const NoiseRow noise = silent ? NoiseRow::silence(0) : NoiseRow(Scene::key(r), Scene::position(r));
        const auto expect = [&](const kernels::Drawn& got, std::size_t place) {
            EXPECT_EQ(got.token, whole.ids[place]);
            EXPECT_EQ(got.log_weight, whole.log_weights[place]);
            EXPECT_EQ(got.probability, whole.q[place]);
        };
        expect(drawn.front(), most_probable(whole));
        const std::vector<Perturbed> right = gumbel_top_k(whole, noise, count);
        for (std::size_t i = 0; i + 1 < drawn.size(); ++i) {
            if (i < right.size()) {
                expect(drawn[1 + i], static_cast<std::size_t>(right[i].place));
            } else {
                EXPECT_EQ(drawn[1 + i].token, -1);
            }
        }
        const Distribution few = distribution_of(drawn);
        EXPECT_EQ(few.ids[most_probable(few)], whole.ids[most_probable(whole)]);
        EXPECT_EQ(gumbel_argmax(few, noise), gumbel_argmax(whole, noise));
        const std::vector<Perturbed> again = gumbel_top_k(few, noise, count);
        EXPECT_EQ(again.size(), right.size());
        for (std::size_t i = 0; i < std::min(again.size(), right.size()); ++i) {
            EXPECT_EQ(few.ids[static_cast<std::size_t>(again[i].place)],
                      whole.ids[static_cast<std::size_t>(right[i].place)]);
            EXPECT_EQ(again[i].score, right[i].score);
        }
    }
    return left;
}

Scene scene_of_draws(std::int64_t vocab, std::int64_t stride, unsigned seed) {
    Rows rows(seed);
    Scene scene{.vocab = vocab, .stride = stride};
    for (const SamplingParams& params : all_filters()) {
        if (params.temperature == 0) continue;
        scene.add(rows.normal(vocab, 3.0F), params, rows.context(vocab));
        if (vocab > 300) continue;
        scene.add(rows.tied(vocab), params, rows.context(vocab));
        scene.add(rows.with_holes(vocab), params, rows.context(vocab));
    }
    return scene;
}

TEST_P(Choosing, DrawsWhatTheHostDraws) {
    for (const std::int64_t count : {1, 3, 16}) {
        const Scene scene = scene_of_draws(300, 304, 5);
        EXPECT_EQ(num_draws_left(*device_, scene, count), 0) << count;
    }
    const Scene parts = scene_of_draws(5001, 5004, 6);  // more than one part
    EXPECT_EQ(num_draws_left(*device_, parts, 4), 0);
}

// Lanes of more tokens than a block keeps in shared memory at once, and few or many blocks per row.
TEST_P(Choosing, DrawsFromALargeVocabulary) {
    Rows rows(13);
    const std::vector<float> row = rows.normal(140'001, 2.0F);
    for (const SamplingParams& params : {SamplingParams{}, SamplingParams{.top_p = 0.3}, SamplingParams{.top_k = 40},
                                         SamplingParams{.temperature = 0.8, .eta = 1e-3}}) {
        Scene scene{.vocab = 140'001, .stride = 140'001};
        scene.add(row, params);
        EXPECT_EQ(num_left(*device_, scene), 0);
        EXPECT_EQ(num_draws_left(*device_, scene, 2), 0);
    }
}

// Drafts of a greedy target: the most probable tokens, ties by lower id.
TEST_P(Choosing, DrawsTheMostProbableTokensWithoutNoise) {
    const Scene scene = scene_of_draws(300, 300, 7);
    EXPECT_EQ(num_draws_left(*device_, scene, 5, true), 0);
}

TEST_P(Choosing, DrawsFewerWhereFewerAreThere) {
    Rows rows(8);
    Scene scene{.vocab = 60, .stride = 60};
    for (SamplingParams params : all_filters()) {
        if (params.temperature == 0) continue;
        std::vector<float> one(60, -infinity);
        one[37] = -2.0F;
        scene.add(one, params);
        std::vector<float> low(60, -300.0F);
        low[5] = low[6] = 300.0F;
        scene.add(low, params);
        params.top_k = 2;
        scene.add(rows.normal(60, 1.0F), params);
    }
    EXPECT_EQ(num_draws_left(*device_, scene, 4), 0);
    Scene broken{.vocab = 60, .stride = 60};
    broken.add(std::vector<float>(60, nan), {});
    broken.add(rows.normal(60, 1.0F), {.temperature = 0});
    EXPECT_EQ(num_draws_left(*device_, broken, 2), 2);
}

// Two different logits can have the same weight. Then filters keep the lower id, even if its logit is not the greatest.
TEST_P(Choosing, DrawsOfLogitsThatHardlyDiffer) {
    Rows rows(9);
    Scene scene{.vocab = 60, .stride = 60};
    for (const SamplingParams& params : all_filters()) {
        if (params.temperature == 0) continue;
        std::vector<float> row(60, -50.0F);
        row[3] = 1e-17F;
        row[7] = 2e-17F;
        scene.add(row, params);
        row = rows.normal(60, 1e-20F);
        scene.add(row, params);
    }
    SamplingParams half;
    half.top_p = 0.3;
    scene.add(std::vector<float>(scene.row(0).begin(), scene.row(0).end()), half);
    EXPECT_EQ(num_draws_left(*device_, scene, 3), 0);
}

// The draws after the likely tokens have logits far below them, where f32 is coarse.
TEST_P(Choosing, DrawsFarBelowTheGreatestLogit) {
    Scene scene{.vocab = 5000, .stride = 5000};
    for (const auto& [temperature, low] : {std::pair{3e-6, -700.0F}, {0.007, -1.1e6F}, {1.0, -1e30F}}) {
        std::vector<float> row(5000, low);
        row[2000] = 0.0F;
        row[4900] = -1.0F;
        scene.add(row, {.temperature = temperature});
    }
    EXPECT_EQ(num_draws_left(*device_, scene, 16), 0);
}

TEST_P(Choosing, DrawsAreCounted) {
    std::vector<kernels::Drawn> drawn(kernels::max_draws + 2);
    const std::vector<Choice> choices(1);
    EXPECT_THROW(device_->token_chooser()->draw(nullptr, 8, 8, choices, 0, std::span(drawn).first(1)),
                 std::logic_error);
    EXPECT_THROW(device_->token_chooser()->draw(nullptr, 8, 8, choices, kernels::max_draws + 1, drawn),
                 std::logic_error);
    EXPECT_THROW(device_->token_chooser()->draw(nullptr, 8, 8, choices, 2, std::span(drawn).first(2)),
                 std::logic_error);
}

// One GPU arithmetic is enough: all of them select tokens with the same kernels.
INSTANTIATE_TEST_SUITE_P(Devices, Choosing, ::testing::Values(gpu_cases().front()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace longhaul::engine
