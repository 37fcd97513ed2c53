// States that are kept for texts that begin alike: which one serves, and which one goes.
#include "engine/kv/kept_states.hpp"

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using Tokens = std::vector<std::int32_t>;

/// Room for three states. The contents of each are its number.
class KeptStatesTest : public ::testing::Test {
  protected:
    std::unique_ptr<kernels::Device> device_ = kernels::make_cpu_device(testing::Job{}.variant, 1);
    std::unique_ptr<Group> group_ = make_local_group();
    std::unique_ptr<Model> model_ =
        Model::load(LONGHAUL_TEST_DATA "/parity/nemotron-h", Precision::bf16, *device_, *group_);
    KvPool pool_{*device_, model_->kv_layouts(), KvMemory{std::int64_t{1} << 30}, {.sequences = 1, .kept_states = 3}};
    KeptStates kept_{pool_.kept_states(), pool_.kept_states()->max_pages()};

    void keep(const Tokens& tokens, float number) {
        KvSequence sequence(pool_);
        ASSERT_TRUE(sequence.reserve(1));
        device_->upload(sequence.state_page(), &number, sizeof(number));
        kept_.keep(tokens, false, sequence.state_page());
    }
    /// The number of the state that serves a text that begins with these tokens; 0: none does.
    [[nodiscard]] float serves(const Tokens& tokens, bool has_long_rope = false) const {
        const KeptState* const state = kept_.longest(tokens, has_long_rope);
        float number = 0;
        if (state != nullptr) device_->download(&number, state->page, sizeof(number));
        return number;
    }
};

TEST_F(KeptStatesTest, TheLongestBeginningServes) {
    keep({1, 2}, 1);
    keep({1, 2, 3, 4}, 2);
    keep({1, 2, 5}, 3);
    EXPECT_EQ(serves({1, 2, 3, 4, 5}), 2);
    EXPECT_EQ(serves({1, 2, 3, 4}), 2);
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
    kept_.use(*kept_.longest(Tokens{1}, false));
    keep({2}, 4);  // there already
    keep({5}, 5);
    EXPECT_EQ(serves({1}), 1);
    EXPECT_EQ(serves({2}), 2);
    EXPECT_EQ(serves({3}), 0);
    EXPECT_EQ(serves({5}), 5);
}

// They take an eighth of the memory at most, and none from keys and values if that is too little.
TEST_F(KeptStatesTest, TakeLittleMemory) {
    const auto bytes = static_cast<std::int64_t>(kv_page_bytes(*device_, *state_layout(model_->kv_layouts())));
    const auto pool_of = [&](std::int64_t memory) {
        return KvPool(*device_, model_->kv_layouts(), KvMemory{memory}, {.sequences = 1, .kept_states = 3});
    };
    EXPECT_EQ(pool_of(8 * bytes - 1).kept_states(), nullptr);
    EXPECT_EQ(pool_of(8 * bytes).kept_states()->max_pages(), 1);
    EXPECT_EQ(pool_of(17 * bytes).kept_states()->max_pages(), 2);
    EXPECT_EQ(pool_of(100 * bytes).kept_states()->max_pages(), 3);
    EXPECT_EQ(pool_.max_pages()[0],
              KvPool(*device_, model_->kv_layouts(), KvMemory{(std::int64_t{1} << 30) - 3 * bytes}, {.sequences = 1})
                  .max_pages()[0]);
}

}  // namespace
}  // namespace longhaul::engine
