#include "runner/job/vocabulary.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "engine/verify/verifier.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary_parts.hpp"

namespace longhaul::runner {
namespace {

constexpr double no_limit = std::numeric_limits<double>::infinity();

/// Returns `value` if it is one of `values`. Throws BadValue.
std::string choose(const std::string& value, const Strings& values) {
    if (std::find(values.begin(), values.end(), value) != values.end()) return value;
    const bool means_cuda = value == "gpu" && std::find(values.begin(), values.end(), "cuda") != values.end();
    const std::string near = means_cuda ? "cuda" : nearest_word(value, values);
    throw BadValue{list_words(values), near.empty() ? "" : "did you mean '" + near + "'?"};
}

std::string name_of(const std::string& value) {
    return value;
}
std::string name_of(const engine::DraftMethodRef& method) {
    return method->name;
}
std::string name_of(const engine::VerifyRule& rule) {
    return rule.name();
}

template <typename Field>
void set_by_name(Field& field, const std::string& name) {
    field = name;
}
void set_by_name(Mode& mode, const std::string& name) {
    mode = static_cast<Mode>(std::find(mode_names().begin(), mode_names().end(), name) - mode_names().begin());
}

/// A key whose value is one of `values`. The field is a string, a type that is assigned from one, or has a set_by_name.
template <typename Field>
Key choice(const std::string& key, Kind kind, Field Settings::*field, const Strings& values, const std::string& help) {
    return {.info = {.key = key, .value_name = joined(values, "|"), .help = help},
            .kind = kind,
            .set = [=](Settings& s, const std::string& value,
                       const auto&) { set_by_name(s.*field, choose(value, values)); },
            .get =
                [=](const Settings& s) {
                    const std::string name = name_of(s.*field);
                    return name.empty() ? Strings{} : Strings{name};
                }};
}

Key path(std::string key, Kind kind, std::filesystem::path Settings::*field, std::string help) {
    return {
        .info = {.key = std::move(key), .value_name = "PATH", .help = std::move(help)},
        .kind = kind,
        .set = [=](Settings& s, const std::string& value, const auto& folder) { s.*field = parse_path(value, folder); },
        .get = [=](const Settings& s) { return (s.*field).empty() ? Strings{} : Strings{format_path(s.*field)}; }};
}

/// A path that may be empty, for none.
Key optional_path(std::string key, Kind kind, std::filesystem::path Settings::*field, std::string help) {
    Key made = path(std::move(key), kind, field, std::move(help));
    made.info.may_be_empty = true;
    made.set = [=](Settings& s, const std::string& value, const auto& folder) {
        s.*field = value.empty() ? std::filesystem::path() : parse_path(value, folder);
    };
    return made;
}

Key size(std::string key, Kind kind, std::int64_t Settings::*field, const char* zero_name, std::string help) {
    const std::string zero = zero_name;
    return {.info = {.key = std::move(key), .value_name = "BYTES", .help = std::move(help)},
            .kind = kind,
            .set =
                [=](Settings& s, const std::string& value, const auto&) {
                    s.*field = value == zero ? 0 : parse_size(value);
                    if (s.*field == 0 && value != zero)
                        throw BadValue{"'" + zero + "' or a size of at least 1 byte", ""};
                },
            .get = [=](const Settings& s) { return Strings{s.*field == 0 ? zero : std::to_string(s.*field)}; }};
}

// Keys with their own way of parsing.

Key seed_key() {
    return {.info = {.key = "seed", .value_name = "INTEGER", .help = "64-bit seed: one job file and seed, one text"},
            .set = [](Settings& s, const std::string& value, const auto&) { s.seed = parse_seed(value); },
            .get = [](const Settings& s) { return Strings{std::to_string(s.seed)}; }};
}

double parse_draft_temperature(const std::string& text) {
    const double number = parse_number(text, 0, 1e6);
    if (number > 0 && number < 1e-6) throw BadValue{"0 or a number from 1e-06 to 1e+06", ""};
    return number;
}

Key draft_temperature_key() {
    return {.info = {.key = "draft-temperature",
                     .value_name = "NUMBER|target",
                     .help = "temperature of draft models; 0 = their most probable token (chains only); target = the "
                             "target's, or 1 if that is 0"},
            .kind = Kind::draft,
            .set = [](Settings& s, const std::string& value,
                      const auto&) { s.draft_temperature = value == "target" ? -1 : parse_draft_temperature(value); },
            .get =
                [](const Settings& s) {
                    return Strings{s.draft_temperature < 0 ? "target" : format_number(s.draft_temperature)};
                }};
}

Key draft_model_key() {
    return {.info = {.key = "draft-model",
                     .value_name = "PATH",
                     .help = "folder of a draft model with the same vocabulary (specinfer takes several), of a trained "
                             "layer (eagle, lyanna), or of trained heads (medusa, tokenswift; default: heads in the "
                             "model's own folder)",
                     .repeatable = true,
                     .may_be_empty = true},
            .kind = Kind::draft,
            .set =
                [](Settings& s, const std::string& value, const auto& folder) {
                    if (value.empty()) return s.draft_model.clear();
                    s.draft_model.push_back(parse_path(value, folder));
                },
            .get =
                [](const Settings& s) {
                    Strings values;
                    for (const auto& model : s.draft_model) values.push_back(format_path(model));
                    return values;
                }};
}

/// "sd: 4, …", for all methods.
std::string own_trees() {
    Strings trees;
    for (const engine::DraftMethod& method : engine::draft_methods()) {
        const std::string coupled = engine::own_tree(method, true).text();
        const std::string otherwise = engine::own_tree(method, false).text();
        if (coupled.empty()) continue;
        trees.push_back(method.name + ": " + coupled + (coupled == otherwise ? "" : " (else " + otherwise + ")"));
    }
    return joined(trees, "; ");
}

Key draft_tree_key() {
    return {
        .info = {.key = "draft-tree",
                 .value_name = "SHAPE",
                 .help = "shape of the draft: chain 5; chains x length or width x depth 12x5; with a node budget "
                         "4x3:12; children per node of each level 2,2,1; auto = chosen while decoding by measured cost "
                         "and acceptance, needs verify = coupled; by default " +
                         own_trees()},
        .kind = Kind::draft,
        .set =
            [](Settings& s, const std::string& value, const auto&) {
                const std::string expected = "auto, or a shape such as 5, 4x3, 4x3:12 or 2,2,1, of at most 1024 nodes";
                try {
                    s.draft_tree = value;
                } catch (const UsageError&) {
                    throw BadValue{expected, ""};
                }
            },
        .get = [](const Settings& s) { return s.draft_tree.is_given() ? Strings{s.draft_tree.text()} : Strings{}; }};
}

Key resample_tree_key() {
    return {.info = {.key = "resample-tree",
                     .value_name = "SHAPE",
                     .help = "draft = lyanna: shape of that tree, width x depth, with a node budget 4x2:4"},
            .kind = Kind::draft,
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    try {
                        s.resample_tree = value;
                        if (!s.resample_tree.is_auto() && s.resample_tree.shape().branching.empty()) return;
                    } catch (const UsageError&) {
                    }
                    throw BadValue{"width x depth, such as 4x2, or 4x2:4", ""};
                },
            .get = [](const Settings& s) { return Strings{s.resample_tree.text()}; }};
}

Key partial_cache_key() {
    return {
        .info = {.key = "partial-cache",
                 .value_name = "TOKENS|auto",
                 .help = "positions of the text that a draft pass of draft = self, self-or-sd, tokenswift and triforce "
                         "reads: more than 16, with "
                         "dynamic and static at least 256"},
        .kind = Kind::draft,
        .of_copies = true,
        .earlier_value = "4096",
        .set = [](Settings& s, const std::string& value,
                  const auto&) { s.partial_cache = value == "auto" ? 0 : parse_integer(value, 17, max_tokens); },
        .get =
            [](const Settings& s) { return Strings{s.partial_cache == 0 ? "auto" : std::to_string(s.partial_cache)}; }};
}

Key draft_passes_key() {
    return {
        .info = {.key = "draft-passes",
                 .value_name = "N|auto",
                 .help = "passes of draft = tokenswift before its heads, each behind the token that the one before "
                         "found most likely; auto = 1, or 4 with draft-tree = auto and a copy of fewer bits"},
        .kind = Kind::draft,
        .later = true,
        .of_copies = true,
        .set = [](Settings& s, const std::string& value,
                  const auto&) { s.draft_passes = value == "auto" ? 0 : parse_integer(value, 1, 16); },
        .get =
            [](const Settings& s) { return Strings{s.draft_passes == 0 ? "auto" : std::to_string(s.draft_passes)}; }};
}

Key tensor_parallel_key() {
    return {.info = {.key = "tensor-parallel",
                     .value_name = "1|2|4|8",
                     .help = "MPI ranks that share one copy of the model"},
            .kind = Kind::execution,
            .for_generate = false,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    s.tensor_parallel = std::stoll(choose(value, {"1", "2", "4", "8"}));
                },
            .get = [](const Settings& s) { return Strings{std::to_string(s.tensor_parallel)}; }};
}

