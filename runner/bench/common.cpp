// Shared by all benchmarks: model shapes, the model, timing next to the ceilings.
#include <algorithm>
#include <chrono>
#include <map>
#include <numeric>

#include "engine/error.hpp"
#include "engine/model/model.hpp"
#include "runner/bench/bench.hpp"
#include "runner/host/message_text.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

using engine::ModelConfig;

ModelConfig shape(std::int64_t vocab, std::int64_t hidden, std::int64_t intermediate, std::int64_t layers,
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
}

/// With a sliding window in all layers.
ModelConfig windowed(ModelConfig config, std::int64_t window) {
    config.layers.front().attention_window = window;
    return config;
}

/// Five windowed layers to a full one.
ModelConfig gemma3_1b() {
    ModelConfig config = shape(262144, 1152, 6912, 26, 4, 1, 256, true);
    config.files.norm_adds_one = true;
    config.embedding_scale = 33.94;
    config.rounds_embedding_scale = true;
    config.model_type = "gemma3_text";
    engine::LayerConfig layer{
        .norm_place = engine::NormPlace::both, .activation = engine::Activation::gelu, .head_norm = true};
    config.layers.clear();
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const bool full = (at + 1) % 6 == 0;
        layer.attention_window = full ? 0 : 512;
        layer.rope.theta = full ? 1e6 : 1e4;
        config.layers.push_back(layer);
    }
    return config;
}

/// 128 experts, of which a token has 8: 3 of 30 billion parameters.
ModelConfig qwen3_30b_a3b() {
    ModelConfig config = shape(151936, 2048, 6144, 48, 32, 4, 128, false);
    config.expert_intermediate_size = 768;
    config.model_type = "qwen3_moe";
    engine::LayerConfig& layer = config.layers.front();
    layer.head_norm = true;
    layer.experts = {.count = 128, .per_token = 8};
    layer.rope.theta = 1e6;
    return config;
}

/// 32 experts, of which a token has 4: 3.6 of 21 billion parameters without the embedding. Sinks, and a window in every
/// other layer.
ModelConfig gpt_oss_20b() {
    ModelConfig config = shape(201088, 2880, 2880, 24, 64, 8, 64, false);
    config.expert_intermediate_size = 2880;
    config.model_type = "gpt_oss";
    engine::LayerConfig& layer = config.layers.front();
    layer.activation = engine::Activation::swiglu_oai;
    layer.qkv_bias = layer.output_bias = layer.sinks = true;
    layer.experts = {.count = 32, .per_token = 4, .bias = true, .stack = engine::ExpertStack::alternating};
    layer.rope.theta = 150000;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), layer);
    for (std::size_t at = 0; at < config.layers.size(); at += 2) config.layers[at].attention_window = 128;
    return config;
}

/// Latent attention; 64 experts, of which a token has 6, and a shared one: 2.7 of 16 billion parameters.
ModelConfig deepseek_v2_lite() {
    ModelConfig config = shape(102400, 2048, 10944, 27, 16, 1, 576, false);
    config.latent = {.kv_rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128};
    config.expert_intermediate_size = 1408;
    config.shared_intermediate_size = 2816;
    config.model_type = "deepseek_v2";
    engine::LayerConfig& layer = config.layers.front();
    layer.rope.rotary_dims = 64;
    layer.rope.score_scale = 1.73;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), layer);
    for (std::size_t at = 1; at < config.layers.size(); ++at)
        config.layers[at].experts = {.count = 64, .per_token = 6, .normalized = false};
    return config;
}

/// Linear attention in three of four layers.
ModelConfig qwen3_5_4b() {
    ModelConfig config = shape(248320, 2560, 9216, 32, 16, 4, 256, true);
    config.linear = {.num_key_heads = 16, .num_value_heads = 32, .key_dim = 128, .value_dim = 128, .taps = 4};
    config.files.norm_adds_one = true;
    config.model_type = "qwen3_5_text";
    engine::LayerConfig& layer = config.layers.front();
    layer.rope.theta = 1e7;
    layer.rope.rotary_dims = 64;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), layer);
    for (std::size_t at = 0; at < config.layers.size(); ++at) {
        const bool linear = (at + 1) % 4 != 0;
        config.layers[at].linear = linear;
        config.layers[at].head_norm = config.layers[at].output_gate = !linear;
    }
    return config;
}

