// Verification on a device: the distribution it keeps equals the host's, and its decisions at tree nodes equal those of
// the host's rules. Nodes it cannot decide it leaves to the host, and reports that.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>

#include "engine/sampling/pipeline.hpp"
#include "engine/verify/sampling.hpp"
#include "tests/engine/device_cases.hpp"
#include "tests/engine/logit_rows.hpp"

namespace longhaul::engine {
namespace {

using namespace testing;
using kernels::Choice;
using kernels::KeptDistribution;

constexpr std::uint64_t key = 31;

/// Rows of logits on a device, each with sampling parameters, a context and a slot for its distribution.
class KeptRows {
  public:
    KeptRows(kernels::Device& device, std::int64_t vocab) : device_(device), vocab_(vocab), pipeline_({}, vocab) {}

    void add(const std::vector<float>& row, const SamplingParams& with, std::vector<std::int32_t> context = {}) {
        logits_.insert(logits_.end(), row.begin(), row.end());
        params_.push_back(with);
        contexts_.push_back(std::move(context));
        slots_.emplace_back(device_, KeptDistribution::num_bytes(vocab_));
    }
    [[nodiscard]] std::size_t size() const { return params_.size(); }
    [[nodiscard]] std::byte* slot(std::size_t row) const { return slots_[row].data(); }
    [[nodiscard]] bool is_kept(std::size_t row) const {
        KeptDistribution head;
        device_.download(&head, slot(row), sizeof head);
        return head.sum > 0;
    }
    /// Computed by the host's pipeline.
    const Distribution& distribution(std::size_t row) {
        pipeline_.set_params(params_[row]);
        const auto vocab = static_cast<std::size_t>(vocab_);
        return pipeline_.apply(std::span(logits_).subspan(row * vocab, vocab), {contexts_[row], {}});
    }
    Choice choice(std::size_t row, const NoiseRow& noise) {
        pipeline_.set_params(params_[row]);
        Choice choice = pipeline_.choice({contexts_[row], {}}, noise, penalised_.emplace_back());
        choice.row = static_cast<std::int64_t>(row);
        return choice;
    }
    /// Calls ask(logits) with all rows on the device.
    template <typename Ask>
    void on_device(const Ask& ask) {
        const kernels::Buffer there(device_, logits_.size() * sizeof(float));
        device_.upload(there.data(), logits_.data(), there.num_bytes());
        ask(there.as<float>());
        std::vector<float> after(logits_.size());
        device_.download(after.data(), there.data(), there.num_bytes());
        EXPECT_EQ(std::memcmp(after.data(), logits_.data(), there.num_bytes()), 0) << "logits were changed";
    }
    /// Draws `count` tokens of each row and keeps its distribution.
    std::vector<kernels::Drawn> draw(std::int64_t count) {
        std::vector<Choice> choices;
        for (std::size_t r = 0; r < size(); ++r) {
            const auto node = static_cast<std::uint32_t>(r);
            choices.push_back(choice(r, NoiseRow(key, 5, Purpose::draft, 2, node)));
            choices.back().keep = slots_[r].data();
        }
        std::vector<kernels::Drawn> drawn(size() * static_cast<std::size_t>(1 + count));
        on_device([&](float* logits) { device_.token_chooser()->draw(logits, vocab_, vocab_, choices, count, drawn); });
        return drawn;
    }

