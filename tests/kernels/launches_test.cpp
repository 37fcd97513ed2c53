// Launch lists and their graphs: the GPU receives exactly the requested calls, in an order that respects their
// dependencies, and a list that recurs becomes a graph.
#include "kernels/cuda/launches.hpp"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <new>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>

#include "kernels/cuda/gpu.hpp"

namespace longhaul::kernels::cuda {
namespace {

constexpr std::array<std::size_t, 1> only_offset{0};
constexpr KernelType one_number{only_offset, 16, nullptr};
constexpr char names[] = "abcdefgh";

/// Calls by name and number: "a1 b2". '&' after a call: it may run concurrently with the next one; '<': early.
struct Calls {
    std::string text;

    template <class Add>
    void for_each(Add add) const {
        for (std::size_t at = 0; at < text.size();) {
            const std::size_t end = std::min(text.find(' ', at), text.size());
            const std::string word = text.substr(at, end - at);
            const int number = std::stoi(word.substr(1));
            std::array<std::byte, 16> bytes{};
            std::memcpy(bytes.data(), &number, sizeof number);
            add(KernelCall{.kernel = names + (word[0] - 'a'),
                           .type = &one_number,
                           .beside = word.back() == '&',
                           .early = word.back() == '<'},
                bytes.data());
            at = end + 1;
        }
    }
};

std::string text_of(const LaunchList& list) {
    std::string text;
    for (std::size_t i = 0; i < list.size(); ++i) {
        int number = 0;
        std::memcpy(&number, list.parameters(i), sizeof number);
        text += (i == 0 ? "" : " ") + std::string(1, *static_cast<const char*>(list[i].kernel)) +
                std::to_string(number) + (list[i].beside ? "&" : "");
    }
    return text;
}

LaunchList list_of(const std::string& text) {
    LaunchList list;
    Calls{text}.for_each([&](const KernelCall& call, const std::byte* bytes) { list.add(call, bytes); });
    return list;
}

/// Everything that a GPU received.
struct LaunchLog {
    std::vector<std::string> lines;
    int num_graphs = 0;  ///< alive
    bool no_memory = false, refuses_changes = false;

    std::vector<std::string> take() { return std::exchange(lines, {}); }
};
using Lines = std::vector<std::string>;

class FakeGraph final : public Graph {
  public:
    FakeGraph(LaunchLog& log, LaunchList list) : log_(log), list_(std::move(list)) { ++log_.num_graphs; }
    ~FakeGraph() override { --log_.num_graphs; }
    FakeGraph(const FakeGraph&) = delete;
    FakeGraph& operator=(const FakeGraph&) = delete;

    void set(std::size_t i, const LaunchList& list) override {
        if (log_.refuses_changes) throw std::runtime_error("no");
        list_.set(i, list);
        log_.lines.push_back("set " + std::to_string(i));
    }
    void launch() override { log_.lines.push_back("graph " + text_of(list_)); }

  private:
    LaunchLog& log_;
    LaunchList list_;
};

class FakeLauncher final : public Launcher {
  public:
    explicit FakeLauncher(LaunchLog& log) : log_(log) {}

    void launch(const LaunchList& list) override { log_.lines.push_back(text_of(list)); }
    std::unique_ptr<Graph> instantiate(const LaunchList& list) override {
        if (log_.no_memory) throw std::bad_alloc();
        log_.lines.emplace_back("new");
        return std::make_unique<FakeGraph>(log_, list);
    }

  private:
    LaunchLog& log_;
};

class LaunchesTest : public ::testing::Test {
  protected:
    void make(const GraphPolicy& policy) {
        launches_ = std::make_unique<Launches>(std::make_unique<FakeLauncher>(log_), policy);
    }
    /// What the GPU receives for these calls and the flush after them.
    Lines run(const std::string& text) {
        add(text);
        launches_->flush();
        return log_.take();
    }
    void add(const std::string& text) {
        Calls{text}.for_each([&](const KernelCall& call, const std::byte* bytes) { launches_->add(call, bytes); });
    }

