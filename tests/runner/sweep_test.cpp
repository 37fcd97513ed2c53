// Sweep files, valid and malformed; the points they expand to; the final table.
#include "runner/sweep/sweep.hpp"

#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <set>

#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/sweep/sweep_folder.hpp"
#include "runner/sweep/sweep_table.hpp"
#include "tests/runner/temporary_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

const std::string job = "task = prompts\ndata = p.jsonl\nmodel = m\noutput = out\n";

class SweepFile : public testing::Test {
  protected:
    Sweep read(const std::string& text, const std::vector<Assignment>& command_line = {}) {
        std::ofstream(path_, std::ios::binary) << text;
        return read_sweep(path_, command_line);
    }

    std::vector<std::string> names(const std::string& text) {
        std::vector<std::string> names;
        for (const SweepPoint& point : points_of(read(text))) names.push_back(point.name);
        return names;
    }

    /// The message without the folder.
    std::string message(const std::string& text, const std::vector<Assignment>& command_line = {}) {
        try {
            points_of(read(text, command_line));
        } catch (const UsageError& error) {
            std::string line = error.what();
            const std::string folder = temporary_.path().string() + "/";
            for (std::size_t at = 0; (at = line.find(folder, at)) != std::string::npos;) line.erase(at, folder.size());
            return line;
        }
        return "(no error)";
    }

    TemporaryFolder temporary_;
    fs::path path_ = temporary_.path() / "s.cfg";
};

using Names = std::vector<std::string>;

TEST_F(SweepFile, PointsAreVariantsTimesGrids) {
    EXPECT_EQ(
        names(job + "grid draft-tree = 3 | 5\nvariant fast = draft=ngram top-k=3 # note\n"
                    "variant deep = ngram-order=6 top-k=3\ngrid ngram-top = 07|20\n"),
        (Names{"fast,draft-tree=3,ngram-top=7", "fast,draft-tree=3,ngram-top=20", "fast,draft-tree=5,ngram-top=7",
               "fast,draft-tree=5,ngram-top=20", "deep,draft-tree=3,ngram-top=7", "deep,draft-tree=3,ngram-top=20",
               "deep,draft-tree=5,ngram-top=7", "deep,draft-tree=5,ngram-top=20"}));
    const std::vector<SweepPoint> points =
        points_of(read(job + "max-tokens = 7\nvariant a = max-tokens=9\nvariant b =\n"));
    ASSERT_EQ(points.size(), 2U);
    EXPECT_EQ(points[0].settings.max_tokens, 9) << "a variant wins over a plain line";
    EXPECT_EQ(points[1].settings.max_tokens, 7);
    EXPECT_EQ(points[0].settings.output, temporary_.path() / "out" / "a");
    EXPECT_EQ(points[0].settings.data, temporary_.path() / "p.jsonl");
}

TEST_F(SweepFile, CommandLineOverridesPlainLines) {
    const Sweep sweep = read(job + "seed = 3\ngrid top-k = 0 | 5\n", {{"seed", "4", "command line"}});
    for (const SweepPoint& point : points_of(sweep)) EXPECT_EQ(point.settings.seed, 4U);
}

TEST_F(SweepFile, AnEmptyStopIsNone) {
    const std::string file = job + "stop = END\nvariant a = top-k=3\nvariant b = stop=\n";
    std::vector<SweepPoint> points = points_of(read(file));
    EXPECT_EQ(points[0].settings.stop, std::vector<std::string>{"END"});
    EXPECT_EQ(points[1].settings.stop, std::vector<std::string>{});
    points = points_of(read(job + "stop = END\ngrid top-k = 0 | 5\n", {{"stop", "", "command line"}}));
    for (const SweepPoint& point : points) EXPECT_EQ(point.settings.stop, std::vector<std::string>{});
}

TEST_F(SweepFile, QuotesKeepBarsBlanksAndHashes) {
    const auto stops = [&](const std::string& lines) {
        std::vector<std::vector<std::string>> all;
        for (const SweepPoint& point : points_of(read(job + lines))) all.push_back(point.settings.stop);
        return all;
    };
    using Stops = std::vector<std::vector<std::string>>;
    EXPECT_EQ(stops("grid stop = \"a | b\" | c|\"# d\" # e\n"), (Stops{{"a | b"}, {"c"}, {"# d"}}));
    EXPECT_EQ(stops("variant x = stop=\"a b\" top-k=3 stop=\"# \\\" |\" # e\n"), (Stops{{"a b", "# \" |"}}));
}

