// `longhaul bench self`: what the drafts of draft = self cost at several lengths of the text, beside a plain pass of
// the same model in the same round, and the speedup that follows at a given acceptance.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <functional>
#include <map>
#include <new>
#include <numeric>
#include <vector>

#include "engine/draft/ranked_kv.hpp"
#include "engine/kv/kv_cache.hpp"
#include "runner/bench/bench.hpp"
#include "runner/host/resources.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

constexpr std::array<std::int64_t, 4> contexts{512, 4096, 32768, 102400};
constexpr std::array<std::int64_t, 3> depths{2, 5, 10};  ///< of chains whose verification is timed
constexpr std::array<double, 3> acceptances{0.8, 0.85, 0.9};
constexpr std::int64_t warm_up = 2;

/// A sequence of the model with random keys and values, and the passes over it.
class Text {
  public:
    Text(engine::Model& model, engine::KvPool& pool, std::int64_t context)
        : model_(model), kv_(pool), tokens_(static_cast<std::size_t>(context) + 1) {
        if (!kv_.reserve(context + 1) || !kv_.reserve_scratch(depths.back() + 1)) throw std::bad_alloc();
        for (std::size_t group = 0; group < kv_.num_groups(); ++group) {
            fill_kv(model.device(), kv_.layout(group), kv_.pages(group));
            fill_kv(model.device(), kv_.layout(group), kv_.scratch_pages(group));
        }
        kv_.set_committed(context);
    }

    /// Seconds of a pass over the newest token and a chain of `depth` drafts below it.
    double verify(std::int64_t depth) {
        std::vector<engine::ForwardRow> rows{engine::text_row(0, kv_.committed())};
        std::vector<std::int32_t> path;
        for (std::int32_t node = 0; node < depth; ++node) {
            path.push_back(node);
            rows.push_back(engine::tree_row(node + 1, kv_.committed(), path));
        }
        return forward(model_, rows, kv_.view());
    }

    /// Seconds of a draft pass of `copy` over the positions that `cache` selects.
    double draft(engine::Model& copy, const engine::PartialCache& cache) {
        const engine::PartialKv read = engine::PartialKv::select(kv_, cache, 0);
        engine::ForwardRow row;
        row.position = kv_.committed();
        row.in_pages = read.num_slots;
        row.path = {0};
        row.place = {engine::KvPlace::In::scratch, 0};
        return forward(copy, {row}, {read.pages, kv_.scratch_pages(), kv_.view().more_groups});
    }

    /// Seconds of a selection by rank; 0: the text is too short for one.
    double select(engine::Model& copy, std::int64_t max_positions) {
        const engine::PartialCache cache{.mode = engine::PartialMode::dynamic, .max_positions = max_positions};
        if (!cache.selection({kv_.committed(), 1})) return 0;
        engine::KvRanker ranker(cache, depths.back() + 1);
        engine::SelectedKv selected;
        const engine::KvRanker::Request request{&selected, &kv_, tokens_, 1};
        return seconds_of([&] {
            ranker.select(copy, std::span(&request, 1));
            copy.device().finish();
        });
    }

  private:
    static double forward(engine::Model& model, std::vector<engine::ForwardRow> rows, const engine::KvView& view) {
        for (engine::ForwardRow& row : rows) row.wants_logits = true;
        return seconds_of([&] {
            const auto result = model.forward({.rows = rows, .sequences = std::span(&view, 1)});
            model.device().finish();
        });
    }

    engine::Model& model_;
    engine::KvSequence kv_;
    std::vector<std::int32_t> tokens_;
};

/// Seconds of the passes at one length: medians.
struct Costs {
    double plain = 0, draft = 0, select = 0;
    std::array<double, depths.size()> verify{};

