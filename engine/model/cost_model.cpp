#include "engine/model/cost_model.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <new>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "engine/kv/kv_cache.hpp"

namespace longhaul::engine {
namespace {

constexpr std::array<std::int64_t, 10> row_counts{1, 2, 4, 8, 12, 16, 24, 32, 48, 64};
static_assert(row_counts.back() == CostModel::max_rows);
constexpr std::int64_t long_context = 2560;
constexpr int max_rounds = 5;
constexpr double clock_tick = 1e-9;  // seconds; minimum cost of anything

/// Layers that are timed one after another. There are enough of them that weights, and KV of `long_context` positions,
/// are read from memory each time as in a real pass, provided that the model is larger than the cache.
std::vector<std::int64_t> sampled_layers(const Model& model) {
    constexpr std::int64_t more_than_cache = std::int64_t{64} << 20;
    const kernels::KvLayout& kv = model.kv_layout();
    const std::int64_t num_layers = model.config().num_layers;
    const std::int64_t kv_bytes = 2 * long_context * kv.num_kv_heads * static_cast<std::int64_t>(kv.token_bytes());
    const std::int64_t weight_bytes = (model.streamed_weight_bytes() - model.head_bytes()) / num_layers;
    const std::int64_t min_bytes = std::max<std::int64_t>(1, std::min(kv_bytes, weight_bytes));
    std::int64_t count = std::min(num_layers, std::max<std::int64_t>(4, more_than_cache / min_bytes));
    std::vector<std::int64_t> layers;
    for (std::int64_t i = 0; i < count; ++i) layers.push_back(i * num_layers / count);
    return layers;
}

/// Layers that do the same work. The largest kind comes first; of two, that with experts.
struct LayerKind {
    std::vector<std::int64_t> layers;
    double share = 0;  ///< of all layers
};

/// The kinds of a model's layers. All layers are timed if they differ: windows beside full attention, linear attention
/// beside both, a mixture of experts beside an MLP, layers without an MLP.
std::vector<LayerKind> sampled_kinds(const Model& model) {
    const ModelConfig& config = model.config();
    std::map<std::tuple<bool, bool, bool, bool>, LayerKind> kinds;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const LayerConfig& layer = config.layer(at);
        LayerKind& kind = kinds[{layer.experts.count == 0, layer.linear, layer.attention_window > 0, layer.has_mlp}];
        kind.layers.push_back(at);
        kind.share += 1.0 / static_cast<double>(config.num_layers);
    }
    if (kinds.size() == 1) return {{sampled_layers(model), 1.0}};
    std::vector<LayerKind> found(kinds.size());
    std::transform(kinds.begin(), kinds.end(), found.begin(), [](const auto& entry) { return entry.second; });
    std::stable_sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.share > b.share; });
    return found;
}

/// `count` sibling tree nodes that see `context` positions. Different tokens, because equal ones would have the same
/// experts.
std::vector<ForwardRow> make_rows(const Model& model, std::int64_t count, std::int64_t context) {
    std::vector<ForwardRow> rows;
    const std::int64_t spread = std::max<std::int64_t>(1, model.config().vocab_size / row_counts.back());
    for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t token = i * spread % model.config().vocab_size;
        rows.push_back(tree_row(static_cast<std::int32_t>(token), context - 1, {static_cast<std::int32_t>(i)}));
        rows.back().wants_logits = true;
    }
    return rows;
}

/// Writes states, and the keys and values of `layers`, once: memory that was never written reads faster than any other.
void touch(KvSequence& kv, const Model& model, std::span<const std::int64_t> layers, std::int64_t num_tokens) {
    const std::vector<LayerPlace> places = model.config().places_of_layers();
    if (kv.has_state()) {
        const std::vector<std::byte> zeros(kv_page_bytes(model.device(), kv.layout(kv.state_group())));
        model.device().upload(kv.state_page(), zeros.data(), zeros.size());
        for (std::byte* page : kv.scratch_pages(kv.state_group()))
            model.device().upload(page, zeros.data(), zeros.size());
    }
    for (const std::int64_t layer : layers) {
        const LayerPlace place = places.at(static_cast<std::size_t>(layer));
        const kernels::KvLayout& layout = kv.layout(place.group);
        if (layout.is_state()) continue;
        kernels::KvBox box{.first_layer = place.index, .num_heads = layout.num_kv_heads, .count = num_tokens};
        const std::vector<std::byte> zeros(box.bytes(layout));
        const std::size_t head_bytes = zeros.size() / static_cast<std::size_t>(layout.num_kv_heads);
        for (const bool values : {false, true}) {
            box.values = values;
            kv.pool().device().kv_import_box(layout, kv.pages(place.group), box, zeros.data(), head_bytes);
        }
    }
}

