// States of linear attention in checkpoints: a text goes on behind the last round whose states are intact.
#include <gtest/gtest.h>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/folder_check.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

CheckpointIdentity with_states() {
    CheckpointIdentity identity = small_identity();
    identity.states = {.num_layers = 2, .num_heads = 3, .head_floats = 48};
    return identity;
}

/// Rounds of item a with a prompt of 100 tokens, each of one token. States are written by two ranks: heads 0 and 1, and
/// head 2.
class CheckpointStates : public testing::Test {
  protected:
    CheckpointStates() {
        replica.start("a", 100);
        for (int round = 0; round < 3; ++round) write_round();
    }

    void write_round(bool stores_states = true) {
        std::vector<KvFile> files{write_kv_file(folder.path(), kv_file_name(0, 0, replica.round, 0), small_identity(),
                                                0, 4, replica.kv_sources(0, 1))};
        const std::int64_t positions = 100 + replica.round;
        const CheckpointIdentity identity = with_states().of_states();
        for (const auto& [rank, first, count] : {std::tuple{0, 0, 2}, {1, 2, 1}}) {
            if (!stores_states) break;
            const KvExport read = [identity, first = first](std::size_t, const kernels::KvBox& box, std::byte* to,
                                                            std::size_t head_stride) {
                for (std::int64_t i = 0; i < box.num_layers * box.num_heads; ++i)
                    fill_kv(identity, "a", box.first_layer + i / box.num_heads,
                            first + box.first_head + i % box.num_heads, box.values, box.first, box.count,
                            to + static_cast<std::size_t>(i) * head_stride);
            };
            files.push_back(write_kv_file(folder.path(), kv_file_name(0, 0, replica.round, rank, KvFile::Of::states),
                                          identity, first, count, {{"a", positions - 1, positions, read}}));
        }
        const Commit commit = replica.commit(1, std::move(files));
        write_commit(folder.path(), commit);
        replica.committed(commit);
    }

    /// Expects all keys and values, and states behind `positions` alone, with the right contents; returns the damage.
    std::vector<std::string> expect_states(std::int64_t positions) {
        CheckpointStore store(folder.path(), with_states(), 0);
        const auto item = store.restore("a");
        EXPECT_TRUE(item && item->kv_tokens == 99 + replica.round);
        if (!item) return {};
        const std::vector<std::int64_t> at = positions > 0 ? std::vector{positions} : std::vector<std::int64_t>{};
        EXPECT_EQ(item->states_at, at);
        EXPECT_EQ(item->usable_positions(1000, with_states()), positions);
        EXPECT_EQ(item->usable_positions(positions - 1, with_states()), 0) << "a state cannot go back";
        EXPECT_EQ(item->usable_positions(1000, small_identity()), item->kv_tokens) << "without states";
        std::vector<float> half(24), expected(24);
        for (std::int64_t i = 0; i < 2 * 3 && positions > 0; ++i) {
            for (const bool second : {false, true}) {
                store.read_state("a", {0, i / 3, i % 3, second, positions - 1, 1}, half.data());
                fill_kv(with_states().of_states(), "a", i / 3, i % 3, second, positions - 1, 1,
                        reinterpret_cast<std::byte*>(expected.data()));
                EXPECT_EQ(half, expected) << "layer " << i / 3 << ", head " << i % 3;
            }
        }
        EXPECT_THROW(store.read_state("a", {0, 0, 0, false, positions, 1}, half.data()), std::logic_error);
        EXPECT_THROW(store.read_state("a", {0, 2, 0, false, positions - 1, 1}, half.data()), std::logic_error);
        EXPECT_THROW(store.read_state("a", {0, 0, 3, false, positions - 1, 1}, half.data()), std::logic_error);
        return item->damage;
    }

    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica{folder.path(), 0, 0};
};

TEST_F(CheckpointStates, ThoseOfTheLastRound) {
    EXPECT_EQ(names_in(folder.path()).size(), 12U);
    EXPECT_TRUE(expect_states(102).empty());
}