/// "2/8"
Shard parse_shard(const std::string& value) {
    const BadValue bad{"off, or I/K with I from 0 to K - 1 and K at most " + std::to_string(max_shards),
                       "0/8 to 7/8 are the eight shards of a job"};
    const std::size_t slash = value.find('/');
    if (slash == std::string::npos) throw bad;
    try {
        const std::int64_t count = parse_integer(value.substr(slash + 1), 1, max_shards);
        return {.index = parse_integer(value.substr(0, slash), 0, count - 1), .count = count};
    } catch (const BadValue&) {
        throw bad;
    }
}

Key shard_key() {
    return {
        .info = {.key = "shard",
                 .value_name = "off|I/K",
                 .help =
                     "only the items whose number in the data is I modulo K, in the run folder OUTPUT/shard-I-of-K: K "
                     "independent launches share a job; the last to end joins the results in OUTPUT"},
        .kind = Kind::execution,
        .for_generate = false,
        .set = [](Settings& s, const std::string& value,
                  const auto&) { s.shard = value == "off" ? Shard{} : parse_shard(value); },
        .get = [](const Settings& s) { return Strings{s.shard.name()}; }};
}

Key packed_weights_key() {
    return {.info = {.key = "packed-weights",
                     .value_name = "off|auto|PATH",
                     .help = "folder for weights in the kernels' layout: later starts map them, and the ranks of a "
                             "node share them; auto = longhaul in the user's cache folder"},
            .kind = Kind::execution,
            .set =
                [](Settings& s, const std::string& value, const auto& folder) {
                    if (value == "off" || value == "auto") {
                        s.packed_weights = value == "auto" ? "auto" : "";
                    } else {
                        s.packed_weights = parse_path(value, folder);
                    }
                },
            .get =
                [](const Settings& s) {
                    return Strings{s.packed_weights.empty() ? "off" : format_path(s.packed_weights)};
                }};
}

