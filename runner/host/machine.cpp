#include "runner/host/machine.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "runner/host/allotment.hpp"
#include "runner/job/values.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/replay_run.hpp"

namespace longhaul::runner {
namespace {

/// The number after `name` in a file of lines "name number …".
std::optional<std::int64_t> number_after(const char* file, const std::string& name) {
    std::ifstream in(file);
    std::string word;
    std::int64_t number = 0;
    while (in >> word) {
        if (word == name && in >> number) return number;
        in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

int affinity_processors() {
    // Machines with more processors than the set holds are told by EINVAL: try larger sets.
    for (int processors = 1024; processors <= (1 << 16); processors *= 2) {
        cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(processors));
        if (set == nullptr) break;
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(processors));
        const bool known = ::sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known) return std::max(count, 1);
    }
    return 1;
}

}  // namespace

int usable_processors() {
    const int processors = affinity_processors();
    return std::max(1, std::min(processors, allowed_processors().value_or(processors)));
}

std::int64_t available_memory_bytes(int ranks) {
    const std::int64_t free = number_after("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
    return std::min(free, allowed_memory_bytes(ranks).value_or(free));
}

std::int64_t kv_share(std::int64_t available_bytes) {
    return std::max<std::int64_t>(available_bytes, 0) / 4 * 3;
}

std::unique_ptr<engine::Tokenizer> load_tokenizer(const std::filesystem::path& folder,
                                                  const engine::ModelConfig& config) {
    auto tokenizer = engine::Tokenizer::load(folder);
    if (tokenizer->vocab_size() > config.vocab_size) {
        throw InputError(folder.string(), "tokenizer", "ids below vocab_size " + std::to_string(config.vocab_size),
                         "an id of " + std::to_string(tokenizer->vocab_size() - 1),
                         "tokenizer and config.json are of different models");
    }
    return tokenizer;
}

std::filesystem::path packed_folder(const Settings& settings) {
    if (settings.packed_weights != "auto") return settings.packed_weights;
    const auto variable = [](const char* name) -> std::string {
        const char* value = std::getenv(name);
        return value != nullptr ? value : "";
    };
    const std::string cache = variable("XDG_CACHE_HOME"), home = variable("HOME");
    if (cache.starts_with('/')) return std::filesystem::path(cache) / "longhaul";
    if (home.starts_with('/')) return std::filesystem::path(home) / ".cache" / "longhaul";
    throw UsageError("packed-weights: expected a folder, as neither XDG_CACHE_HOME nor HOME is set, got auto");
}

double seconds_since_start() {
    const std::string ticks = ProcessId::mine().start_ticks;
    std::int64_t started = 0;
    std::from_chars(ticks.data(), ticks.data() + ticks.size(), started);
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
           static_cast<double>(started) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

engine::Precision precision_of(const Settings& settings) {
    if (settings.precision == "bf16") return engine::Precision::bf16;
    if (settings.precision == "fp32") return engine::Precision::fp32;
    if (settings.precision == "int8") return engine::Precision::int8;
    if (settings.precision == "int4") return engine::Precision::int4;
    throw std::logic_error("precision '" + settings.precision + "' passed parse_settings");
}

kernels::DType kv_dtype_of(const Settings& settings) {
    if (settings.kv_precision == "bf16") return kernels::DType::bf16;
    if (settings.kv_precision == "fp32") return kernels::DType::f32;
    if (settings.kv_precision == "int8") return kernels::DType::int8;
    throw std::logic_error("kv-precision '" + settings.kv_precision + "' passed parse_settings");
}

engine::SamplingParams sampling_of(const Settings& settings) {
    return {.temperature = settings.temperature,
            .top_k = settings.top_k,
            .top_p = settings.top_p,
            .min_p = settings.min_p,
            .eta = settings.eta,
            .repetition_penalty = settings.repetition_penalty,
            .penalty_window = settings.penalty_window};
}

engine::DraftOptions draft_of(const Settings& settings) {
    return {.method = settings.draft,
            .tree = settings.draft_tree,
            .ngram_order = settings.ngram_order,
            .ngram_top = settings.ngram_top,
            .recorded = settings.draft == "replay" ? recorded_tokens(settings.replay_run) : nullptr,
            .replay_accept = settings.replay_accept,
            .models = {},
            .model_temperature = settings.draft_temperature,
            .verify = settings.verify,
            .tree_limits = {}};
}

std::shared_ptr<const engine::GenerationOptions> generation_options(const Settings& settings,
                                                                    const engine::ModelConfig& config) {
    engine::GenerationOptions options{.max_tokens = settings.max_tokens,
                                      .seed = settings.seed,
                                      .sampling = sampling_of(settings),
                                      .stop = settings.stop,
                                      .logprobs = settings.logprobs};
    if (!settings.ignore_eos) options.eos_ids = config.eos_ids;
    return std::make_shared<const engine::GenerationOptions>(std::move(options));
}

static engine::ScoringWindows windows_of(const Settings& settings, const engine::ModelConfig& config) {
    const std::int64_t context = config.max_positions;
    const auto refuse = [](const char* key, std::int64_t most, std::int64_t got) {
        throw UsageError(InputError::format("job", key, "at most " + std::to_string(most) + " tokens",
                                            std::to_string(got), "the model's context is the longest window"));
    };
    const std::int64_t window = settings.window > 0 ? settings.window : context;
    if (window > context) refuse("window", context, window);
    if (window < 2) throw UsageError("mode: expected generate with a model of a context of 1 token, got perplexity");
    if (settings.stride > window) refuse("stride", window, settings.stride);
    return {.window = window, .stride = settings.stride > 0 ? settings.stride : window / 2};
}

std::int64_t most_positions(const Settings& settings, const engine::ModelConfig& config) {
    constexpr std::int64_t without_end = std::int64_t{1} << 40;
    return settings.mode == "perplexity" ? without_end : config.max_positions;
}

engine::ReplicaOptions replica_options(const Settings& settings, const engine::ModelConfig& config) {
    engine::ReplicaOptions options;
    options.batch = settings.batch;
    if (settings.mode == "perplexity") options.scoring = windows_of(settings, config);
    options.draft = draft_of(settings);
    options.prefill_chunk = engine::prefill_chunk_of(settings.device == "cuda");
    return options;
}

}  // namespace longhaul::runner
