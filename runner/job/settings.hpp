// The job: every key of the one vocabulary (job file and command line), typed, with its default. The table that names,
// explains, parses and prints the keys is in vocabulary.cpp; `--help` is made from it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runner/job/shard.hpp"

namespace longhaul::runner {

struct Settings {
    // What
    std::string task;                           // pg19, wmt, xsum, dolly, prompts
    std::filesystem::path data, model, output;  // absolute after parse_settings
    std::filesystem::path reference;            // wmt, xsum: "": the file beside `data`, if there is one
    std::filesystem::path prompt_template;      // key `template`; "": auto, the task's own
    bool chat = false;
    std::string chat_template = "auto";
    std::uint64_t seed = 1;
    std::int64_t limit = 0;
    std::int64_t samples = 1;
    std::int64_t prompt_tokens = 512;
    std::int64_t max_tokens = 1024;
    bool ignore_eos = false;
    std::vector<std::string> stop;
    std::string add_bos = "auto";
    std::string overlong = "error";
    std::int64_t logprobs = 0;
    bool teacher_forced = false;
    std::string mode = "generate";  // generate, perplexity
    std::int64_t window = 0;        // tokens; 0 = the model's context
    std::int64_t stride = 0;        // tokens; 0 = half the window
    bool token_ids = false;
    // How precise, where
    std::string precision = "bf16";
    std::string kv_precision;     // "": fp32 with fp32, else bf16; resolved by parse_settings
    std::string device = "auto";  // resolved by parse_settings; its kind (device_choice.hpp) is part of the identity
    bool allow_device_change = false;
    // Execution
    Shard shard;
    std::int64_t batch = 4;
    std::int64_t tensor_parallel = 1;
    std::int64_t threads = 0;
    std::string kernels = "auto";
    std::filesystem::path packed_weights;  // "": off; "auto": packed_folder() says where
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
    // Drafting
    std::string draft = "ngram";
    std::vector<std::filesystem::path> draft_model;
    std::string draft_tree;         // "": the method's own; resolved by parse_settings
    double draft_temperature = -1;  // -1: the target's
    std::string draft_parallel = "auto";
    std::int64_t resample_threshold = 0;
    std::int64_t partial_cache = 4096;
    std::string partial_cache_mode = "dynamic";
    std::int64_t ngram_order = 4;
    std::int64_t ngram_top = 20;
    std::string verify = "coupled";
    std::filesystem::path replay_run;
    double replay_accept = 1.0;
    // Checkpoints
    std::int64_t checkpoint_tokens = 2000;
    double checkpoint_seconds = 60;
    std::string checkpoint_kv = "store";
    std::int64_t checkpoint_quota = 0;  // bytes; 0 = no limit
    double watchdog_seconds = 60;
    double lease_seconds = 30;

    bool operator==(const Settings&) const = default;
};

/// One `key = value` as it was given; `origin` for messages: "JOB.cfg:12" or "command line".
struct Assignment {
    std::string key, value, origin;
};

/// Hears what is wrong with a job: a whole line, and the key it is about ("" where it is about none; of an unknown key
/// the nearest known one). One that throws ends the reading there.
using FaultSink = std::function<void(const std::string& key, const std::string& line)>;

/// The sink of whoever needs a good job or none: throws UsageError.
void throw_fault(const std::string& key, const std::string& line);

/// Reads a job file: lines `key = value`; `#` at the start of a line or after a blank begins a comment, except inside
/// double quotes. UTF-8; BOM and CRLF are accepted. Faults name file and line. Relative paths stay as they
/// are: `parse_settings` resolves them. Throws UsageError where the file cannot be read.
std::vector<Assignment> read_job_file(const std::filesystem::path& path, const FaultSink& fault = throw_fault);

/// Checks and types assignments; those of the command line override the file's (a repeatable key: all of them). Unknown
/// keys name the nearest known one; duplicate keys in one place, bad values, overflow and contradictory options are
/// refused; values of the vocabulary that this version does not do are refused with "not in this version". Paths of the
/// file are relative to `job_folder`, those of the command line to the current folder. Keys in `required` must be
/// given. A key with a fault keeps its default.
Settings parse_settings(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                        const std::filesystem::path& job_folder,
                        const std::vector<std::string>& required = {"task", "data", "model", "output"},
                        const FaultSink& fault = throw_fault);

/// Assignments of one place (a file, the command line) checked one by one for unknown keys, repeated keys and bad
/// values, and given back with values as format_settings writes them: paths absolute, numbers in their shortest form.
/// What contradicts what is left to parse_settings. Throws UsageError.
std::vector<Assignment> resolve_assignments(const std::vector<Assignment>& assignments,
                                            const std::filesystem::path& folder);

/// read_job_file and parse_settings in one.
Settings load_settings(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line);

/// The resolved job as a job file: every key, in the order of the table (keys without a value as a comment). Parses
/// back to the same settings from any folder.
std::string format_settings(const Settings& settings);

/// `draft-tree` of a job that names none; "" for a method without trees.
std::string own_tree(const Settings& settings);

/// Whether a key may change between launches of one run folder (design.md, "Two kinds of keys").
enum class KeyKind {
    identity,   ///< decides the result: a resume with another value is refused
    extension,  ///< `limit`, `samples`, `max-tokens`: may be raised, which extends a run; lowering is refused
    execution,  ///< free to change
};

/// The kind of `key` under these settings: draft keys are execution under `coupled`, `max-tokens` is identity where
/// prompts are truncated. `data`, `model`, templates and references are execution, since their fingerprints
/// are compared, not their paths.
KeyKind kind_of(const std::string& key, const Settings& settings);

/// kind_of(key, settings) == KeyKind::execution.
bool is_execution_key(const std::string& key, const Settings& settings);

/// Keys of kind identity with their values, in the order of the table: what a resume must agree with, next to the
/// fingerprints of data, model and tokenizer, which the caller knows. `extensions`: also those of kind extension
/// (to compare them; leave them out of a fingerprint that must survive an extension).
std::vector<Assignment> identity_of(const Settings& settings, bool extensions = false);

/// One entry of the vocabulary, for --help, the command line and tests.
struct KeyInfo {
    std::string key{};           ///< "top-p"
    std::string value_name{};    ///< "NUMBER", or the values it takes: "store|recompute"
    std::string default_text{};  ///< "" where a value must be given or there is none
    std::string help{};          ///< what it does, its unit, and the value that turns it off
    std::string section{};
    bool repeatable = false;
    bool flag = false;  ///< `--key` alone means true
};
const std::vector<KeyInfo>& vocabulary();

}  // namespace longhaul::runner