/// Makes "auto" stand for "", which parse_settings resolves (kv-precision, device).
Key or_auto(Key key, std::string Settings::*field) {
    key.set = [set = key.set, field](Settings& s, const std::string& value, const auto& folder) {
        set(s, value, folder);
        if (s.*field == "auto") s.*field = "";
    };
    key.get = [field](const Settings& s) { return Strings{(s.*field).empty() ? "auto" : s.*field}; };
    return key;
}

Strings draft_methods() {
    Strings names;
    for (const engine::DraftMethod& method : engine::draft_methods()) names.push_back(method.name);
    return names;
}

Strings verify_rules() {
    return {engine::VerifyRule::names.begin(), engine::VerifyRule::names.end()};
}

/// "sd = a chain of a draft model; …", for all methods.
std::string draft_summaries() {
    Strings all;
    for (const engine::DraftMethod& method : engine::draft_methods())
        all.push_back(method.name + " = " + method.summary);
    return joined(all, "; ");
}

/// "rejection for sd; …": each rule with the methods it may verify.
std::string lossless_pairs() {
    Strings rules;
    for (const std::string& rule : verify_rules()) {
        if (rule == engine::VerifyRule().name() || !engine::VerifyRule(rule).is_lossless()) continue;
        rules.push_back(rule + " for " + joined(engine::methods_of_rule(rule), ", "));
    }
    return joined(rules, "; ");
}

