// Checkpoint round trips: what was written is restored, across rounds, replicas, launches and layouts.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/store.hpp"
#include "engine/checkpoint/writer.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

TEST(Checkpoint, MissingFolderIsEmpty) {
    const FastFiles fast;
    const TemporaryFolder folder;
    CheckpointStore store(folder.file("none"), small_identity(), 5);
    EXPECT_TRUE(store.items().empty());
    EXPECT_TRUE(store.damage().empty());
    EXPECT_FALSE(store.restore("book/0").has_value());
}

TEST(Checkpoint, CommitComesBackWhole) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 3, 7);
    replica.start("book/0", 10);
    replica.start("z\u00fcrich \"quoted\"/1", 1);
    replica.write_round();
    const Commit written = replica.write_round();
    const Commit read = read_commit(folder.file(written.name));
    EXPECT_EQ(read.name, "3-7-1.h5");
    EXPECT_EQ(read.identity, written.identity);
    ASSERT_EQ(read.items.size(), 2U);
    for (std::size_t i = 0; i < 2; ++i) {
        EXPECT_EQ(read.items[i].key, written.items[i].key);
        EXPECT_EQ(read.items[i].previous_commit, "3-7-0.h5");
        EXPECT_EQ(read.items[i].prompt_tokens, written.items[i].prompt_tokens);
        EXPECT_EQ(read.items[i].first_token, 20);
        EXPECT_EQ(read.items[i].tokens, written.items[i].tokens);
        EXPECT_EQ(read.items[i].logprobs, written.items[i].logprobs);
        EXPECT_EQ(read.items[i].logprobs.size(), 60U);
        EXPECT_EQ(read.items[i].kv_begin, written.items[i].kv_begin);
        EXPECT_EQ(read.items[i].kv_end, written.items[i].kv_end);
        EXPECT_EQ(read.items[i].drafter.kind, "ngram/2");
        EXPECT_EQ(read.items[i].drafter.row_width, 3);
        EXPECT_EQ(read.items[i].drafter.rows, written.items[i].drafter.rows);
        ASSERT_EQ(read.items[i].drafter.tensors.size(), 2U);
        EXPECT_EQ(read.items[i].drafter.tensors, written.items[i].drafter.tensors);
        EXPECT_EQ(read.items[i].statistics, "{\"rounds\":2}");
    }
    ASSERT_EQ(read.kv_files.size(), 2U);
    EXPECT_EQ(read.kv_files[1].name, "3-7-1.1.h5");
    EXPECT_EQ(read.kv_files[1].num_bytes, std::filesystem::file_size(folder.file("3-7-1.1.h5")));
    EXPECT_EQ(read.kv_files[1].checksum, written.kv_files[1].checksum);
    EXPECT_EQ(read.kv_files[1].first_kv_head, 2);
    EXPECT_EQ(read.kv_files[1].num_kv_heads, 2);
}

TEST(Checkpoint, RoundsOfTwoReplicasAddUp) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica first(folder.path(), 0, 1);
    PretendedReplica second(folder.path(), 1, 1, {{0, 4}});
    first.start("a", 10);
    first.start("b", 33);
    second.start("c", 5);
    for (int round = 0; round < 5; ++round) {
        first.write_round(10 + round);
        second.write_round(3);
        if (round == 1) second.start("d", 7);  // a new item between two rounds
    }
    CheckpointStore store(folder.path(), small_identity(), 1);
    EXPECT_EQ(store.items(), (std::map<std::string, std::int64_t>{{"a", 60}, {"b", 60}, {"c", 15}, {"d", 9}}));
    const RestoredItem a = expect_item(store, "a", 60, 69);
    EXPECT_EQ(a.prompt_tokens, 10);
    ASSERT_EQ(a.logprobs.size(), 180U);
    EXPECT_EQ(a.logprobs.back(), 2 - a.tokens.back());
    EXPECT_EQ(a.last_commit, "0-1-4.h5");
    EXPECT_EQ(a.statistics, "{\"rounds\":5}");
    EXPECT_TRUE(a.damage.empty());
    EXPECT_EQ(a.kv_ends, (std::vector<std::int64_t>{19, 30, 42, 55, 69}));
    ASSERT_EQ(a.drafter.size(), 5U);
    EXPECT_EQ(a.drafter[0].rows[0], 0) << "oldest first";
    EXPECT_EQ(a.drafter[4].rows[0], 4);
    expect_item(store, "b", 60, 92);
    expect_item(store, "c", 15, 19);
    expect_item(store, "d", 9, 15);
    EXPECT_TRUE(store.damage().empty());
}

