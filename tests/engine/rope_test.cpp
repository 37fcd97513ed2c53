// engine/model/rope.hpp against transformers (tests/data/parity/rope.json, from tests/tools/make_parity_goldens.py).
#include "engine/model/rope.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>

#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

/// The configuration as loaded from a model folder.
ModelConfig loaded(const Json& config) {
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path() / ("longhaul-rope-test-" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder);
    std::ofstream(folder / "config.json") << json_text(config);
    const ModelConfig result = ModelConfig::load(folder);
    std::filesystem::remove_all(folder);
    return result;
}

/// The distance between two floats in ulps.
std::int64_t float_steps(float a, float b) {
    const auto order = [](float x) {
        const auto bits = std::bit_cast<std::int32_t>(x);
        return static_cast<std::int64_t>(bits < 0 ? std::numeric_limits<std::int32_t>::min() - bits : bits);
    };
    return std::abs(order(a) - order(b));
}

struct Table {
    std::vector<float> cos;
    std::vector<float> sin;
    Table(const RopeTable& rope, std::int64_t position)
        : cos(rope.inverse_frequencies().size()), sin(rope.inverse_frequencies().size()) {
        rope.fill(position, position + 1, cos.data(), sin.data());
    }
};

// Texts of both frequencies in turn, positions before, at and behind what is remembered.
TEST(Rope, RememberedAnglesAreTheSame) {
    const Json golden = read_json(std::filesystem::path(LONGHAUL_TEST_DATA) / "parity" / "rope.json");
    std::vector<Json> configs;
    for (const Json& golden_case : golden["cases"]) configs.push_back(golden_case["config"]);
    configs.push_back(configs.front());
    const std::size_t pairs_of_first = RopeTable(loaded(configs.front())).inverse_frequencies().size();
    configs.back()["original_max_position_embeddings"] = 16;
    configs.back()["rope_scaling"] = {{"type", "longrope"},
                                      {"short_factor", std::vector<double>(pairs_of_first, 1.5)},
                                      {"long_factor", std::vector<double>(pairs_of_first, 3.0)}};
    EXPECT_TRUE(RopeTable(loaded(configs.back())).is_long(17));
    for (const Json& config : configs) {
        SCOPED_TRACE(config.dump());
        const RopeTable rope(loaded(config));
        RememberedAngles remembered(rope, 4);
        const auto pairs = static_cast<std::size_t>(rope.num_pairs());
        for (const std::int64_t position : {0, 1, 2, 0, 1, 5, 3, 3, 40000, 4, 2, 5}) {
            for (const std::int64_t length : {position + 1, std::int64_t{1} << 30}) {
                std::vector<float> cos(pairs), sin(pairs), cos_again(pairs), sin_again(pairs);
                rope.fill(position, length, cos.data(), sin.data());
                remembered.fill(position, length, cos_again.data(), sin_again.data());
                EXPECT_EQ(cos_again, cos) << position;
                EXPECT_EQ(sin_again, sin) << position;
            }
        }
        EXPECT_EQ(remembered.num_remembered(1), 4);
        EXPECT_EQ(remembered.num_remembered(std::int64_t{1} << 30), 4);
    }
}

TEST(Rope, AgreesWithTransformers) {
    const Json golden = read_json(std::filesystem::path(LONGHAUL_TEST_DATA) / "parity" / "rope.json");
    std::size_t compared = 0, unequal = 0;
    for (const Json& golden_case : golden["cases"]) {
        SCOPED_TRACE(golden_case["name"].get<std::string>());
        const RopeTable rope(loaded(golden_case["config"]));
        EXPECT_EQ(rope.attention_factor(), golden_case["attention_factor"].get<float>());
        const auto frequencies = golden_case["inverse_frequencies"].get<std::vector<float>>();
        ASSERT_EQ(rope.inverse_frequencies().size(), frequencies.size());
        for (std::size_t i = 0; i < frequencies.size(); ++i) {
            const std::int64_t steps = float_steps(rope.inverse_frequencies()[i], frequencies[i]);
            EXPECT_LE(steps, 1) << "pair " << i;
            unequal += steps != 0 ? 1 : 0;
            ++compared;
        }
        for (std::size_t p = 0; p < golden["positions"].size(); ++p) {
            const auto position = golden["positions"][p].get<std::int64_t>();
            const Table table(rope, position);
            for (std::size_t i = 0; i < frequencies.size(); ++i) {
                // An ulp of the frequency changes the angle by `position` times as much.
                const float step = std::nextafter(frequencies[i], 1e30F) - frequencies[i];
                const bool same = rope.inverse_frequencies()[i] == frequencies[i];
                const double bound = (same ? 0.0 : static_cast<double>(position) * step * 2.0) + 1.8e-7;
                EXPECT_NEAR(table.cos[i], golden_case["cos"][p][i].get<float>(), bound) << position << " pair " << i;
                EXPECT_NEAR(table.sin[i], golden_case["sin"][p][i].get<float>(), bound) << position << " pair " << i;
            }
        }
    }
    EXPECT_GT(compared, 300U);
    EXPECT_LT(unequal * 50, compared) << "of " << compared;  // 3 measured: PyTorch's power is inexact there
}

TEST(Rope, PositionZeroTurnsNothing) {
    ModelConfig config;
    config.head_dim = 8;
    config.max_positions = 64;
    const Table table(RopeTable(config), 0);
    EXPECT_EQ(table.cos, std::vector<float>(4, 1.0F));
    EXPECT_EQ(table.sin, std::vector<float>(4, 0.0F));
}

}  // namespace
}  // namespace longhaul::engine