Section job_section() {
    return {
        "Job",
        {not_for_generate(choice(
             "task", Kind::identity, &Settings::task,
             {"pg19", "wmt", "xsum", "dolly", "longwriter", "prompts", "openai-batch"},
             "pg19: continue books; wmt: translate; xsum: summarise; dolly: answer; longwriter: write texts of a "
             "given length; prompts: continue each prompt; "
             "openai-batch: answer the requests of a batch file, in its own form")),
         not_for_generate(path(
             "data", Kind::execution, &Settings::data,
             "pg19: folder of .txt books, one .txt, or .jsonl with \"text\"; wmt: source lines, .sgm, or .jsonl with "
             "\"source\" and \"reference\"; xsum: .jsonl "
             "with \"document\" and \"summary\", or source lines; dolly: .jsonl with \"instruction\", \"context\" and "
             "\"response\"; longwriter: .jsonl with \"prompt\" and \"length\"; prompts: .jsonl with \"prompt\" or "
             "\"messages\", or .txt with one per line; "
             "openai-batch: .jsonl with \"custom_id\", \"method\", \"url\" and \"body\"; instead of .jsonl, except for "
             "pg19 and openai-batch, also .parquet or a folder of a Hugging Face dataset")),
         column_key(), split_key(),
         not_for_generate(path("model", Kind::execution, &Settings::model, "folder of a Hugging Face checkpoint")),
         optional_path("adapter", Kind::execution, &Settings::adapter,
                       "folder of a LoRA adapter of the model, as PEFT writes it: it is merged into the weights when "
                       "they are loaded, and then costs no time; empty = none"),
         not_for_generate(path("output", Kind::execution, &Settings::output,
                               "run folder: results, checkpoints, logs; an interrupted run resumes from it")),
         seed_key(),
         not_for_generate(
             integer("limit", Kind::extension, &Settings::limit, 0, any, "first N items of the data; 0 = all")),
         not_for_generate(
             integer("samples", Kind::extension, &Settings::samples, 1, 1000000, "continuations of each prompt")),
         shard_key()}};
}

