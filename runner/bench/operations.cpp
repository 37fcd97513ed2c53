// `longhaul bench attention` and `sampling`: parts of a decode step on their own.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <new>
#include <numeric>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/sampling/pipeline.hpp"
#include "runner/bench/bench.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

/// Times one layer's attention at `context` positions, with the shape's KV heads and `group` query heads per KV head.
/// Cycles through enough layers that their KV is not in cache.
nlohmann::ordered_json measure_attention(BenchSetup& setup, std::int64_t context, std::int64_t nodes,
                                         std::int64_t group) {
    kernels::Device& device = *setup.device;
    kernels::KvLayout layout{.dtype = kv_dtype_of(setup.settings),
                             .num_layers = 1,
                             .num_kv_heads = setup.shape.num_kv_heads,
                             .head_dim = setup.shape.head_dim};
    const std::int64_t token_bytes = 2 * layout.num_kv_heads * layout.token_bytes();
    layout.num_layers = std::clamp<std::int64_t>((std::int64_t{200} << 20) / (context * token_bytes), 1, 64);
    const std::int64_t q_heads = layout.num_kv_heads * group, width = q_heads * layout.head_dim;
    layout.pages_together = device.kv_pages_together(layout);
    engine::PagePool pool(device, layout, std::int64_t{1} << 40);
    engine::KvSequence kv(pool);
    if (!kv.reserve(context + 1) || !kv.reserve_scratch(nodes)) throw std::bad_alloc();
    fill_kv(device, layout, kv.pages());
    fill_kv(device, layout, kv.scratch_pages());
    // Works as pairs of bf16 and as single f32: the magnitudes are similar in both.
    const std::vector<std::uint16_t> q = random_bf16(nodes * width * 2);
    const kernels::Buffer queries(device, q.size() * sizeof q[0]);
    device.upload(queries.data(), q.data(), queries.num_bytes());
    const kernels::Buffer out(device, nodes * width * sizeof q[0]);
    const kernels::AttentionSequence sequence{kv.pages(), kv.scratch_pages()};
    std::vector<std::int32_t> slots(nodes);
    std::iota(slots.begin(), slots.end(), 0);
    std::vector<kernels::AttentionRow> rows;
    for (std::int64_t i = 0; i < nodes; ++i) {  // a path of at most 8 nodes, ending in the row's own slot
        const std::int64_t above = std::min<std::int64_t>(i, 7);
        rows.push_back({0, context + above, context, slots.data() + i - above});
    }
    device.begin_pass({.sequences = {&sequence, 1}, .rows = rows, .slots = {}});
    std::int64_t layer = 0;
    const int calls = static_cast<int>(std::clamp<std::int64_t>(layout.num_layers, 1, 16));
    const auto run = [&] {
        for (int i = 0; i < calls; ++i) {
            layer = (layer + 1) % layout.num_layers;
            device.attention(layout, layer, queries.data(), q_heads, nullptr, kernels::DType::bf16, out.data(), width);
        }
        device.finish();
    };
    const auto bytes = static_cast<double>(context * token_bytes);
    const double flops = 4.0 * static_cast<double>(context * nodes * width);
    const auto products = layout.dtype == kernels::DType::f32 ? kernels::DType::f32 : kernels::DType::bf16;
    const BenchTiming timing = time_against_ceilings(setup, products, bytes * calls, flops * calls, 3, run);
    return {{"context", context},
            {"nodes", nodes},
            {"query_heads_per_kv_head", group},
            {"seconds", timing.seconds / calls},
            {"bytes_per_second", bytes * calls / timing.seconds},
            {"read_bandwidth", timing.bandwidth},
            {"flops_per_second", flops * calls / timing.seconds},
            {"peak_flops", timing.peak},
            {"share", timing.share}};
}

/// Seconds per token from logits to the next token, median of many.
nlohmann::ordered_json measure_sampling(std::int64_t vocab, const char* name, const engine::SamplingParams& params) {
    constexpr int rows = 64;
    engine::LogitsPipeline pipeline(params, vocab);
    std::vector<float> logits(vocab);
    std::vector<std::int32_t> context(2000);
    for (std::size_t i = 0; i < context.size(); ++i) context[i] = static_cast<std::int32_t>(i * 31 % 1009);
    std::vector<double> seconds;
    std::int64_t sum = 0;
    for (int row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < logits.size(); ++i) {  // a few likely tokens, many unlikely ones
            logits[i] = engine::NoiseRow(5, row, engine::Purpose::residual).gumbel(static_cast<std::int32_t>(i)) * 1.5F;
        }
        const auto start = std::chrono::steady_clock::now();
        const engine::Distribution& q = pipeline.apply(logits, {context, {}}, false);
        sum += engine::gumbel_argmax(q, engine::NoiseRow(7, row));
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    return {{"vocabulary", vocab},
            {"sampling", name},
            {"seconds", bench_median(seconds)},
            {"values_per_second", static_cast<double>(vocab) / bench_median(seconds)},
            {"mean_token", static_cast<double>(sum) / rows}};
}

}  // namespace

BenchTable bench_attention(BenchSetup& setup) {
    BenchTable table{.title = ", one layer",
                     .columns = {{"context", "context"},
                                 {"nodes", "nodes"},
                                 {"query_heads_per_kv_head", "q heads/KV head"},
                                 {"seconds", "us per call", 1e6, 1},
                                 {"bytes_per_second", "GB/s", 1e-9, 2},
                                 {"read_bandwidth", "read GB/s", 1e-9, 2},
                                 {"flops_per_second", "GFLOP/s", 1e-9, 1},
                                 {"peak_flops", "peak GFLOP/s", 1e-9, 1},
                                 {"share", "share %", 100, 1}},
                     .lines = {},
                     .details = {}};
    for (const std::int64_t context : {1000, 10000, 100000}) {
        for (const std::int64_t group : {1, 2, 4, 8}) {
            for (const std::int64_t nodes : {1, 8, 32}) {
                setup.add(table, measure_attention(setup, context, nodes, group));
            }
        }
    }
    return table;
}

BenchTable bench_sampling(BenchSetup& setup) {
    BenchTable table{.title = ", one thread whatever the shape",
                     .columns = {{"vocabulary", "vocabulary"},
                                 {"sampling", "sampling                            "},
                                 {"seconds", "us per token", 1e6, 1},
                                 {"values_per_second", "M values/s", 1e-6, 1}},
                     .lines = {},
                     .details = {}};
    engine::SamplingParams greedy, warm, top_p, dry;
    greedy.temperature = 0;
    warm.temperature = 0.8;
    warm.min_p = 0.05;
    warm.repetition_penalty = 1.1;
    warm.penalty_window = 1024;
    dry.temperature = 0.8;
    dry.min_p = 0.05;
    dry.dry.multiplier = 0.8;
    top_p.temperature = 1;
    top_p.top_p = 0.9;
    for (const std::int64_t vocab : {32000, 128256}) {
        setup.add(table, measure_sampling(vocab, "temperature 0", greedy));
        setup.add(table, measure_sampling(vocab, "0.8, min-p 0.05, penalty 1.1 of 1024", warm));
        setup.add(table, measure_sampling(vocab, "0.8, min-p 0.05, DRY", dry));
        setup.add(table, measure_sampling(vocab, "1, top-p 0.9", top_p));
    }
    return table;
}

}  // namespace longhaul::runner
