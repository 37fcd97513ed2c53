// `longhaul bench decode`, `verify`, `prefill` and `passes` (all three): forward passes of the whole model.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/cost_model.hpp"
#include "engine/model/model.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/replica.hpp"
#include "runner/bench/bench.hpp"

namespace longhaul::runner {
namespace {

using engine::ForwardRow;
using engine::KvSequence;
using engine::Model;
using engine::ModelConfig;

std::vector<ForwardRow> make_rows(std::int64_t rows, std::int64_t context, bool prompt) {
    std::vector<ForwardRow> pass;
    for (std::int64_t i = 0; i < rows; ++i) {
        std::vector<std::int32_t> path;  // in a tree of width 2: node i under node (i-1)/2
        for (std::int64_t node = prompt ? 0 : i; node > 0; node = (node - 1) / 2)
            path.insert(path.begin(), static_cast<std::int32_t>(node - 1));
        const auto token = static_cast<std::int32_t>(i % 100);
        ForwardRow row = engine::tree_row(token, prompt ? context + i : context, std::move(path));
        row.wants_logits = !prompt || i + 1 == rows;
        row.of_prompt = prompt;
        pass.push_back(row);
    }
    return pass;
}

/// Bytes of keys and values that a row behind `tokens` positions reads.
double kv_bytes(const Model& model, std::int64_t tokens) {
    std::int64_t bytes = 0;
    for (const kernels::KvLayout& layout : model.kv_layouts())
        bytes += layout.position_bytes() * (layout.window > 0 ? std::min(layout.window, tokens) : tokens);
    return static_cast<double>(bytes);
}

double flops_of(const ModelConfig& c, std::int64_t rows, std::int64_t context, bool prompt) {
    const auto head = static_cast<double>(c.vocab_size * c.hidden_size);
    const double body = static_cast<double>(num_active_parameters(c)) - head * (c.tied_embeddings ? 1 : 2);
    std::int64_t heads_width = 0;
    for (std::int64_t at = 0; at < c.num_layers; ++at) heads_width += c.num_heads * c.heads(c.layer(at)).dim;
    const double attention =
        2.0 * static_cast<double>(heads_width) * static_cast<double>(context + (prompt ? rows / 2 : 0));
    return 2.0 * (static_cast<double>(rows) * (body + attention) + static_cast<double>(prompt ? 1 : rows) * head);
}

/// Breaks the time of one pass down by operations of the device.
BenchTable explain(TimedDevice& device, const std::string& title, const BenchTiming& ceilings,
                   const std::function<void()>& run) {
    struct Books {
        double whole;
        std::map<std::string, DevicePart> parts;
    };
    std::vector<Books> passes(5);
    for (Books& pass : passes) {
        device.reset();
        const auto start = std::chrono::steady_clock::now();
        run();
        pass = {std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(), device.parts()};
    }
    std::sort(passes.begin(), passes.end(), [](const Books& a, const Books& b) { return a.whole < b.whole; });
    const Books& median = passes[passes.size() / 2];
    const double whole = median.whole;
    BenchTable table{.title = title,
                     .columns = {{"part", "part                    "},
                                 {"calls", "calls"},
                                 {"seconds", "ms", 1e3, 2},
                                 {"of_pass", "% of pass", 100, 1},
                                 {"bytes_per_second", "GB/s", 1e-9, 2},
                                 {"flops_per_second", "GFLOP/s", 1e-9, 1},
                                 {"share", "share %", 100, 1}},
                     .lines = {},
                     .details = {}};
    const auto add = [&](const std::string& name, double calls, double seconds, double bytes, double flops) {
        table.lines.push_back({{"part", name},
                               {"calls", calls},
                               {"seconds", seconds},
                               {"of_pass", seconds / whole},
                               {"bytes_per_second", bytes / seconds},
                               {"flops_per_second", flops / seconds},
                               {"share", std::max(bytes / ceilings.bandwidth, flops / ceilings.peak) / seconds}});
    };
    double known = 0, bytes = 0, flops = 0;
    for (const auto& [name, part] : median.parts) {
        add(name, static_cast<double>(part.calls), part.seconds, part.bytes, part.flops);
        known += part.seconds;
        bytes += part.bytes;
        flops += part.flops;
    }
    add("all else", 1, std::max(whole - known, 1e-9), 0, 0);
    std::sort(table.lines.begin(), table.lines.end(),
              [](const auto& a, const auto& b) { return a["seconds"] > b["seconds"]; });
    add("pass", 1, whole, bytes, flops);
    return table;
}

/// Times a pass over `rows` tree nodes (for a prompt, consecutive positions in the pages) after `context` positions of
/// KV with arbitrary content.
void measure(BenchSetup& setup, Model& model, std::int64_t rows, std::int64_t context, bool prompt, int repeats,
             const engine::CostModel* costs, BenchTable& table) {
    engine::KvPool pool(model.device(), model.kv_layouts(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    kv.reserve(context + rows);
    kv.reserve_scratch(rows);
    kv.set_committed(context);
    const std::vector<ForwardRow> pass = make_rows(rows, context, prompt);
    // A prompt is processed in chunks, as in a run.
    const std::int64_t chunk = !prompt ? rows : model.device().own_memory() ? engine::prefill_chunk_of(true) : 512;
    const engine::KvView view = kv.view();
    const auto run = [&] {
        for (std::int64_t first = 0; first < rows; first += chunk) {
            const auto part = std::span(pass).subspan(static_cast<std::size_t>(first));
            model.forward({.rows = part.first(std::min(part.size(), static_cast<std::size_t>(chunk))),
                           .sequences = std::span(&view, 1)});
        }
    };
    const std::int64_t chunks = (rows + chunk - 1) / chunk;
    const double bytes = (static_cast<double>(chunks * model.streamed_weight_bytes(std::min(rows, chunk))) +
                          kv_bytes(model, context + (prompt ? rows / 2 : 0))) *
                         setup.group->size();
    const double flops = flops_of(model.config(), rows, context, prompt);
    const BenchTiming timing =
        time_against_ceilings(setup, engine::weight_types(model.precision()).layers, bytes, flops, repeats, run);
    nlohmann::ordered_json line{{"pass", prompt      ? "prefill"
                                         : rows == 1 ? "decode"
                                                     : "verify"},
                                {"rows", rows},
                                {"context", context},
                                {"seconds", timing.seconds},
                                {"tokens_per_second", static_cast<double>(rows) / timing.seconds},
                                {"bytes", bytes},
                                {"flops", flops},
                                {"bytes_per_second", bytes / timing.seconds},
                                {"flops_per_second", flops / timing.seconds},
                                {"read_bandwidth", timing.bandwidth},
                                {"peak_flops", timing.peak},
                                {"share", timing.share}};
    if (costs != nullptr) line["modelled_seconds"] = costs->pass_seconds(rows, context);
    setup.add(table, std::move(line));
    if (setup.timed == nullptr) return;
    table.details.push_back(explain(*setup.timed, std::to_string(rows) + " rows", timing, run));
}

/// The row counts of one round.
std::vector<std::int64_t> row_counts(const BenchSetup& setup, std::vector<std::int64_t> all) {
    return setup.rows > 0 ? std::vector<std::int64_t>{setup.rows} : std::move(all);
}

void measure_prefill(BenchSetup& setup, Model& model, BenchTable& table) {
    for (const std::int64_t tokens : row_counts(setup, {128, 1024, 8192})) {
        if (setup.rows == 0 && tokens > model.config().max_positions) break;
        const bool takes_minutes = tokens > 1024 && !model.device().own_memory();
        measure(setup, model, tokens, 0, true, takes_minutes ? 1 : 3, nullptr, table);
    }
}

void measure_decode(BenchSetup& setup, Model& model, const engine::CostModel* costs, BenchTable& table) {
    measure(setup, model, 1, setup.context, false, 9, costs, table);
}

void measure_verify(BenchSetup& setup, Model& model, const engine::CostModel* costs, BenchTable& table) {
    for (const std::int64_t nodes : row_counts(setup, {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}))
        measure(setup, model, nodes, setup.context, false, 5, costs, table);
}

}  // namespace

BenchTable bench_passes(BenchSetup& setup, const std::string& what) {
    const auto model = bench_model(setup);
    BenchTable table{.title = {},
                     .columns = {{"rows", "rows"},
                                 {"context", "context"},
                                 {"seconds", "ms per pass", 1e3, 2},
                                 {"tokens_per_second", "tokens/s", 1, 1},
                                 {"bytes_per_second", "GB/s", 1e-9, 2},
                                 {"read_bandwidth", "read GB/s", 1e-9, 2},
                                 {"flops_per_second", "GFLOP/s", 1e-9, 1},
                                 {"peak_flops", "peak GFLOP/s", 1e-9, 1},
                                 {"share", "share %", 100, 1}},
                     .lines = {},
                     .details = {}};
    const bool all = what == "passes";
    std::optional<engine::CostModel> costs;
    if (what == "decode" || what == "verify") {
        table.columns.push_back({"modelled_seconds", "cost model ms", 1e3, 2});
        costs = engine::CostModel::measure(*model);
    }
    if (all) table.columns.insert(table.columns.begin(), {"pass", "pass"});
    for (std::int64_t round = 0; round < setup.rounds; ++round) {
        if (what == "decode") measure_decode(setup, *model, costs ? &*costs : nullptr, table);
        // The first pass of verify has one row: it is also that of decode.
        if (all || what == "verify") measure_verify(setup, *model, costs ? &*costs : nullptr, table);
        if (all || what == "prefill") measure_prefill(setup, *model, table);
    }
    return table;
}

}  // namespace longhaul::runner