Section text_section() {
    return {
        "Text",
        {not_for_generate(integer("prompt-tokens", Kind::identity, &Settings::prompt_tokens, 1, max_tokens,
                                  "pg19: tokens of the book that are the prompt")),
         integer("max-tokens", Kind::extension, &Settings::max_tokens, 1, max_tokens,
                 "maximum number of new tokens per item"),
         later(
             integer("min-tokens", Kind::identity, &Settings::min_tokens, 0, max_tokens,
                     "end-of-text tokens and stop strings end no item before its output has so many tokens; 0 = off")),
         flag("ignore-eos", Kind::identity, &Settings::ignore_eos, "continue after the model's end-of-text token"),
         stop_key(),
         stop_token_ids_key(),
         json_schema_key(),
         regex_key(),
         choice_key(),
         grammar_key(),
         reasoning_end_key(),
         later(integer("max-reasoning-tokens", Kind::identity, &Settings::max_reasoning_tokens, 0, max_tokens,
                       "write reasoning-end for the model where its reasoning has so many tokens; 0 = off")),
         later(integer(
             "stop-loops", Kind::identity, &Settings::stop_loops, 0, max_tokens,
             "end an item whose output repeats itself: its last N tokens equal those that end p tokens earlier, for "
             "some period p of at most N; a common N is 64; 0 = off")),
         not_for_generate(optional_path(
             "reference", Kind::execution, &Settings::reference,
             "wmt, xsum: file with the reference for each line of data; by default the file beside data with the "
             "matching name: X-src.L1.sgm and X-ref.L2.sgm, X.source and X.target, wmt: X.de and X.en")),
         template_key(),
         not_for_generate(later(integer("few-shot", Kind::identity, &Settings::few_shot, 0, 1000,
                                        "prompts: examples with their answers before each prompt, the first ones of "
                                        "few-shot-data; 0 = none"))),
         not_for_generate(optional_path("few-shot-data", Kind::execution, &Settings::few_shot_data,
                                        "data that has the examples; empty = that of the prompts, in another split")),
         few_shot_split_key(),
         few_shot_group_key(),
         introduction_key(),
         choice_gap_key(),
         not_for_generate(later(integer("first-choice", Kind::identity, &Settings::first_choice, 0, 1,
                                        "the number of the first choice where answers are numbers"))),
         later(flag("chat", Kind::identity, &Settings::chat, "send each prompt to the model as one user message")),
         chat_template_key(),
         template_variable_key(),
         template_date_key(),
         choice("add-bos", Kind::identity, &Settings::add_bos, {"auto", "true", "false"},
                "begin-of-text token before the prompt; auto = as the tokenizer says; chat templates add their own"),
         choice("overlong", Kind::identity, &Settings::overlong, {"error", "truncate-left"},
                "prompt + new tokens beyond the model's context: the item fails, or loses the beginning of its prompt"),
         not_for_generate(integer(
             "logprobs", Kind::identity, &Settings::logprobs, 0, 1000,
             "also write [id, log-probability] of each token and of the k most probable others, from the model's "
             "raw logits, before any sampling key; 0 = off")),
         not_for_generate(
             flag("teacher-forced", Kind::identity, &Settings::teacher_forced,
                  "use the data's own continuation as the text: measures speed, acceptance and loss on real text")),
         not_for_generate(
             later(choice("mode", Kind::identity, &Settings::mode, mode_names(),
                          "generate text, or only score what the data has: perplexity its continuations (up to "
                          "max-tokens of each), multiple-choice the choices of each question"))),
         not_for_generate(later(
             integer("window", Kind::identity, &Settings::window, 0, max_tokens,
                     "mode = perplexity: tokens per window, positions start at 0 in each; 0 = the model's context"))),
         not_for_generate(
             later(integer("stride", Kind::identity, &Settings::stride, 0, max_tokens,
                           "mode = perplexity: tokens from the start of one window to the next; 0 = half the window"))),
         optional_path(
             "hidden-states", Kind::execution, &Settings::hidden_states,
             "mode = perplexity: folder for the hidden states and most probable next tokens of each text scored from "
             "then on, on which jobs/train trains draft parts; an interrupted item starts over"),
         not_for_generate(
             flag("token-ids", Kind::identity, &Settings::token_ids, "also write token_ids to the results"))}};
}