/// Mamba-2 in nine of ten layers.
ModelConfig granite_4_h_micro() {
    ModelConfig config = shape(100352, 2048, 8192, 40, 32, 8, 64, true);
    config.linear = {.rule = kernels::StateRule::sum,
                     .num_key_heads = 8,
                     .num_value_heads = 64,
                     .key_dim = 128,
                     .value_dim = 64,
                     .taps = 4,
                     .filter_bias = true};
    config.files.fused_gate_up = true;
    config.model_type = "granitemoehybrid";
    engine::LayerConfig& layer = config.layers.front();
    layer.rope = {.scaling = engine::RopeScaling::none};
    layer.block_scale = 0.22;
    config.layers.resize(static_cast<std::size_t>(config.num_layers), layer);
    for (std::size_t at = 0; at < config.layers.size(); ++at) config.layers[at].linear = at % 10 != 5;
    return config;
}

/// Nemotron 3 Nano: Mamba-2 in 23 of 29 layers, six with attention; 128 experts, of which a token has 6, and a shared
/// one: 3.6 of 32 billion parameters.
ModelConfig nemotron_3_nano() {
    ModelConfig config = shape(131072, 2688, 1856, 0, 32, 2, 128, false);
    config.linear = {.rule = kernels::StateRule::sum,
                     .num_key_heads = 8,
                     .num_value_heads = 64,
                     .num_groups = 8,
                     .key_dim = 128,
                     .value_dim = 64,
                     .taps = 4,
                     .filter_bias = true};
    config.expert_intermediate_size = 1856;
    config.shared_intermediate_size = 3712;
    config.model_type = "nemotron_h";
    engine::LayerConfig layer{
        .activation = engine::Activation::relu_squared, .gated = false, .rope = {.scaling = engine::RopeScaling::none}};
    const engine::ExpertConfig experts{
        .count = 128, .per_token = 6, .score = engine::RouterScore::sigmoid, .scale = 2.5, .corrected = true};
    const std::string kinds = "MMM*MMM*MMM*MMM*MMM*MMMM*MMMM";  // *: attention, without experts in the layer before it
    config.layers.clear();
    for (std::size_t at = 0; at < kinds.size(); ++at) {
        layer.linear = kinds[at] == 'M';
        layer.has_mlp = at + 1 == kinds.size() || kinds[at + 1] != '*';
        layer.experts = layer.has_mlp ? experts : engine::ExpertConfig{};
        layer.block = at == 0 ? 0 : config.num_blocks();
        config.layers.push_back(layer);
    }
    config.num_layers = std::ssize(config.layers);
    return config;
}