TEST(Checkpoint, AnyLayoutReadsAnyOther) {
    // Four KV heads under tensor parallel 1, 2, 4 and 8 (ranks above 4 write none), and uneven and reordered splits.
    const std::vector<std::vector<HeadRange>> layouts{
        {{0, 4}}, {{0, 2}, {2, 2}}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}, {{0, 3}, {3, 1}}, {{2, 2}, {0, 2}}};
    const FastFiles fast;
    const TemporaryFolder folder;
    std::optional<RestoredItem> last;
    std::int64_t epoch = 0;
    for (const auto& layout : layouts) {  // each launch resumes the one before it in another layout
        PretendedReplica replica(folder.path(), 0, epoch, layout);
        if (last)
            replica.resume(*last);
        else
            replica.start("a", 12);
        replica.write_round(5);
        replica.write_round(6);
        CheckpointStore store(folder.path(), small_identity(), epoch);
        ++epoch;
        last = expect_item(store, "a", 11 * epoch, 12 + 11 * epoch - 1);
    }
}

TEST(Checkpoint, PositionsAreReadFromTheMiddle) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0);
    replica.start("a", 12);
    replica.start("b", 4);
    for (int round = 0; round < 3; ++round) replica.write_round(10);
    CheckpointStore store(folder.path(), small_identity(), 0);
    const CheckpointIdentity identity = small_identity();
    const auto item = store.restore("b");
    ASSERT_TRUE(item);
    for (std::int64_t first = 0; first <= item->kv_tokens; ++first) {
        const std::int64_t count = std::min<std::int64_t>(14, item->kv_tokens - first);  // often across two files
        std::vector<std::byte> got(static_cast<std::size_t>(count * identity.head_dim) * 2);
        std::vector<std::byte> expected(got.size());
        store.read_kv("b", {0, 1, 3, true, first, count}, got.data());
        fill_kv(identity, "b", 1, 3, true, first, count, expected.data());
        EXPECT_EQ(got, expected) << first;
    }
    std::byte nothing{};
    EXPECT_THROW(store.read_kv("b", {0, 2, 0, true, 0, 1}, &nothing), std::logic_error);
    EXPECT_THROW(store.read_kv("b", {0, 0, 4, true, 0, 1}, &nothing), std::logic_error);
    EXPECT_THROW(store.read_kv("b", {0, 0, 0, true, item->kv_tokens, 1}, &nothing), std::logic_error);
    EXPECT_THROW(store.read_kv("b", {0, 0, 0, true, -1, 1}, &nothing), std::logic_error);
    EXPECT_THROW(store.read_kv("never restored", {0, 0, 0, true, 0, 1}, &nothing), std::logic_error);
}

/// With a sliding window a round stores the end of its positions: a text goes on behind a round, or a little before.
TEST(Checkpoint, PositionsBehindWhichATextGoesOn) {
    CheckpointIdentity identity = small_identity();
    RestoredItem item;
    item.kv_tokens = 3000;
    item.kv_ends = {1000, 1100, 3000};
    EXPECT_EQ(item.usable_positions(2500, identity), 2500) << "no window";
    identity.groups = {{1, 0}, {1, 50}};
    EXPECT_EQ(item.usable_positions(5000, identity), 3000);
    EXPECT_EQ(item.usable_positions(3000 - KvGroup::margin, identity), 3000 - KvGroup::margin);
    EXPECT_EQ(item.usable_positions(3000 - KvGroup::margin - 1, identity), 1100);
    EXPECT_EQ(item.usable_positions(1050, identity), 1050) << "a short round stores all its positions";
    EXPECT_EQ(item.usable_positions(700, identity), 700);
    EXPECT_EQ(item.usable_positions(600, identity), 0);
}

