// Passes of the whole model: plain decoding, verification of a tree, prefill.
#include <algorithm>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
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
        ForwardRow row;
        row.token_id = static_cast<std::int32_t>(i % 100);
        row.in_pages = context + 1;
        row.position = context;
        if (prompt) {
            row.position += i;
            row.in_pages = row.position + 1;
        } else if (i > 0) {  // a tree of width 2: node i under node (i-1)/2
            for (std::int64_t node = i; node > 0; node = (node - 1) / 2)
                row.path.insert(row.path.begin(), static_cast<std::int32_t>(node - 1));
            row.position += static_cast<std::int64_t>(row.path.size());
        }
        row.wants_logits = !prompt || i + 1 == rows;
        pass.push_back(row);
    }
    return pass;
}

double kv_bytes(const Model& model, std::int64_t tokens) {
    const kernels::KvLayout& kv = model.kv_layout();
    return 2.0 * static_cast<double>(kv.num_layers * kv.num_kv_heads * tokens) * static_cast<double>(kv.token_bytes());
}

double flops_of(const ModelConfig& c, std::int64_t rows, std::int64_t context, bool prompt) {
    const auto head = static_cast<double>(c.vocab_size * c.hidden_size);
    const double body = static_cast<double>(num_parameters(c)) - head * (c.tied_embeddings ? 1 : 2);
    const double attention = 2.0 * static_cast<double>(c.num_layers * c.num_heads * c.head_dim) *
                             static_cast<double>(context + (prompt ? rows / 2 : 0));
    return 2.0 * (static_cast<double>(rows) * (body + attention) + static_cast<double>(prompt ? 1 : rows) * head);
}

/// A pass over `rows` nodes of a tree (a chain in the pages for a prompt) at `context` positions of keys and values,
/// whose numbers do not matter.
nlohmann::ordered_json measure(const BenchSetup& setup, Model& model, std::int64_t rows, std::int64_t context,
                               bool prompt, int repeats) {
    engine::PagePool pool(model.device(), model.kv_layout(), std::int64_t{1} << 40);
    KvSequence kv(pool);
    kv.reserve(context + rows);
    kv.reserve_scratch(rows);
    kv.set_committed(context);
    const std::vector<ForwardRow> pass = make_rows(rows, context, prompt);
    // A prompt goes in chunks, as it does in a run.
    const std::int64_t chunk = prompt ? 512 : rows;
    KvSequence* sequence = &kv;
    const auto run = [&] {
        for (std::int64_t first = 0; first < rows; first += chunk) {
            const auto part = std::span(pass).subspan(static_cast<std::size_t>(first));
            model.forward(part.first(std::min(part.size(), static_cast<std::size_t>(chunk))), std::span(&sequence, 1));
        }
    };
    const std::int64_t chunks = (rows + chunk - 1) / chunk;
    const double bytes = static_cast<double>(chunks * model.streamed_weight_bytes()) +
                         kv_bytes(model, context + (prompt ? rows / 2 : 0));
    const double flops = flops_of(model.config(), rows, context, prompt);
    const BenchTiming timing = time_against_ceilings(setup, bytes, flops, repeats, run);
    return {{"rows", rows},
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
}

}  // namespace

BenchTable bench_passes(BenchSetup& setup, const std::string& what) {
    const auto group = engine::make_local_group();
    const auto model = bench_model(setup, *group);
    BenchTable table{.title = {},
                     .columns = {{"rows", "rows"},
                                 {"context", "context"},
                                 {"seconds", "ms a pass", 1e3, 2},
                                 {"tokens_per_second", "tokens/s", 1, 1},
                                 {"bytes_per_second", "GB/s", 1e-9, 2},
                                 {"read_bandwidth", "read GB/s", 1e-9, 2},
                                 {"flops_per_second", "GFLOP/s", 1e-9, 1},
                                 {"peak_flops", "peak GFLOP/s", 1e-9, 1},
                                 {"share", "share %", 100, 1}},
                     .lines = {}};
    const std::int64_t context = 512;
    if (what == "decode") table.lines.push_back(measure(setup, *model, 1, context, false, 9));
    if (what == "verify") {
        for (const std::int64_t nodes : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64}) {
            table.lines.push_back(measure(setup, *model, nodes, context, false, 5));
        }
    }
    if (what == "prefill") {
        for (const std::int64_t tokens : {128, 1024, 8192}) {
            table.lines.push_back(measure(setup, *model, tokens, 0, true, tokens > 1024 ? 1 : 3));
        }
    }
    return table;
}

}  // namespace longhaul::runner