/// Common model shapes by their number of parameters, and some of other families.
const std::map<std::string, ModelConfig>& shapes() {
    static const std::map<std::string, ModelConfig> table{
        {"1.1b-window", windowed(shape(32000, 2048, 5632, 32, 32, 4, 64, false), 4096)},
        {"mistral-7b", windowed(shape(32000, 4096, 14336, 32, 32, 8, 128, false), 4096)},
        {"gemma3-1b", gemma3_1b()},
        {"qwen3-30b-a3b", qwen3_30b_a3b()},
        {"gpt-oss-20b", gpt_oss_20b()},
        {"deepseek-v2-lite", deepseek_v2_lite()},
        {"qwen3.5-4b", qwen3_5_4b()},
        {"granite-4-h-micro", granite_4_h_micro()},
        {"nemotron-3-nano", nemotron_3_nano()},
        {"135m", shape(49152, 576, 1536, 30, 9, 3, 64, true)},
        {"1.1b", shape(32000, 2048, 5632, 22, 32, 4, 64, false)},
        {"115m", shape(32000, 1024, 2816, 4, 8, 8, 128, false)},
        {"7b", shape(32000, 4096, 11008, 32, 32, 32, 128, false)},
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
    throw UsageError("command line: shape: expected " + list_words(names) + ", got '" + name + "'");
}

std::unique_ptr<engine::Model> bench_model(BenchSetup& setup, std::optional<engine::Precision> wanted) {
    engine::Group& group = *setup.group;
    const auto precision = wanted.value_or(precision_of(setup.settings));
    const auto kv = kv_dtype_of(setup.settings);
    return setup.model.empty()
               ? engine::Model::random(setup.shape, precision, *setup.device, group, 1, kv)
               : engine::Model::load(setup.model, precision, *setup.device, group, kv, packed_folder(setup.settings));
}

std::vector<std::uint16_t> random_bf16(std::size_t count) {
    std::vector<std::uint16_t> values(count);
    std::uint32_t state = 1;
    for (auto& value : values) {
        state = state * 1664525U + 1013904223U;
        value = static_cast<std::uint16_t>(0x3c00U | (state >> 23 & 0x81ffU));
    }
    return values;
}

void fill_kv(kernels::Device& device, const kernels::KvLayout& layout, std::span<std::byte* const> pages) {
    kernels::KvBox box{.num_heads = layout.num_kv_heads,
                       .count = static_cast<std::int64_t>(pages.size()) * kernels::KvLayout::page_tokens};
    const std::vector<std::uint16_t> numbers = random_bf16(box.bytes(layout) / 2);
    const auto* from = reinterpret_cast<const std::byte*>(numbers.data());
    for (; box.first_layer < layout.num_layers; ++box.first_layer) {
        for (const bool values : {false, true}) {
            box.values = values;
            device.kv_import_box(layout, pages, box, from, box.bytes(layout) / static_cast<std::size_t>(box.num_heads));
        }
    }
}

namespace {

/// Sum over all ranks of a value that they measure at the same time.
double together(engine::Group& group, const std::function<double()>& measure) {
    engine::min_over_ranks(group, 0);  // start together
    const auto mine = static_cast<float>(measure());
    std::vector<float> all(group.size());
    group.all_gather(&mine, all.data(), 1);
    return std::accumulate(all.begin(), all.end(), 0.0);
}

}  // namespace

double bench_median(std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double seconds_of(const std::function<void()>& action) {
    const auto start = std::chrono::steady_clock::now();
    action();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

BenchTiming time_against_ceilings(BenchSetup& setup, kernels::DType weights, double bytes, double flops, int repeats,
                                  const std::function<void()>& run) {
    if (!setup.ceilings) setup.ceilings = make_ceilings(*setup.device, setup.threads);
    const auto seconds_of_run = [&] {
        const auto start = std::chrono::steady_clock::now();
        run();
        return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    };
    // Run once before: touches pages and grows scratch memory. Short runs also run once after each measurement of the
    // ceilings, which fills the caches with other data.
    double last = repeats > 1 ? seconds_of_run() : 1e9;
    std::vector<double> seconds, shares, bandwidths, peaks;
    for (int i = 0; i < repeats; ++i) {
        bandwidths.push_back(together(*setup.group, [&] { return setup.ceilings->bytes_per_second(); }));
        peaks.push_back(together(*setup.group, [&] { return setup.ceilings->flops_per_second(weights); }));
        const bool again = engine::min_over_ranks(*setup.group, last < 0.5 ? 1 : 0) > 0;
        if (again) run();
        last = seconds_of_run();
        seconds.push_back(last);
        const double computing = peaks.back() > 0 ? flops / peaks.back() : 0;
        shares.push_back(std::max(bytes / bandwidths.back(), computing) / last);
    }
    return {bench_median(seconds), bench_median(bandwidths), bench_median(peaks), bench_median(shares)};
}

}  // namespace longhaul::runner
