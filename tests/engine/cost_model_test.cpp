// The cost model: seconds by rows and context, queried when a tree size is chosen. No test depends on how long anything
// takes.
#include "engine/model/cost_model.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <vector>

#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"
#include "tests/engine/model_harness.hpp"

namespace longhaul::engine {
namespace {

TEST(CostModel, GoesAlongStraightLinesBetweenItsPoints) {
    const CostModel costs(10, {{.rows = 1, .layer = 2.0, .layer_token = 0.5, .head = 5.0},
                               {.rows = 4, .layer = 5.0, .layer_token = 0.5, .head = 8.0}});
    EXPECT_DOUBLE_EQ(costs.pass_seconds(1, CostModel::base_context), 25.0);
    EXPECT_DOUBLE_EQ(costs.pass_seconds(4, CostModel::base_context), 58.0);
    EXPECT_DOUBLE_EQ(costs.pass_seconds(2, CostModel::base_context), 25.0 + 33.0 / 3);
    EXPECT_DOUBLE_EQ(costs.pass_seconds(1, CostModel::base_context + 100), 25.0 + 10 * 50.0);
}

TEST(CostModel, CountsByTheRowBehindItsLastPoint) {
    const CostModel costs(1, {{.rows = 4, .layer = 8.0, .layer_token = 0, .head = 0}});
    EXPECT_DOUBLE_EQ(costs.pass_seconds(8, CostModel::base_context), 16.0);
    EXPECT_DOUBLE_EQ(costs.pass_seconds(1, CostModel::base_context), 8.0) << "less than the first point: its price";
}

TEST(CostModel, IsNeverNegativeAtShortContexts) {
    const CostModel costs(1, {{.rows = 1, .layer = 1.0, .layer_token = 1.0, .head = 0.5}});
    EXPECT_DOUBLE_EQ(costs.pass_seconds(1, 0), 0.5);
}

TEST(CostModel, NeedsAPoint) {
    EXPECT_THROW(CostModel(1, {}), std::logic_error);
}

void expect_measured(Model& model) {
    KvPool pool(model.device(), model.kv_layouts(), 1 << 20);
    const ForwardRow row = testing::wanted(text_row(3, 0));
    const auto logits = [&] {
        KvSequence kv(pool);
        EXPECT_TRUE(kv.reserve(1));
        return testing::logits_of(model, std::span(&row, 1), kv);
    };
    const std::vector<float> before = logits();
    const CostModel costs = CostModel::measure(model, 0.0);
    EXPECT_EQ(logits(), before);
    std::vector<std::int64_t> rows;
    double layer = 0;
    for (const CostModel::Point& point : costs.points()) {
        rows.push_back(point.rows);
        EXPECT_GT(point.layer, 0);
        EXPECT_GE(point.layer, layer) << "more rows never cost less";
        layer = point.layer;
        EXPECT_GE(point.layer_token, 0);
        EXPECT_GE(point.head, 0);
        EXPECT_TRUE(std::isfinite(costs.pass_seconds(point.rows, 100'000)));
    }
    EXPECT_EQ(rows, (std::vector<std::int64_t>{1, 2, 4, 8, 12, 16, 24, 32, 48, 64}));
}

TEST(CostModel, MeasuresAModelAndLeavesItsAnswersAlone) {
    ModelConfig config;
    config.vocab_size = 64;
    config.hidden_size = 32;
    config.intermediate_size = 64;
    config.num_layers = 3;
    config.num_heads = 4;
    config.num_kv_heads = 2;
    config.head_dim = 8;
    config.max_positions = 8192;
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    expect_measured(*Model::random(config, Precision::fp32, *device, *group, 1));
}

/// Attention, Mamba-2, experts, and layers without an MLP.
TEST(CostModel, MeasuresAModelOfSeveralKindsOfLayers) {
    const auto device = kernels::make_cpu_device(kernels::CpuVariant::reference, 1);
    const auto group = make_local_group();
    expect_measured(*Model::load(LONGHAUL_TEST_DATA "/parity/nemotron3", Precision::fp32, *device, *group));
}

}  // namespace
}  // namespace longhaul::engine