    /// Verification of a chain of `depth` drafts, on the line through the two nearest measurements.
    [[nodiscard]] double verification(std::int64_t depth) const {
        const std::size_t upper = depth <= depths[1] ? 1 : 2;
        const double slope =
            (verify[upper] - verify[upper - 1]) / static_cast<double>(depths[upper] - depths[upper - 1]);
        return verify[upper - 1] + slope * static_cast<double>(depth - depths[upper - 1]);
    }
    /// Tokens per second at the best depth, divided by plain decoding's (ALGORITHMS.md section 6b).
    [[nodiscard]] double speedup(double acceptance) const {
        double best = 0;
        for (std::int64_t depth = 1; depth <= depths.back(); ++depth) {
            const double tokens = (1 - std::pow(acceptance, static_cast<double>(depth + 1))) / (1 - acceptance);
            best = std::max(best, tokens * plain / (static_cast<double>(depth) * draft + verification(depth)));
        }
        return best;
    }
};

Costs measure(BenchSetup& setup, engine::Model& model, engine::Model& copy, engine::KvPool& pool,
              std::int64_t context) {
    Text text(model, pool, context);
    const engine::PartialCache window = draft_of(setup.settings).partial_cache;
    std::map<std::int64_t, std::vector<double>> verify;
    std::vector<double> plain, draft, select;
    for (std::int64_t round = 0; round < warm_up + setup.rounds; ++round) {
        const double of_plain = text.verify(0), of_draft = text.draft(copy, window),
                     of_select = text.select(copy, window.max_positions);
        std::array<double, depths.size()> of_verify{};
        std::transform(depths.begin(), depths.end(), of_verify.begin(), [&](auto depth) { return text.verify(depth); });
        if (round < warm_up) continue;
        plain.push_back(of_plain);
        draft.push_back(of_draft);
        select.push_back(of_select);
        for (std::size_t i = 0; i < depths.size(); ++i) verify[depths[i]].push_back(of_verify[i]);
    }
    Costs costs{bench_median(plain), bench_median(draft), bench_median(select)};
    for (std::size_t i = 0; i < depths.size(); ++i) costs.verify[i] = bench_median(verify[depths[i]]);
    return costs;
}

}  // namespace

BenchTable bench_self(BenchSetup& setup) {
    const auto model = bench_model(setup);
    std::unique_ptr<engine::Model> loaded_copy;
    if (const auto precision = draft_copy_precision(setup.settings)) loaded_copy = bench_model(setup, *precision);
    engine::Model& copy = loaded_copy ? *loaded_copy : *model;
    BenchTable table{.title = ", draft-precision = " + setup.settings.draft_precision + " (medians of " +
                              std::to_string(setup.rounds) + " rounds; the last columns: speedup at this acceptance)",
                     .columns = {{"context", "context"},
                                 {"plain_seconds", "ms plain", 1e3, 2},
                                 {"draft_seconds", "ms draft", 1e3, 2},
                                 {"draft_share", "draft / plain", 1, 2},
                                 {"select_seconds", "ms selection", 1e3, 2},
                                 {"select_share", "selection / plain", 1, 2},
                                 {"verify_share", "5 drafts / plain", 1, 2},
                                 {"speedup_80", "0.80", 1, 2},
                                 {"speedup_85", "0.85", 1, 2},
                                 {"speedup_90", "0.90", 1, 2}},
                     .lines = {},
                     .details = {}};
    constexpr std::int64_t kept_free = std::int64_t{1} << 30;
    const auto memory = model->device().own_memory();
    const std::int64_t available = memory ? memory->free_bytes : available_memory_bytes();
    engine::KvPool pool(model->device(), model->kv_layouts(), std::max<std::int64_t>(available - kept_free, 0));
    for (const std::int64_t context : contexts) {
        const auto pages = engine::PagePool::pages_for(context + context / 8 + 512);  // with scratch and selection
        if (context > model->config().max_positions - 1 || pages > pool.max_pages()[0]) break;
        const Costs costs = measure(setup, *model, copy, pool, context);
        setup.add(table, {{"context", context},
                          {"plain_seconds", costs.plain},
                          {"draft_seconds", costs.draft},
                          {"draft_share", costs.draft / costs.plain},
                          {"select_seconds", costs.select},
                          {"select_share", costs.select / costs.plain},
                          {"verify_share", costs.verification(5) / costs.plain},
                          {"speedup_80", costs.speedup(acceptances[0])},
                          {"speedup_85", costs.speedup(acceptances[1])},
                          {"speedup_90", costs.speedup(acceptances[2])}});
    }
    return table;
}

}  // namespace longhaul::runner
