// `longhaul bench drafts`: cost of drafting besides the models' passes: distributions, trees and verification of one
// step, next to the target's pass over the same tree.
#include <algorithm>
#include <chrono>
#include <new>
#include <random>
#include <vector>

#include "engine/draft/tree_growth.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/sampling/pipeline.hpp"
#include "engine/verify/verifier.hpp"
#include "runner/bench/bench.hpp"

namespace longhaul::runner {
namespace {

constexpr std::int64_t num_logit_rows = 31;  ///< a tree of 30 nodes and its root

using Logits = std::vector<std::vector<float>>;

/// Rows like those of a language model: a few likely tokens, many unlikely ones.
Logits random_logits(std::int64_t vocab) {
    std::mt19937 random(1);
    std::normal_distribution<float> normal(0, 3);
    Logits rows(num_logit_rows, std::vector<float>(vocab));
    for (auto& row : rows) {
        for (float& logit : row) logit = normal(random);
    }
    return rows;
}

/// Logits of a target that the draft model approximates.
Logits target_of(const Logits& drafts) {
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0, 0.7F);
    Logits rows = drafts;
    for (auto& row : rows) {
        for (float& logit : row) logit += normal(random);
    }
    return rows;
}

double seconds_since(std::chrono::steady_clock::time_point since) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - since).count();
}

struct StepTimes {
    double draft = 0, verify = 0;
    std::int64_t nodes = 0;
};

/// Times one step of `method` without the models.
StepTimes time_step(const engine::TreeMethod& method, const engine::Verifier& verifier, bool coupled,
                    engine::LogitsPipeline& pipeline, const Logits& drafted, const Logits& wanted, std::uint64_t key) {
    const auto row = [](const Logits& logits, std::int32_t node) {
        return std::span<const float>(logits[static_cast<std::size_t>(node) % logits.size()]);
    };
    const std::vector<std::int32_t> context{1};
    const auto start = std::chrono::steady_clock::now();
    engine::TokenTree tree;
    tree.reset(1);
    const engine::Noise noise{key, coupled ? engine::Noise::Kind::shared : engine::Noise::Kind::own};
    const auto growth = method.begin(tree, noise, 1, method.max_depth());
    while (!growth->wanted().empty()) {
        std::vector<engine::Distribution> drafts;
        for (const auto& node : growth->wanted())
            drafts.push_back(pipeline.apply(row(drafted, node.node), {context, {}}));
        growth->grow(drafts);
    }
    StepTimes times{.draft = seconds_since(start), .nodes = tree.num_nodes() - 1};
    const auto grown = std::chrono::steady_clock::now();
    const auto target = [&](std::int32_t node) -> const engine::Distribution& {
        return pipeline.apply(row(wanted, node), {context, {}}, verifier.needs_probabilities());
    };
    static_cast<void>(verifier.verify(tree, target, key, 1));
    times.verify = seconds_since(grown);
    return times;
}

/// Times a pass of the target over a root and 30 nodes below it.
double time_pass(engine::Model& model, engine::KvSequence& kv, std::int64_t context) {
    std::vector<engine::ForwardRow> rows;
    for (std::int32_t i = 0; i < num_logit_rows; ++i) {
        rows.push_back(i == 0 ? engine::text_row(0, context) : engine::tree_row(i, context, {i - 1}));
        rows.back().wants_logits = true;
    }
    const engine::KvView view = kv.view();
    const auto start = std::chrono::steady_clock::now();
    model.forward({.rows = rows, .sequences = std::span(&view, 1)});
    return seconds_since(start);
}

}  // namespace

BenchTable bench_drafts(BenchSetup& setup) {
    BenchTable table{.title = ", a step at temperature 1 without filters",
                     .columns = {{"draft", "draft    "},
                                 {"tree", "tree   "},
                                 {"verify", "verify     "},
                                 {"nodes", "nodes"},
                                 {"draft_seconds", "ms trees", 1e3, 2},
                                 {"verify_seconds", "ms rule", 1e3, 2},
                                 {"pass_seconds", "ms target pass", 1e3, 2},
                                 {"of_step", "% of step", 100, 1}},
                     .lines = {},
                     .details = {}};
    const auto model = bench_model(setup);
    constexpr std::int64_t context = 512;
    engine::KvPool pool(model->device(), model->kv_layouts(), std::int64_t{1} << 40);
    engine::KvSequence kv(pool);
    if (!kv.reserve(context + num_logit_rows) || !kv.reserve_scratch(num_logit_rows)) throw std::bad_alloc();
    kv.set_committed(context);
    engine::LogitsPipeline pipeline(engine::SamplingParams{}, setup.shape.vocab_size);
    const Logits drafted = random_logits(setup.shape.vocab_size);
    const Logits wanted = target_of(drafted);
    struct Case {
        const char *draft, *tree, *verify;
    };
    for (const Case& measured :
         {Case{"sd", "30", "rejection"}, Case{"spectr", "6x5", "k-seq"}, Case{"specinfer", "6x5", "multi-round"},
          Case{"rsd-c", "2,2,2,2", "recursive"}, Case{"rsd-s", "6x5", "recursive"}, Case{"rsd-s", "6x5", "coupled"}}) {
        const engine::DraftMethod& method = engine::find_draft_method(measured.draft);
        const auto trees = method.make_trees(engine::tree_of(method, measured.tree), 1);
        const auto verifier = engine::make_verifier(measured.verify);
        const bool coupled = engine::VerifyRule(measured.verify) == engine::VerifyRule::coupled;
        std::vector<double> draft, verify, pass;
        std::int64_t nodes = 0;
        for (std::uint64_t round = 0; round < 9; ++round) {
            const StepTimes times = time_step(*trees, *verifier, coupled, pipeline, drafted, wanted, round);
            draft.push_back(times.draft);
            verify.push_back(times.verify);
            nodes = times.nodes;
            if (round % 3 == 0) pass.push_back(time_pass(*model, kv, context));
        }
        const double overhead = bench_median(draft) + bench_median(verify);
        setup.add(table, {{"draft", measured.draft},
                          {"tree", measured.tree},
                          {"verify", measured.verify},
                          {"nodes", nodes},
                          {"vocabulary", setup.shape.vocab_size},
                          {"draft_seconds", bench_median(draft)},
                          {"verify_seconds", bench_median(verify)},
                          {"pass_seconds", bench_median(pass)},
                          {"of_step", overhead / (overhead + bench_median(pass))}});
    }
    return table;
}

}  // namespace longhaul::runner
