#include "engine/model/cost_model.hpp"

#include <algorithm>
#include <array>
#include <chrono>
#include <stdexcept>

#include "engine/kv/kv_cache.hpp"

namespace longhaul::engine {
namespace {

constexpr std::array<std::int64_t, 11> row_counts{1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48};
constexpr std::int64_t far_context = 2560;
constexpr std::size_t max_rounds = 3;

/// The layers that are timed: several, so that none is still in a cache from its last turn.
std::vector<std::int64_t> sampled_layers(std::int64_t num_layers) {
    std::vector<std::int64_t> layers;
    const std::int64_t count = std::min<std::int64_t>(num_layers, 4);
    for (std::int64_t i = 0; i < count; ++i) layers.push_back(i * num_layers / count);
    return layers;
}

/// Children of one node at `context`.
std::vector<ForwardRow> make_rows(std::int64_t count, std::int64_t context) {
    std::vector<ForwardRow> rows(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < rows.size(); ++i) {
        rows[i].position = context;
        rows[i].in_pages = context;
        rows[i].path = {static_cast<std::int32_t>(i)};
    }
    return rows;
}

/// Keys and values of the layers are written: memory that was never touched reads faster than any other.
void touch(KvSequence& kv, std::span<const std::int64_t> layers, std::int64_t num_tokens) {
    const kernels::KvLayout& layout = kv.layout();
    const std::vector<std::byte> zeros(static_cast<std::size_t>(num_tokens) * layout.token_bytes());
    for (const std::int64_t layer : layers) {
        for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
            for (const bool values : {false, true}) {
                kv.import_range(layer, head, values, 0, num_tokens, zeros.data());
            }
        }
    }
}

class Stopwatch {
  public:
    [[nodiscard]] double seconds() const {
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
    }

  private:
    std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

/// Seconds of one number of rows, the least seen: what disturbs a few milliseconds only ever adds.
struct Samples {
    double near = 1e30, far = 1e30;
};

}  // namespace

CostModel::CostModel(std::int64_t num_layers, std::vector<Point> points)
    : num_layers_(num_layers), points_(std::move(points)) {
    if (points_.empty()) throw std::logic_error("a cost model without points");
}

CostModel CostModel::measure(Model& model, double budget_seconds) {
    const std::vector<std::int64_t> layers = sampled_layers(model.config().num_layers);
    PagePool pool(model.device(), model.kv_layout(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    const bool reserved = kv.reserve(far_context + 1) && kv.reserve_scratch(row_counts.back());
    if (least_of(model.group(), reserved ? 1 : 0) == 0) throw std::bad_alloc();  // on every rank, or the others wait
    touch(kv, layers, far_context);
    KvSequence* const sequence = &kv;
    std::size_t turn = 0;
    const auto time_layer = [&](std::int64_t rows, std::int64_t context) {
        const std::vector<ForwardRow> pass = make_rows(rows, context);
        const Stopwatch watch;
        model.forward_layers(pass, std::span(&sequence, 1), layers[turn++ % layers.size()], 1);
        return watch.seconds();
    };
    time_layer(row_counts.back(), base_context);  // scratch memory grows
    std::array<Samples, row_counts.size()> samples;
    const Stopwatch all;
    bool more = true;
    for (std::size_t round = 0; more && round < max_rounds; ++round) {
        for (std::size_t i = 0; i < row_counts.size(); ++i) {
            samples[i].near = std::min(samples[i].near, time_layer(row_counts[i], base_context));
            samples[i].far = std::min(samples[i].far, time_layer(row_counts[i], far_context));
        }
        more = least_of(model.group(), all.seconds() < budget_seconds ? 1 : 0) > 0;
    }
    const double head_bytes = static_cast<double>(model.head_bytes());
    const double layer_bytes = (static_cast<double>(model.streamed_weight_bytes()) - head_bytes) /
                               static_cast<double>(model.config().num_layers);
    std::vector<Point> points;
    for (std::size_t i = 0; i < row_counts.size(); ++i) {
        const double near = samples[i].near;
        const double token = std::max(0.0, samples[i].far - near) / (far_context - base_context);
        const double products = std::max(0.0, near - token * base_context);
        points.push_back({row_counts[i], near, token, products * head_bytes / layer_bytes});
    }
    return {model.config().num_layers, std::move(points)};
}

double CostModel::pass_seconds(std::int64_t rows, std::int64_t context) const {
    const auto cost = [&](const Point& p) {
        const double layer = p.layer + p.layer_token * static_cast<double>(context - base_context);
        return static_cast<double>(num_layers_) * std::max(layer, 0.0) + p.head;
    };
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

}  // namespace longhaul::engine
