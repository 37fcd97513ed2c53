// States that are kept for texts that begin alike: which one serves, and which one goes.
#include "engine/kv/kept_states.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

/// Room for three states. The contents of each are its number.
class KeptStatesTest : public ::testing::Test {
  protected:
    std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device(testing::Job{}.variant, 1);
    KeptStates kept_{*device_, sizeof(float), 3};

    void keep(const Tokens& tokens, float number) {
        kept_.keep(tokens, false, reinterpret_cast<const std::byte*>(&number));
    }
    /// The number of the state that serves a text that begins with these tokens; 0: none does.
    [[nodiscard]] float serves(const Tokens& tokens, bool has_long_rope = false) const {
        const std::vector<const KeptState*> states = kept_.behind(tokens, has_long_rope);
        return states.empty() ? 0 : *states.front()->state.as<float>();
    }
};

TEST_F(KeptStatesTest, TheLongestBeginningServes) {
    keep({1, 2}, 1);
    keep({1, 2, 3, 4}, 2);
    keep({1, 2, 5}, 3);
    EXPECT_EQ(serves({1, 2, 3, 4, 5}), 2);
    EXPECT_EQ(serves({1, 2, 3, 4}), 2);
    EXPECT_EQ(kept_.behind(Tokens{1, 2, 3, 4, 5}, false).size(), 2);
    EXPECT_EQ(serves({1, 2, 3, 5}), 1);
    EXPECT_EQ(serves({1, 3}), 0);
    EXPECT_EQ(serves({1}), 0);
    EXPECT_EQ(serves({}), 0);
    EXPECT_EQ(serves({1, 2, 5}, true), 0) << "long texts have states of their own";
}

// What others continue stays with them: the examples of all questions, while questions come and go.
TEST_F(KeptStatesTest, TheOldestThatNoneContinuesGoes) {
    keep({1, 2}, 1);
    for (std::int32_t question = 10; question < 20; ++question) {
        keep({1, 2, question}, static_cast<float>(question));
        EXPECT_EQ(serves({1, 2, 3}), 1);
        EXPECT_EQ(serves({1, 2, question}), static_cast<float>(question));
        EXPECT_EQ(serves({1, 2, question - 2}), 1) << "gone";
    }
    keep({7}, 7);
    keep({8}, 8);
    keep({9}, 9);
    EXPECT_EQ(serves({1, 2, 3}), 0) << "none continued it any more";
    EXPECT_EQ(serves({7}), 7);
}

TEST_F(KeptStatesTest, UseCounts) {
    keep({1}, 1);
    keep({2}, 2);
    keep({3}, 3);
    kept_.use(*kept_.behind(Tokens{1}, false).front());
    keep({2}, 4);  // there already
    keep({5}, 5);
    EXPECT_EQ(serves({1}), 1);
    EXPECT_EQ(serves({2}), 2);
    EXPECT_EQ(serves({3}), 0);
    EXPECT_EQ(serves({5}), 5);
}

// They take a sixteenth of the memory at most, and that from keys and values.
TEST_F(KeptStatesTest, TakeLittleMemory) {
    const auto group = make_local_group();
    const auto model = Model::load(LONGHAUL_TEST_DATA "/parity/nemotron-h", Precision::bf16, *device_, *group);
    const std::int64_t bytes = state_bytes(*state_layout(model->kv_layouts()));
    const auto max_states = [&](std::int64_t memory) {
        const WindowUse use{.sequences = 1, .kept_states = 3};
        return KvPool(*device_, model->kv_layouts(), KvMemory{memory}, use).max_kept_states();
    };
    EXPECT_EQ(max_states(16 * bytes - 1), 0);
    EXPECT_EQ(max_states(16 * bytes), 1);
    EXPECT_EQ(max_states(33 * bytes), 2);
    EXPECT_EQ(max_states(1000 * bytes), 3);
    const KvPool with(*device_, model->kv_layouts(), KvMemory{1000 * bytes}, {.sequences = 1, .kept_states = 3});
    const KvPool as_large(*device_, model->kv_layouts(), KvMemory{997 * bytes}, {.sequences = 1});
    EXPECT_EQ(with.max_pages()[0], as_large.max_pages()[0]);
}

}  // namespace
}  // namespace longhaul::engine
