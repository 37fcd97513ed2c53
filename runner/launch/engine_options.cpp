#include "runner/launch/engine_options.hpp"

#include <algorithm>
#include <cstdlib>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/error.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/vocabulary.hpp"
#include "runner/run/replay_run.hpp"

namespace longhaul::runner {

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
    throw UsageError(
        "packed-weights: expected a folder, got auto, which needs XDG_CACHE_HOME or HOME, and neither is set");
}

engine::Precision precision_of(const Settings& settings) {
    if (settings.precision == "bf16") return engine::Precision::bf16;
    if (settings.precision == "fp32") return engine::Precision::fp32;
    if (settings.precision == "int8") return engine::Precision::int8;
    if (settings.precision == "int4") return engine::Precision::int4;
    throw std::logic_error("precision '" + settings.precision + "' passed parse_settings");
}

std::optional<engine::Precision> draft_copy_precision(const Settings& settings) {
    if (settings.draft_precision == settings.precision) return {};
    if (settings.draft_precision == "int4") return engine::Precision::int4;
    if (settings.draft_precision == "int8") return engine::Precision::int8;
    return {};
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
            .penalty_window = settings.penalty_window,
            .output = {.presence = settings.presence_penalty, .frequency = settings.frequency_penalty},
            .dry = {.multiplier = settings.dry_multiplier,
                    .base = settings.dry_base,
                    .allowed_length = settings.dry_allowed_length,
                    .window = settings.dry_window}};
}

static engine::PartialMode::Value partial_mode(const std::string& name) {
    const auto& names = engine::PartialMode::names;
    return static_cast<engine::PartialMode::Value>(std::find(names.begin(), names.end(), name) - names.begin());
}

static engine::Resample resample_of(const std::string& name) {
    return name == "off"     ? engine::Resample::off
           : name == "fused" ? engine::Resample::fused
                             : engine::Resample::separate;
}

/// `auto`: several where they cost a fraction of the target's and measured time decides how many levels are used.
static std::int64_t passes_of(const Settings& settings) {
    if (settings.draft_passes > 0) return settings.draft_passes;
    const bool cheap = settings.draft->chained_heads && draft_copy_precision(settings).has_value();
    return cheap && engine::chooses_tree(*settings.draft, settings.draft_tree) ? 4 : 1;
}

engine::DraftOptions draft_of(const Settings& settings) {
    return {.method = settings.draft,
            .tree = settings.draft_tree,
            .ngram_order = settings.ngram_order,
            .ngram_top = settings.ngram_top,
            .recorded = nullptr,
            .replay_accept = settings.replay_accept,
            .models = {},
            .partial_cache = {.mode = partial_mode(settings.partial_cache_mode),
                              .max_positions = settings.partial_cache,
                              .of_prompt = settings.draft->chained_heads || settings.draft->has_two_stages()},
            .passes = passes_of(settings),
            .before_filters = settings.verify == engine::VerifyRule::tokenswift_paper,
            .resample = resample_of(settings.resample),
            .resample_tree = settings.resample_tree,
            .resample_threshold = settings.resample_threshold,
            .model_temperature = settings.draft_temperature,
            .tree_limits = {}};
}

std::shared_ptr<const engine::GenerationOptions> generation_options(const Settings& settings,
                                                                    const engine::ModelConfig& config) {
    engine::GenerationOptions options{.max_tokens = settings.max_tokens,
                                      .seed = settings.seed,
                                      .sampling = sampling_of(settings),
                                      .dry_breakers = settings.dry_breakers.value_or(default_dry_breakers),
                                      .stop = settings.stop,
                                      .stop_loops = settings.stop_loops,
                                      .logprobs = settings.logprobs};
    options.sampling.min_tokens = settings.min_tokens;
    if (!settings.ignore_eos) options.eos_ids = config.eos_ids;
    options.eos_ids.insert(options.eos_ids.end(), settings.stop_token_ids.begin(), settings.stop_token_ids.end());
    options.logit_bias = settings.logit_bias;
    options.reasoning = {.end = settings.reasoning_end, .max_tokens = settings.max_reasoning_tokens};
    options.format = settings.format;
    return std::make_shared<const engine::GenerationOptions>(std::move(options));
}