/// Those whose attention reads the context: all but linear ones.
std::vector<LayerKind> attending_kinds(const ModelConfig& config, std::vector<LayerKind> kinds) {
    std::erase_if(kinds, [&](const LayerKind& kind) { return config.layer(kind.layers.front()).linear; });
    return kinds;
}

class Stopwatch {
  public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Time of an operation in seconds by number of rows: medians over rounds. A row count that was never timed has no
/// value.
class Series {
  public:
    /// Times all row counts in ascending order, in up to max_rounds rounds, within `budget_seconds`; with `whole_round`
    /// the first round is always complete. Collective: all ranks take the same number of samples.
    Series(Group& group, double budget_seconds, bool whole_round, const std::function<void(std::int64_t rows)>& run) {
        double left = budget_seconds;
        for (int round = 0; round < max_rounds; ++round) {
            for (std::size_t i = 0; i < row_counts.size(); ++i) {
                const bool must = whole_round && round == 0;
                if (!must && min_over_ranks(group, expected(i) <= left ? 1 : 0) == 0) break;
                const Stopwatch watch;
                run(row_counts[i]);
                samples_[i].push_back(watch.seconds());
                left -= samples_[i].back();
            }
        }
    }
    [[nodiscard]] bool has(std::size_t i) const { return !samples_[i].empty(); }
    /// Lower median, because disturbances can only add time. For the same reason it is at most the median of any larger
    /// row count.
    [[nodiscard]] double seconds(std::size_t i) const {
        double min_seconds = 1e30;
        for (; i < samples_.size() && has(i); ++i) {
            std::vector<double> sorted = samples_[i];
            std::sort(sorted.begin(), sorted.end());
            min_seconds = std::min(min_seconds, sorted[(sorted.size() - 1) / 2]);
        }
        return min_seconds;
    }
    /// The same; row counts that were not timed cost as much more than the last that was as they do in `other`.
    [[nodiscard]] double seconds_as(const Series& other, std::size_t i) const {
        std::size_t last = i;
        while (last > 0 && !has(last)) --last;
        return last == i ? seconds(i) : seconds(last) * other.seconds(i) / std::max(other.seconds(last), clock_tick);
    }

  private:
    [[nodiscard]] double expected(std::size_t i) const {
        if (has(i)) return samples_[i].back();
        if (i == 0) return 0;
        return samples_[i - 1].back() * static_cast<double>(row_counts[i]) / static_cast<double>(row_counts[i - 1]);
    }

    std::array<std::vector<double>, row_counts.size()> samples_;
};

/// Times of an operation on single layers, one after another of each kind. Each includes the per-pass work before the
/// layers, `start`.
class LayerTimes {
  public:
    /// Every row count is timed for the largest kind; the others get their share of the budget.
    LayerTimes(Group& group, double budget_seconds, std::vector<LayerKind> kinds, const Series& start,
               const std::function<void(std::int64_t rows, std::int64_t layer)>& run)
        : kinds_(std::move(kinds)), start_(start) {
        of_kinds_.reserve(kinds_.size());
        for (const LayerKind& kind : kinds_) {
            std::size_t next = 0;
            of_kinds_.emplace_back(group, budget_seconds * kind.share, of_kinds_.empty(),
                                   [&](std::int64_t rows) { run(rows, kind.layers[next++ % kind.layers.size()]); });
        }
    }
    /// Without `start`: the mean over all layers, in which those of other kinds count as zero.
    [[nodiscard]] double seconds(std::size_t i) const {
        double mean = 0;
        for (std::size_t k = 0; k < kinds_.size(); ++k)
            mean += kinds_[k].share * (of_kinds_[k].seconds_as(of_kinds_.front(), i) - start_.seconds(i));
        return mean;
    }

  private:
    std::vector<LayerKind> kinds_;
    std::vector<Series> of_kinds_;
    const Series& start_;
};

}  // namespace

CostModel::CostModel(std::int64_t num_layers, std::vector<Point> points)
    : num_layers_(num_layers), points_(std::move(points)) {
    if (points_.empty()) throw std::logic_error("a cost model without points");
}

