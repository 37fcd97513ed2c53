// Damage of every kind in every checkpoint file: it is always found and reported by name, and the longest intact prefix
// is restored.
#include <sys/stat.h>
#include <unistd.h>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/store.hpp"
#include "tests/engine/checkpoint_fixture.hpp"

namespace longhaul::engine {
namespace {

/// Three rounds of two items on two ranks. Item a has a prompt of 12 tokens and gains 20 in each round.
class CheckpointDamage : public testing::Test {
  protected:
    static constexpr std::int64_t prompt = 12, gain = 20;

    CheckpointDamage() {
        replica.start("a", prompt);
        replica.start("b", 5);
        for (int round = 0; round < 3; ++round) replica.write_round(gain);
    }

    [[nodiscard]] std::string path(const std::string& name) const { return folder.file(name).string(); }

    /// The middle commit is unusable: only the first round is left, and every message says why.
    void expect_first_round_only(const std::string& what) {
        CheckpointStore store(folder.path(), small_identity(), 0);
        ASSERT_EQ(store.damage().size(), 1U) << what;
        EXPECT_EQ(store.damage()[0].rfind(path("0-0-1.h5") + ": ", 0), 0U) << what << ": " << store.damage()[0];
        EXPECT_EQ(store.items(), (std::map<std::string, std::int64_t>{{"a", gain}, {"b", gain}})) << what;
        const RestoredItem item = expect_item(store, "a", gain, prompt + gain - 1);
        EXPECT_EQ(item.last_commit, "0-0-0.h5") << what;
        ASSERT_EQ(item.damage.size(), 1U) << what;
        EXPECT_NE(item.damage[0].find(path("0-0-2.h5") + ": items/previous_commit of 'a'"), std::string::npos);
    }

    /// All tokens are restored, and KV up to the damaged file of round 1.
    void expect_kv_of_first_round(const std::string& what, const std::string& name = "0-0-1.0.h5") {
        CheckpointStore store(folder.path(), small_identity(), 0);
        EXPECT_TRUE(store.damage().empty()) << what;
        const RestoredItem item = expect_item(store, "a", 3 * gain, prompt + gain - 1);
        ASSERT_FALSE(item.damage.empty()) << what;
        EXPECT_TRUE(any_contains(item.damage, path(name))) << what << ": " << item.damage[0];
        EXPECT_TRUE(any_contains(item.damage, "0-0-1.h5: kv_files")) << what;
    }

    /// Runs `check` with some bytes of a file replaced, then restores them.
    void with_bytes(const std::string& name, std::size_t offset, const std::vector<char>& bytes,
                    const std::function<void()>& check) {
        const std::vector<char> good = read_bytes(folder.file(name));
        std::vector<char> bad = good;
        std::copy(bytes.begin(), bytes.end(), bad.begin() + static_cast<std::ptrdiff_t>(offset));
        if (bad == good) return;
        write_bytes(folder.file(name), bad);
        check();
        write_bytes(folder.file(name), good);
    }