/// The first group has a head for every two of the model's; a rank without the first of these has none of it.
TEST(Checkpoint, GroupsMayHaveFewerAndWiderHeads) {
    CheckpointIdentity identity = small_identity();
    identity.groups = {{1, 0, 2, 12}, {1, 0}};
    CheckpointIdentity wide = identity;
    wide.head_dim = 12;
    const FastFiles fast;
    for (const std::vector<HeadRange>& ranks :
         {std::vector<HeadRange>{{0, 4}}, {{0, 2}, {2, 2}}, {{0, 1}, {1, 1}, {2, 1}, {3, 1}}}) {
        const TemporaryFolder folder;
        PretendedReplica replica(folder.path(), 0, 0, ranks, identity);
        replica.start("a", 30);
        std::vector<KvFile> files;
        for (const auto& [first, count] : ranks) {
            const KvExport read = [&, first = first](std::size_t group, const kernels::KvBox& box, std::byte* to,
                                                     std::size_t head_stride) {
                for (std::int64_t head = 0; head < box.num_heads; ++head, to += head_stride)
                    fill_kv(group == 0 ? wide : identity, "a", static_cast<std::int64_t>(group),
                            (group == 0 ? first / 2 : first) + box.first_head + head, box.values, box.first, box.count,
                            to);
            };
            const int rank = static_cast<int>(files.size());
            files.push_back(write_kv_file(folder.path(), kv_file_name(0, 0, 0, rank), identity, first, count,
                                          {{"a", 0, 49, read}}));
        }
        write_commit(folder.path(), replica.commit(20, std::move(files)));
        CheckpointStore store(folder.path(), identity, 0);
        const auto item = store.restore("a");
        ASSERT_TRUE(item && item->kv_tokens == 49);
        for (const std::int64_t group : {0, 1}) {
            const CheckpointIdentity& of = group == 0 ? wide : identity;
            const std::int64_t num_heads = group == 0 ? 2 : 4;
            std::vector<std::byte> got(static_cast<std::size_t>(49 * of.head_dim) * 2), expected(got.size());
            for (std::int64_t head = 0; head < num_heads; ++head) {
                store.read_kv("a", {static_cast<std::size_t>(group), 0, head, true, 0, 49}, got.data());
                fill_kv(of, "a", group, head, true, 0, 49, expected.data());
                EXPECT_EQ(got, expected) << ranks.size() << " ranks, group " << group << ", head " << head;
            }
            EXPECT_THROW(store.read_kv("a", {static_cast<std::size_t>(group), 0, num_heads, true, 0, 1}, got.data()),
                         std::logic_error);
        }
    }
}

TEST(Checkpoint, FloatsOverSeveralChunks) {
    CheckpointIdentity identity = small_identity();
    identity.kv_dtype = "f32";
    identity.num_layers = 1;
    identity.num_kv_heads = 2;
    identity.head_dim = 64;
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 2}}, identity);
    replica.start("a", 2500);  // 512 KB hold 2048 positions: both items cross chunks
    replica.start("b", 1800);
    replica.write_round(100);
    CheckpointStore store(folder.path(), identity, 0);
    expect_item(store, "a", 100, 2599, identity);
    expect_item(store, "b", 100, 1899, identity);
}

// The device-to-file copy moves 8 MB at a time: most positions of one head, or four of five layers.
TEST(Checkpoint, LargeRoundsGoInPieces) {
    CheckpointIdentity identity = small_identity();
    const FastFiles fast;
    for (const auto& [layers, heads, positions] : {std::tuple{1, 1, 8500}, std::tuple{5, 2, 900}}) {
        identity.num_layers = layers;
        identity.num_kv_heads = heads;
        identity.head_dim = 512;
        const TemporaryFolder folder;
        PretendedReplica replica(folder.path(), 0, 0, {{0, heads}}, identity);
        replica.start("a", positions - 100);
        replica.start("b", 100);
        replica.write_round(3);
        CheckpointStore store(folder.path(), identity, 0);
        expect_item(store, "a", 3, positions - 98, identity);
        expect_item(store, "b", 3, 102, identity);
    }
}

TEST(Checkpoint, Int8WithItsScales) {
    CheckpointIdentity identity = small_identity();
    identity.kv_dtype = "int8";
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 2}, {2, 2}}, identity);
    replica.start("a", 700);
    replica.start("b", 30);
    replica.write_round(20);
    replica.write_round(3);
    CheckpointStore store(folder.path(), identity, 0);
    expect_item(store, "a", 23, 722, identity);
    expect_item(store, "b", 23, 52, identity);
}

TEST(Checkpoint, ModelsWithManyLayersShareChunks) {
    CheckpointIdentity identity = small_identity();
    identity.num_layers = 33;
    identity.num_kv_heads = 7;
    identity.head_dim = 80;
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 7}}, identity);
    replica.start("a", 30);
    replica.write_round(20);
    replica.write_round(1);
    CheckpointStore store(folder.path(), identity, 0);
    expect_item(store, "a", 21, 50, identity);
    EXPECT_LT(std::filesystem::file_size(folder.file("0-0-1.0.h5")), 33U * 7 * 80 * 2 * 2 + 30000U) << "one position";
}