  private:
    kernels::Device& device_;
    std::int64_t vocab_;
    LogitsPipeline pipeline_;
    std::vector<float> logits_;
    std::vector<SamplingParams> params_;
    std::vector<std::vector<std::int32_t>> contexts_;
    std::vector<kernels::Buffer> slots_;
    std::deque<std::vector<std::int32_t>> penalised_;
};

class Deciding : public ::testing::TestWithParam<DeviceCase> {
  protected:
    void SetUp() override {
        device_ = GetParam().make();
        if (device_ == nullptr) GTEST_SKIP() << "needs an NVIDIA GPU";
    }
    std::unique_ptr<kernels::Device> device_;
};

void expect_kept(kernels::Device& device, KeptRows& rows) {
    for (std::size_t r = 0; r < rows.size(); ++r) {
        SCOPED_TRACE("row " + std::to_string(r));
        ASSERT_TRUE(rows.is_kept(r));
        const Distribution kept = kept_distribution(device, rows.slot(r));
        const Distribution& right = rows.distribution(r);
        EXPECT_EQ(kept.ids, right.ids);
        EXPECT_EQ(kept.log_weights, right.log_weights);
        EXPECT_EQ(kept.q, right.q);
    }
}

TEST_P(Deciding, KeepsTheDistributionOfEveryFilter) {
    for (const std::int64_t vocab : {300, 5001}) {
        Rows random(1);
        KeptRows rows(*device_, vocab);
        for (const SamplingParams& params : all_filters()) {
            if (params.temperature == 0) continue;
            rows.add(random.normal(vocab, 3.0F), params, random.context(vocab));
            if (vocab > 300) continue;
            rows.add(random.tied(vocab), params, random.context(vocab));
            rows.add(random.with_holes(vocab), params, random.context(vocab));
        }
        const std::vector<kernels::Drawn> drawn = rows.draw(3);
        expect_kept(*device_, rows);
        // The draws use the noise of their lane and node.
        for (std::size_t r = 0; r < rows.size(); ++r) {
            const Distribution& right = rows.distribution(r);
            const auto best =
                gumbel_top_k(right, NoiseRow(key, 5, Purpose::draft, 2, static_cast<std::uint32_t>(r)), 3);
            for (std::size_t i = 0; i < best.size(); ++i)
                EXPECT_EQ(drawn[r * 4 + 1 + i].token, right.ids[static_cast<std::size_t>(best[i].place)]) << r;
        }
    }
}

TEST_P(Deciding, KeepsNothingOfWhatItDoesNotKnow) {
    Rows random(2);
    KeptRows rows(*device_, 20'000);
    SamplingParams flat;
    flat.top_p = 0.9;  // more tokens than a block sorts
    rows.add(random.normal(20'000, 0.1F), flat);
    rows.add(std::vector<float>(20'000, nan), {});
    rows.add(random.normal(20'000, 1.0F), {.temperature = 1.0, .eta = 1e-2, .min_keep = 3});
    rows.draw(1);
    for (std::size_t r = 0; r < rows.size(); ++r) EXPECT_FALSE(rows.is_kept(r)) << r;
    // The head of an earlier distribution is cleared as well.
    const KeptDistribution old{.temperature = 1, .greatest = 0, .sum = 7, .vocab_size = 20'000};
    for (std::size_t r = 0; r < rows.size(); ++r) device_->upload(rows.slot(r), &old, sizeof old);
    rows.draw(1);
    for (std::size_t r = 0; r < rows.size(); ++r) EXPECT_FALSE(rows.is_kept(r)) << r;
}

/// Nodes with their drafts, decided by the host and by the device.
struct Trees {
    Trees(kernels::Device& on, std::int64_t vocab, const std::string& by, std::int64_t draft_vocab = 0)
        : device(on),
          rule(make_verifier(by)),
          targets(on, vocab),
          drafts(on, draft_vocab > 0 ? draft_vocab : vocab),
          vocab_size(vocab) {}

    static constexpr std::int64_t position = 9;

    /// Adds a node whose drafts come from rows [first, end) of `drafts`, `each` per row.
    void add_drawn(std::size_t first, std::size_t end, std::size_t each, std::span<const kernels::Drawn> drawn,
                   std::size_t of_row) {
        TokenTree& tree = trees.emplace_back();
        tree.reset(0);
        tree.sampled = true;
        for (std::size_t row = first; row < end; ++row) {
            tree.drafts.push_back(drafts.distribution(row));
            tree.drafts.back().kept = drafts.slot(row);
            for (std::size_t i = 0; i < each; ++i) {
                const std::int32_t token = drawn[row * of_row + 1 + i].token;
                if (token < 0) continue;
                const std::int32_t child = std::max(tree.find_child(0, token), 0);
                tree.trials.push_back({0, child > 0 ? child : tree.add(0, token, Origin::model),
                                       static_cast<std::int32_t>(tree.drafts.size()) - 1});
            }
        }
    }
    void add_certain(std::span<const std::int32_t> tokens) {
        TokenTree& tree = trees.emplace_back();
        tree.reset(0);
        for (const std::int32_t token : tokens) tree.add(0, token, Origin::ngram);
    }

    struct Counts {
        int accepted = 0, later = 0, drawn = 0, left = 0;  ///< later: accepted, but not the first draft
    };
    /// Expects the device's decisions to equal the host's, except for those it leaves to the host.
    Counts compare() {
        std::vector<DeviceTrials> inputs;
        std::vector<kernels::NodeTrials> nodes;
        for (const TokenTree& tree : trees) inputs.push_back(*device_trials(tree, 0, key_of(inputs.size()), position));
        for (std::size_t n = 0; n < trees.size(); ++n)
            nodes.push_back({.choice = targets.choice(n, NoiseRow::silence(0)),
                             .trials = inputs[n].trials,
                             .number = inputs[n].number});
        std::vector<kernels::Decided> decided(nodes.size());
        targets.on_device([&](float* logits) {
            device.token_chooser()->decide(logits, vocab_size, vocab_size, *rule->by_node()->device_rule(), nodes,
                                           decided);
        });
        Counts counts;
        for (std::size_t n = 0; n < trees.size(); ++n) {
            SCOPED_TRACE("node " + std::to_string(n));
            const auto target = [&](std::int32_t) -> const Distribution& { return targets.distribution(n); };
            const Decision right = rule->by_node()->decide(trees[n], 0, target, key_of(n), position);
            if (decided[n].trial < 0 && decided[n].token < 0) {
                ++counts.left;
            } else if (decided[n].trial >= 0) {
                const auto trial = static_cast<std::size_t>(decided[n].trial);
                EXPECT_EQ(inputs[n].children[trial], right.child);
                ++counts.accepted;
                counts.later += trial > 0 ? 1 : 0;
            } else {
                EXPECT_EQ(right.child, -1);
                EXPECT_EQ(decided[n].token, right.token);
                ++counts.drawn;
            }
        }
        return counts;
    }
    static std::uint64_t key_of(std::size_t node) { return 1000 + node; }

    kernels::Device& device;
    std::unique_ptr<Verifier> rule;
    KeptRows targets, drafts;
    std::int64_t vocab_size;
    std::vector<TokenTree> trees;
};

/// `row` plus noise: the logits of a draft model.
std::vector<float> blurred(std::vector<float> row, Rows& random, float spread) {
    const std::vector<float> noise = random.normal(static_cast<std::int64_t>(row.size()), spread);
    for (std::size_t v = 0; v < row.size(); ++v) row[v] += noise[v];
    return row;
}

/// Sampling parameters of target and draft for every node.
std::vector<SamplingParams> pairs_of_filters() {
    std::vector<SamplingParams> all = all_filters();
    SamplingParams plain;  // the common case
    for (int i = 0; i < 30; ++i) all.push_back(plain);
    return all;
}

TEST_P(Deciding, IsTheHostsRuleForDraftsWithoutReplacement) {
    for (const std::int64_t vocab : {40, 700}) {
        Rows random(3);
        Trees trees(*device_, vocab, "recursive");
        const std::vector<SamplingParams> filters = pairs_of_filters();
        for (std::size_t i = 0; i < filters.size(); ++i) {
            const std::vector<float> row = random.normal(vocab, 2.0F);
            const std::vector<std::int32_t> context = random.context(vocab);
            trees.targets.add(row, filters[i], context);
            SamplingParams drafted = filters[(i + 5) % filters.size()];
            if (drafted.temperature == 0) drafted.temperature = 1;
            trees.drafts.add(blurred(row, random, 1.0F), drafted, context);
        }
        const std::vector<kernels::Drawn> drawn = trees.drafts.draw(5);
        for (std::size_t i = 0; i < filters.size(); ++i) trees.add_drawn(i, i + 1, i % 6, drawn, 6);
        const Trees::Counts counts = trees.compare();
        EXPECT_EQ(counts.left, 0);
        EXPECT_GT(counts.accepted, 15);
        EXPECT_GT(counts.later, 3);
        EXPECT_GT(counts.drawn, 15);
    }
}

// Probabilities of tokens far below the others are denormal doubles and count as zero.
TEST_P(Deciding, KeepsNothingOfTheFarthestTokens) {
    const std::int64_t vocab = 30'000;
    Rows random(11);
    KeptRows rows(*device_, vocab);
    std::vector<float> row = random.normal(vocab, 0.1F);
    for (std::size_t v = 0; v < row.size(); v += 7) row[v] = -3000.0F;
    rows.add(row, {});
    rows.draw(1);
    expect_kept(*device_, rows);
    const Distribution& whole = rows.distribution(0);
    EXPECT_EQ(whole.ids[7], 7);
    EXPECT_EQ(whole.q[7], 0.0);
    Trees trees(*device_, vocab, "recursive");
    for (int node = 0; node < 4; ++node) {
        trees.targets.add(row, {});
        trees.drafts.add(row, {});
    }
    const std::vector<kernels::Drawn> drawn = trees.drafts.draw(2);
    for (std::size_t i = 0; i < 4; ++i) trees.add_drawn(i, i + 1, 0, drawn, 3);
    for (TokenTree& tree : trees.trees) tree.trials.push_back({0, tree.add(0, 7, Origin::model), 0});
    EXPECT_EQ(trees.compare().drawn, 4);
}

// The draft model is often wrong, so the residual after four drafts decides.
TEST_P(Deciding, IsTheHostsRuleAfterManyRejections) {
    const std::int64_t vocab = 50;
    Rows random(8);
    Trees trees(*device_, vocab, "recursive", vocab - 9);
    for (int node = 0; node < 80; ++node) {
        const std::vector<float> row = random.normal(vocab, 0.5F);
        trees.targets.add(row, {});
        std::vector<float> steep = blurred(row, random, 2.0F);
        steep.resize(static_cast<std::size_t>(vocab - 9));
        trees.drafts.add(steep, {.temperature = 0.6});
    }
    const std::vector<kernels::Drawn> drawn = trees.drafts.draw(5);
    for (std::size_t i = 0; i < 80; ++i) trees.add_drawn(i, i + 1, 5, drawn, 6);
    const Trees::Counts counts = trees.compare();
    EXPECT_EQ(counts.left, 0);
    EXPECT_GT(counts.drawn, 20);
    EXPECT_GT(counts.later, 10);
}

// A draft to which its own distribution gives no probability is still tried.
TEST_P(Deciding, TriesWhatItsDistributionLacks) {
    Rows random(9);
    Trees trees(*device_, 20, "recursive");
    SamplingParams one;
    one.top_k = 1;
    for (int node = 0; node < 20; ++node) {
        std::vector<float> row = random.normal(20, 0.3F);
        row[4] = 3.0F;
        trees.targets.add(row, {});
        row[7] = 9.0F;
        trees.drafts.add(row, one);
    }
    trees.drafts.draw(1);
    for (std::size_t i = 0; i < 20; ++i) {
        const std::vector<kernels::Drawn> lacking{{}, {.token = 4}, {.token = 7}};
        trees.add_drawn(0, 1, 2, lacking, 3);
        trees.trees.back().drafts.front() = trees.drafts.distribution(i);
        trees.trees.back().drafts.front().kept = trees.drafts.slot(i);
    }
    const Trees::Counts counts = trees.compare();
    EXPECT_EQ(counts.left, 0);
    EXPECT_GT(counts.accepted, 3);
    EXPECT_GT(counts.drawn, 3);
}

TEST_P(Deciding, IsTheHostsRuleForIndependentDrafts) {
    const std::int64_t vocab = 60;
    for (const char* rule : {"multi-round", "k-seq"}) {
        SCOPED_TRACE(rule);
        const bool one_model = std::string(rule) == "k-seq";
        Rows random(4);
        Trees trees(*device_, vocab, rule, vocab - 5);
        const std::vector<SamplingParams> filters = pairs_of_filters();
        for (const SamplingParams& params : filters) {  // three drafts per node, from three models or from one
            const std::vector<float> row = random.normal(vocab, 2.0F);
            trees.targets.add(row, params);
            std::vector<float> draft;
            for (int model = 0; model < 3; ++model) {
                if (model == 0 || !one_model) draft = blurred(row, random, 2.0F);
                draft.resize(static_cast<std::size_t>(vocab - 5));
                trees.drafts.add(draft, {.temperature = 1.2});
            }
        }
        const std::vector<kernels::Drawn> drawn = trees.drafts.draw(1);
        for (std::size_t i = 0; i < filters.size(); ++i) trees.add_drawn(3 * i, 3 * i + i % 4, 1, drawn, 2);
        const Trees::Counts counts = trees.compare();
        EXPECT_EQ(counts.left, 0);
        EXPECT_GT(counts.accepted, 15);
        EXPECT_GT(counts.later, 3);
        EXPECT_GT(counts.drawn, 10);
    }
}

// Every token is gathered: p is flat, and q is between p and K p, or far above and below. The discount is about 4.
TEST_P(Deciding, FindsTheDiscountOfManyTokens) {
    const std::int64_t vocab = 2500;
    Rows random(10);
    Trees trees(*device_, vocab, "k-seq");
    for (int node = 0; node < 6; ++node) {
        trees.targets.add(random.normal(vocab, node < 3 ? 0.2F : 3.0F), {});
        for (int i = 0; i < 4; ++i) trees.drafts.add(std::vector<float>(static_cast<std::size_t>(vocab), 1.0F), {});
    }
    std::vector<float> apart(static_cast<std::size_t>(vocab), -30.0F);
    std::fill_n(apart.begin() + 40, 3 * vocab / 10, std::log(2.2F));
    apart[3] = std::log(0.34F * static_cast<float>(vocab));
    for (int node = 0; node < 20; ++node) {
        trees.targets.add(apart, {});
        for (int i = 0; i < 6; ++i) trees.drafts.add(std::vector<float>(static_cast<std::size_t>(vocab), 1.0F), {});
    }
    const std::vector<kernels::Drawn> drawn = trees.drafts.draw(1);
    for (std::size_t i = 0; i < 6; ++i) trees.add_drawn(4 * i, 4 * i + 4, 1, drawn, 2);
    for (std::size_t i = 0; i < 20; ++i) trees.add_drawn(24 + 6 * i, 30 + 6 * i, 1, drawn, 2);
    const Trees::Counts counts = trees.compare();
    EXPECT_EQ(counts.left, 0);
    EXPECT_GT(counts.drawn, 0);
    EXPECT_GT(counts.accepted, 0);
}

// Lanes of more tokens than a block keeps in shared memory at once.
TEST_P(Deciding, IsTheHostsRuleForALargeVocabulary) {
    const std::int64_t vocab = 140'001;
    for (const char* rule : {"multi-round", "recursive", "k-seq"}) {
        SCOPED_TRACE(rule);
        Rows random(12);
        Trees trees(*device_, vocab, rule);
        const std::vector<float> row = random.normal(vocab, 2.0F);
        trees.drafts.add(blurred(row, random, 1.0F), {});
        for (int node = 0; node < 4; ++node) trees.targets.add(row, {.temperature = node < 2 ? 1.0 : 0.5});
        const std::vector<kernels::Drawn> drawn = trees.drafts.draw(3);
        for (std::size_t i = 0; i < 4; ++i) trees.add_drawn(0, i == 0 ? 0 : 1, 3, drawn, 4);
        EXPECT_EQ(trees.compare().left, 0);
    }
}

TEST_P(Deciding, IsTheHostsRuleForCertainDrafts) {
    for (const char* rule : {"multi-round", "recursive"}) {
        Rows random(5);
        Trees trees(*device_, 30, rule);
        for (const SamplingParams& params : all_filters()) {
            const std::vector<float> row = random.normal(30, 1.0F);
            trees.targets.add(row, params);
            std::vector<std::int32_t> tokens{3, 17, 29, 0};
            tokens.resize(trees.trees.size() % 5);
            trees.add_certain(tokens);
        }
        const Trees::Counts counts = trees.compare();
        EXPECT_EQ(counts.left, 0);
        EXPECT_GT(counts.accepted, 2);
        EXPECT_GT(counts.drawn, 10);
    }
}

// Tests the sum over chunks and within the chunk that crosses the threshold, with empty chunks in between, and more
// nodes than a device takes at once.
TEST_P(Deciding, DrawsOfWhatIsLeftInChunks) {
    const std::int64_t vocab = 2000;
    Rows random(6);
    Trees trees(*device_, vocab, "rejection");
    for (int node = 0; node < 40; ++node) {
        std::vector<float> row = random.normal(vocab, 1.0F);
        for (std::size_t v = 0; v < row.size(); ++v) {
            if (node % 2 == 0 && v / 256 % 3 != 1) row[v] = -infinity;
        }
        trees.targets.add(row, {});
        trees.add_certain({});
    }
    const Trees::Counts counts = trees.compare();
    EXPECT_EQ(counts.drawn, 40);
}

// More chunks than a block keeps in shared memory at once, with the mass in the first, the middle and the last of them.
TEST_P(Deciding, DrawsFromAnyChunkOfALargeVocabulary) {
    const std::int64_t vocab = 1024 * 256 + 700;
    Trees trees(*device_, vocab, "rejection");
    for (const std::int64_t first : {0L, 131'000L, vocab - 300}) {
        std::vector<float> row(static_cast<std::size_t>(vocab), -infinity);
        for (std::int64_t v = first; v < first + 300; ++v) row[static_cast<std::size_t>(v)] = 0.01F * (v % 7);
        trees.targets.add(row, {});
        trees.add_certain({});
    }
    EXPECT_EQ(trees.compare().drawn, 3);
}

TEST_P(Deciding, LeavesToTheHostWhatItDoesNotKnow) {
    Rows random(7);
    const std::int64_t vocab = 300;
    Trees trees(*device_, vocab, "recursive");
    const auto add = [&](const std::vector<float>& target, const SamplingParams& of_target,
                         const std::vector<float>& draft, const SamplingParams& of_draft) {
        trees.targets.add(target, of_target);
        trees.drafts.add(draft, of_draft);
    };
    const std::vector<float> flat = random.normal(vocab, 1.0F), broken(static_cast<std::size_t>(vocab), nan);
    add(broken, {}, flat, {});
    add(flat, {}, broken, {});
    add(flat, {.temperature = 1.0, .eta = 1e-2, .min_keep = 3}, flat, {});
    // After the first draft the probabilities carry no information.
    std::vector<float> steep(static_cast<std::size_t>(vocab), -1000.0F);
    steep[7] = 0;
    add(flat, {}, steep, {});
    const std::vector<kernels::Drawn> drawn = trees.drafts.draw(2);
    for (std::size_t i = 0; i < trees.drafts.size(); ++i) trees.add_drawn(i, i + 1, 2, drawn, 3);
    trees.trees[1].trials.push_back({0, trees.trees[1].add(0, 4, Origin::model), 0});
    EXPECT_EQ(trees.compare().left, 4);
}

// A rejection removes all remaining probability by rounding alone: the distribution before it is kept.
TEST_P(Deciding, KeepsWhatWasLeftWhereRoundingTookAll) {
    for (const char* rule : {"multi-round", "recursive"}) {
        Trees trees(*device_, 4, rule);
        trees.targets.add({0, -700, -infinity, -infinity}, {});
        trees.drafts.add({0, -40, -infinity, -infinity}, {});  // 1 + e^-40 is 1
        trees.drafts.draw(1);
        TokenTree& tree = trees.trees.emplace_back();
        tree.reset(0);
        tree.sampled = true;
        tree.drafts.push_back(trees.drafts.distribution(0));
        tree.drafts.back().kept = trees.drafts.slot(0);
        tree.trials.push_back({0, tree.add(0, 1, Origin::model), 0});
        EXPECT_EQ(trees.compare().drawn, 1);
    }
}

TEST_P(Deciding, ADraftOfAnotherDeviceIsTheHosts) {
    TokenTree tree;
    tree.reset(0);
    tree.sampled = true;
    tree.drafts.push_back({.ids = {4}, .log_weights = {0}, .q = {1}});
    tree.trials.push_back({0, tree.add(0, 4, Origin::model), 0});
    EXPECT_FALSE(device_trials(tree, 0, key, 1).has_value());
    EXPECT_TRUE(device_trials(tree, 1, key, 1).has_value());
}

TEST_P(Deciding, DecisionsAreCounted) {
    const std::vector<kernels::DraftTrial> many(static_cast<std::size_t>(kernels::max_trials) + 1);
    std::vector<kernels::Decided> decided(1);
    const kernels::NodeTrials node{.choice = {}, .trials = many, .number = 0};
    const auto ask = [&](std::span<kernels::Decided> answers) {
        device_->token_chooser()->decide(nullptr, 8, 8, kernels::TrialRule::recursive, std::span(&node, 1), answers);
    };
    EXPECT_THROW(ask(decided), std::logic_error);
    EXPECT_THROW(ask({}), std::logic_error);
    KeptRows rows(*device_, 4);
    rows.add({1, 2, 3, 4}, {});
    Choice keeping{.keep = rows.slot(0)};
    std::int32_t token = 0;
    EXPECT_THROW(device_->token_chooser()->choose(nullptr, 4, 4, std::span(&keeping, 1), std::span(&token, 1)),
                 std::logic_error);
}

INSTANTIATE_TEST_SUITE_P(Devices, Deciding, ::testing::Values(gpu_cases().front()),
                         [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace longhaul::engine