TEST_F(SweepFile, PlainDecodingIsOnePointForAllDrafts) {
    EXPECT_EQ(names(job + "grid draft = ngram | ar\ngrid ngram-order = 3 | 4\ngrid seed = 1 | 2\n"),
              (Names{"draft=ngram,ngram-order=3,seed=1", "draft=ngram,ngram-order=4,seed=1", "draft=ar,seed=1",
                     "draft=ngram,ngram-order=3,seed=2", "draft=ngram,ngram-order=4,seed=2", "draft=ar,seed=2"}));
    const std::vector<SweepPoint> points =
        points_of(read(job + "baseline = true\nvariant a = ngram-order=3\nvariant b = ngram-order=5\n"
                             "variant wide = ngram-order=3 batch=9\nvariant same = batch=4\n"));
    Names names, baselines;
    for (const SweepPoint& point : points) {
        names.push_back(point.name);
        ASSERT_TRUE(point.baseline.has_value());
        baselines.push_back(points[*point.baseline].name);
        EXPECT_FALSE(point.settings.baseline);
    }
    EXPECT_EQ(names, (Names{"draft=ar", "a", "b", "draft=ar,batch=9", "wide", "same"}));
    EXPECT_EQ(baselines,
              (Names{"draft=ar", "draft=ar", "draft=ar", "draft=ar,batch=9", "draft=ar,batch=9", "draft=ar"}));
    EXPECT_EQ(points_of(read(job + "grid ngram-order = 3 | 4\n")).front().baseline, std::nullopt);
}

// Without drafts the verification rule does not matter.
TEST_F(SweepFile, PlainDecodingIsOnePointForAllRules) {
    const std::vector<SweepPoint> points =
        points_of(read(job + "baseline = true\ndraft-model = d\nvariant sd = draft=sd verify=rejection\n"
                             "variant rsd = draft=rsd-s verify=recursive\nvariant coupled = draft=sd\n"));
    Names names;
    for (const SweepPoint& point : points) {
        names.push_back(point.name);
        EXPECT_EQ(point.baseline, 0U);
    }
    EXPECT_EQ(names, (Names{"draft=ar", "sd", "rsd", "coupled"}));
    EXPECT_EQ(shown_value(points[0], "verify"), "");
    EXPECT_EQ(shown_value(points[1], "verify"), "rejection");
    EXPECT_EQ(data_needs(points[1].settings), data_needs(points[2].settings)) << "the same items";
}

using Trees = std::map<std::string, std::set<std::string>>;  // method -> trees

/// The trees of each method in an experiment of jobs/rsd, by `size_of` their shape.
std::map<std::int64_t, Trees> trees_of_experiment(const char* name, std::int64_t (*size_of)(const engine::TreeShape&)) {
    const auto jobs = fs::path(LONGHAUL_DEMO_MODEL).parent_path().parent_path() / "rsd";
    std::map<std::int64_t, Trees> trees;
    for (const SweepPoint& point : points_of(read_sweep(jobs / name, {}))) {
        if (!point.settings.draft->drafts() || point.settings.seed != 1) continue;
        const engine::DraftMethod& method = *point.settings.draft;
        const std::string tree = point.settings.draft_tree.text();
        EXPECT_EQ(point.settings.verify.name(), method.name == "sd"       ? "rejection"
                                                : method.name == "spectr" ? "k-seq"
                                                                          : "recursive");
        EXPECT_TRUE(point.baseline.has_value());
        auto& of_method = trees[size_of(engine::tree_of(method, point.settings.draft_tree))][method.name];
        EXPECT_TRUE(of_method.insert(tree).second) << name << ": " << method.name << " " << tree << " twice";
    }
    return trees;
}

/// A list of Appendix D.3: SD's chain, (K, L) of both SpecTr and RSD-S, branching factors of RSD-C.
Trees listed(const char* chain, const std::set<std::string>& beams, const std::set<std::string>& branching) {
    return {{"sd", {chain}}, {"spectr", beams}, {"rsd-s", beams}, {"rsd-c", branching}};
}