    LaunchLog log_;
    std::unique_ptr<Launches> launches_;
};

TEST_F(LaunchesTest, AListThatComesAgainIsAGraphInWhichOnlyChangesAreSet) {
    make({.min_calls = 3});
    EXPECT_EQ(run("a1 b2 c3 d4"), (Lines{"a1 b2 c3 d4"}));
    EXPECT_EQ(run("a1 b2 c3 d5"), (Lines{"new", "graph a1 b2 c3 d5"}));
    EXPECT_EQ(run("a1 b2 c3 d5"), (Lines{"graph a1 b2 c3 d5"}));
    EXPECT_EQ(run("a1 b6 c3 d7"), (Lines{"set 1", "set 3", "graph a1 b6 c3 d7"}));
    EXPECT_EQ(run("a1 b6 c8 d7"), (Lines{"set 2", "graph a1 b6 c8 d7"}));
    EXPECT_EQ(run(""), Lines());
}

TEST_F(LaunchesTest, OtherKernelsOrMostlyOtherArgumentsAreAnotherList) {
    make({.min_calls = 1});
    run("a1 b2 c3 d4");
    run("a1 b2 c3 d4");
    EXPECT_EQ(run("a1 b2 d4 c3"), (Lines{"a1 b2 d4 c3"}));
    EXPECT_EQ(run("a1 b2 c3"), (Lines{"a1 b2 c3"}));
    EXPECT_EQ(run("a1 b2& c3 d4"), (Lines{"a1 b2& c3 d4"}));
    EXPECT_EQ(run("a5 b6 c7 d4"), (Lines{"a5 b6 c7 d4"}));
    EXPECT_EQ(run("a5 b6 c7 d4"), (Lines{"new", "graph a5 b6 c7 d4"})) << "another shape has a graph of its own";
    EXPECT_EQ(run("a1 b2 c3 d4"), (Lines{"graph a1 b2 c3 d4"}));
}

TEST_F(LaunchesTest, ShortListsAreLaunchedCallByCall) {
    make({.min_calls = 3});
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run("a1 b2"), (Lines{"a1 b2"}));
}

TEST_F(LaunchesTest, LongListsAreCutButNeverInAPair) {
    make({.min_calls = 9, .max_calls = 3});
    EXPECT_EQ(run("a1 b2 c3 d4 e5 f6& g7 h8"), (Lines{"a1 b2 c3", "d4 e5 f6& g7", "h8"}));
    make(GraphPolicy::none());
    add("a1");
    EXPECT_EQ(log_.take(), (Lines{"a1"})) << "without graphs a call does not wait for others";
}

TEST_F(LaunchesTest, TheListThatCameLeastRecentlyIsForgotten) {
    make({.min_calls = 1, .max_lists = 2});
    for (const char* text : {"a1", "a1", "b1", "b1", "a1"}) run(text);
    EXPECT_EQ(log_.num_graphs, 2);
    EXPECT_EQ(run("c1"), (Lines{"c1"}));
    EXPECT_EQ(log_.num_graphs, 1);
    EXPECT_EQ(run("a1"), (Lines{"graph a1"}));
    EXPECT_EQ(run("b1"), (Lines{"b1"}));
}

// More shapes than there is room for, in turn: the least recently used graph would always be the next one needed.
TEST_F(LaunchesTest, GraphsThatAreUsedAreNotDroppedForOthersAsFrequent) {
    make({.min_calls = 1, .max_graph_calls = 8});
    int num_new = 0, num_graphs = 0;
    for (int round = 0; round < 10; ++round) {
        for (const char* text : {"a1 b1", "b1 c1", "c1 d1", "d1 e1", "e1 f1", "f1 g1", "g1 h1"}) {
            for (const std::string& line : run(text)) {
                num_new += line == "new" ? 1 : 0;
                num_graphs += line.starts_with("graph") ? 1 : 0;
            }
        }
    }
    EXPECT_EQ(num_new, 4);
    EXPECT_EQ(num_graphs, 4 * 9);
    EXPECT_EQ(log_.num_graphs, 4);
}

TEST_F(LaunchesTest, AFrequentListTakesThePlaceOfARareOne) {
    make({.min_calls = 1, .max_graph_calls = 4});
    for (const char* text : {"a1 b1", "a1 b1", "b1 c1", "b1 c1", "b1 c1"}) run(text);
    EXPECT_EQ(log_.num_graphs, 2);
    EXPECT_EQ(run("c1 d1"), (Lines{"c1 d1"}));
    EXPECT_EQ(run("c1 d1"), (Lines{"c1 d1"})) << "as rare as the rarest graph";
    EXPECT_EQ(run("c1 d2"), (Lines{"new", "graph c1 d2"}));
    EXPECT_EQ(log_.num_graphs, 2);
    EXPECT_EQ(run("b1 c1"), (Lines{"graph b1 c1"}));
    EXPECT_EQ(run("a1 b1"), (Lines{"a1 b1"})) << "its graph was dropped";
}

// A list that becomes rare loses its place in time, however often it was launched before.
TEST_F(LaunchesTest, FrequencyIsForgotten) {
    make({.min_calls = 1, .max_lists = 4, .max_graph_calls = 1});
    for (int i = 0; i < 1000; ++i) run("a1");
    int until = 0;
    while (run("b1") != (Lines{"graph b1"}) && until < 10'000) ++until;
    EXPECT_LT(until, 64 * 10);
}

TEST_F(LaunchesTest, WhereMemoryEndsThereAreNoGraphs) {
    make({.min_calls = 1});
    run("a1");
    run("a1");
    run("b1");
    log_.no_memory = true;
    EXPECT_EQ(run("b1"), (Lines{"b1"}));
    EXPECT_EQ(log_.num_graphs, 0) << "what they held is needed more elsewhere";
    EXPECT_EQ(run("a1"), (Lines{"a1"}));
    log_.no_memory = false;
    for (int i = 0; i < 3; ++i) EXPECT_EQ(run("a1"), (Lines{"a1"}));
}

TEST_F(LaunchesTest, WhatCouldNotBeLaunchedIsNotForgotten) {
    make({.min_calls = 1, .change_part = 1});
    run("a1 b2");
    run("a1 b2");
    log_.refuses_changes = true;
    add("a3 b4");
    log_.take();
    std::thread([&] { EXPECT_THROW(launches_->flush(), std::runtime_error); }).join();
    EXPECT_EQ(log_.num_graphs, 0);
    log_.refuses_changes = false;
    EXPECT_THROW(add("a1"), std::runtime_error) << "lost calls must be reported to their caller";
    EXPECT_THROW(launches_->flush(), std::runtime_error);
    EXPECT_EQ(log_.take(), Lines());
}

TEST_F(LaunchesTest, CallsThatNoGPUTakesAreRefusedAndEmptyGridsAreNone) {
    make({});
    const std::array<std::byte, 16> bytes{};
    KernelCall call{.kernel = names, .type = &one_number};
    call.grid = {1, 65536, 1};
    EXPECT_THROW(launches_->add(call, bytes.data()), std::logic_error);
    call.grid = {1, 1, 1};
    call.block = {1025, 1, 1};
    EXPECT_THROW(launches_->add(call, bytes.data()), std::logic_error);
    call.block = {1, 1, 1};
    call.shared_bytes = block_shared_bytes + 1;
    EXPECT_THROW(launches_->add(call, bytes.data()), std::logic_error);
    call.shared_bytes = 0;
    call.grid = {3, 0, 1};
    add("a1&");
    launches_->add(call, bytes.data());
    EXPECT_EQ(run("b2"), (Lines{"a1 b2"})) << "what a1 may run beside is not b2, but the call that was none";
}

TEST(LaunchList, CallsWaitForThoseBeforeThem) {
    const LaunchList list = list_of("a1 b1& c1 d1& e1 f1 g1");
    const std::vector<std::vector<std::size_t>> before = {{}, {0}, {0}, {1, 2}, {1, 2}, {3, 4}, {5}};
    for (std::size_t i = 0; i < before.size(); ++i) EXPECT_EQ(list.before(i), before[i]) << i;
    EXPECT_TRUE(list_of("a1& b1").before(1).empty());
    const LaunchList early = list_of("a1< b1< c1& d1 e1< f1< g1");
    for (const std::size_t i : {0, 2, 3, 4, 6}) EXPECT_FALSE(early.starts_early(i)) << i;
    for (const std::size_t i : {1, 5}) EXPECT_TRUE(early.starts_early(i)) << i;
    EXPECT_EQ(text_of(list_of("a1& b1& c1")), "a1 b1& c1") << "no more than two at a time";
}

// Random lists with a small cache: whether a list is cached, changed or evicted, exactly its calls run.
TEST_F(LaunchesTest, WhatRunsIsWhatWasAskedFor) {
    make({.min_calls = 2, .max_calls = 6, .change_part = 2, .max_lists = 3});
    std::mt19937 random(7);
    int num_graphs = 0;
    for (int i = 0; i < 2000; ++i) {
        std::string text;
        const auto shape = random() % 4;
        for (unsigned call = 0; call < 3 + shape; ++call) {
            const bool beside = call == 1 && shape % 2 == 1;
            text += (call == 0 ? "" : " ") + std::string(1, names[(call + shape) % 8]) +
                    std::to_string(random() % 3 == 0 ? random() % 4 : 1) + (beside ? "&" : "");
        }
        Lines log = run(text);
        ASSERT_FALSE(log.empty());
        std::string ran = log.back();
        if (ran.starts_with("graph ")) {
            ran = ran.substr(6);
            ++num_graphs;
        }
        ASSERT_EQ(ran, text);
    }
    EXPECT_GT(num_graphs, 500);
    EXPECT_LT(num_graphs, 2000);
}

struct Padded {
    std::int8_t small;
    double large;
};

__global__ void store(double* to, Padded from) {
    *to = from.small + from.large;
}

TEST(Parameters, EqualValuesAreEqualBytes) {
    using Given = Parameters<double*, Padded>;
    std::array<Padded, 2> twice{};
    std::memset(&twice[0], 0xff, sizeof(Padded));
    for (Padded& padded : twice) {
        padded.small = 3;
        padded.large = 0.5;
    }
    double result = 0;
    const Given first(&result, twice[0]), second(&result, twice[1]);
    EXPECT_EQ(std::memcmp(first.bytes(), second.bytes(), Given::num_bytes), 0);
    Given::call(reinterpret_cast<const void*>(store), first.bytes());
    EXPECT_EQ(result, 3.5);
}

// The two calls of a pair run in reverse order, so that code that relies on their order fails here.
TEST(Launches, NeitherOfAPairWaitsForTheOther) {
    const auto order_of = [](const GraphPolicy& policy, int times) {
        std::string order;
        const Stream stream(policy);
        const auto mark = [&](const Place& place, char name) {
            const auto body = [&order, name] { order += name; };
            launch(
                place, +[](decltype(body) run) { run(); }, dim3(1), dim3(1), 0, body);
        };
        for (int i = 0; i < times; ++i) {
            mark(stream, 'a');
            mark(beside_the_next(stream), 'b');
            mark(stream, 'c');
            mark(stream, 'd');
            stream.synchronize();
        }
        return order;
    };
    EXPECT_EQ(order_of({}, 1), "acbd");
    EXPECT_EQ(order_of({.min_calls = 2}, 3), "acbdacbdacbd");
    EXPECT_EQ(order_of(GraphPolicy::none(), 1), "acbd");
}

}  // namespace
}  // namespace longhaul::kernels::cuda