Section machine_section() {
    return {
        "Machine (precision, devices, memory)",
        {choice("precision", Kind::identity, &Settings::precision, {"bf16", "fp32", "int8", "int4"},
                "number format of the weights; int8 and int4 are faster and slightly less exact"),
         or_auto(choice("kv-precision", Kind::identity, &Settings::kv_precision, {"auto", "bf16", "fp32", "int8"},
                        "number format of keys and values; int8 takes half the memory of bf16; auto = as `precision`"),
                 &Settings::kv_precision),
         or_auto(choice("device", Kind::identity, &Settings::device, {"auto", "cpu", "cuda"},
                        "CPU, or one NVIDIA GPU per rank of a node; auto = GPU if built with CUDA and one is visible"),
                 &Settings::device),
         not_for_generate(flag("allow-device-change", Kind::execution, &Settings::allow_device_change,
                               "allow resuming on another kind of device, whose text may differ")),
         not_for_generate(integer("batch", Kind::execution, &Settings::batch, 1, 65536,
                                  "maximum number of sequences in flight per replica")),
         tensor_parallel_key(),
         integer("threads", Kind::execution, &Settings::threads, 0, 4096,
                 "threads per rank; 0 = its share of the node"),
         choice(
             "kernels", Kind::execution, &Settings::kernels,
             {"auto", "reference", "avx2", "avx512", "amx", "amx-bf16", "cuda", "cuda-exact", "cuda-cublas"},
             "CPU kernels, all with the same bits except amx-bf16, which is fast for prompts and batches on Xeons with "
             "AMX; or GPU kernels: cuda is fast with its own bits, cuda-exact has "
             "the CPU's bits, cuda-cublas uses cuBLASLt for prompts, whose bits depend on its version, the GPU and "
             "tensor-parallel; auto = the fastest that runs here"),
         later(choice(
             "all-reduce", Kind::identity, &Settings::all_reduce, {"ordered", "nccl"},
             "sums over the ranks of tensor-parallel: ordered gives the same text for any number of them; nccl, for "
             "GPUs, transfers less and adds as NCCL does: the text then depends on tensor-parallel, batch, the "
             "draft, the version of NCCL and how the GPUs are connected, also when a run is resumed")),
         packed_weights_key(),
         size("memory", Kind::execution, &Settings::memory, "auto",
              "memory per rank for keys and values, for example 8GiB"),
         size(
             "host-memory", Kind::execution, &Settings::host_memory, "0",
             "on a GPU: host memory per rank for keys and values that do not fit into the GPU's; slow, for long items"),
         not_for_generate(integer("max-failures", Kind::execution, &Settings::max_failures, 0, any,
                                  "stop after this number of failed items; 0 = never")),
         not_for_generate(flag("retry-failed", Kind::execution, &Settings::retry_failed, "try failed items again")),
         not_for_generate(flag("baseline", Kind::execution, &Settings::baseline,
                               "also decode without drafts and report the speedup"))}};
}

Section draft_section() {
    return {
        "Drafting (with verify = coupled it changes only the speed, never the text)",
        {choice("draft", Kind::draft, &Settings::draft, draft_methods(), "draft method: " + draft_summaries()),
         draft_model_key(), draft_tree_key(), draft_temperature_key(),
         choice("draft-parallel", Kind::execution, &Settings::draft_parallel, {"auto", "replicated", "sharded"},
                "with tensor-parallel: each rank runs the whole draft model or layer, or a shard of it; auto = by its "
                "size, where it can be sharded"),
         later(choice(
             "resample", Kind::draft, &Settings::resample, {"fused", "separate", "off"},
             "what draft = lyanna makes of the levels behind a rejected token: a tree within the next one, a tree "
             "with a pass of its own, nothing")),
         resample_tree_key(),
         integer("resample-threshold", Kind::draft, &Settings::resample_threshold, 0, any,
                 "draft = lyanna: re-samples where more levels than this remain; 0 = always"),
         of_copies(choice(
             "draft-precision", Kind::draft, &Settings::draft_precision, {"auto", "int4", "int8", "same"},
             "weights that draft = self, self-or-sd, tokenswift and triforce draft with; same = the model's own, no "
             "copy")),
         draft_passes_key(), partial_cache_key(),
         of_copies(
             choice(
                 "partial-cache-mode", Kind::draft, &Settings::partial_cache_mode,
                 {"window", "full", "dynamic", "static"},
                 "how these positions are selected: window = the first and the most recent ones, full = all of them; "
                 "dynamic = the recent ones and those with the best attention scores, again and again; static = with "
                 "the scores behind the prompt"),
             "dynamic"),
         integer("ngram-order", Kind::draft, &Settings::ngram_order, 2, 16, "tokens of an n-gram"),
         integer("ngram-top", Kind::draft, &Settings::ngram_top, 0, 1000,
                 "branches per node from the n-gram table; 0 = no table"),
         optional_path(
             "draft-corpus", Kind::draft, &Settings::draft_corpus,
             "texts whose n-grams drafts know from the start: folder of .txt files, run folder, text or .jsonl file"),
         choice("verify", Kind::identity, &Settings::verify, verify_rules(),
                "verification rule; coupled = the text equals plain decoding's, token for token; the others (of "
                "the papers) preserve its distribution: " +
                    lossless_pairs() + "; except tokenswift-paper for tokenswift, which is there for comparison"),
         not_for_generate(optional_path("replay-run", Kind::draft, &Settings::replay_run,
                                        "tests: run folder, made with token-ids = true and verify = coupled, whose "
                                        "texts draft = replay proposes")),
         not_for_generate(number("replay-accept", Kind::draft, &Settings::replay_accept, 0, 1, false,
                                 "tests: probability that the first draft of replay is right"))}};
}