// jobs/rsd: the trees of the paper's Appendix D.3, each with a rule that is lossless. Three lists of D.3.2 are
// misprinted: B = 14, 21 and 30 name 2,1,1,1,1,1 and 3,1,1,1,1,1 and 5,1,1,1,1, which have 12, 18 and 25 nodes.
TEST(SweepFiles, ExperimentsOfThePaper) {
    EXPECT_EQ(
        trees_of_experiment("experiment-1.cfg", [](const engine::TreeShape& shape) { return shape.depth; }),
        (std::map<std::int64_t, Trees>{{2, listed("2", {"2x2", "3x2"}, {"2,2", "2,1", "3,1"})},
                                       {3, listed("3", {"3x3", "4x3"}, {"2,2,2", "3,1,1", "4,1,1"})},
                                       {4, listed("4", {"5x4", "7x4"}, {"2,2,2,2", "5,1,1,1", "7,1,1,1"})},
                                       {5, listed("5", {"6x5", "12x5"}, {"2,2,2,2,2", "6,1,1,1,1", "12,1,1,1,1"})}}));
    EXPECT_EQ(
        trees_of_experiment("experiment-2.cfg", [](const engine::TreeShape& shape) { return shape.num_nodes(); }),
        (std::map<std::int64_t, Trees>{{6, listed("6", {"2x3", "3x2"}, {"2,1,1", "2,2", "3,1"})},
                                       {10, listed("10", {"2x5", "5x2"}, {"2,1,1,1,1", "2,2,1", "5,1"})},
                                       {14, listed("14", {"2x7", "7x2"}, {"2,1,1,1,1,1,1", "2,2,2", "7,1"})},
                                       {21, listed("21", {"3x7", "7x3"}, {"3,1,1,1,1,1,1", "3,2,2", "7,1,1"})},
                                       {30, listed("30", {"5x6", "6x5"}, {"2,2,2,2", "5,1,1,1,1,1", "6,1,1,1,1"})}}));
}

TEST(SweepFiles, OrderingByBudget) {
    const auto rsd = fs::path(LONGHAUL_DEMO_MODEL).parent_path().parent_path() / "rsd";
    const std::vector<SweepPoint> points = points_of(read_sweep(rsd / "ordering.cfg", {}));
    EXPECT_EQ(points.size(), (28U + 1) * 3 * 2) << "decoders and plain decoding, three seeds, two temperatures";
    std::map<std::int64_t, std::map<std::string, int>> trees;  // budget -> method -> trees
    for (const SweepPoint& point : points) {
        const Settings& job = point.settings;
        if (job.draft->drafts() && job.seed == 1 && job.temperature == 1)
            ++trees[engine::tree_of(*job.draft, job.draft_tree).num_nodes()][job.draft->name];
    }
    const std::map<std::string, int> each{{"sd", 1}, {"spectr", 1}, {"rsd-c", 2}, {"rsd-s", 1}};
    EXPECT_EQ(
        trees,
        (std::map<std::int64_t, std::map<std::string, int>>{
            {2, {{"sd", 1}, {"spectr", 1}, {"rsd-s", 1}}}, {6, each}, {10, each}, {14, each}, {21, each}, {30, each}}));
}

TEST_F(SweepFile, PointsThatShareAModelAndDataFollowEachOther) {
    EXPECT_EQ(names(job + "grid draft-tree = 3 | 4\ngrid seed = 1 | 2\n"),
              (Names{"draft-tree=3,seed=1", "draft-tree=4,seed=1", "draft-tree=3,seed=2", "draft-tree=4,seed=2"}));
    EXPECT_EQ(names(job + "grid precision = bf16 | int8\ngrid draft-tree = 3 | 4\n"),
              (Names{"precision=bf16,draft-tree=3", "precision=bf16,draft-tree=4", "precision=int8,draft-tree=3",
                     "precision=int8,draft-tree=4"}));
    EXPECT_EQ(names(job + "grid draft-tree = 3 | 4\ngrid precision = bf16 | int8\n"),
              (Names{"draft-tree=3,precision=bf16", "draft-tree=4,precision=bf16", "draft-tree=3,precision=int8",
                     "draft-tree=4,precision=int8"}));
}

TEST_F(SweepFile, AnotherAdapterIsAnotherModel) {
    EXPECT_EQ(names(job + "grid draft-tree = 3 | 4\ngrid adapter = a/first | a/second\n"),
              (Names{"draft-tree=3,adapter=first", "draft-tree=4,adapter=first", "draft-tree=3,adapter=second",
                     "draft-tree=4,adapter=second"}));
}

// A device sums in one order, so another order needs another device.
TEST_F(SweepFile, AnotherSumIsAnotherModel) {
    const std::vector<SweepPoint> points = points_of(read(job + "device = cuda\ngrid all-reduce = ordered | nccl\n"));
    ASSERT_EQ(points.size(), 2U);
    EXPECT_NE(model_needs(points[0].settings), model_needs(points[1].settings));
}

