// The settings of a job: every key of the vocabulary (job file and command line), typed, with its default.
// vocabulary.cpp has the table that names, explains, parses and prints the keys. parse_settings (settings.hpp) fills
// it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/draft/methods.hpp"
#include "engine/generation_options.hpp"
#include "engine/sampling/params.hpp"
#include "engine/verify/rule.hpp"
#include "runner/job/key_origins.hpp"
#include "runner/job/shard.hpp"

namespace longhaul::runner {

/// DRY's sequence breakers of a job that names none; those of llama.cpp.
inline const std::vector<std::string> default_dry_breakers{"\n", ":", "\"", "*"};

/// What a job does with its items.
enum class Mode : std::uint8_t {
    generate,         ///< continues them
    perplexity,       ///< scores the data's own continuations
    multiple_choice,  ///< scores the choices of each question
};

struct Settings {
    // Job and text
    std::string task;                           // pg19, wmt, xsum, dolly, longwriter, prompts, openai-batch
    std::filesystem::path data, model, output;  // absolute after parse_settings
    std::filesystem::path adapter;              // "": none
    std::filesystem::path reference;            // wmt, xsum; "": the matching file beside `data`, if any
    std::vector<std::string> column;            // "FIELD=NAME": names of fields in the data
    std::string split;                          // of a dataset in Parquet or Arrow files
    std::filesystem::path prompt_template;      // key `template`; "": auto, the task's own template
    std::int64_t few_shot = 0;                  // examples before each prompt
    std::filesystem::path few_shot_data;        // "": `data`
    std::string few_shot_split;                 // of few_shot_data
    std::string few_shot_group;                 // a field in which examples and prompt agree; "": none
    std::string introduction;                   // text before examples and prompt, which may name fields
    std::string choice_gap;                     // text of a question that its choices replace; "": they follow it
    std::int64_t first_choice = 0;              // its place in answers
    bool chat = false;
    std::string chat_template = "auto";          // auto, a built-in one, or the path of a .jinja file
    std::vector<std::string> template_variable;  // NAME=VALUE
    std::string template_date = "2024-07-26";
    std::uint64_t seed = 1;
    std::int64_t limit = 0;
    std::int64_t samples = 1;
    std::int64_t prompt_tokens = 512;
    std::int64_t max_tokens = 1024;
    bool own_max_tokens = false;  // no key: an item's options set max_tokens
    std::int64_t min_tokens = 0;
    bool ignore_eos = false;
    std::vector<std::int32_t> stop_token_ids;
    std::vector<engine::TokenBias> logit_bias;
    std::vector<std::string> stop;
    engine::OutputFormat format;  // keys json-schema, regex, choice and grammar
    bool own_format = false;      // no key: an item's options set format
    std::string reasoning_end;    // "": the model does not reason before it answers
    std::int64_t max_reasoning_tokens = 0;
    std::int64_t stop_loops = 0;
    std::string add_bos = "auto";
    std::string overlong = "error";
    std::int64_t logprobs = 0;
    bool teacher_forced = false;
    Mode mode = Mode::generate;
    std::int64_t window = 0;  // tokens; 0 = the model's context
    std::int64_t stride = 0;  // tokens; 0 = half the window
    bool token_ids = false;
    std::filesystem::path hidden_states;  // "": not written
    // Precision and device
    std::string precision = "bf16";
    std::string kv_precision;     // "" until parse_settings resolves it: fp32 with precision fp32, else bf16
    std::string device = "auto";  // resolved by parse_settings; its kind (device_choice.hpp) is part of the identity
    bool allow_device_change = false;
    // Execution
    Shard shard;
    std::int64_t batch = 4;
    std::int64_t tensor_parallel = 1;
    std::int64_t threads = 0;
    std::string kernels = "auto";
    std::string all_reduce = "ordered";
    std::filesystem::path packed_weights;  // "": off; "auto": see packed_folder()
    std::int64_t memory = 0;               // bytes; 0 = auto
    std::int64_t host_memory = 0;          // bytes
    std::int64_t max_failures = 0;
    bool retry_failed = false;
    bool baseline = false;
    // Sampling
    double temperature = 1.0;
    std::int64_t top_k = 0;
    double top_p = 1.0;
    double min_p = 0.0;
    double eta = 0.0;
    double repetition_penalty = 1.0;
    std::int64_t penalty_window = 1024;
    double presence_penalty = 0.0;
    double frequency_penalty = 0.0;
    double dry_multiplier = 0.0;
    double dry_base = 1.75;
    std::int64_t dry_allowed_length = 2;
    std::int64_t dry_window = 4096;  // tokens; 0 = all
    std::optional<std::vector<std::string>>
        dry_breakers;  // not given: default_dry_breakers; resolved by parse_settings
    // Drafting
    engine::DraftMethodRef draft = engine::automatic;  // resolved by parse_settings
    std::vector<std::filesystem::path> draft_model;
    engine::TreeSpec draft_tree;    // not given: the method's own; resolved by parse_settings
    double draft_temperature = -1;  // -1: the target's temperature
    std::string draft_parallel = "auto";
    std::string resample = "fused";
    engine::TreeSpec resample_tree = engine::default_resample_tree;
    std::int64_t resample_threshold = 0;
    std::string draft_precision = "auto";
    std::int64_t partial_cache = 0;  // positions; 0: auto
    std::int64_t draft_passes = 0;   // 0: auto
    std::string partial_cache_mode = "window";
    std::int64_t ngram_order = 4;
    std::int64_t ngram_top = 20;
    std::filesystem::path draft_corpus;
    engine::VerifyRule verify;
    std::filesystem::path replay_run;
    double replay_accept = 1.0;
    // Checkpoints
    std::int64_t checkpoint_tokens = 2000;
    double checkpoint_seconds = 60;
    std::string checkpoint_kv = "store";
    std::int64_t checkpoint_quota = 0;  // bytes; 0 = no limit
    double watchdog_seconds = 60;
    double lease_seconds = 30;

    KeyOrigins origins;  // set by parse_settings

    /// Whether drafts cannot change the text.
    [[nodiscard]] bool is_coupled() const { return verify == engine::VerifyRule::coupled; }
    bool operator==(const Settings&) const = default;
};

}  // namespace longhaul::runner
