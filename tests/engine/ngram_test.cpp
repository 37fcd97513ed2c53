// The n-gram table and the trees it drafts.

#include <gtest/gtest.h>

#include <chrono>
#include <random>

#include "engine/draft/ngram_table.hpp"
#include "engine/error.hpp"
#include "engine/replica/checkpoint_rounds.hpp"
#include "engine/replica/replica.hpp"
#include "engine/sampling/pipeline.hpp"

namespace longhaul::engine {
namespace {

std::vector<std::int32_t> tokens_of(const Successors* successors) {
    std::vector<std::int32_t> tokens;
    if (successors != nullptr) {
        for (const Successor& s : successors->list()) tokens.push_back(s.token);
    }
    return tokens;
}

NgramTable table_of(const std::vector<std::int32_t>& history, std::int64_t order = 4, std::int64_t top = 20) {
    NgramTable table(order, top);
    for (std::size_t end = 1; end <= history.size(); ++end) table.insert(std::span(history).first(end));
    return table;
}

TEST(NgramTable, MostFrequentFirstThenMostRecent) {
    //                      1 followed by 2, 3, 2, 4: 2 twice, then 4 (newer) before 3
    const NgramTable table = table_of({1, 2, 1, 3, 1, 2, 1, 4});
    EXPECT_EQ(tokens_of(table.find(std::vector<std::int32_t>{1})), (std::vector<std::int32_t>{2, 4, 3}));
    EXPECT_EQ(table.find(std::vector<std::int32_t>{1})->total, 4);
    EXPECT_EQ(tokens_of(table.find(std::vector<std::int32_t>{2, 1})), (std::vector<std::int32_t>{4, 3}));
    EXPECT_EQ(table.find(std::vector<std::int32_t>{9}), nullptr);
    EXPECT_EQ(table.find(std::vector<std::int32_t>{1, 2, 1, 3}), nullptr);  // longer than the order allows
}

TEST(NgramTable, KeepsOnlyTheTopSuccessors) {
    std::vector<std::int32_t> history;
    for (std::int32_t v = 10; v < 40; ++v) history.insert(history.end(), {1, v});
    const NgramTable table = table_of(history, 2, 5);
    EXPECT_EQ(tokens_of(table.find(std::vector<std::int32_t>{1})), (std::vector<std::int32_t>{39, 38, 37, 36, 35}));
    EXPECT_EQ(table.find(std::vector<std::int32_t>{1})->total, 30);
}

TEST(NgramTable, KeepsNothingWhereNothingIsWanted) {
    const NgramTable table = table_of({1, 2, 1, 3}, 4, 0);
    EXPECT_EQ(tokens_of(table.find(std::vector<std::int32_t>{1})), std::vector<std::int32_t>());
}

TEST(NgramTable, ChangedRowsRebuildIt) {
    std::mt19937 random(11);
    std::vector<std::int32_t> history(400);
    for (auto& token : history) token = static_cast<std::int32_t>(random() % 6);
    NgramTable table(3, 8);
    NgramTable copy(3, 8);
    for (std::size_t end = 1, saved = 0; end <= history.size(); ++end) {
        table.insert(std::span(history).first(end));
        if (end % 37 != 0 && end != history.size()) continue;
        const auto rows = table.changed_rows(std::span(history).first(end), saved);
        EXPECT_EQ(rows.size() % 5, 0U);
        EXPECT_TRUE(copy.set_rows(rows));
        saved = end;
    }
    for (std::int32_t a = 0; a < 6; ++a) {
        for (std::int32_t b = 0; b < 6; ++b) {
            const std::vector<std::int32_t> context = {a, b};
            EXPECT_EQ(tokens_of(copy.find(context)), tokens_of(table.find(context)));
            if (table.find(context) != nullptr) {
                EXPECT_EQ(copy.find(context)->total, table.find(context)->total);
            }
        }
    }
    EXPECT_FALSE(copy.set_rows(std::vector<std::int32_t>{-1, -1, -1, 1, 0}));  // no token at all
    EXPECT_FALSE(copy.set_rows(std::vector<std::int32_t>{1, -1, 2, 1, 0}));    // a hole
    EXPECT_FALSE(copy.set_rows(std::vector<std::int32_t>{1, 2, 3, 0, 0}));     // count 0
    EXPECT_FALSE(copy.set_rows(std::vector<std::int32_t>{1, 2, 3}));           // half a row
}

DraftOptions ngram_options(const std::string& tree, std::int64_t top = 20) {
    DraftOptions options;
    options.tree = tree;
    options.ngram_top = top;
    return options;
}

std::unique_ptr<Drafter> ngram_drafter(const DraftOptions& options) {
    return make_drafter({options});
}

/// A tree for one sequence.
TokenTree tree_for(Drafter& drafter, SequenceDrafter& sequence, std::span<const std::int32_t> context,
                   const Noise& noise, std::int64_t max_depth) {
    TokenTree tree;
    tree.reset(context.back());
    Proposal proposal{.sequence = &sequence, .context = context, .noise = noise, .max_depth = max_depth, .tree = &tree};
    drafter.propose(std::span(&proposal, 1));
    return tree;
}

/// The invariants of a tree, for any drafter.
void expect_valid(const TokenTree& tree, std::int64_t max_nodes, std::int64_t max_depth) {
    EXPECT_LE(tree.num_nodes() - 1, max_nodes);
    for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
        const auto n = static_cast<std::size_t>(node);
        ASSERT_LT(tree.parent[n], node);
        EXPECT_EQ(tree.depth[n], tree.depth[static_cast<std::size_t>(tree.parent[n])] + 1);
        EXPECT_GE(tree.depth[n], tree.depth[n - 1]);  // level order
        EXPECT_LE(tree.depth[n], max_depth);
        for (std::size_t other = 1; other < n; ++other) {
            EXPECT_FALSE(tree.parent[other] == tree.parent[n] && tree.token[other] == tree.token[n]) << "twins";
        }
    }
}

TEST(NgramDrafter, DraftsWhatFollowedBefore) {
    const auto drafter = ngram_drafter(ngram_options("1x3"));
    const auto sequence = drafter->make_sequence({});
    const std::vector<std::int32_t> context = {5, 6, 7, 8, 9, 1, 5, 6, 7, 8, 9, 2, 5, 6};
    sequence->begin(context);
    const TokenTree tree = tree_for(*drafter, *sequence, context, {1, Noise::Kind::silent}, 8);
    ASSERT_EQ(tree.num_nodes(), 4);
    EXPECT_EQ(tree.token, (std::vector<std::int32_t>{6, 7, 8, 9}));
    expect_valid(tree, 8, 8);
}

// Only where drafts cannot change the text: with noise of their own the corpus would decide what is drafted.
TEST(NgramDrafter, KnowsTheCorpusFromTheStart) {
    DraftOptions options = ngram_options("1x3");
    options.corpus = std::make_shared<DraftCorpus>(DraftCorpus{{1, 2, 3}, {5, 6, 7, 8, 9, 5, 6, 7, 8, 9}});
    const auto drafter = ngram_drafter(options);
    const auto sequence = drafter->make_sequence({});
    const std::vector<std::int32_t> context = {40, 5, 6};
    sequence->begin(context);
    EXPECT_EQ(tree_for(*drafter, *sequence, context, {1, Noise::Kind::silent}, 8).token,
              (std::vector<std::int32_t>{6, 7, 8, 9}));
    options.corpus.reset();
    const auto without = ngram_drafter(options);
    const auto other = without->make_sequence({});
    other->begin(context);
    EXPECT_EQ(tree_for(*drafter, *sequence, context, {1, Noise::Kind::own}, 8).token,
              tree_for(*without, *other, context, {1, Noise::Kind::own}, 8).token);
}

TEST(NgramDrafter, ItsOwnTextComesBeforeTheCorpus) {
    DraftOptions options = ngram_options("1x1");
    options.corpus = std::make_shared<DraftCorpus>(DraftCorpus{{5, 6, 7, 5, 6, 7}});
    const auto drafter = ngram_drafter(options);
    const auto sequence = drafter->make_sequence({});
    const std::vector<std::int32_t> context = {5, 6, 8, 5, 6, 8, 5, 6};
    sequence->begin(context);
    EXPECT_EQ(tree_for(*drafter, *sequence, context, {1, Noise::Kind::silent}, 1).token,
              (std::vector<std::int32_t>{6, 8}));
}

TEST(NgramDrafter, TreesBranchAndKeepTheirBounds) {
    std::mt19937 random(3);
    std::vector<std::int32_t> context(3000);
    for (auto& token : context) token = static_cast<std::int32_t>(random() % 8);
    const auto drafter = ngram_drafter(ngram_options("4x5:12"));
    const auto sequence = drafter->make_sequence({});
    sequence->begin(context);
    EXPECT_EQ(drafter->max_nodes(), 12);
    int branched = 0;
    for (std::int64_t limit : {0, 1, 2, 5, 12}) {
        for (std::uint64_t key = 0; key < 50; ++key) {
            const TokenTree tree = tree_for(*drafter, *sequence, context, {key}, limit);
            expect_valid(tree, 12, limit);
            branched += tree.branches() ? 1 : 0;
        }
    }
    EXPECT_GT(branched, 20);
}

// The drafter knows the shared noise, so its drafts match the coupled draw far more often than the most frequent
// successor would.
TEST(NgramDrafter, UsesTheSharedNoise) {
    std::mt19937 random(8);
    std::vector<std::int32_t> context;
    for (int i = 0; i < 4000; ++i) context.insert(context.end(), {100, static_cast<std::int32_t>(random() % 4)});
    context.push_back(100);
    DraftOptions options = ngram_options("1x1");
    options.ngram_order = 2;
    const auto drafter = ngram_drafter(options);
    const auto sequence = drafter->make_sequence({});
    sequence->begin(context);
    const Distribution uniform{{0, 1, 2, 3}, {0, 0, 0, 0}, {0.25, 0.25, 0.25, 0.25}};
    int hits = 0;
    for (std::uint64_t key = 0; key < 400; ++key) {
        const TokenTree tree = tree_for(*drafter, *sequence, context, {key}, 1);
        const auto drawn = gumbel_argmax(uniform, NoiseRow(key, static_cast<std::int64_t>(context.size())));
        hits += tree.num_nodes() > 1 && tree.token[1] == drawn ? 1 : 0;
    }
    EXPECT_GT(hits, 380);  // without the noise: about 100
}

TEST(NgramDrafter, ResumesFromRowsAndRefusesOthers) {
    std::mt19937 random(4);
    std::vector<std::int32_t> context(500);
    for (auto& token : context) token = static_cast<std::int32_t>(random() % 9);
    const auto drafter = ngram_drafter(ngram_options("4x4:8"));
    const auto original = drafter->make_sequence({});
    original->begin(std::span(context).first(300));
    const DrafterState first = original->take_delta();
    const Observation seen{.sequence = original.get(), .context = context, .num_new = 200, .path = {}};
    drafter->observe(std::span(&seen, 1), {});
    const DrafterState second = original->take_delta();
    EXPECT_LT(second.rows.size(), first.rows.size());  // a delta, not the table
    const auto other_drafter = ngram_drafter(ngram_options("4x4:8"));
    const auto resumed = other_drafter->make_sequence({});
    ASSERT_TRUE(resumed->restore(std::vector<DrafterState>{first, second}, context));
    for (std::uint64_t key = 0; key < 100; ++key) {
        const TokenTree a = tree_for(*drafter, *original, context, {key}, 4);
        const TokenTree b = tree_for(*other_drafter, *resumed, context, {key}, 4);
        EXPECT_EQ(a.token, b.token);
        EXPECT_EQ(a.parent, b.parent);
    }
    DrafterState other = first;
    other.kind = "ngram/7";
    EXPECT_FALSE(drafter->make_sequence({})->restore(std::vector<DrafterState>{other}, context));
    EXPECT_FALSE(drafter->make_sequence({})->restore({}, context));
}

// A commit must stay readable: rows beyond its budget are omitted, and the drafter rebuilds its table from the tokens.
TEST(NgramDrafter, RowsBeyondTheBudgetAreLeftOutAndRefused) {
    const std::vector<std::int32_t> context(40, 7);
    const auto drafter = ngram_drafter(ngram_options("4x4:8"));
    const auto sequence = drafter->make_sequence({});
    sequence->begin(context);
    const DrafterState whole = sequence->take_delta();
    std::int64_t bytes_left = static_cast<std::int64_t>(whole.rows.size() * sizeof(std::int32_t));
    EXPECT_EQ(within_budget(whole, bytes_left).rows, whole.rows);
    EXPECT_EQ(bytes_left, 0);
    const DrafterState left_out = within_budget(whole, bytes_left);
    EXPECT_TRUE(left_out.rows.empty());
    EXPECT_FALSE(drafter->make_sequence({})->restore(std::vector<DrafterState>{whole, left_out}, context));
}

TEST(DraftTree, IsParsedOrRefused) {
    EXPECT_EQ(parse_tree_shape("5").depth, 5);
    EXPECT_EQ(parse_tree_shape("12x5").width, 12);
    EXPECT_EQ(parse_tree_shape("12x5").budget, 60);
    EXPECT_EQ(parse_tree_shape("4x3:12").budget, 12);
    EXPECT_EQ(parse_tree_shape("2,2,1").num_nodes(), 2 + 4 + 4);
    for (const char* bad : {"", "x", "0", "4x", "4x0", "4x3:", "4x3:0", "4x3:12:1", "-1", "4 x 3", "99999", "40x40",
                            "2,", "2,,1", "99,99"}) {
        EXPECT_THROW(parse_tree_shape(bad), UsageError) << bad;
    }
}

}  // namespace
}  // namespace longhaul::engine