// A data set that stays open between points must give each point its own prompts.
TEST_F(SweepFile, WhatShapesPromptsIsNotShared) {
    for (const char* grid :
         {"chat-template = llama2 | llama3", "template-date = 2024-07-26 | 2024-07-27", "template = a.txt | b.txt",
          "chat = false | true", "prompt-tokens = 3 | 4", "max-tokens = 3 | 4", "add-bos = true | false",
          "split = train | test", "choice = A | B"}) {
        const auto points = points_of(read(job + "grid " + grid + "\n"));
        ASSERT_EQ(points.size(), 2U) << grid;
        EXPECT_NE(data_needs(points[0].settings), data_needs(points[1].settings)) << grid;
    }
    const auto drafts = points_of(read(job + "grid draft-tree = 3 | 4\n"));
    EXPECT_EQ(data_needs(drafts[0].settings), data_needs(drafts[1].settings));
}

TEST_F(SweepFile, NamesAreSafeAndStable) {
    EXPECT_EQ(names("task = prompts\nmodel = m\noutput = out\ngrid data = sets/a.jsonl | b/\n"),
              (Names{"data=a.jsonl", "data=b"}));
    const Names odd = names(job + "grid stop = \"a/b\" | \"a_b\" | \"../..\"\n");
    ASSERT_EQ(std::set<std::string>(odd.begin(), odd.end()).size(), 3U);
    for (const std::string& name : odd) EXPECT_EQ(name.find_first_of("/\" "), std::string::npos) << name;
    std::string grids;
    for (const char* key : {"top-k", "limit", "checkpoint-tokens", "checkpoint-quota", "max-failures", "penalty-window",
                            "batch", "memory", "max-tokens"}) {
        grids += std::string("grid ") + key + " = 1000 | 1001\n";
    }
    const Names many = names(job + grids);
    ASSERT_EQ(many.size(), 512U);
    for (const std::string& name : many) EXPECT_LE(name.size(), 180U);
    EXPECT_EQ(std::set<std::string>(many.begin(), many.end()).size(), 512U);
}

TEST_F(SweepFile, ReadsBackFromItsFolder) {
    const Sweep sweep = read(
        "task = prompts\nmodel = \"a model\"\noutput = out\nthreads = 2\nbaseline = true\nstop = \" # \"\n"
        "grid data = x|y z.jsonl | \"p | q\"\nvariant v = stop=\"a | b\" temperature=0.10\nvariant w =\n");
    const fs::path copy = temporary_.path() / "elsewhere" / "sweep.cfg";
    fs::create_directories(copy.parent_path());
    std::ofstream(copy) << format_sweep(sweep);
    const Sweep again = read_sweep(copy, {});
    EXPECT_EQ(format_sweep(again), format_sweep(sweep));
    const std::vector<SweepPoint> points = points_of(sweep), same = points_of(again);
    ASSERT_EQ(points.size(), same.size());
    for (std::size_t i = 0; i < points.size(); ++i) {
        EXPECT_EQ(points[i].name, same[i].name);
        EXPECT_EQ(points[i].settings, same[i].settings);
    }
    EXPECT_EQ(again.threads, 2);
    EXPECT_TRUE(again.baseline);
}

