// `longhaul bench WHAT`: how fast the engine is on this machine, next to what the machine can do, both measured in one
// run and in turn: shared machines drift, so a share is a median of pairs.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/ceilings.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/machine.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

using engine::ForwardRow;
using engine::KvSequence;
using engine::Model;
using engine::ModelConfig;

/// Shapes that people know, by their size in parameters.
const std::map<std::string, ModelConfig>& shapes() {
    const auto shape = [](std::int64_t vocab, std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
                          std::int64_t heads, std::int64_t kv_heads, std::int64_t head_dim, bool tied) {
        ModelConfig config;
        config.vocab_size = vocab;
        config.hidden_size = hidden;
        config.intermediate_size = intermediate;
        config.num_layers = layers;
        config.num_heads = heads;
        config.num_kv_heads = kv_heads;
        config.head_dim = head_dim;
        config.max_positions = 131072;
        config.tied_embeddings = tied;
        config.dtype = "bfloat16";
        config.model_type = "llama";
        return config;
    };
    static const std::map<std::string, ModelConfig> table{{"135m", shape(49152, 576, 1536, 30, 9, 3, 64, true)},
                                                          {"1.1b", shape(32000, 2048, 5632, 22, 32, 4, 64, false)},
                                                          {"3b", shape(128256, 3072, 8192, 28, 24, 8, 128, true)},
                                                          {"8b", shape(128256, 4096, 14336, 32, 32, 8, 128, false)}};
    return table;
}

const ModelConfig& shape_named(const std::string& name) {
    const auto found = shapes().find(name);
    if (found != shapes().end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, config] : shapes()) names.push_back(known);
    throw UsageError("command line: --shape: expected " + list_words(names) + ", got '" + name + "'");
}

double median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

struct Measurement {
    std::int64_t rows = 0, context = 0;
    double seconds = 0;              ///< of one pass, median
    double bytes = 0, flops = 0;     ///< of one pass
    double bandwidth = 0, peak = 0;  ///< of the machine, medians over the same run
    double share = 0;                ///< median over pairs of (time at the nearer ceiling / time taken)
};

/// A sequence with `context` positions of keys and values (their numbers do not matter) and room for `rows` nodes.
class Bench {
  public:
    Bench(Model& model, kernels::CpuVariant variant, int threads)
        : model_(model), variant_(variant), threads_(threads) {}

    /// A pass over `rows` nodes of a tree (a chain in the pages for a prompt) at `context`, `repeats` times in turn
    /// with the ceilings.
    Measurement measure(std::int64_t rows, std::int64_t context, bool prompt, int repeats) {
        engine::PagePool pool(model_.device(), model_.kv_layout(), std::int64_t{1} << 40);
        KvSequence kv(pool);
        kv.reserve(context + rows);
        kv.reserve_scratch(rows);
        kv.set_committed(context);
        const std::vector<ForwardRow> pass = make_rows(rows, context, prompt);
        KvSequence* sequence = &kv;
        const auto run = [&] { model_.forward(pass, std::span(&sequence, 1)); };
        run();

        Measurement m{rows, context};
        m.bytes = static_cast<double>(model_.streamed_weight_bytes()) + kv_bytes(context + (prompt ? rows / 2 : 0));
        m.flops = flops(rows, context, prompt);
        std::vector<double> seconds, shares, bandwidths, peaks;
        for (int i = 0; i < repeats; ++i) {
            bandwidths.push_back(kernels::measure_read_bandwidth(threads_));
            peaks.push_back(kernels::measure_peak_flops(variant_, threads_));
            const auto start = std::chrono::steady_clock::now();
            run();
            seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
            shares.push_back(std::max(m.bytes / bandwidths.back(), m.flops / peaks.back()) / seconds.back());
        }
        m.seconds = median(seconds);
        m.bandwidth = median(bandwidths);
        m.peak = median(peaks);
        m.share = median(shares);
        return m;
    }

