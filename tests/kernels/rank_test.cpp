// Device::rank_positions and gather_positions: what they choose, and that all devices choose the same.
#include <numeric>

#include "kernels/rank_key.hpp"
#include "tests/kernels/attention_scene.hpp"

namespace longhaul::kernels::testing {
namespace {

class RankTest : public ContractTest {};

std::vector<std::int32_t> ranked(Device& device, const KvLayout& layout, std::span<const std::byte> q,
                                 std::int64_t q_heads, const PositionRange& range) {
    const OnDevice query(device, q);
    const Guarded positions(device, static_cast<std::size_t>(layout.num_kv_heads * range.count) * 4);
    device.rank_positions(layout, 1, query.data(), q_heads, range, reinterpret_cast<std::int32_t*>(positions.data()));
    EXPECT_TRUE(positions.intact());
    std::vector<std::int32_t> chosen(positions.bytes().size() / 4);
    std::memcpy(chosen.data(), positions.bytes().data(), chosen.size() * 4);
    return chosen;
}

/// Bytes of the query of the scene's row `row`.
std::span<const std::byte> query_of(const Scene& scene, std::int64_t row) {
    const auto width =
        static_cast<std::size_t>(scene.q_heads * scene.layout.head_dim) * bytes_of(scene.layout.query_type());
    return std::span(scene.q).subspan(static_cast<std::size_t>(row) * width, width);
}

std::vector<std::byte> stored(const Device& device, const KvLayout& layout, const KvSlot& slot, std::int64_t head,
                              bool values) {
    std::vector<std::byte> token(layout.token_bytes());
    device.kv_export(layout, slot.page, 1, head, values, slot.slot, 1, token.data());
    return token;
}

/// The scores of all positions, from exported keys, summed in double precision. Not for int8.
std::vector<double> scores_of(const Device& device, const Scene& scene, std::span<const std::byte> q,
                              std::int64_t head) {
    const KvLayout& layout = scene.layout;
    const std::int64_t group = scene.q_heads / layout.num_kv_heads;
    std::vector<double> scores;
    for (std::int64_t p = 0; p < static_cast<std::int64_t>(scene.pages.pages().size()) * KvLayout::page_tokens; ++p) {
        const std::vector<std::byte> key = stored(device, layout, scene.pages.slot(p), head, false);
        double score = 0;
        for (std::int64_t i = 0; i < group * layout.head_dim; ++i) {
            score += double{load_as_f32(q.data(), layout.query_type(), head * group * layout.head_dim + i)} *
                     load_as_f32(key.data(), layout.dtype, i % layout.head_dim);
        }
        scores.push_back(score);
    }
    return scores;
}

/// By definition: no position left out scores clearly better than a chosen one.
TEST_P(RankTest, ChoosesTheBestPositions) {
    const auto device = GetParam().make(2);
    for (const DType dtype : {DType::bf16, DType::f32}) {
        const Case c{dtype, 32, 2, 2, 700, 1, false};
        const Scene scene(*device, c, 11);
        const PositionRange range{scene.pages.pages(), 16, 650, 40};
        const std::vector<std::int32_t> chosen =
            ranked(*device, scene.layout, query_of(scene, 0), scene.q_heads, range);
        for (std::int64_t h = 0; h < c.kv_heads; ++h) {
            const std::vector<std::int32_t> of_head(chosen.begin() + h * 40, chosen.begin() + (h + 1) * 40);
            EXPECT_TRUE(std::is_sorted(of_head.begin(), of_head.end(), std::less_equal<>())) << "twice the same";
            const std::vector<double> scores = scores_of(*device, scene, query_of(scene, 0), h);
            double worst = scores[static_cast<std::size_t>(of_head[0])], best_left = -1e30;
            for (std::int32_t p = 16; p < 650; ++p) {
                const double score = scores[static_cast<std::size_t>(p)];
                if (std::binary_search(of_head.begin(), of_head.end(), p)) {
                    worst = std::min(worst, score);
                } else {
                    best_left = std::max(best_left, score);
                }
            }
            EXPECT_GE(of_head.front(), 16);
            EXPECT_LT(of_head.back(), 650);
            EXPECT_LT(best_left, worst + (dtype == DType::bf16 ? 0.1 : 1e-4)) << c << ", head " << h;
        }
    }
}

TEST_P(RankTest, AllDevicesChooseTheSame) {
    const auto device = GetParam().make(3);
    const auto oracle = make_reference_device(1, GetParam().order);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        for (const std::int64_t head_dim : {8, 24, 64}) {
            for (const std::int64_t group : {1, 3}) {
                const Case c{dtype, head_dim, 3, group, 1300, 2, false};
                const Scene scene(*device, c, 5), right(*oracle, c, 5);
                for (const auto& [first, end, count] :
                     {std::array<std::int64_t, 3>{0, 1300, 1300}, {16, 1299, 700}, {64, 1024, 1}, {70, 75, 3}}) {
                    EXPECT_EQ(ranked(*device, scene.layout, query_of(scene, 1), scene.q_heads,
                                     {scene.pages.pages(), first, end, count}),
                              ranked(*oracle, right.layout, query_of(right, 1), right.q_heads,
                                     {right.pages.pages(), first, end, count}))
                        << c << ", " << count << " of " << first << " to " << end;
                }
            }
        }
    }
}

TEST_P(RankTest, LowerPositionsWinTies) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const Scene scene(*device, {dtype, 16, 1, 1, 200, 1, false}, 3);
        for (std::int64_t p = 1; p < 200; ++p) device->kv_move(scene.layout, scene.pages.slot(0), scene.pages.slot(p));
        std::vector<std::int32_t> lowest(50);
        std::iota(lowest.begin(), lowest.end(), 10);
        EXPECT_EQ(ranked(*device, scene.layout, query_of(scene, 0), scene.q_heads, {scene.pages.pages(), 10, 200, 50}),
                  lowest);
    }
}