TEST(Checkpoint, RecomputeStoresNoKv) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0);
    replica.start("a", 12);
    replica.write_round(20, false);
    replica.write_round(20, false);
    CheckpointStore store(folder.path(), small_identity(), 0);
    const RestoredItem item = expect_item(store, "a", 40, 0);
    EXPECT_TRUE(item.damage.empty());
    EXPECT_TRUE(item.kv_ends.empty());
}

TEST(Checkpoint, RoundWithoutTokensOrItems) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0);
    replica.write_round(20, false);  // no active items
    replica.start("a", 12);
    replica.write_round(0);  // during a long prefill: KV of the prompt, no output yet
    replica.write_round(4);
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_EQ(store.items().size(), 1U);
    expect_item(store, "a", 4, 15);
}

TEST(Checkpoint, LaterEpochsAreNotRead) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 1);
    replica.start("a", 12);
    replica.write_round();
    CheckpointStore before(folder.path(), small_identity(), 1);
    PretendedReplica stale(folder.path(), 0, 2);
    stale.resume(before.restore("a").value());
    stale.write_round();
    CheckpointStore store(folder.path(), small_identity(), 1);
    expect_item(store, "a", 20, 31);
    store.remove_unneeded({}, 2);
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"0-2-0.0.h5", "0-2-0.1.h5", "0-2-0.h5"}));
}

TEST(Checkpoint, TheLongestBranchWins) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica first(folder.path(), 0, 0);
    first.start("a", 12);
    first.write_round(10);
    CheckpointStore at_ten(folder.path(), small_identity(), 0);
    const RestoredItem ten = at_ten.restore("a").value();
    first.write_round(10);
    first.write_round(10);  // 30 tokens in epoch 0
    PretendedReplica second(folder.path(), 5, 1);
    second.resume(ten);
    second.write_round(15);  // 25 tokens in epoch 1, from the same round
    CheckpointStore store(folder.path(), small_identity(), 1);
    EXPECT_EQ(expect_item(store, "a", 30, 41).last_commit, "0-0-2.h5");
    second.write_round(5);  // now 30 as well: the newer one wins
    CheckpointStore later(folder.path(), small_identity(), 1);
    EXPECT_EQ(expect_item(later, "a", 30, 41).last_commit, "5-1-1.h5");
}

TEST(Checkpoint, RecomputedKvFillsAHole) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0);
    replica.start("a", 12);
    for (int round = 0; round < 4; ++round) replica.write_round(10);
    std::filesystem::remove(folder.file("0-0-1.0.h5"));
    CheckpointStore damaged(folder.path(), small_identity(), 0);
    RestoredItem item = expect_item(damaged, "a", 40, 21);
    EXPECT_TRUE(any_contains(item.damage, "0-0-1.0.h5"));
    PretendedReplica next(folder.path(), 0, 1);
    next.resume(item);  // recomputes the KV from position 21 on and stores it with its next round
    next.write_round(10);
    CheckpointStore repaired(folder.path(), small_identity(), 1);
    item = expect_item(repaired, "a", 50, 61);
    EXPECT_EQ(item.kv_ends, (std::vector<std::int64_t>{21, 61}));
}

TEST(Checkpoint, OnlyWhatNobodyNeedsIsRemoved) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica first(folder.path(), 0, 0, {{0, 4}});
    PretendedReplica second(folder.path(), 1, 0, {{0, 4}});
    first.start("a", 4);
    first.write_round(5);
    first.start("b", 4);
    first.write_round(5);
    second.start("c", 4);
    second.write_round(5);
    second.items.clear();
    second.start("d", 4);
    second.write_round(5);
    write_bytes(folder.file("0-0-9.h5.tmp"), {'x'});
    write_bytes(folder.file("0-0-9.3.h5"), {'x'});    // of a round whose commit was never published
    write_bytes(folder.file("0-4-9.h5.tmp"), {'x'});  // of another replica of this launch, still running
    write_bytes(folder.file("0-4-9.3.h5"), {'x'});
    write_bytes(folder.file("notes.txt"), {'x'});
    CheckpointStore store(folder.path(), small_identity(), 4);
    store.remove_unneeded({"b", "d"}, 4);
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"0-0-1.0.h5", "0-0-1.h5", "0-4-9.3.h5", "0-4-9.h5.tmp",
                                                                 "1-0-1.0.h5", "1-0-1.h5", "notes.txt"}));
    CheckpointStore after(folder.path(), small_identity(), 4);
    expect_item(after, "b", 5, 8);
    expect_item(after, "d", 5, 8);
    EXPECT_TRUE(after.damage().empty());
    EXPECT_FALSE(after.restore("a").has_value()) << "its first round is gone; it was finished";
}

