// `longhaul bench layers`: what drafting with a draft layer costs (eagle, lyanna), beside the machine's limits and the
// target's pass over the tree. Random weights; a tree is always rejected, so that lyanna re-samples in every step.
#include <algorithm>
#include <new>
#include <numeric>
#include <optional>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/kv/kv_cache.hpp"
#include "runner/bench/bench.hpp"

namespace longhaul::runner {
namespace {

constexpr std::int64_t context_tokens = 512, token_info_rank = 64;

struct LayerCase {
    const char *draft, *tree;
    engine::Resample resample = engine::Resample::off;
};
/// Chains, and trees of which the last two have equally many nodes.
constexpr LayerCase layer_cases[] = {{"eagle", "4"},       {"lyanna", "4"},
                                     {"eagle", "4x4:16"},  {"lyanna", "4x4:12"},
                                     {"lyanna", "4x4:16"}, {"lyanna", "4x4:12", engine::Resample::fused}};

/// A layer of the target's shape.
engine::DraftLayerConfig layer_config(const engine::ModelConfig& target, const engine::DraftMethod& method) {
    engine::DraftLayerConfig config;
    config.layer = target;
    config.layer.num_layers = 1;
    config.layer.layers.resize(1);
    config.chains_states = method.chains_states;
    if (method.chains_states) {
        config.token_info_rank = token_info_rank;
        config.info_tokens.resize(static_cast<std::size_t>(target.vocab_size));
        std::iota(config.info_tokens.begin(), config.info_tokens.end(), 0);
    }
    return config;
}

/// One sequence that drafts, verifies and rejects, step by step.
class DraftedText {
  public:
    /// `max_steps`: calls of step.
    DraftedText(engine::Model& model, engine::Drafter& drafter, engine::KvPool& pool, std::int64_t max_steps)
        : model_(model), drafter_(drafter), sequence_(drafter.make_sequence({})), kv_(pool) {
        for (std::int64_t i = 0; i <= context_tokens; ++i)
            tokens_.push_back(static_cast<std::int32_t>(i % model.config().vocab_size));
        if (!kv_.reserve(context_tokens + max_steps) || !kv_.reserve_scratch(drafter.max_nodes()))
            throw std::bad_alloc();
        std::vector<engine::ForwardRow> rows;
        for (std::int64_t i = 0; i < context_tokens; ++i) rows.push_back(engine::text_row(tokens_[i], i));
        const engine::PassResult prompt = forward(rows);
        kv_.set_committed(context_tokens);
        observe({.context = tokens_, .path = {}, .num_rows = context_tokens, .first_position = 0}, prompt);
    }

    struct Times {
        double draft = 0, pass = 0;
        std::int64_t nodes = 0;
    };
    Times step() {
        Times times;
        engine::TokenTree tree;
        tree.reset(tokens_.back());
        const engine::SamplingParams sampling{.temperature = 1};
        engine::Proposal proposal{.sequence = sequence_.get(),
                                  .context = tokens_,
                                  .noise = {1, engine::Noise::Kind::shared},
                                  .sampling = &sampling,
                                  .kv = &kv_,
                                  .text_depth = drafter_.max_depth(),
                                  .max_depth = drafter_.max_depth(),
                                  .tree = &tree};
        times.draft = seconds_of([&] { drafter_.propose(std::span(&proposal, 1)); });
        times.nodes = tree.num_nodes() - 1;
        std::vector<engine::ForwardRow> rows;
        for (std::int32_t node = 0; node < tree.num_nodes(); ++node) {
            rows.push_back(
                engine::tree_row(tree.token[node], kv_.committed(), engine::TokenTree::slots_of(tree.path_to(node))));
            rows.back().wants_logits = true;
        }
        std::optional<engine::PassResult> result;
        times.pass = seconds_of([&] {
            result.emplace(forward(rows));
            model_.device().finish();
        });
        kv_.set_committed(kv_.committed() + 1);
        tokens_.push_back(tokens_.back());
        times.draft += seconds_of([&] {
            observe({.context = tokens_, .num_new = 1, .path = {}, .rejected_level = 1, .num_rows = std::ssize(rows)},
                    *result);
        });
        return times;
    }

  private:
    engine::PassResult forward(const std::vector<engine::ForwardRow>& rows) {
        std::vector<engine::Tap> taps = drafter_.taps();
        for (engine::Tap& tap : taps) {
            tap.rows.resize(rows.size());
            std::iota(tap.rows.begin(), tap.rows.end(), 0);
        }
        const engine::KvView view = kv_.view();
        return model_.forward({.rows = rows, .sequences = std::span(&view, 1), .taps = taps});
    }
    void observe(engine::Observation seen, const engine::PassResult& result) {
        seen.sequence = sequence_.get();
        drafter_.observe(std::span(&seen, 1), result.taps);
    }