TEST_F(SweepFile, FaultsNameFileAndLine) {
    const std::vector<std::pair<std::string, std::string>> rows{
        {"",
         "s.cfg: expected a 'grid KEY = v1 | v2' or a 'variant NAME = key=value' line, got none; `longhaul run` runs a "
         "single job"},
        {"grid seed = 1 | 2\nshard = 0/2\n",
         "s.cfg:6: shard: expected off in a sweep, got '0/2'; run the points as jobs of their own to divide their "
         "items"},
        {"grid shard = 0/2 | 1/2\n",
         "s.cfg:5: shard: expected off in a sweep, got '0/2 | 1/2'; run the points as jobs of their own to divide "
         "their items"},
        {"grid = 1 | 2\n", "s.cfg:5: expected 'grid KEY = v1 | v2', got 'grid = 1 | 2'"},
        {"variant = a=1\n", "s.cfg:5: expected 'variant NAME = key=value key=value', got 'variant = a=1'"},
        {"grid sed = 1 | 2\n", "s.cfg:5: unknown key 'sed'; did you mean 'seed'?"},
        {"grid seed = 1 | x\n", "s.cfg:5: seed: expected an integer from 0 to 18446744073709551615, got 'x'"},
        {"grid seed =\n", "s.cfg:5: seed: expected a value, got nothing"},
        {"grid seed = 1 |\n", "s.cfg:5: grid seed: expected a value on both sides of every |, got '1 |'"},
        {"grid seed = 1 || 2\n", "s.cfg:5: grid seed: expected a value on both sides of every |, got '1 || 2'"},
        {"grid seed = | 2\n", "s.cfg:5: grid seed: expected a value on both sides of every |, got '| 2'"},
        {"grid top-p = 0.5 | 0.50\n", "s.cfg:5: grid top-p: expected every value once, got '0.50' again"},
        {"grid draft-model = a/m | b/m\n",
         "s.cfg:5: grid draft-model: expected every value once, got 'b/m' again; the last part of a path names the "
         "point; "
         "give them names on variant lines"},
        {"grid seed = 1 | 2\ngrid seed = 3\n",
         "s.cfg:6: grid seed: expected one grid a key, got this key again; it is at s.cfg:5 already"},
        {"grid output = a | b\n",
         "s.cfg:5: output: expected a key that points may differ in, got 'output'; it belongs to the sweep as a whole: "
         "write it on a line of its own"},
        {"variant a = threads=2\n",
         "s.cfg:5: threads: expected a key that points may differ in, got 'threads'; it belongs to the sweep as a "
         "whole: "
         "write it on a line of its own"},
        {"seed = 1\ngrid seed = 1 | 2\n",
         "s.cfg:5: seed: expected no value besides its grid's, got '1'; the grid is at s.cfg:6"},
        {"variant a = seed=1\ngrid seed = 1 | 2\n",
         "s.cfg:5: seed: expected no value besides its grid's, got '1'; the grid is at s.cfg:6"},
        {"variant a = seed=1\nvariant a = seed=2\n", "s.cfg:6: variant: expected every name once, got 'a' again"},
        {"variant a b = seed=1\n",
         "s.cfg:5: variant: expected a name of at most 40 letters, digits and - _ . +, got 'a b'; it names a folder"},
        {"variant ../x = seed=1\n",
         "s.cfg:5: variant: expected a name of at most 40 letters, digits and - _ . +, got '../x'; it names a folder"},
        {"variant launches = seed=1\n", "s.cfg:5: variant: expected another name, got 'launches'"},
        {"variant sweep.csv = seed=1\n", "s.cfg:5: variant: expected another name, got 'sweep.csv'"},
        {"variant a = seed=1 top-k\n",
         "s.cfg:5: variant a: expected key=value pairs with blanks between them, got 'top-k'; a value with blanks "
         "stands in "
         "double quotes"},
        {"variant a = seed = 1\n",
         "s.cfg:5: variant a: expected key=value pairs with blanks between them, got 'seed'; a value with blanks "
         "stands in "
         "double quotes"},
        {"variant a = seed=1 seed=2\n", "s.cfg:5: seed: expected every key once, got this key again"},
        {"variant a = stop=\"x y\n",
         R"(s.cfg:5: variant a: expected a closing quote, got 'stop="x y'; a quotation mark inside a text is \")"},
        {"seed = 1\nseed = 2\nvariant a = seed=3\n",
         "s.cfg:6: seed: expected every key once, got this key again; it is at s.cfg:5 already"},
        {"grid draft = ngram | replay\n",
         "s.cfg:5: replay-run: expected the run folder to replay, got nothing (point draft=replay)"},
    };
    for (const auto& [lines, expected] : rows) EXPECT_EQ(message(job + lines), expected);
    EXPECT_EQ(message("task = prompts\ndata = d\nmodel = m\ngrid seed = 1\n"),
              "s.cfg: output: expected a value, got nothing; this key has no default");
    EXPECT_EQ(message("task = prompts\ndata = d\noutput = o\ngrid seed = 1\n"),
              "s.cfg: model: expected a value, got nothing; this key has no default (point seed=1)");
}

TEST_F(SweepFile, CommandLineLeavesGridsAndVariantsAlone) {
    EXPECT_EQ(
        message(job + "grid seed = 1 | 2\n", {{"seed", "3", "command line"}}),
        "command line: seed: expected a key of a plain line, got '3'; grid seed at s.cfg:5 sets it: change it there");
    EXPECT_EQ(
        message(job + "variant a = seed=1\n", {{"seed", "3", "command line"}}),
        "command line: seed: expected a key of a plain line, got '3'; variant a at s.cfg:5 sets it: change it there");
}

TEST_F(SweepFile, PointsAreBounded) {
    std::string values = "1";
    for (int i = 2; i <= 101; ++i) values += " | " + std::to_string(i);
    const std::string expected =
        "s.cfg: expected at most 10000 points, got more; variants times the values of each grid: leave some out, or "
        "make "
        "several sweeps";
    EXPECT_EQ(message(job + "grid seed = " + values + "\ngrid top-k = " + values + "\n"), expected);
    std::string grids;
    for (const char* key : {"seed", "top-k", "limit", "samples", "batch", "prompt-tokens", "max-tokens", "max-failures",
                            "ngram-top", "checkpoint-tokens", "penalty-window"}) {
        grids += std::string("grid ") + key + " = " + values + "\n";
    }
    EXPECT_EQ(message(job + grids), expected) << "a product beyond 64 bits";
}

TEST_F(SweepFile, AJobsReaderSaysWhatItIs) {
    std::ofstream(path_) << job + "grid seed = 1 | 2\n";
    try {
        load_settings(path_, {});
        FAIL();
    } catch (const UsageError& error) {
        EXPECT_EQ(std::string(error.what()),
                  path_.string() + ":5: expected a job, got a line of a sweep; `longhaul sweep` runs this file");
    }
}

// --- its folder

struct SweepFolder : SweepFile {
    std::string refusal(const Sweep& sweep) {
        try {
            create_sweep_folder(sweep);
            for (const SweepPoint& point : points_of(sweep)) check_point(point, sweep_keys(sweep));
        } catch (const UsageError& error) {
            return error.what();
        }
        return "";
    }
    /// The files left by a launch of every point.
    static void begin(const Sweep& sweep) {
        for (const SweepPoint& point : points_of(sweep)) {
            const RunFolder folder{point.settings.output};
            folder.create();
            write_identity(folder, point.settings, {{"data", "d"}});
            std::ofstream(folder.root / "job.cfg") << format_settings(point.settings);
        }
    }
};

// Earlier versions wrote these two keys with every draft method.
TEST_F(SweepFolder, OfAnEarlierVersionGoesOn) {
    const Sweep sweep = read(job + "draft = ngram\nmax-tokens = 5\ngrid seed = 1 | 2\n");
    EXPECT_EQ(refusal(sweep), "");
    begin(sweep);
    for (const SweepPoint& point : points_of(sweep)) {
        Settings earlier = point.settings;
        earlier.partial_cache = 4096;
        earlier.partial_cache_mode = "dynamic";
        std::ofstream(point.settings.output / "job.cfg") << format_settings(earlier);
    }
    EXPECT_EQ(refusal(sweep), "");
}

TEST_F(SweepFolder, BelongsToOneSweepAlone) {
    const Sweep sweep = read(job + "max-tokens = 5\nvariant a = draft-tree=3\nvariant b = batch=2\n");
    EXPECT_EQ(refusal(sweep), "");
    EXPECT_TRUE(is_sweep_folder(sweep.output));
    EXPECT_THROW(RunFolder{sweep.output}.create(), UsageError) << "no run folder";
    EXPECT_THROW(RunFolder{sweep.output}.must_exist(), UsageError);
    begin(sweep);
    EXPECT_EQ(refusal(sweep), "");
    const std::string plain = "max-tokens = 5\nvariant a = draft-tree=3\nvariant b = batch=2\n";
    EXPECT_EQ(refusal(read(job + plain + "variant c = batch=3\n")), "") << "more points extend it";
    EXPECT_EQ(refusal(read(job + "threads = 7\n" + plain)), "");
    EXPECT_NE(refusal(read(job + "temperature = 0.5\n" + plain)).find("temperature: expected 1 "), std::string::npos);
    EXPECT_NE(refusal(read(job + "ngram-order = 7\n" + plain)).find("ngram-order: expected 4 "), std::string::npos)
        << "draft keys are what the table is about";
    EXPECT_NE(refusal(read(job + "max-tokens = 5\nvariant a = draft-tree=4\n")).find("draft-tree: expected 3 "),
              std::string::npos);
    EXPECT_NE(refusal(read(job + "max-tokens = 5\nvariant b = batch=3\n")).find("batch: expected 2 "),
              std::string::npos);
    EXPECT_NE(refusal(read(job + "max-tokens = 4\nvariant a = draft-tree=3\n")).find("max-tokens: expected at least 5"),
              std::string::npos);
}

TEST_F(SweepFolder, OthersFoldersAreRefused) {
    const Sweep sweep = read(job + "grid seed = 1 | 2\n");
    fs::create_directories(sweep.output / "launches");
    EXPECT_EQ(refusal(sweep), "") << "what a launch left that died early";
    fs::remove(sweep.output / sweep_marker);
    std::ofstream(sweep.output / "thesis.tex") << "precious";
    EXPECT_NE(refusal(sweep).find("got something else"), std::string::npos);
    EXPECT_FALSE(is_sweep_folder(sweep.output));
}

// --- its table

struct SweepTableTest : SweepFile {
    static void finish(const SweepPoint& point, double speed, int target_calls, const std::string& hash) {
        fs::create_directories(point.settings.output);
        std::ofstream(point.settings.output / "summary.json")
            << R"({"items": 3, "failed": 1, "tokens": 1000, "drafted": 10, "acceptance": 0.5, "working_seconds": 2.5,)"
            << R"("block_efficiency": )" << 1000.0 / target_calls << R"(, "decode_tokens_per_second": )" << speed
            << R"(, "results_xxh3": ")" << hash << "\"}";
    }
};