CostModel CostModel::measure(Model& model, double budget_seconds) {
    const std::vector<LayerKind> kinds = sampled_kinds(model);
    std::vector<std::int64_t> layers;
    for (const LayerKind& kind : kinds) layers.insert(layers.end(), kind.layers.begin(), kind.layers.end());
    KvPool pool(model.device(), model.kv_layouts(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    const bool reserved = kv.reserve(long_context + 1) && kv.reserve_scratch(row_counts.back());
    if (min_over_ranks(model.group(), reserved ? 1 : 0) == 0)
        throw std::bad_alloc();  // on every rank, because otherwise the others would wait
    touch(kv, model, layers, long_context);
    const KvView view = kv.view();
    const auto pass_of = [&](const std::vector<ForwardRow>& rows) {
        return Pass{.rows = rows, .sequences = std::span(&view, 1)};
    };
    const auto run_layer = [&](std::int64_t rows, std::int64_t layer) {
        model.forward_layers(pass_of(make_rows(model, rows, base_context)), layer, 1);
    };
    const auto attend_to = [&](std::int64_t context) {
        return [&, context](std::int64_t rows, std::int64_t layer) {
            model.forward_attention(pass_of(make_rows(model, rows, context)), layer);
        };
    };
    // A first pass allocates scratch memory.
    for (const LayerKind& kind : kinds) run_layer(1, kind.layers.front());
    Group& group = model.group();
    const Series start(group, 0.02 * budget_seconds, true, [&](std::int64_t rows) {
        model.forward_layers(pass_of(make_rows(model, rows, base_context)), 0, 0);
    });
    const std::vector<LayerKind> attending = attending_kinds(model.config(), kinds);
    const LayerTimes layer(group, 0.5 * budget_seconds, kinds, start, run_layer);
    const LayerTimes short_attention(group, 0.1 * budget_seconds, attending, start, attend_to(base_context));
    const LayerTimes long_attention(group, 0.2 * budget_seconds, attending, start, attend_to(long_context));
    const Series head(group, 0.2 * budget_seconds, false,
                      [&](std::int64_t rows) { model.forward_head(pass_of(make_rows(model, rows, base_context))); });
    std::vector<Point> points;
    double head_per_layer_matmul = 0;
    double min_layer = clock_tick;
    for (std::size_t i = 0; i < row_counts.size(); ++i) {
        const double matmuls = std::max(0.0, layer.seconds(i) - short_attention.seconds(i));
        if (head.has(i)) {
            head_per_layer_matmul = std::max(0.0, head.seconds(i) - start.seconds(i)) / std::max(matmuls, clock_tick);
        }
        // A difference of two noisy times may be zero, or smaller than for fewer rows.
        min_layer = std::max(min_layer, layer.seconds(i));
        points.push_back({.rows = row_counts[i],
                          .layer = min_layer,
                          .layer_token = std::max(0.0, long_attention.seconds(i) - short_attention.seconds(i)) /
                                         (long_context - base_context),
                          .head = head.has(i) ? head.seconds(i) : start.seconds(i) + head_per_layer_matmul * matmuls});
    }
    return {model.config().num_layers, std::move(points)};
}

/// Interpolates `cost` linearly between points; beyond the last point it is proportional to the rows.
template <typename Cost>
double CostModel::between_points(std::int64_t rows, const Cost& cost) const {
    const auto upper = std::lower_bound(points_.begin(), points_.end(), rows,
                                        [](const Point& p, std::int64_t r) { return p.rows < r; });
    if (upper == points_.end()) {
        return cost(points_.back()) * static_cast<double>(rows) / static_cast<double>(points_.back().rows);
    }
    if (upper == points_.begin() || upper->rows == rows) return cost(*upper);
    const Point& lower = *(upper - 1);
    const double part = static_cast<double>(rows - lower.rows) / static_cast<double>(upper->rows - lower.rows);
    return cost(lower) + part * (cost(*upper) - cost(lower));
}

double CostModel::pass_seconds(std::int64_t rows, std::int64_t context) const {
    return between_points(rows, [&](const Point& p) {
        const double layer = p.layer + p.layer_token * static_cast<double>(context - base_context);
        return static_cast<double>(num_layers_) * std::max(layer, 0.0) + p.head;
    });
}

double CostModel::head_seconds(std::int64_t rows) const {
    return between_points(rows, [](const Point& p) { return p.head; });
}

}  // namespace longhaul::engine