    engine::Model& model_;
    engine::Drafter& drafter_;
    std::unique_ptr<engine::SequenceDrafter> sequence_;
    engine::KvSequence kv_;
    std::vector<std::int32_t> tokens_;
};

/// Bytes of weights that a draft of `depth` levels reads.
double draft_bytes(const engine::DraftLayerConfig& config, const engine::ModelConfig& target, std::int64_t depth,
                   double bytes_per_weight) {
    const std::int64_t heads = config.chains_states ? 1 : depth;
    return bytes_per_weight *
           static_cast<double>(depth * config.num_parameters() + heads * config.num_head_parameters(target));
}

}  // namespace

BenchTable bench_layers(BenchSetup& setup) {
    BenchTable table{.title = ", one sequence, a step at temperature 1 (medians of " + std::to_string(setup.rounds) +
                              " rounds; share: of the time that the drafts' weights take at the measured bandwidth)",
                     .columns = {{"draft", "draft "},
                                 {"tree", "tree  "},
                                 {"resample", "resample"},
                                 {"nodes", "nodes"},
                                 {"draft_seconds", "ms drafts", 1e3, 2},
                                 {"share", "share", 100, 0},
                                 {"pass_seconds", "ms pass over them", 1e3, 2},
                                 {"plain_seconds", "ms plain pass", 1e3, 2},
                                 {"step_seconds", "ms step", 1e3, 2}},
                     .lines = {},
                     .details = {}};
    const auto model = bench_model(setup);
    if (!setup.ceilings) setup.ceilings = make_ceilings(*setup.device, setup.threads);
    const double bytes_per_weight = setup.settings.precision == "fp32" ? 4 : 2;
    engine::KvPool pool(model->device(), model->kv_layouts(), std::int64_t{1} << 40);
    struct Measured {
        LayerCase what;
        std::unique_ptr<engine::DraftLayer> layer;
        std::unique_ptr<engine::Drafter> drafter;
        std::unique_ptr<DraftedText> text;
        std::vector<double> draft, pass, step, share;
        std::int64_t nodes = 0;
    };
    std::vector<Measured> all;
    for (const LayerCase& what : layer_cases) {
        Measured& one = all.emplace_back();
        one.what = what;
        engine::DraftOptions options;
        options.method = what.draft;
        options.tree = what.tree;
        options.resample = what.resample;
        one.layer = engine::DraftLayer::random(layer_config(model->config(), *options.method), *model, 1);
        options.layer = one.layer.get();
        one.drafter = engine::make_drafter({options, model.get()});
        one.text = std::make_unique<DraftedText>(*model, *one.drafter, pool, 2 * setup.rounds);
    }
    std::vector<double> plain;
    for (std::int64_t round = 0; round < setup.rounds; ++round) {  // alternating: the speed of shared machines drifts
        for (Measured& one : all) {
            const double bandwidth = setup.ceilings->bytes_per_second();
            one.text->step();
            const DraftedText::Times times = one.text->step();
            one.nodes = times.nodes;
            one.draft.push_back(times.draft);
            one.pass.push_back(times.pass);
            one.step.push_back(times.draft + times.pass);
            const double bytes =
                draft_bytes(one.layer->config(), model->config(), one.drafter->max_depth(), bytes_per_weight);
            one.share.push_back(bytes / bandwidth / times.draft);
        }
        engine::KvSequence kv(pool);
        if (!kv.reserve(context_tokens + 1)) throw std::bad_alloc();
        fill_kv(model->device(), kv.layout(), kv.pages());
        const engine::KvView view = kv.view();
        std::vector<engine::ForwardRow> row{engine::text_row(0, context_tokens)};
        row.front().wants_logits = true;
        plain.push_back(seconds_of([&] {
            const auto result = model->forward({.rows = row, .sequences = std::span(&view, 1)});
            model->device().finish();
        }));
    }
    for (const Measured& one : all) {
        const bool fused = one.what.resample == engine::Resample::fused;
        setup.add(table, {{"draft", one.what.draft},
                          {"tree", one.what.tree},
                          {"resample", fused ? "4x2:4" : "off"},
                          {"nodes", one.nodes},
                          {"draft_seconds", bench_median(one.draft)},
                          {"share", bench_median(one.share)},
                          {"pass_seconds", bench_median(one.pass)},
                          {"plain_seconds", bench_median(plain)},
                          {"step_seconds", bench_median(one.step)}});
    }
    return table;
}

}  // namespace longhaul::runner