// A key that is not finite, as a damaged model computes it: its position comes last.
TEST_P(RankTest, NanIsBelowEverything) {
    const auto device = GetParam().make(1);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const Case c{dtype, 16, 1, 1, 100, 1, false};
        const KvLayout layout = Scene::layout_on(*device, c);
        const PageSet pages(*device, layout, 100);
        Numbers numbers(6);
        Tokens tokens(numbers, layout, 1, 100);
        std::fill_n(tokens.qkv.begin() + 5 * tokens.width + 16, 16, std::nanf(""));  // the key of token 5
        std::vector<KvSlot> slots;
        for (std::int64_t i = 0; i < 100; ++i) slots.push_back(pages.slot(i));
        const std::vector<std::byte> q = store(*device, layout, 1, tokens, 0, slots);
        std::vector<std::int32_t> others(100);
        std::iota(others.begin(), others.end(), 0);
        others.erase(others.begin() + 5);
        EXPECT_EQ(ranked(*device, layout, std::span(q).first(16 * bytes_of(layout.query_type())), 1,
                         {pages.pages(), 0, 100, 99}),
                  others)
            << c;
    }
}

TEST_P(RankTest, GatheredPositionsAreCopies) {
    const auto device = GetParam().make(2);
    for (const DType dtype : {DType::bf16, DType::f32, DType::int8}) {
        const Scene scene(*device, {dtype, 24, 2, 1, 400, 1, false}, 9);
        const PageSet to(*device, scene.layout, 256);
        std::vector<std::int32_t> positions;
        for (std::int32_t i = 0; i < 150; ++i) positions.push_back(i * 2);
        for (std::int32_t i = 0; i < 150; ++i) positions.push_back(399 - i);
        const OnDevice list(*device, std::as_bytes(std::span(positions)));
        device->gather_positions(scene.layout, 1, scene.pages.pages(),
                                 reinterpret_cast<const std::int32_t*>(list.data()), 150, to.pages(), 16);
        for (const bool values : {false, true}) {
            for (std::int64_t head = 0; head < 2; ++head) {
                for (std::int64_t i = 0; i < 150; ++i) {
                    const std::int32_t position = positions[static_cast<std::size_t>(head * 150 + i)];
                    ASSERT_EQ(stored(*device, scene.layout, to.slot(16 + i), head, values),
                              stored(*device, scene.layout, scene.pages.slot(position), head, values))
                        << "head " << head << ", slot " << i;
                }
            }
        }
        EXPECT_EQ(stored(*device, scene.layout, to.slot(15), 0, false),
                  std::vector<std::byte>(scene.layout.token_bytes()));
    }
}

/// Ranking and gathering see moves that were requested before.
TEST_P(RankTest, SeesEarlierMoves) {
    const auto device = GetParam().make(1);
    const Scene scene(*device, {DType::f32, 16, 1, 1, 100, 1, false}, 4);
    const std::vector<std::int32_t> best =
        ranked(*device, scene.layout, query_of(scene, 0), scene.q_heads, {scene.pages.pages(), 0, 100, 1});
    const std::int64_t worst = best[0] == 40 ? 41 : 40;
    device->kv_move(scene.layout, scene.pages.slot(best[0]), scene.pages.slot(worst));
    device->kv_move(scene.layout, scene.pages.slot(worst == 50 ? 51 : 50), scene.pages.slot(best[0]));
    EXPECT_EQ(ranked(*device, scene.layout, query_of(scene, 0), scene.q_heads, {scene.pages.pages(), 0, 100, 1})[0],
              worst);
}

TEST_P(RankTest, WrongCallsThrow) {
    const auto device = GetParam().make(1);
    const Scene scene(*device, {DType::f32, 16, 1, 1, 100, 1, false}, 4);
    std::int32_t position = 0;
    const auto rank = [&](std::int64_t first, std::int64_t end, std::int64_t count) {
        device->rank_positions(scene.layout, 1, scene.q.data(), 1, {scene.pages.pages(), first, end, count}, &position);
    };
    EXPECT_THROW(rank(0, 129, 1), std::logic_error);
    EXPECT_THROW(rank(0, 10, 11), std::logic_error);
    EXPECT_THROW(rank(0, 10, 0), std::logic_error);
    EXPECT_THROW(device->gather_positions(scene.layout, 1, scene.pages.pages(), &position, 1, {}, 0), std::logic_error);
}

TEST(RankKey, OrdersScores) {
    const float infinity = std::numeric_limits<float>::infinity();
    const std::vector<float> ascending{-infinity, -3.0F, -1e-30F, 0.0F, 1e-30F, 2.0F, infinity};
    for (std::size_t i = 1; i < ascending.size(); ++i) EXPECT_LT(rank_key(ascending[i - 1]), rank_key(ascending[i]));
    EXPECT_EQ(rank_key(-0.0F), rank_key(0.0F));
    EXPECT_EQ(rank_key(std::nanf("")), rank_key(-infinity));
    EXPECT_GT(rank_key(-infinity), 0U);
}

INSTANTIATE_TEST_SUITE_P(Devices, RankTest, ::testing::ValuesIn(all_devices()), name_of);
INSTANTIATE_TEST_SUITE_P(InBlocks, RankTest, ::testing::ValuesIn(devices_in_blocks()), name_of);

}  // namespace
}  // namespace longhaul::kernels::testing