Section checkpoint_section() {
    return {
        "Checkpoints",
        {not_for_generate(integer("checkpoint-tokens", Kind::execution, &Settings::checkpoint_tokens, 1, any,
                                  "checkpoint at least once per this number of tokens of a replica")),
         not_for_generate(number("checkpoint-seconds", Kind::execution, &Settings::checkpoint_seconds, 0, no_limit,
                                 true, "checkpoint at least once per this number of seconds")),
         not_for_generate(choice("checkpoint-kv", Kind::execution, &Settings::checkpoint_kv, {"store", "recompute"},
                                 "store keys and values, or recompute them from the tokens")),
         not_for_generate(size("checkpoint-quota", Kind::execution, &Settings::checkpoint_quota, "0",
                               "maximum size of all checkpoints; above it only tokens are stored; 0 = no limit")),
         not_for_generate(number("watchdog-seconds", Kind::execution, &Settings::watchdog_seconds, 0, no_limit, true,
                                 "end the launch when a rank makes no progress for this time")),
         not_for_generate(number("lease-seconds", Kind::execution, &Settings::lease_seconds, 0, no_limit, true,
                                 "age of another launch's heartbeat at which its lease on the run folder is stale"))}};
}

std::vector<Key> make_table() {
    std::vector<Key> table;
    const Settings defaults;
    for (auto& [section, keys] : {job_section(), text_section(), sampling_section(), machine_section(), draft_section(),
                                  checkpoint_section()}) {
        for (const Key& entry : keys) {
            Key& key = table.emplace_back(entry);
            key.info.section = section;
            key.info.default_text = joined(key.get(defaults), ", ");
        }
    }
    return table;
}

}  // namespace

const std::vector<std::string>& mode_names() {
    static const Strings names{"generate", "perplexity", "multiple-choice"};
    return names;
}

std::string name_of(Mode mode) {
    return mode_names().at(static_cast<std::size_t>(mode));
}

const std::vector<Key>& key_table() {
    static const std::vector<Key> table = make_table();
    return table;
}

const std::vector<std::string>& required_keys() {
    static const std::vector<std::string> keys{"task", "data", "model", "output"};
    return keys;
}

const Key* find_key(const std::string& key) {
    const auto found =
        std::find_if(key_table().begin(), key_table().end(), [&](const Key& entry) { return entry.info.key == key; });
    return found == key_table().end() ? nullptr : &*found;
}

const std::vector<KeyInfo>& vocabulary() {
    static const std::vector<KeyInfo> infos = [] {
        std::vector<KeyInfo> list;
        for (const Key& key : key_table()) list.push_back(key.info);
        return list;
    }();
    return infos;
}

}  // namespace longhaul::runner
