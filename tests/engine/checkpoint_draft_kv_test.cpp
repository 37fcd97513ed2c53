// Keys and values of a drafter's layer in checkpoints: the last positions without a gap are restored, whatever is
// missing, and damage of these files costs the target's keys and values nothing.
#include <gtest/gtest.h>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

constexpr const char* layer_kind = "eagle/1";

CheckpointIdentity layer_identity(const char* kind = layer_kind) {
    return small_identity().of_drafter(kind, 3, 16);
}

/// Rounds of item a, each with the positions that the drafter's layer gained, on two ranks: heads 0 and 1, and 2.
class CheckpointDraftKv : public testing::Test {
  protected:
    CheckpointDraftKv() { replica.start("a", 100); }

    void write_round(std::int64_t begin, std::int64_t end, const char* kind = layer_kind,
                     const CheckpointIdentity& identity = layer_identity()) {
        std::vector<KvFile> files{write_kv_file(folder.path(), kv_file_name(0, 0, replica.round, 0), small_identity(),
                                                0, 4, replica.kv_sources(0, 1))};
        for (const auto& [rank, first, count] : {std::tuple{0, 0, 2}, {1, 2, 1}}) {
            const KvExport read = [identity, first = first](std::size_t, const kernels::KvBox& box, std::byte* to,
                                                            std::size_t head_stride) {
                for (std::int64_t head = box.first_head; head < box.first_head + box.num_heads; ++head)
                    fill_kv(identity, "a", 0, first + head, box.values, box.first, box.count,
                            to + static_cast<std::size_t>(head - box.first_head) * head_stride);
            };
            files.push_back(write_kv_file(folder.path(), kv_file_name(0, 0, replica.round, rank, KvFile::Of::drafter),
                                          identity, first, count, {{"a", begin, end, read}}));
        }
        Commit commit = replica.commit(1, std::move(files));
        commit.items.front().drafter = {.kind = kind, .row_width = 0, .rows = {}};
        write_commit(folder.path(), commit);
        replica.committed(commit);
    }

    /// Expects positions [first, end), with the right contents, and returns the reported damage.
    std::vector<std::string> expect_restored(std::int64_t first, std::int64_t end, std::int64_t limit = 1000,
                                             const char* kind = layer_kind) {
        CheckpointStore store(folder.path(), small_identity(), 0);
        const auto item = store.restore("a");
        EXPECT_TRUE(item && item->damage.empty() && item->kv_tokens == 100 + replica.round - 1);
        const CheckpointIdentity identity = layer_identity(kind);
        const RestoredDraftKv got = store.restore_draft_kv("a", identity, limit);
        EXPECT_EQ(got.first, first);
        EXPECT_EQ(got.end, end);
        std::vector<std::byte> rows(static_cast<std::size_t>(got.end - got.first) * 32), expected(rows.size());
        for (std::int64_t head = 0; head < 3 && !rows.empty(); ++head) {
            for (const bool values : {false, true}) {
                store.read_draft_kv("a", {0, 0, head, values, got.first, got.end - got.first}, rows.data());
                fill_kv(identity, "a", 0, head, values, got.first, got.end - got.first, expected.data());
                EXPECT_EQ(rows, expected) << "head " << head;
            }
        }
        const auto read = [&](std::int64_t head, std::int64_t from, std::int64_t count) {
            store.read_draft_kv("a", {0, 0, head, false, from, count}, rows.data());
        };
        EXPECT_THROW(read(0, got.first, got.end - got.first + 1), std::logic_error);
        EXPECT_THROW(read(0, got.first - 1, 1), std::logic_error);
        EXPECT_THROW(read(3, got.first, 0), std::logic_error);
        return got.damage;
    }

    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica{folder.path(), 0, 0};
};

TEST_F(CheckpointDraftKv, TheLastPositionsWithoutAGap) {
    write_round(0, 10);
    write_round(10, 12);
    EXPECT_TRUE(expect_restored(0, 12).empty());
    EXPECT_TRUE(expect_restored(0, 11, 11).empty()) << "not beyond what the target has";
    write_round(20, 30);  // drafting had paused
    write_round(26, 40);  // the end was recomputed
    write_round(33, 35);
    EXPECT_TRUE(expect_restored(20, 40).empty());
    EXPECT_TRUE(expect_restored(20, 34, 34).empty());
    EXPECT_TRUE(expect_restored(0, 12, 15).empty());
    write_round(0, 22);
    EXPECT_TRUE(expect_restored(0, 40).empty());
}

TEST_F(CheckpointDraftKv, DamageCostsNothingElse) {
    for (const auto& [begin, end] : {std::pair{0, 10}, {10, 20}, {20, 30}}) write_round(begin, end);
    const std::filesystem::path file = folder.file("0-0-1.1.draft.h5");
    const std::vector<char> good = read_bytes(file);
    for (std::size_t at = 0; at < good.size(); at += good.size() / 40) {
        std::vector<char> bad = good;
        bad[at] ^= 4;
        write_bytes(file, bad);
        const std::vector<std::string> damage = expect_restored(20, 30);
        ASSERT_EQ(damage.size(), 1U) << at;
        EXPECT_EQ(damage.front().rfind(file.string() + ": ", 0), 0U) << damage.front();
    }
    write_bytes(file, {good.begin(), good.end() - 1});
    EXPECT_EQ(expect_restored(20, 30).size(), 1U) << "cut off";
    std::filesystem::remove(file);
    EXPECT_EQ(expect_restored(20, 30).size(), 1U) << "missing";
    write_bytes(file, good);
    EXPECT_TRUE(expect_restored(0, 30).empty());
    std::filesystem::remove(folder.file("0-0-2.0.draft.h5"));
    EXPECT_EQ(expect_restored(0, 20).size(), 1U);
}

TEST_F(CheckpointDraftKv, FilesOfAnotherDrafterAreNotRead) {
    write_round(0, 10);
    write_round(10, 20, "lyanna/2", layer_identity("lyanna/2"));
    write_bytes(folder.file("0-0-1.0.draft.h5"), {'x'});
    EXPECT_TRUE(expect_restored(0, 10).empty());
    EXPECT_EQ(expect_restored(0, 0, 1000, "lyanna/2").size(), 1U);
    EXPECT_TRUE(expect_restored(0, 0, 1000, "eagle/3").empty());
    write_round(10, 20, layer_kind, small_identity().of_drafter(layer_kind, 3, 8));
    const std::vector<std::string> damage = expect_restored(0, 10);
    ASSERT_EQ(damage.size(), 2U);
    EXPECT_NE(damage.front().find("0-0-2.0.draft.h5: identity: expected that of its commit"), std::string::npos)
        << damage.front();
}

TEST_F(CheckpointDraftKv, FilesAreRemovedWithTheirCommit) {
    write_round(0, 10);
    write_round(10, 20);
    CheckpointStore(folder.path(), small_identity(), 0).remove_unneeded({"a"}, 1);
    EXPECT_EQ(names_in(folder.path()).size(), 8U);
    CheckpointStore(folder.path(), small_identity(), 0).remove_unneeded({}, 1);
    EXPECT_TRUE(names_in(folder.path()).empty());
}

}  // namespace
}  // namespace longhaul::engine
