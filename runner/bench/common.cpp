// What benchmarks share: shapes, the model, timing next to the ceilings.
#include <algorithm>
#include <chrono>
#include <map>

#include "engine/error.hpp"
#include "engine/model/model.hpp"
#include "kernels/ceilings.hpp"
#include "runner/bench/bench.hpp"
#include "runner/machine.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

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

}  // namespace

const ModelConfig& bench_shape(const std::string& name) {
    const auto found = shapes().find(name);
    if (found != shapes().end()) return found->second;
    std::vector<std::string> names;
    for (const auto& [known, config] : shapes()) names.push_back(known);
    throw UsageError("command line: --shape: expected " + list_words(names) + ", got '" + name + "'");
}

std::unique_ptr<engine::Model> bench_model(BenchSetup& setup, engine::Group& group) {
    const auto precision = precision_of(setup.settings);
    const auto kv = kv_dtype_of(setup.settings);
    return setup.model.empty()
               ? engine::Model::random(setup.shape, precision, *setup.device, group, 1, kv)
               : engine::Model::load(setup.model, precision, *setup.device, group, kv, packed_folder(setup.settings));
}

double bench_median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

BenchTiming time_against_ceilings(const BenchSetup& setup, double bytes, double flops, int repeats,
                                  const std::function<void()>& run) {
    if (repeats > 1) run();  // once beforehand: pages are touched, scratch memory has grown
    std::vector<double> seconds, shares, bandwidths, peaks;
    for (int i = 0; i < repeats; ++i) {
        bandwidths.push_back(kernels::measure_read_bandwidth(setup.threads));
        peaks.push_back(kernels::measure_peak_flops(setup.variant, setup.threads));
        const auto start = std::chrono::steady_clock::now();
        run();
        seconds.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
        shares.push_back(std::max(bytes / bandwidths.back(), flops / peaks.back()) / seconds.back());
    }
    return {bench_median(seconds), bench_median(bandwidths), bench_median(peaks), bench_median(shares)};
}

}  // namespace longhaul::runner