static engine::ScoringWindows windows_of(const Settings& settings, const engine::ModelConfig& config) {
    const std::int64_t context = config.max_positions;
    const auto refuse = [&](const char* key, std::int64_t most, std::int64_t got) {
        throw UsageError(InputError::format(settings.origins.of(key), key,
                                            "at most " + std::to_string(most) + " tokens", std::to_string(got),
                                            "the model's context is the longest window"));
    };
    const std::int64_t window = settings.window > 0 ? settings.window : context;
    if (window > context) refuse("window", context, window);
    if (window < 2)
        throw UsageError(settings.origins.of("mode") +
                         ": mode: expected generate with a model of a context of 1 token, got " +
                         name_of(settings.mode));
    if (settings.stride > window) refuse("stride", window, settings.stride);
    if (!settings.hidden_states.empty() && settings.stride == window)
        throw UsageError(
            InputError::format(settings.origins.of("stride"), "stride",
                               "less than the window's " + std::to_string(window) + " tokens with hidden-states",
                               std::to_string(settings.stride), "the states of windows that do not overlap have gaps"));
    return {.window = window, .stride = settings.stride > 0 ? settings.stride : window / 2};
}

std::int64_t max_item_positions(const Settings& settings, const engine::ModelConfig& config) {
    constexpr std::int64_t without_end = std::int64_t{1} << 40;
    return settings.mode == Mode::perplexity ? without_end : config.max_positions;
}

/// Ranks that share a KV head hold different query heads of it, so they would rank its positions differently than one
/// rank does.
static void check_ranking(const Settings& settings, const engine::ModelConfig& config) {
    const engine::PartialCache cache = draft_of(settings).partial_cache;
    const bool ranks = settings.draft->copies_target && cache.ranks();
    if (ranks && config.has_linear_attention())
        throw UsageError("partial-cache-mode: expected window or full, got " + settings.partial_cache_mode +
                         "; the model has linear attention, whose states cannot go back to rank earlier positions");
    if (!ranks || settings.is_coupled()) return;
    const auto groups = config.layer_groups();
    const bool windows = std::any_of(groups.begin(), groups.end(), [](const auto& one) { return one.window > 0; });
    if (windows && cache.mode == engine::PartialMode::fixed_start)
        throw UsageError(
            "partial-cache-mode: expected dynamic, window or full with verify = " + settings.verify.name() +
            ", got static; the model has sliding windows, which a resume does not restore so far back");
    const std::int64_t kv_heads = groups.front().heads.num_kv_heads;
    if (settings.tensor_parallel <= kv_heads) return;
    throw UsageError("partial-cache-mode: expected window or full with verify = " + settings.verify.name() +
                     " and tensor-parallel = " + std::to_string(settings.tensor_parallel) + ", got " +
                     settings.partial_cache_mode + "; the model has " + std::to_string(kv_heads) +
                     " key-value heads, and ranks that share one rank its positions differently");
}

engine::ReplicaOptions replica_options(const Settings& settings, const engine::ModelConfig& config) {
    check_ranking(settings, config);
    engine::ReplicaOptions options;
    options.batch = settings.batch;
    if (only_scores(settings)) options.scoring = windows_of(settings, config);
    options.keeps_states = !settings.hidden_states.empty();
    options.draft = draft_of(settings);
    if (settings.draft->needs_recording) options.draft.recorded = recorded_tokens(settings.replay_run, settings.verify);
    options.verify = settings.verify;
    options.prefill_chunk = engine::prefill_chunk_of(settings.device == "cuda");
    return options;
}

}  // namespace longhaul::runner