    const FastFiles fast;
    const TemporaryFolder folder;
    PretendedReplica replica{folder.path(), 0, 0};
};

constexpr std::size_t num_flips = 200;

TEST_F(CheckpointDamage, BitFlipsInACommit) {
    const std::vector<char> good = read_bytes(folder.file("0-0-1.h5"));
    for (std::size_t i = 0; i < num_flips && !HasFailure(); ++i) {
        const std::size_t at = i + 8 < num_flips ? i * good.size() / num_flips : good.size() - 4 * (num_flips - i);
        with_bytes("0-0-1.h5", at, {static_cast<char>(good[at] ^ (1 << (i % 8)))},
                   [&] { expect_first_round_only("bit " + std::to_string(i % 8) + " of byte " + std::to_string(at)); });
    }
}

TEST_F(CheckpointDamage, BitFlipsInAKvFile) {
    const std::vector<char> good = read_bytes(folder.file("0-0-1.0.h5"));
    for (std::size_t i = 0; i < num_flips && !HasFailure(); ++i) {
        const std::size_t at = i * good.size() / num_flips;
        with_bytes("0-0-1.0.h5", at, {static_cast<char>(good[at] ^ (1 << (i % 8)))}, [&] {
            expect_kv_of_first_round("bit " + std::to_string(i % 8) + " of byte " + std::to_string(at));
        });
    }
}

TEST_F(CheckpointDamage, TruncatedOrLonger) {
    for (const std::string name : {"0-0-1.h5", "0-0-1.0.h5"}) {
        const std::vector<char> good = read_bytes(folder.file(name));
        std::vector<std::size_t> lengths{0,
                                         1,
                                         7,
                                         8,
                                         31,
                                         32,
                                         33,
                                         good.size() - 1,
                                         good.size() - 31,
                                         good.size() - 32,
                                         good.size() - 33,
                                         good.size() + 1,
                                         good.size() + 4096};
        for (std::size_t i = 1; i < 30; ++i) lengths.push_back(i * good.size() / 30);
        for (const std::size_t length : lengths) {
            std::vector<char> bad = good;
            bad.resize(length);
            write_bytes(folder.file(name), bad);
            const std::string what = name + " of " + std::to_string(length) + " bytes";
            if (name == "0-0-1.h5")
                expect_first_round_only(what);
            else
                expect_kv_of_first_round(what);
            if (HasFailure()) return;
        }
        write_bytes(folder.file(name), good);
    }
}

TEST_F(CheckpointDamage, ZeroedPages) {
    for (const std::string name : {"0-0-1.h5", "0-0-1.0.h5"}) {
        const std::size_t size = read_bytes(folder.file(name)).size();
        for (std::size_t page = 0; page < size; page += 4096) {
            with_bytes(name, page, std::vector<char>(std::min<std::size_t>(4096, size - page), 0), [&] {
                const std::string what = name + " page at " + std::to_string(page);
                if (name == "0-0-1.h5")
                    expect_first_round_only(what);
                else
                    expect_kv_of_first_round(what);
            });
        }
    }
}

TEST_F(CheckpointDamage, FilesOfTwoGenerations) {
    std::filesystem::copy_file(folder.file("0-0-0.0.h5"), folder.file("0-0-1.0.h5"),
                               std::filesystem::copy_options::overwrite_existing);
    expect_kv_of_first_round("KV of round 0 under the name of round 1");
    std::filesystem::copy_file(folder.file("0-0-2.h5"), folder.file("0-0-1.h5"),
                               std::filesystem::copy_options::overwrite_existing);
    expect_first_round_only("commit of round 2 under the name of round 1");
}

TEST_F(CheckpointDamage, RanksSwapped) {
    const std::vector<char> rank0 = read_bytes(folder.file("0-0-1.0.h5"));
    write_bytes(folder.file("0-0-1.0.h5"), read_bytes(folder.file("0-0-1.1.h5")));
    write_bytes(folder.file("0-0-1.1.h5"), rank0);
    expect_kv_of_first_round("shards swapped");
}

TEST_F(CheckpointDamage, MissingShard) {
    std::filesystem::remove(folder.file("0-0-1.1.h5"));
    expect_kv_of_first_round("missing shard", "0-0-1.1.h5");
}

TEST_F(CheckpointDamage, MissingCommit) {
    std::filesystem::remove(folder.file("0-0-1.h5"));
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_TRUE(store.damage().empty());
    const RestoredItem item = expect_item(store, "a", gain, prompt + gain - 1);
    ASSERT_EQ(item.damage.size(), 1U);
    EXPECT_EQ(item.damage[0], path("0-0-2.h5") +
                                  ": items/previous_commit of 'a': expected 0-0-1.h5 with the tokens before, got no "
                                  "round that fits; a run recomputes its contents");
}

TEST_F(CheckpointDamage, MissingFirstCommit) {
    std::filesystem::remove(folder.file("0-0-0.h5"));
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_TRUE(store.items().empty());
    EXPECT_FALSE(store.restore("a").has_value());
    EXPECT_TRUE(any_contains(store.damage(), "0-0-1.h5: items/previous_commit of 'a'"));
}

TEST_F(CheckpointDamage, NewestCommitDamagedFallsBackOneRound) {
    std::vector<char> bytes = read_bytes(folder.file("0-0-2.h5"));
    bytes[bytes.size() / 2] ^= 1;
    write_bytes(folder.file("0-0-2.h5"), bytes);
    CheckpointStore store(folder.path(), small_identity(), 0);
    expect_item(store, "a", 2 * gain, prompt + 2 * gain - 1);
    EXPECT_TRUE(any_contains(store.damage(), "0-0-2.h5: trailer: expected the checksum of the data"));
    store.remove_unneeded({"a"}, 1);
    EXPECT_TRUE(std::filesystem::exists(folder.file("0-0-2.h5"))) << "kept while something is unfinished";
    store.remove_unneeded({}, 1);
    EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST_F(CheckpointDamage, CommitDamagedAfterItWasListed) {
    // More than the store keeps in memory, so that restoring rereads the older commits.
    for (int round = 3; round < 6; ++round) {
        Commit large = replica.commit(gain, {});
        large.items[1].statistics = std::string(std::size_t{30} << 20, ' ');
        write_commit(folder.path(), large);
        replica.committed(large);
    }
    CheckpointStore store(folder.path(), small_identity(), 0);
    EXPECT_EQ(store.items().at("a"), 6 * gain);
    std::vector<char> bytes = read_bytes(folder.file("0-0-2.h5"));
    bytes[100] ^= 1;
    write_bytes(folder.file("0-0-2.h5"), bytes);
    const RestoredItem item = expect_item(store, "a", 2 * gain, prompt + 2 * gain - 1);
    EXPECT_TRUE(any_contains(store.damage(), "0-0-2.h5: trailer"));
    EXPECT_TRUE(any_contains(item.damage, "0-0-3.h5: items/previous_commit of 'a'"));
}

TEST_F(CheckpointDamage, KvDamagedAfterItWasVerified) {
    CheckpointStore store(folder.path(), small_identity(), 0);
    const auto item = store.restore("a");
    ASSERT_TRUE(item);
    // At most eight files stay open, so write rounds until there are more than nine files and the first must be
    // reopened.
    for (int round = 3; round < 12; ++round) replica.write_round(1);
    CheckpointStore longer(folder.path(), small_identity(), 0);
    const auto all = longer.restore("a");
    ASSERT_TRUE(all);
    write_bytes(folder.file("0-0-0.0.h5"), std::vector<char>(1000, 'x'));
    std::vector<std::byte> to(static_cast<std::size_t>(all->kv_tokens) * 16);
    const std::string line = refusal_of([&] { longer.read_kv("a", {0, 0, 0, false, 0, all->kv_tokens}, to.data()); });
    EXPECT_NE(line.find(path("0-0-0.0.h5")), std::string::npos) << line;
}

TEST_F(CheckpointDamage, OtherIdentityIsRefusedByName) {
    struct Case {
        const char* field;
        std::function<void(CheckpointIdentity&)> change;
        const char* values;
    };
    const std::vector<Case> cases{
        {"job", [](auto& i) { i.job = "ffff"; }, "expected 'ffff', got '0a1b2c'"},
        {"model", [](auto& i) { i.model = "44"; }, "expected '44', got '33cc'"},
        {"tokenizer", [](auto& i) { i.tokenizer = ""; }, "expected '', got '55dd'"},
        {"numerics_version", [](auto& i) { i.numerics_version = 2; }, "expected 2, got 1"},
        {"kv_dtype", [](auto& i) { i.kv_dtype = "f32"; }, "expected 'f32', got 'bf16'"},
        {"num_layers", [](auto& i) { i.num_layers = 3; }, "expected 3, got 2"},
        {"num_kv_heads", [](auto& i) { i.num_kv_heads = 1; }, "expected 1, got 4"},
        {"head_dim", [](auto& i) { i.head_dim = 64; }, "expected 64, got 8"},
    };
    for (const Case& c : cases) {
        CheckpointIdentity identity = small_identity();
        c.change(identity);
        const std::string line = refusal_of([&] { CheckpointStore(folder.path(), identity, 0); });
        EXPECT_EQ(line.rfind(path("0-0-0.h5") + ": " + c.field + ": " + c.values + "; ", 0), 0U) << line;
    }
}

TEST_F(CheckpointDamage, NewerFormatIsRefusedByName) {
    Commit commit = replica.commit(1, {});
    hdf5::Bytes bytes = detail::encode_commit(commit);
    detail::seal(bytes, checkpoint_format_version + 1);
    write_durable(folder.path(), commit.name, bytes.data.get(), bytes.size);
    const std::string line = refusal_of([&] { CheckpointStore(folder.path(), small_identity(), 0); });
    EXPECT_EQ(line.rfind(path(commit.name) + ": format_version: expected 3 or older, got 4; ", 0), 0U) << line;
}

TEST_F(CheckpointDamage, WhatIsNotACheckpoint) {
    std::string text = "not HDF5 at all";
    text.resize(5000, '.');
    write_bytes(folder.file("1-0-0.h5"), {text.begin(), text.end()});
    write_bytes(folder.file("1-0-1.h5"), {});
    std::filesystem::create_directory(folder.file("1-0-2.h5"));
    ASSERT_EQ(::mkfifo(path("1-0-3.h5").c_str(), 0600), 0);
    std::filesystem::create_symlink("nowhere", folder.file("1-0-4.h5"));
    write_bytes(folder.file("1-0-5.h5"), {'x'});
    ASSERT_EQ(::truncate(path("1-0-5.h5").c_str(), off_t{1} << 40), 0);  // sparse: claims a terabyte
    write_bytes(folder.file("1-0-6.h5"), {'x'});
    ASSERT_EQ(::truncate(path("1-0-6.h5").c_str(), off_t{900} << 20), 0);
    hdf5::Bytes sealed(5000);
    std::copy(text.begin(), text.end(), reinterpret_cast<char*>(sealed.data.get()));
    detail::seal(sealed);
    write_durable(folder.path(), "1-0-7.h5", sealed.data.get(), sealed.size);
    CheckpointStore store(folder.path(), small_identity(), 0);
    const std::vector<std::string> expected{
        "1-0-0.h5: trailer: expected the mark of a complete commit, got other bytes",
        "1-0-1.h5: expected a commit of 32 to 1073741824 bytes, got 0",
        "1-0-2.h5: expected a regular file",
        "1-0-3.h5: expected a regular file",
        "1-0-4.h5: expected a readable file, got No such file",
        "1-0-5.h5: expected a commit of 32 to 1073741824 bytes, got 1099511627776",
        "1-0-6.h5: trailer: expected the mark of a complete commit",
        "1-0-7.h5: superblock: expected an HDF5 file, got other bytes"};
    ASSERT_EQ(store.damage().size(), expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) {
        EXPECT_NE(store.damage()[i].find(expected[i]), std::string::npos) << store.damage()[i];
    }
    expect_item(store, "a", 3 * gain, prompt + 3 * gain - 1);
    const std::string line = refusal_of([&] { CheckpointStore(folder.file("0-0-0.h5"), small_identity(), 0); });
    EXPECT_NE(line.find("0-0-0.h5: expected a readable folder, got Not a directory"), std::string::npos) << line;
}

TEST(CheckpointNames, AreWrittenInOneWay) {
    EXPECT_EQ(detail::parse_file_name("12-3-40.h5")->round, 40);
    EXPECT_EQ(detail::parse_file_name("12-3-40.h5")->rank, -1);
    EXPECT_EQ(detail::parse_file_name("0-0-0.7.h5")->rank, 7);
    EXPECT_TRUE(detail::parse_file_name("0-0-0.7.h5.tmp")->temporary);
    EXPECT_EQ(detail::parse_file_name("0-0-0.7.h5")->of, KvFile::Of::target);
    EXPECT_EQ(detail::parse_file_name("0-0-0.7.draft.h5")->rank, 7);
    EXPECT_EQ(detail::parse_file_name("0-0-0.7.draft.h5")->of, KvFile::Of::drafter);
    for (const char* name : {"0-0-0.draft.h5", "0-0-0.7.draft.draft.h5", "0-0-0.7.draft.0.h5", "0-0-0.7.drafth5"})
        EXPECT_FALSE(detail::parse_file_name(name).has_value()) << name;
    for (const char* name : {"", ".h5", "0-0.h5", "0-0-0", "0-0-0.h5x", "00-0-0.h5", "-1-0-0.h5", "+1-0-0.h5",
                             "0-0--1.h5", "0-0-0.1.2.h5", "../0-0-0.h5", "0-0-0.h5/", "0-0-99999999999999999999.h5",
                             "0-0-0.h5.tmp.tmp", "0-0-0..h5", "0-0-0.tmp", " 0-0-0.h5", ".tmp"}) {
        EXPECT_FALSE(detail::parse_file_name(name).has_value()) << name;
    }
}

}  // namespace
}  // namespace longhaul::engine
