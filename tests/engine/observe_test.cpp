// What a drafter observes of a target pass, recorded by a draft method of this test: its tapped rows, the accepted path
// and the rejected level.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/draft/drafter.hpp"
#include "tests/engine/replica_harness.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;

struct Seen {
    std::vector<std::int32_t> context, path;
    std::int64_t num_new = 0, rejected_level = 0, num_rows = 0, first_position = 0, row_before_root = 0,
                 tapped_rows = 0;
};
std::vector<Seen> observed;
std::vector<std::int32_t> recorded;  // output of plain decoding
std::int64_t wrong_level = 0;        // of each chain; 0: none

/// Chains of three tokens, one of which can be wrong on purpose.
class Spy final : public Drafter {
  public:
    [[nodiscard]] std::unique_ptr<SequenceDrafter> make_sequence(const DraftItem& item) override {
        prompt_tokens_ = item.prompt_tokens;
        return std::make_unique<SequenceDrafter>();
    }
    void propose(std::span<Proposal> proposals) override {
        for (Proposal& proposal : proposals) {
            std::int32_t node = 0;
            for (std::int64_t level = 1; level <= std::min<std::int64_t>(3, proposal.max_depth); ++level) {
                const auto at = std::ssize(proposal.context) - prompt_tokens_ + level - 1;
                node = proposal.tree->add(node, recorded.at(at) ^ (level == wrong_level ? 1 : 0), Origin::model);
            }
        }
    }
    [[nodiscard]] std::vector<Tap> taps() const override { return {{.at = Tap::At::last_hidden, .rows = {}}}; }
    void observe(std::span<const Observation> observations, std::span<const HiddenStates> taps) override {
        for (const Observation& o : observations) {
            observed.push_back({.context = {o.context.begin(), o.context.end()},
                                .path = {o.path.begin(), o.path.end()},
                                .num_new = o.num_new,
                                .rejected_level = o.rejected_level,
                                .num_rows = o.num_rows,
                                .first_position = o.first_position,
                                .row_before_root = o.row_before_root(),
                                .tapped_rows = taps.front().num_rows()});
        }
    }
    [[nodiscard]] std::int64_t max_nodes() const override { return 3; }
    [[nodiscard]] std::int64_t max_depth() const override { return 3; }

  private:
    std::int64_t prompt_tokens_ = 0;
};

const DraftMethod spy{.name = "spy",
                      .summary = "",
                      .draws = Draws::certain,
                      .form = TreeForm::chain,
                      .default_tree = "3",
                      .make = [](const DraftContext&) -> std::unique_ptr<Drafter> { return std::make_unique<Spy>(); }};

TEST(Observation, TellsRowsPathAndWhatWasRejected) {
    Job job{base_options()};
    job.items = 1;
    job.prompts[0] = prompt_of(2);  // 94 tokens, in chunks of 32
    job.options.draft.method = "ar";
    recorded = launch(job).items.at(0).tokens;
    recorded.resize(recorded.size() + 4, 0);
    job.options.draft.method = spy;
    job.options.draft.tree = "";
    for (wrong_level = 0; wrong_level <= 3; ++wrong_level) {
        observed.clear();
        const FinishedItem item = launch(job).items.at(0);
        EXPECT_TRUE(std::equal(item.tokens.begin(), item.tokens.end(), recorded.begin())) << wrong_level;
        const auto prompt = std::ssize(job.prompts[0]);
        std::int64_t chunk_end = 0;
        for (const Seen& seen : observed) {
            if (seen.first_position >= 0) {  // a prompt chunk: all but the last prompt token, which is the first root
                EXPECT_EQ(seen.first_position, chunk_end);
                chunk_end += seen.num_rows;
                EXPECT_EQ(seen.num_new, 0);
                EXPECT_EQ(seen.row_before_root, chunk_end == prompt - 1 ? seen.num_rows - 1 : -1);
                EXPECT_EQ(seen.tapped_rows, seen.num_rows);
                continue;
            }
            EXPECT_EQ(seen.tapped_rows, seen.num_rows) << "one sequence";
            EXPECT_EQ(seen.num_new, std::ssize(seen.path) + 1);
            const bool cut = seen.num_rows != 4;  // at the end of the item
            const std::int64_t right = cut ? std::ssize(seen.path) : wrong_level == 0 ? 3 : wrong_level - 1;
            EXPECT_EQ(std::ssize(seen.path), right);
            EXPECT_EQ(seen.row_before_root, right) << "of a chain, the last accepted node";
            if (!cut) {
                EXPECT_EQ(seen.rejected_level, wrong_level);
            }
        }
        EXPECT_EQ(chunk_end, prompt - 1);
    }
}

}  // namespace
}  // namespace longhaul::engine