TEST_F(CheckpointStates, AreOlderWhereTheLastOnesAreDamaged) {
    const std::filesystem::path file = folder.file("0-0-2.1.state.h5");
    const std::vector<char> good = read_bytes(file);
    for (std::size_t at = 0; at < good.size(); at += good.size() / 20) {
        std::vector<char> bad = good;
        bad[at] ^= 4;
        write_bytes(file, bad);
        const std::vector<std::string> damage = expect_states(101);
        ASSERT_FALSE(damage.empty()) << at;
        EXPECT_EQ(damage.front().rfind(file.string() + ": ", 0), 0U) << damage.front();
    }
    write_bytes(file, good);
    EXPECT_TRUE(expect_states(102).empty());
    for (const char* name : {"0-0-2.0.state.h5", "0-0-1.1.state.h5"}) std::filesystem::remove(folder.file(name));
    EXPECT_FALSE(expect_states(100).empty()) << "missing";
    std::filesystem::remove(folder.file("0-0-0.0.state.h5"));
    EXPECT_FALSE(expect_states(0).empty()) << "all is computed again";
}

TEST_F(CheckpointStates, AreNotInEveryRound) {
    write_round(false);
    EXPECT_TRUE(expect_states(102).empty());
    EXPECT_EQ(check_checkpoints(folder.path(), 0, {}).damage, std::vector<std::string>{});
    write_round();
    EXPECT_TRUE(expect_states(104).empty());
}

/// A replica keeps those of the last rounds of an item.
TEST_F(CheckpointStates, AreOfNoUseOnceLaterOnesAreThere) {
    const auto damage = [&] { return check_checkpoints(folder.path(), 0, {}).damage; };
    std::filesystem::remove(folder.file("0-0-0.0.state.h5"));
    std::filesystem::remove(folder.file("0-0-0.1.state.h5"));
    EXPECT_EQ(damage(), std::vector<std::string>{});
    EXPECT_TRUE(expect_states(102).empty());
    std::filesystem::remove(folder.file("0-0-1.1.state.h5"));
    EXPECT_EQ(damage(), std::vector<std::string>{});
    const std::filesystem::path last = folder.file("0-0-2.0.state.h5");
    std::filesystem::remove(last);
    const std::vector<std::string> lines = damage();
    ASSERT_FALSE(lines.empty());
    EXPECT_NE(lines.back().find(last.string() + ": "), std::string::npos) << lines.back();
    EXPECT_EQ(check_checkpoints(folder.path(), 0, {"a"}).damage, std::vector<std::string>{}) << "a finished item";
}

/// Launches that are killed one after another leave theirs behind: the next one removes them.
TEST_F(CheckpointStates, OfEarlierRoundsAreRemovedWhenALaunchStarts) {
    const auto after_start = [&] {
        CheckpointStore(folder.path(), with_states(), 0).remove_unneeded({"a"}, 1);
        std::vector<std::string> names = names_in(folder.path());
        std::erase_if(names, [](const std::string& name) { return !name.ends_with(".state.h5"); });
        return names;
    };
    const std::vector<std::string> last_two{"0-0-1.0.state.h5", "0-0-1.1.state.h5", "0-0-2.0.state.h5",
                                            "0-0-2.1.state.h5"};
    const std::int64_t before = CheckpointStore(folder.path(), with_states(), 0).num_bytes();
    std::int64_t removed = 0;
    for (const char* name : {"0-0-0.0.state.h5", "0-0-0.1.state.h5"})
        removed += static_cast<std::int64_t>(std::filesystem::file_size(folder.file(name)));
    EXPECT_EQ(after_start(), last_two);
    EXPECT_EQ(after_start(), last_two);
    EXPECT_EQ(CheckpointStore(folder.path(), with_states(), 0).num_bytes(), before - removed);
    EXPECT_GT(removed, 0);
    EXPECT_TRUE(expect_states(102).empty());
    EXPECT_EQ(check_checkpoints(folder.path(), 0, {}).damage, std::vector<std::string>{});
    write_round();
    std::filesystem::remove(folder.file("0-0-3.0.state.h5"));  // of no use without it
    EXPECT_EQ(after_start(), last_two);
}

TEST_F(CheckpointStates, FilesOfStatesAreKnownByTheirNames) {
    EXPECT_EQ(kv_file_name(1, 2, 3, 4, KvFile::Of::states), "1-2-3.4.state.h5");
    EXPECT_EQ(KvFile{.name = "1-2-3.4.state.h5"}.of(), KvFile::Of::states);
    EXPECT_EQ(KvFile{.name = "1-2-3.4.draft.h5"}.of(), KvFile::Of::drafter);
    EXPECT_EQ(KvFile{.name = "1-2-3.4.h5"}.of(), KvFile::Of::target);
}

}  // namespace
}  // namespace longhaul::engine