TEST_F(SweepTableTest, LinesMeansAndSpeedups) {
    const Sweep sweep = read(job + "baseline = true\ngrid draft-tree = 3\ngrid seed = 1 | 2 | 3\n");
    SweepTable table(sweep, points_of(sweep));
    ASSERT_EQ(table.size(), 6);
    const std::vector<double> speeds{10, 30, 20, 40, 0, 0};
    for (std::size_t i = 0; i < 4; ++i) {
        finish(table.points()[i], speeds[i], i % 2 == 0 ? 1000 : 500, i < 2 ? "aa" : "bb");
        table.look(i, true);
    }
    table.set_failed(5, "no memory, sorry");
    const auto json = table.to_json();
    const auto& lines = json["points"];
    EXPECT_EQ(lines[0]["point"], "draft=ar,seed=1");
    EXPECT_EQ(lines[1]["point"], "draft-tree=3,seed=1");
    EXPECT_EQ(lines[1]["keys"]["draft-tree"], "3");
    EXPECT_EQ(lines[0]["keys"]["draft-tree"], "") << "plain decoding heeds none";
    EXPECT_DOUBLE_EQ(lines[1]["speedup"], 3);
    EXPECT_DOUBLE_EQ(lines[3]["speedup"], 2);
    EXPECT_EQ(lines[1]["same_text"], true);
    EXPECT_EQ(lines[1]["baseline"], "draft=ar,seed=1");
    EXPECT_EQ(lines[4]["state"], "waiting");
    EXPECT_EQ(lines[5]["state"], "failed");
    EXPECT_EQ(lines[5]["error"], "no memory, sorry");
    ASSERT_EQ(json["means"].size(), 2U);
    EXPECT_EQ(json["means"][1]["points"], "draft-tree=3");
    EXPECT_EQ(json["means"][1]["seeds"], 2);
    EXPECT_DOUBLE_EQ(json["means"][1]["speedup"]["mean"], 2.5);
    EXPECT_DOUBLE_EQ(json["means"][1]["speedup"]["standard_error"], 0.5);
    EXPECT_TRUE(table.other_texts().empty());
    EXPECT_EQ(table.count(PointState::done), 4);
    EXPECT_EQ(table.count_with_failed_items(), 4);

    const std::string csv = table.to_csv();
    EXPECT_EQ(csv.substr(0, csv.find('\n')),
              "point,draft-tree,seed,state,seeds,items,failed,tokens,tokens_standard_error,block_efficiency,"
              "block_efficiency_standard_error,acceptance,acceptance_standard_error,decode_tokens_per_second,"
              "decode_tokens_per_second_standard_error,speedup,speedup_standard_error,seconds,seconds_standard_error,"
              "same_text");
    EXPECT_NE(
        csv.find("\n\"draft-tree=3,seed=2\",3,2,done,1,3,1,1000,,2.000000,,0.500000,,40.000000,,2.000000,,2.500000,,"
                 "yes\n"),
        std::string::npos)
        << csv;
    EXPECT_NE(csv.find("\ndraft-tree=3,3,mean,mean,2,,,1000,0.000000,2.000000,0.000000,0.500000,0.000000,35.000000,"
                       "5.000000,2.500000,0.500000,2.500000,0.000000,yes\n"),
              std::string::npos)
        << csv;
    EXPECT_NE(table.to_markdown().find("| 2.50 ± 0.50 |"), std::string::npos) << table.to_markdown();
}