  private:
    static std::vector<ForwardRow> make_rows(std::int64_t rows, std::int64_t context, bool prompt) {
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

    [[nodiscard]] double kv_bytes(std::int64_t tokens) const {
        const kernels::KvLayout& kv = model_.kv_layout();
        return 2.0 * static_cast<double>(kv.num_layers * kv.num_kv_heads * kv.head_dim * tokens) *
               static_cast<double>(kernels::bytes_of(kv.dtype));
    }

    [[nodiscard]] double flops(std::int64_t rows, std::int64_t context, bool prompt) const {
        const ModelConfig& c = model_.config();
        const auto head = static_cast<double>(c.vocab_size * c.hidden_size);
        const double body = static_cast<double>(num_parameters(c)) - head * (c.tied_embeddings ? 1 : 2);
        const double attention = 2.0 * static_cast<double>(c.num_layers * c.num_heads * c.head_dim) *
                                 static_cast<double>(context + (prompt ? rows / 2 : 0));
        return 2.0 * (static_cast<double>(rows) * (body + attention) + static_cast<double>(prompt ? 1 : rows) * head);
    }

    Model& model_;
    kernels::CpuVariant variant_;
    int threads_;
};

kernels::CpuVariant variant_of(const kernels::Device& device) {
    for (const kernels::CpuVariant variant : kernels::available_cpu_variants()) {
        if (kernels::variant_name(variant) == device.name()) return variant;
    }
    throw std::logic_error("no processor variant '" + std::string(device.name()) + "'");
}

void print_table(const std::string& what, const std::string& shape, const std::string& kernels_name, int threads,
                 const std::vector<Measurement>& lines) {
    std::printf("%s, shape %s, %s kernels, %d threads (medians; share = time at the nearer ceiling / time taken)\n",
                what.c_str(), shape.c_str(), kernels_name.c_str(), threads);
    std::printf("%8s %8s %12s %10s %10s %12s %12s %7s\n", "rows", "context", "ms a pass", "tokens/s", "GB/s",
                "read GB/s", "peak GFLOP/s", "share");
    for (const Measurement& m : lines) {
        std::printf("%8lld %8lld %12.2f %10.1f %10.2f %12.2f %12.1f %6.1f%%\n", static_cast<long long>(m.rows),
                    static_cast<long long>(m.context), m.seconds * 1e3, static_cast<double>(m.rows) / m.seconds,
                    m.bytes / m.seconds * 1e-9, m.bandwidth * 1e-9, m.peak * 1e-9, m.share * 100);
    }
}

void print_json(const std::string& what, const std::string& shape, const std::string& kernels_name, int threads,
                const std::vector<Measurement>& lines) {
    nlohmann::ordered_json json{{"bench", what}, {"shape", shape}, {"kernels", kernels_name}, {"threads", threads}};
    for (const Measurement& m : lines) {
        json["lines"].push_back({{"rows", m.rows},
                                 {"context", m.context},
                                 {"seconds", m.seconds},
                                 {"tokens_per_second", static_cast<double>(m.rows) / m.seconds},
                                 {"bytes", m.bytes},
                                 {"flops", m.flops},
                                 {"read_bandwidth", m.bandwidth},
                                 {"peak_flops", m.peak},
                                 {"share", m.share}});
    }
    std::printf("%s\n", engine::json_text(json, 2).c_str());
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("bench"));
    const std::string& what = line.places.at(0);
    if (what != "decode" && what != "verify" && what != "prefill") {
        throw UsageError("command line: bench: expected decode, verify or prefill, got '" + what +
                         "'; the others are not in this version");
    }
    const Settings settings = parse_settings({}, line.keys, std::filesystem::current_path(), {});
    const int threads = settings.threads > 0 ? static_cast<int>(settings.threads) : usable_processors();
    const auto device = make_device(settings, threads);
    const kernels::CpuVariant variant = variant_of(*device);
    const auto group = engine::make_local_group();
    const std::string shape = line.value("shape", "1.1b");
    const auto model =
        line.has("model")
            ? Model::load(line.value("model"), precision_of(settings), *device, *group, kv_dtype_of(settings))
            : Model::random(shape_named(shape), precision_of(settings), *device, *group, 1, kv_dtype_of(settings));
    Bench bench(*model, variant, threads);
    std::vector<Measurement> lines;
    const std::int64_t context = 512;
    if (what == "decode") lines.push_back(bench.measure(1, context, false, 9));
    if (what == "verify") {
        for (const std::int64_t nodes : {1, 2, 4, 8, 12, 16, 24, 32, 48, 64})
            lines.push_back(bench.measure(nodes, context, false, 5));
    }
    if (what == "prefill") {
        for (const std::int64_t tokens : {128, 512, 1024}) lines.push_back(bench.measure(tokens, 0, true, 3));
    }
    const std::string name = line.has("model") ? line.value("model") : shape;
    (line.has("json") ? print_json : print_table)(what, name, std::string(device->name()), threads, lines);
    return 0;
}

}  // namespace longhaul::runner
