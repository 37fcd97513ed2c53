// A job's items divided among launches: which shard has which, whose folder it is, and the merged summary.
#include "runner/run/shard_folder.hpp"

#include <gtest/gtest.h>

#include <fstream>

#include "engine/error.hpp"
#include "runner/launch/scheduler.hpp"
#include "runner/run/run_status.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

TEST(Shard, EveryItemIsInExactlyOne) {
    for (std::int64_t count = 1; count <= 9; ++count) {
        for (std::int64_t inputs = 0; inputs <= 20; ++inputs) {
            std::int64_t all = 0;
            for (std::int64_t index = 0; index < count; ++index) {
                const Shard shard{.index = index, .count = count};
                std::int64_t mine = 0;
                for (std::int64_t input = 0; input < inputs; ++input) mine += shard.has(input) ? 1 : 0;
                EXPECT_EQ(shard.share_of(inputs), mine) << shard.name() << " of " << inputs;
                all += mine;
            }
            EXPECT_EQ(all, inputs);
        }
    }
    EXPECT_EQ(Shard().share_of(7), 7);
    EXPECT_TRUE(Shard().has(6));
}

TEST(Shard, TheOrderOfWorkHasItsOwnItems) {
    WorkFacts facts;
    facts.num_inputs = 5;
    facts.samples = 2;
    facts.shard = {.index = 1, .count = 2};
    facts.done = [](const ItemKey& key) { return key == ItemKey{1, 0}; };
    facts.kept_tokens = [](const ItemKey&) { return -1; };
    facts.prompt_bytes = [](std::int64_t) { return 1; };
    EXPECT_EQ(order_of_work(facts), (std::vector<std::int64_t>{3, 6, 7})) << "numbers are those of the undivided job";
    facts.num_inputs = 1;
    EXPECT_TRUE(order_of_work(facts).empty());
}

class ShardFolder : public testing::Test {
  protected:
    [[nodiscard]] Settings job(std::int64_t index, std::int64_t count) const {
        Settings settings;
        settings.output = temporary.path() / "out";
        settings.shard = {.index = index, .count = count};
        return settings;
    }
    static std::string refusal(const Settings& settings) {
        try {
            create_shard_folder(settings);
        } catch (const Error& error) {
            return error.what();
        }
        return "";
    }

    TemporaryFolder temporary;
    const fs::path out = temporary.path() / "out";
};

TEST_F(ShardFolder, IsDividedOnce) {
    EXPECT_EQ(num_shards(out), 0);
    EXPECT_EQ(refusal(job(2, 8)), "");
    EXPECT_EQ(num_shards(out), 8);
    EXPECT_EQ(shards_of(out)[3].root, out / "shard-3-of-8");
    EXPECT_EQ(run_folder_of(job(2, 8)).root, out / "shard-2-of-8");
    EXPECT_EQ(refusal(job(7, 8)), "");
    EXPECT_EQ(refusal(job(2, 4)),
              out.string() +
                  ": shard: expected I/8 (the job in this folder has that many shards), got 2/4; take "
                  "I/8, or another output");
    EXPECT_THROW(RunFolder{out}.create(), UsageError) << "nor does an undivided job fit in";
    EXPECT_THROW(begun_shards_of(out), UsageError);
    EXPECT_EQ(join_shards(out).state, Joining::waiting);
}

TEST_F(ShardFolder, LeavesOthersAlone) {
    fs::create_directories(out / "launches");
    EXPECT_EQ(refusal(job(0, 2)), "") << "what a launch left that died while it made its folders";
    fs::remove_all(out);
    fs::create_directories(out);
    std::ofstream(out / "thesis.tex") << "precious";
    EXPECT_NE(refusal(job(0, 2)).find("a folder of other files"), std::string::npos);
    fs::remove_all(out);
    RunFolder{out}.create();
    write_identity(RunFolder{out}, job(0, 0), {});
    EXPECT_NE(refusal(job(0, 2)).find("shard: expected off (the folder holds a run of the whole job), got 0/2"),
              std::string::npos);
    fs::remove_all(out);
    fs::create_directories(out);
    std::ofstream(out / sweep_marker) << "";
    EXPECT_NE(refusal(job(0, 2)).find("the folder of a sweep"), std::string::npos);
}

TEST_F(ShardFolder, DamagedMarksAreErrors) {
    for (const char* text :
         {"", "{", "[]", "{\"shards\": 0}", "{\"shards\": \"8\"}", "{\"shards\": 1e9}", "{\"shards\": -2}"}) {
        fs::create_directories(out);
        std::ofstream(out / shards_marker) << text;
        EXPECT_THROW(num_shards(out), InputError) << text;
        EXPECT_NE(refusal(job(0, 2)).find("shards.json: shards: expected a number from 1 to 10000"), std::string::npos);
    }
}

TEST_F(ShardFolder, ShardsAreOfOneJob) {
    const Settings first = job(0, 2);
    create_shard_folder(first);
    run_folder_of(first).create();
    write_identity(run_folder_of(first), first, {{"data", "d"}, {"model", "m"}});
    Settings second = job(1, 2);
    second.limit = 5;  // raised or lowered: it may differ for a while
    second.batch = 9;
    EXPECT_NO_THROW(check_other_shards(second, {{"data", "d"}}));
    EXPECT_THROW(check_other_shards(second, {{"data", "other"}}), UsageError);
    second.seed = 2;
    EXPECT_THROW(check_other_shards(second, {}), UsageError);
    EXPECT_NO_THROW(check_other_shards(first, {{"data", "other"}})) << "its own folder is another check's";
}

TEST_F(ShardFolder, BatchScriptsFilesAreNoObstacle) {
    fs::create_directories(out / batch_folder);
    std::ofstream(out / batch_folder / "7.log") << "x";
    EXPECT_NO_THROW(RunFolder{out}.must_be_usable());
    EXPECT_EQ(read_progress_line(out).text(), "state=new done=0 failed=0 tokens=0 positions=0 stop_seconds=0.0");
    EXPECT_EQ(refusal(job(0, 2)), "");
    EXPECT_EQ(read_progress_line(out).text(), "state=new done=0 failed=0 tokens=0 positions=0 stop_seconds=0.0");
    fs::remove_all(out);
    fs::create_directories(out);
    std::ofstream(out / batch_folder) << "a file";
    EXPECT_THROW(RunFolder{out}.must_be_usable(), UsageError);
}

TEST(ShardStates, OfAllTogether) {
    EXPECT_EQ(state_of_all({"new", "new"}), "new");
    EXPECT_EQ(state_of_all({"finished", "finished"}), "finished");
    EXPECT_EQ(state_of_all({"finished", "new"}), "stopped");
    EXPECT_EQ(state_of_all({"finished", "stopped"}), "stopped");
    EXPECT_EQ(state_of_all({"stopped", "crashed", "failed"}), "crashed");
    EXPECT_EQ(state_of_all({"crashed", "running"}), "running");
    EXPECT_EQ(state_of_all({"failed", "finished"}), "failed");
}

TEST(Progress, IsOneLineForShells) {
    ProgressLine line{.state = "finished", .done = 12, .failed = 1, .tokens = 123456, .stop_seconds = 2.04};
    EXPECT_EQ(line.text(), "state=done done=12 failed=1 tokens=123456 positions=0 stop_seconds=2.1");
    line.stop_seconds = 0.001;
    EXPECT_TRUE(line.text().ends_with("stop_seconds=0.1")) << "measured, however short";
}

}  // namespace
}  // namespace longhaul::runner