TEST_F(SweepTableTest, MemoryBoundSpeedupHasItsColumnWhereDraftsCost) {
    const Sweep sweep = read(job + "grid draft-tree = 3 | 4\n");
    SweepTable table(sweep, points_of(sweep));
    EXPECT_EQ(table.to_markdown().find("MBSU"), std::string::npos);
    fs::create_directories(table.points()[0].settings.output);
    std::ofstream(table.points()[0].settings.output / "summary.json")
        << R"({"items": 3, "tokens": 1000, "block_efficiency": 2.5, "mbsu": 1.625})";
    table.look(0, true);
    EXPECT_EQ(table.to_json()["points"][0]["mbsu"], 1.625);
    EXPECT_NE(table.to_csv().find(",block_efficiency,mbsu,acceptance,"), std::string::npos) << table.to_csv();
}

TEST_F(SweepTableTest, PerplexityHasItsColumnsWhereTextsAreGiven) {
    const Sweep sweep = read(job + "mode = perplexity\ngrid window = 32 | 64\n");
    SweepTable table(sweep, points_of(sweep));
    EXPECT_EQ(table.to_markdown().find("perplexity"), std::string::npos);
    finish(table.points()[0], 10, 1000, "aa");
    std::ofstream(table.points()[0].settings.output / "summary.json")
        << R"({"items": 3, "tokens": 1000, "perplexity": 12.5, "bits_per_byte": 1.25})";
    table.look(0, true);
    EXPECT_EQ(table.to_json()["points"][0]["perplexity"], 12.5);
    EXPECT_NE(table.to_csv().find(",perplexity,bits_per_byte,"), std::string::npos) << table.to_csv();
    EXPECT_NE(table.to_markdown().find("12.5000"), std::string::npos) << table.to_markdown();
}