TEST(Checkpoint, WriterThreadDoesTheSame) {
    const TemporaryFolder folder;
    const std::filesystem::path inner = folder.file("checkpoints");
    PretendedReplica replica(inner, 0, 0, {{0, 4}});
    replica.start("a", 12);
    {
        CheckpointWriter writer(inner);
        EXPECT_TRUE(writer.poll().empty());
        for (int round = 0; round < 3; ++round) {
            writer.submit(RoundJob{replica.round, small_identity(), kv_file_name(0, 0, replica.round, 0), 0, 4,
                                   replica.kv_sources(0, 10)});
            writer.wait_idle();
            const std::vector<RoundResult> written = writer.poll();
            ASSERT_EQ(written.size(), 1U);
            EXPECT_FALSE(written[0].committed);
            EXPECT_EQ(written[0].error, "");
            EXPECT_EQ(written[0].round, round);
            EXPECT_GT(written[0].seconds, 0);
            const Commit commit = replica.commit(10, {written[0].kv_file.value()});
            writer.submit(commit);
            writer.wait_idle();
            const std::vector<RoundResult> committed = writer.poll();
            ASSERT_EQ(committed.size(), 1U);
            EXPECT_TRUE(committed[0].committed);
            EXPECT_EQ(committed[0].error, "");
            replica.committed(commit);
        }
    }
    CheckpointStore store(inner, small_identity(), 0);
    expect_item(store, "a", 30, 41);
    {
        CheckpointWriter writer(inner);
        writer.remove({"0-0-2.h5", "0-0-2.0.h5", "not-there", "../checkpoints/0-0-1.h5"});
        writer.wait_idle();
        EXPECT_TRUE(writer.poll().empty());
    }
    CheckpointStore shorter(inner, small_identity(), 0);
    expect_item(shorter, "a", 20, 31);
}

TEST(Checkpoint, WriterDropsWhatItHasNotBegun) {
    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica(folder.path(), 0, 0, {{0, 4}});
    replica.start("a", 12);
    {
        CheckpointWriter writer(folder.path());
        for (int round = 0; round < 50; ++round) {
            writer.submit(
                RoundJob{round, small_identity(), kv_file_name(0, 0, round, 0), 0, 4, replica.kv_sources(0, 10)});
        }
    }
    for (const std::string& name : names_in(folder.path())) EXPECT_EQ(name.find(".tmp"), std::string::npos) << name;
    EXPECT_LT(names_in(folder.path()).size(), 50U);
}

TEST(Checkpoint, ManyWritersAndReadersAtOnce) {
    // All threads share one HDF5 library: this hangs or crashes if a call escapes the mutex.
    const FastFiles fast;
    const TemporaryFolder folder;
    std::vector<std::thread> threads;
    for (int replica = 0; replica < 4; ++replica) {
        threads.emplace_back([&, replica] {
            PretendedReplica pretended(folder.path(), replica, 0);
            pretended.start("item " + std::to_string(replica), 9);
            for (int round = 0; round < 6; ++round) {
                pretended.write_round(5);
                CheckpointStore store(folder.path(), small_identity(), 0);
                expect_item(store, "item " + std::to_string(replica), 5 * (round + 1), 9 + 5 * (round + 1) - 1);
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
}

TEST(Checkpoint, NamesAreNeverReplaced) {
    const TemporaryFolder folder;
    write_durable(folder.path(), "0-0-0.h5", "one", 3);
    EXPECT_THROW(write_durable(folder.path(), "0-0-0.h5", "two", 3), std::logic_error);
    EXPECT_EQ(read_bytes(folder.file("0-0-0.h5")), (std::vector<char>{'o', 'n', 'e'}));
    write_bytes(folder.file("0-0-1.h5.tmp"), std::vector<char>(100, 'x'));  // left by a killed process
    write_durable(folder.path(), "0-0-1.h5", "new", 3);
    EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"0-0-0.h5", "0-0-1.h5"}));
}

}  // namespace
}  // namespace longhaul::engine