TEST_F(SweepTableTest, AccuracyHasItsColumnsWhereQuestionsAreAnswered) {
    const Sweep sweep = read(job + "mode = multiple-choice\ngrid template = a.txt | b.txt\n");
    SweepTable table(sweep, points_of(sweep));
    EXPECT_EQ(table.to_markdown().find("acc "), std::string::npos);
    fs::create_directories(table.points()[0].settings.output);
    std::ofstream(table.points()[0].settings.output / "summary.json")
        << R"({"items": 3, "tokens": 1000, "questions": 3, "acc": 0, "acc_norm": 0.625})";
    table.look(0, true);
    EXPECT_EQ(table.to_json()["points"][0]["acc"], 0);
    EXPECT_NE(table.to_csv().find(",tokens,acc,acc_norm,"), std::string::npos) << table.to_csv();
    EXPECT_NE(table.to_markdown().find("62.50"), std::string::npos) << table.to_markdown();
    EXPECT_EQ(table.to_csv().find("mc2"), std::string::npos);
    std::ofstream(table.points()[0].settings.output / "summary.json")
        << R"({"items": 3, "tokens": 1000, "questions": 3, "acc": 0, "acc_norm": 0.625, "mc2": 0.125})";
    table.look(0, true);
    EXPECT_NE(table.to_markdown().find("12.50"), std::string::npos) << table.to_markdown();
    std::ofstream(table.points()[0].settings.output / "summary.json")
        << R"({"items": 3, "tokens": 1000, "continuations": 3, "acc": 0.5, "token_accuracy": 0.375, "perplexity": 2})";
    table.look(0, true);
    EXPECT_NE(table.to_csv().find(",tokens,acc,perplexity,token_accuracy,"), std::string::npos) << table.to_csv();
    EXPECT_NE(table.to_markdown().find("37.50"), std::string::npos) << table.to_markdown();
}

TEST_F(SweepTableTest, OtherTextsAreFound) {
    const Sweep sweep = read(job + "baseline = true\ngrid draft-tree = 3 | 4\n");
    SweepTable table(sweep, points_of(sweep));
    finish(table.points()[0], 10, 1000, "aa");
    finish(table.points()[1], 10, 1000, "aa");
    finish(table.points()[2], 10, 1000, "ab");
    for (std::size_t i = 0; i < 3; ++i) table.look(i, true);
    EXPECT_EQ(table.other_texts(), std::vector<std::size_t>{2});
    EXPECT_NE(table.to_markdown().find("NO"), std::string::npos);
    EXPECT_TRUE(table.to_json()["means"].is_null()) << "no seeds, no means";
}

}  // namespace
}  // namespace longhaul::runner
