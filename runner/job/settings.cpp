#include "runner/job/settings.hpp"

#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_layer_config.hpp"
#include "engine/draft/heads.hpp"
#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/kv/partial_kv.hpp"
#include "engine/verify/verifier.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {
namespace {

std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const Key& key : key_table()) names.push_back(key.info.key);
    return names;
}

/// Whether a message names the job's draft method: then it also says who chose that, if the job gives none.
enum class Names { no_method, method };

/// Reports faults to the sink and remembers their keys.
class Faults {
  public:
    explicit Faults(const FaultSink& sink) : sink_(sink) {}

    void add(const std::string& key, const std::string& origin, const std::string& field, const std::string& expected,
             const std::string& got, const std::string& fix = "", Names names = Names::no_method) {
        add_line(key, InputError::format(origin, field, expected, got, fix), names);
    }
    void add(const Assignment& of, const std::string& expected, const std::string& got, const std::string& fix = "") {
        add(of.key, of.origin, of.key, expected, got, fix);
    }
    /// Adds a message that already names its field.
    void add_line(const std::string& key, const std::string& line, Names names = Names::no_method) {
        const bool by_us = !chosen_.empty() && names == Names::method;
        sink_(key, by_us ? line + "; draft = auto chose " + chosen_ : line);
        keys_.insert(key);
    }
    /// The draft method of a job that gives none: messages that name it say who chose it.
    void set_chosen_draft(const std::string& name) { chosen_ = name; }
    [[nodiscard]] bool has(const std::string& key) const { return keys_.contains(key); }

  private:
    const FaultSink& sink_;
    std::set<std::string> keys_;
    std::string chosen_;
};

/// Returns nullptr and reports a fault if the key is not in the table.
const Key* known_key(const Assignment& assignment, Faults& faults) {
    if (const Key* key = find_key(assignment.key)) return key;
    if (assignment.key.starts_with("grid ") || assignment.key.starts_with("variant ")) {
        faults.add(assignment.key, assignment.origin, "", "a job", "a line of a sweep",
                   "`longhaul sweep` runs this file");
        return nullptr;
    }
    const std::string near = nearest_word(assignment.key, key_names());
    faults.add_line(near, assignment.origin + ": unknown key " + shown(assignment.key) + "; " +
                              (near.empty() ? "`longhaul run --help` lists them" : "did you mean '" + near + "'?"));
    return nullptr;
}

void assign(Settings& settings, const Key& key, const Assignment& assignment, const std::filesystem::path& folder,
            Faults& faults) {
    try {
        if (assignment.value.empty() && !key.info.may_be_empty) throw BadValue{"a value", ""};
        key.set(settings, assignment.value, folder);
    } catch (const BadValue& bad) {
        faults.add(assignment, bad.expected, shown(assignment.value), bad.fix);
    }
}

/// Calls `visit` for each assignment of one place (the file or the command line) whose key is known and not a
/// duplicate.
template <typename Visit>
void for_each_key(const std::vector<Assignment>& place, Faults& faults, Visit visit) {
    std::map<std::string, std::string> first_origin;
    for (const Assignment& assignment : place) {
        const Key* key = known_key(assignment, faults);
        if (key == nullptr) continue;
        const auto [first, fresh] = first_origin.try_emplace(assignment.key, assignment.origin);
        if (!fresh && !key->info.repeatable) {
            const bool lines = first->second != assignment.origin;
            faults.add(assignment, "every key once", "this key again",
                       lines ? "it is at " + first->second + " already" : "");
            continue;
        }
        visit(*key, assignment);
    }
}

/// Applies the assignments of one place. Keys in `overridden` are only checked.
void read_place(Settings& settings, const std::vector<Assignment>& place, const std::set<std::string>& overridden,
                const std::filesystem::path& folder, Faults& faults) {
    for_each_key(place, faults, [&](const Key& key, const Assignment& assignment) {
        Settings ignored;
        assign(overridden.contains(assignment.key) ? ignored : settings, key, assignment, folder, faults);
    });
}

/// Whether the model's own layer drafts for a job that names no method: its folder has one that can be used, and no key
/// asks for what only `self` does. An adapter changes the states that the layer was trained on.
bool drafts_with_own_layer(const Settings& settings) {
    const Settings defaults;
    const bool asks_for_self =
        !settings.draft_corpus.empty() || settings.draft_temperature != defaults.draft_temperature ||
        std::any_of(key_table().begin(), key_table().end(),
                    [&](const Key& key) { return key.of_copies && key.get(settings) != key.get(defaults); });
    return !asks_for_self && settings.adapter.empty() && engine::holds_mtp_layer(settings.model);
}

/// The method of a job that names none. Under `coupled` all of these draft only what pays by measured time.
engine::DraftMethodRef chosen_method(const Settings& settings) {
    const bool chooses = !settings.draft_tree.is_given() || settings.draft_tree.is_auto();
    if (settings.draft_model.empty()) {
        if (!settings.is_coupled()) return "ngram";
        if (chooses && engine::holds_chained_heads(settings.model)) return "tokenswift";
        return drafts_with_own_layer(settings) ? "mtp" : "self";
    }
    if (settings.draft_model.size() > 1) return "specinfer";
    const std::string of_layer = engine::method_of_draft_layer(settings.draft_model.front());
    if (!of_layer.empty()) return of_layer;
    return settings.is_coupled() && chooses ? "self-or-sd" : "sd";
}

/// `draft-precision` of a job that gives none. It decides the drafts, and under the sampling rules the text.
std::string chosen_precision(const Settings& settings) {
    // On a GPU a copy takes memory that keys and values could use.
    return settings.device == "cuda" || settings.precision == "int4" ? "same" : "int4";
}

void resolve(Settings& settings, Faults& faults) {
    if (settings.draft->name == engine::automatic) {
        settings.draft = chosen_method(settings);
        faults.set_chosen_draft(settings.draft->name);
        const bool sizes = settings.is_coupled() && !settings.draft->fixed_shape;
        if (!settings.draft_tree.is_given() && sizes) settings.draft_tree = "auto";
    }
    if (!settings.dry_breakers) settings.dry_breakers = default_dry_breakers;
    if (settings.kv_precision.empty()) settings.kv_precision = settings.precision == "fp32" ? "fp32" : "bf16";
    // The device kind decides the bits of results, so the resolved job names the device.
    settings.device = resolved_device(settings.device, settings.kernels, gpus_here());
    if (!settings.draft_tree.is_given()) settings.draft_tree = own_tree(settings);
    if (settings.draft->copies_target && settings.draft_precision == "auto")
        settings.draft_precision = chosen_precision(settings);
}

/// Reports keys that contradict `teacher-forced` or a `mode` that scores: with these the data determines every token.
/// Sampling keys and `stop` are ignored instead, since a job file for generation contains them anyway. `window` and
/// `stride` need mode = perplexity.
void check_scoring(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const bool scores = only_scores(settings);
    const std::string mode = "mode = " + name_of(settings.mode);
    const auto require = [&](bool good, const char* key, const std::string& expected, const std::string& got) {
        if (good || faults.has(key)) return;
        const bool forced = settings.teacher_forced && !scores;
        faults.add(key, origins.of(key), key, expected + " with " + (forced ? "teacher-forced = true" : mode), got);
    };
    if (scores) {
        require(!settings.teacher_forced, "teacher-forced", "false", "true");
        require(settings.logprobs == 0, "logprobs", "0", std::to_string(settings.logprobs));
        require(!settings.baseline, "baseline", "false", "true");
    }
    if (settings.mode == Mode::perplexity) {
        require(settings.window != 1, "window", "0, or at least 2 tokens", "1");
        require(settings.window == 0 || settings.stride <= settings.window, "stride",
                "at most the window's " + std::to_string(settings.window) + " tokens", std::to_string(settings.stride));
    } else {
        require(settings.window == 0, "window", "0", std::to_string(settings.window));
        require(settings.stride == 0, "stride", "0", std::to_string(settings.stride));
        require(settings.hidden_states.empty(), "hidden-states", "none", shown(settings.hidden_states.string()));
    }
    if (settings.mode != Mode::multiple_choice) {
        require(settings.choice_gap.empty(), "choice-gap", "none", in_quotes(settings.choice_gap));
        require(settings.first_choice == 0, "first-choice", "0", std::to_string(settings.first_choice));
    }
    if (!has_given_texts(settings)) return;
    require(settings.samples == 1, "samples", "1", std::to_string(settings.samples));
    if (settings.mode != Mode::multiple_choice) return;
    require(settings.task == "prompts", "task", "prompts", settings.task);
    require(!settings.token_ids, "token-ids", "false", "true");
    const bool has_choices = settings.format.kind == engine::OutputFormat::Kind::choice;
    require(!has_choices || settings.format.texts.size() > 1, "choice", "at least 2 of them, or none", "1");
}

/// Reports keys that do not fit requests, which say themselves what the prompt is and have no continuation.
void check_batch_keys(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const auto refuse = [&](const char* key, const std::string& expected, const std::string& got, const char* why) {
        if (!faults.has(key)) faults.add(key, origins.of(key), key, expected + " with task = openai-batch", got, why);
    };
    const char* const whole = "the url of each request says whether it is a chat";
    if (settings.chat) refuse("chat", "false", "true", whole);
    if (!settings.prompt_template.empty()) refuse("template", "auto", shown(settings.prompt_template.string()), whole);
    const char* const none = "its data has no continuations";
    if (settings.teacher_forced) refuse("teacher-forced", "false", "true", none);
    if (settings.mode == Mode::perplexity) refuse("mode", "generate", "perplexity", none);
}

/// Reports examples that the task does not take, or that are the prompts themselves.
void check_few_shot(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    if (settings.few_shot == 0 || faults.has("few-shot")) return;
    const auto refuse = [&](const std::string& expected, const char* why) {
        faults.add("few-shot", origins.of("few-shot"), "few-shot", expected, std::to_string(settings.few_shot), why);
    };
    const bool same_data = settings.few_shot_data.empty() || settings.few_shot_data == settings.data;
    const bool same_split = settings.few_shot_split.empty() || settings.few_shot_split == settings.split;
    if (settings.task != "prompts")
        refuse("0 with task = " + settings.task, "the templates of other tasks have their examples");
    else if (same_data && same_split)
        refuse("0 without few-shot-data or few-shot-split",
               "set one of them: a prompt that is among the examples would have its answer there");
}

/// Reports what stands before or in prompts where it cannot.
void check_prompt_texts(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const bool has_texts = settings.task != "pg19" && settings.task != "openai-batch";
    if (!settings.introduction.empty() && !has_texts)
        faults.add("introduction", origins.of("introduction"), "introduction", "none with task = " + settings.task,
                   in_quotes(settings.introduction));
    if (!settings.choice_gap.empty() && settings.chat && settings.mode == Mode::multiple_choice)
        faults.add("choice-gap", origins.of("choice-gap"), "choice-gap", "none with chat",
                   in_quotes(settings.choice_gap), "what follows the gap would be a message of another kind");
}

/// Reports keys that the task does not use: they were probably meant for another task.
void check_task_keys(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    if (settings.task == "pg19" && (settings.chat || !settings.prompt_template.empty())) {
        const std::string key = settings.chat ? "chat" : "template";
        faults.add(key, origins.of(key), key, settings.chat ? "false with task = pg19" : "auto with task = pg19",
                   shown(settings.chat ? "true" : settings.prompt_template.string()),
                   "its prompts are tokens of a book");
    }
    if (settings.task == "pg19" || settings.task == "openai-batch") {
        const std::string none = "none with task = " + settings.task;
        if (!settings.column.empty())
            faults.add("column", origins.of("column"), "column", none, shown(settings.column.front()));
        if (!settings.split.empty()) faults.add("split", origins.of("split"), "split", none, shown(settings.split));
    }
    if (settings.task == "openai-batch") check_batch_keys(settings, origins, faults);
    if (!settings.reference.empty() && settings.task != "wmt" && settings.task != "xsum") {
        faults.add("reference", origins.of("reference"), "reference", "none with task = " + settings.task,
                   shown(settings.reference.string()),
                   "only wmt and xsum read their references from a file of their own");
    }
}

/// Whether all trees of a job are chains.
bool is_chain(const engine::DraftMethod& method, const engine::TreeSpec& tree) {
    if (method.form == engine::TreeForm::chain) return true;
    return tree.is_given() && !tree.is_auto() && tree.shape().is_chain();
}

/// Reports contradictory draft keys. A method that does not draft (plain decoding) ignores them, so that any job file
/// can be run with it for comparison.
void check_drafts(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const engine::DraftMethod& method = *settings.draft;
    if (!method.drafts() || faults.has("draft")) return;
    const auto add = [&](const std::string& key, const std::string& line, Names names = Names::no_method) {
        if (!faults.has(key)) faults.add_line(key, origins.of(key) + ": " + line, names);
    };
    const auto models = static_cast<std::int64_t>(settings.draft_model.size());
    if (models < method.min_folders || models > method.max_folders) {
        const std::string expected = method.max_folders == 0                   ? "no draft model"
                                     : method.min_folders == 0                 ? "the folder of trained heads, or none"
                                     : method.part == engine::DraftPart::layer ? "the folder of a draft layer"
                                     : method.max_folders == 1
                                         ? "the folder of a draft model"
                                         : "1 to " + std::to_string(method.max_folders) + " folders of draft models";
        const std::string got = models == 0   ? "nothing"
                                : models == 1 ? shown(settings.draft_model.front().string())
                                              : std::to_string(models) + " of them";
        add("draft-model",
            "draft-model: expected " + expected + " with draft = " + method.name + ", got " + got +
                (method.max_folders == 0 ? "; this draft method needs none" : ""),
            Names::method);
    }
    const auto attempt = [&](const std::string& key, const std::function<void()>& check) {
        try {
            check();
        } catch (const engine::DraftMethodError& error) {
            add(key, error.what(), Names::method);
        } catch (const UsageError& error) {
            add(key, error.what());
        }
    };
    attempt("draft-tree", [&] { static_cast<void>(engine::tree_of(method, settings.draft_tree, models)); });
    attempt("verify", [&] { engine::check_lossless(settings.verify, method, models, settings.draft_tree); });
    if (settings.draft_tree.is_auto() && !settings.is_coupled())
        add("draft-tree",
            "draft-tree: expected a shape with verify = " + settings.verify.name() +
                ", got auto; what it chooses depends on measured time, and with this rule trees decide the "
                "text");
    if (settings.draft_temperature >= 0 && !method.samples())
        add("draft-temperature",
            "draft-temperature: expected its default with draft = " + method.name +
                ", got a number; only sampled drafts have a temperature",
            Names::method);
    if (settings.draft_temperature == 0 && method.samples() && !is_chain(method, settings.draft_tree))
        add("draft-temperature",
            "draft-temperature: expected more than 0 with draft-tree = " + settings.draft_tree.text() +
                ", got 0; greedy drafts have one token per node, so they need a chain, such as "
                "draft-tree = 4");
}

/// Reports keys of drafts by the model itself that are given with another method, or do not fit the job.
void check_partial_cache(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const auto add = [&](const std::string& key, const std::string& expected, const std::string& got,
                         const std::string& fix, Names names = Names::no_method) {
        if (!faults.has(key) && !faults.has("draft")) faults.add(key, origins.of(key), key, expected, got, fix, names);
    };
    if (!settings.draft->drafts()) return;  // plain decoding ignores draft keys
    const bool copies = settings.draft->copies_target;
    if (copies && settings.draft_precision == "int8" && settings.precision == "int4")
        add("draft-precision", "int4, same or auto with precision = int4", shown("int8"),
            "a copy above the model's precision costs more than the model itself");
    if (settings.draft_passes != 0 && !settings.draft->chained_heads)
        add("draft-passes", "its default with draft = " + settings.draft->name, std::to_string(settings.draft_passes),
            "only draft = tokenswift has it", Names::method);
    if (copies) {
        const bool ranks = settings.partial_cache_mode == "dynamic" || settings.partial_cache_mode == "static";
        if (ranks && settings.partial_cache > 0 && settings.partial_cache < engine::min_ranked_positions)
            add("partial-cache",
                "at least " + std::to_string(engine::min_ranked_positions) +
                    " with partial-cache-mode = " + settings.partial_cache_mode,
                std::to_string(settings.partial_cache), "");
        return;
    }
    std::string copying;
    for (const engine::DraftMethod& method : engine::draft_methods()) {
        if (!method.copies_target) continue;
        copying += (copying.empty() ? "" : ", ") + method.name;
    }
    copying.replace(copying.rfind(", "), 2, " and ");
    for (const Key& key : key_table()) {
        if (!key.of_copies) continue;
        const std::vector<std::string> value = key.get(settings);
        if (value.front() == key.earlier_value || value == key.get(Settings())) continue;
        add(key.info.key, "its default with draft = " + settings.draft->name, shown(value.front()),
            "only draft = " + copying + " have it", Names::method);
    }
}

/// Reports draft layers and heads that are given as a language model.
void check_layer_folders(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const auto check = [&](const char* key, const std::filesystem::path& folder, const std::string& expected,
                           Names names) {
        const std::string method = engine::method_of_draft_layer(folder);
        const std::string of_heads = folder == settings.model ? "" : engine::methods_of_heads(folder);
        const std::string hint = method.empty()
                                     ? "it holds draft heads; set draft = " + of_heads
                                     : "it holds a draft layer; that is the draft-model of draft = " + method;
        if ((!method.empty() || !of_heads.empty()) && !faults.has(key))
            faults.add(key, origins.of(key), key, expected, shown(folder.string()), hint, names);
    };
    check("model", settings.model, "the folder of a language model", Names::no_method);
    if (settings.draft->part != engine::DraftPart::language_model) return;
    for (const auto& folder : settings.draft_model)
        check("draft-model", folder, "the folder of a language model with draft = " + settings.draft->name,
              Names::method);
}

/// Reports re-sampling keys that are given with another method. Plain decoding ignores draft keys.
void check_resampling(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    if (settings.draft->chains_states || !settings.draft->drafts() || faults.has("draft")) return;
    for (const char* key : {"resample", "resample-tree", "resample-threshold"}) {
        const std::vector<std::string> value = find_key(key)->get(settings);
        if (value != find_key(key)->get(Settings()) && !faults.has(key))
            faults.add(key, origins.of(key), key, "its default with draft = " + settings.draft->name,
                       shown(value.front()), "only draft = lyanna has it", Names::method);
    }
}

/// Reports a corpus that no draft would use.
void check_corpus(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    if (settings.draft_corpus.empty() || !settings.draft->drafts()) return;
    const auto add = [&](const std::string& with, const std::string& why, Names names = Names::no_method) {
        if (faults.has("draft-corpus") || faults.has("draft")) return;
        faults.add("draft-corpus", origins.of("draft-corpus"), "draft-corpus", "none with " + with,
                   shown(settings.draft_corpus.string()), why, names);
    };
    if (!settings.draft->has_ngrams) add("draft = " + settings.draft->name, "it drafts without n-grams", Names::method);
    if (!settings.is_coupled()) add("verify = " + settings.verify.name(), "with this rule drafts decide the text");
    if (settings.ngram_top == 0) add("ngram-top = 0", "");
    // Those of chained heads follow every first token.
    if (settings.draft->copies_target && !settings.draft->chained_heads && !settings.draft_tree.is_auto())
        add("draft-tree = " + settings.draft_tree.text(), "n-grams extend the trees of draft-tree = auto");
}

/// Reports contradictions between keys. A key that already has a fault is not reported again.
void check_together(const Settings& settings, const KeyOrigins& origins, Faults& faults) {
    const auto add = [&](const std::string& origin_key, const std::string& key, const std::string& expected,
                         const std::string& got, const std::string& fix) {
        if (!faults.has(key) && !faults.has("draft")) faults.add(key, origins.of(origin_key), key, expected, got, fix);
    };
    const std::vector<std::string>& kernels = kernels_of_device(settings.device);
    if (!faults.has("device") && std::find(kernels.begin(), kernels.end(), settings.kernels) == kernels.end())
        add("kernels", "kernels", list_words(kernels) + " with device = " + settings.device, shown(settings.kernels),
            "");
    if (!faults.has("device") && settings.all_reduce == "nccl" && settings.device != "cuda")
        add("all-reduce", "all-reduce", "ordered with device = " + settings.device, shown(settings.all_reduce),
            "NCCL connects NVIDIA GPUs");
    if (settings.max_reasoning_tokens > 0 && settings.reasoning_end.empty())
        add("max-reasoning-tokens", "max-reasoning-tokens", "0 without reasoning-end",
            std::to_string(settings.max_reasoning_tokens), "reasoning-end = </think>, or what the model writes");
    check_drafts(settings, origins, faults);
    check_resampling(settings, origins, faults);
    check_layer_folders(settings, origins, faults);
    check_partial_cache(settings, origins, faults);
    check_corpus(settings, origins, faults);
    check_scoring(settings, origins, faults);
    check_task_keys(settings, origins, faults);
    check_few_shot(settings, origins, faults);
    check_prompt_texts(settings, origins, faults);
    if (settings.draft->needs_recording && settings.replay_run.empty()) {
        add("draft", "replay-run", "the run folder to replay", "nothing", "");
    }
    const bool replays = settings.draft->needs_recording || !settings.draft->drafts();
    if (!replays && (!settings.replay_run.empty() || settings.replay_accept != Settings().replay_accept)) {
        const std::string key = settings.replay_run.empty() ? "replay-accept" : "replay-run";
        add(key, key, "draft = replay", "draft = " + settings.draft->name, "");
    }
}

}  // namespace

void throw_fault(const std::string& /*key*/, const std::string& line) {
    throw UsageError(line);
}

Settings parse_settings(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                        const std::filesystem::path& job_file, const std::vector<std::string>& required,
                        const FaultSink& fault) {
    Faults faults(fault);
    std::set<std::string> overridden;
    for (const Assignment& assignment : command_line) overridden.insert(assignment.key);
    const std::filesystem::path here = std::filesystem::current_path();
    Settings settings;
    read_place(settings, file, overridden, job_file.empty() ? here : (here / job_file).parent_path(), faults);
    read_place(settings, command_line, {}, here, faults);
    const KeyOrigins& origins = settings.origins = KeyOrigins(file, command_line, job_file);
    for (const std::string& key : required) {
        const bool missing = !origins.has(key) && !faults.has(key);  // a misspelt key is one fault, not two
        if (missing) faults.add(key, origins.whole(), key, "a value", "nothing", "this key has no default");
    }
    resolve(settings, faults);
    check_together(settings, origins, faults);
    return settings;
}

std::vector<Assignment> resolve_assignments(const std::vector<Assignment>& assignments,
                                            const std::filesystem::path& folder) {
    const FaultSink sink = throw_fault;
    Faults faults(sink);
    std::vector<Assignment> resolved;
    for_each_key(assignments, faults, [&](const Key& key, const Assignment& assignment) {
        Settings alone;
        assign(alone, key, assignment, folder, faults);
        const std::vector<std::string> values = key.get(alone);
        resolved.push_back({assignment.key, values.empty() ? assignment.value : values.back(), assignment.origin});
    });
    return resolved;
}

std::string format_settings(const Settings& settings) {
    std::string text, section;
    for (const Key& key : key_table()) {
        if (key.info.section != section) {
            section = key.info.section;
            text.append(text.empty() ? "# " : "\n# ").append(section).append("\n");
        }
        const std::vector<std::string> values = key.get(settings);
        if (values.empty()) text.append("# ").append(key.info.key).append(" =\n");
        for (const std::string& value : values) text.append(key.info.key).append(" = ").append(value).append("\n");
    }
    return text;
}

engine::TreeSpec own_tree(const Settings& settings) {
    return engine::own_tree(*settings.draft, settings.is_coupled());
}

std::string lossy_rule_warning(const Settings& settings) {
    if (settings.verify.is_lossless() || !settings.draft->drafts()) return "";
    return "verify = " + settings.verify.name() +
           ": the text does not follow the model's distribution, likely drafts are accepted too often; this rule is "
           "there for comparison";
}

engine::ChatOptions chat_options(const Settings& settings) {
    engine::ChatOptions options;
    for (const std::string& text : settings.template_variable)
        options.variables.push_back(engine::parse_template_variable(text));
    // As with other keys, the last one counts; the template sees the first.
    std::reverse(options.variables.begin(), options.variables.end());
    options.today = engine::parse_template_date(settings.template_date).value_or(engine::jinja::Date());
    return options;
}

bool only_scores(const Settings& settings) {
    return settings.mode != Mode::generate;
}

bool has_given_texts(const Settings& settings) {
    return settings.teacher_forced || only_scores(settings);
}

bool wants_continuation(const Settings& settings) {
    return settings.teacher_forced || settings.mode == Mode::perplexity;
}

std::vector<std::filesystem::path> DraftFolders::all() const {
    std::vector<std::filesystem::path> folders = models;
    if (!layer.empty()) folders.push_back(layer);
    if (!heads.empty()) folders.push_back(heads);
    return folders;
}

DraftFolders draft_folders(const Settings& settings) {
    DraftFolders folders;
    if (settings.mode != Mode::generate) return folders;
    folders.target_copy = settings.draft->copies_target;
    if (settings.draft->has_ngrams) folders.corpus = settings.draft_corpus;
    if (settings.draft->part == engine::DraftPart::language_model) folders.models = settings.draft_model;
    if (settings.draft->part == engine::DraftPart::layer)
        folders.layer = settings.draft->own_layer ? settings.model : settings.draft_model.front();
    if (settings.draft->part == engine::DraftPart::heads)
        folders.heads = settings.draft_model.empty() ? settings.model : settings.draft_model.front();
    return folders;
}

KeyKind kind_of(const std::string& key, const Settings& settings) {
    const Key* entry = find_key(key);
    if (entry == nullptr) return KeyKind::identity;  // an unknown key is not free to change
    // Truncation keeps as many prompt tokens as fit beside the new ones, so another max-tokens gives another prompt.
    if (key == "max-tokens" && settings.overlong == "truncate-left") return KeyKind::identity;
    switch (entry->kind) {
        case Key::Kind::identity:
            return KeyKind::identity;
        case Key::Kind::extension:
            return KeyKind::extension;
        case Key::Kind::execution:
            return KeyKind::execution;
        case Key::Kind::draft:
            // Draft models are compared by fingerprint, not by path.
            if (key == "draft-model") return KeyKind::execution;
            // Under coupled verification the drafter has no influence on the text.
            return settings.is_coupled() ? KeyKind::execution : KeyKind::identity;
    }
    return KeyKind::identity;
}

bool is_execution_key(const std::string& key, const Settings& settings) {
    return kind_of(key, settings) == KeyKind::execution;
}

std::vector<Assignment> identity_of(const Settings& settings, bool extensions) {
    const Settings defaults;
    std::vector<Assignment> identity;
    for (const Key& key : key_table()) {
        const KeyKind kind = kind_of(key.info.key, settings);
        // Whether there is one; which one it is, its fingerprint tells.
        if (key.info.key == "adapter" && !settings.adapter.empty())
            identity.push_back({"adapter", "an adapter", "job"});
        if (kind == KeyKind::execution || (kind == KeyKind::extension && !extensions)) continue;
        if (key.later && key.get(settings) == key.get(defaults)) continue;
        if (key.of_copies && !settings.draft->copies_target) continue;
        if (key.info.key == "device") {
            identity.push_back({"device", device_kind(settings), "job"});
            continue;
        }
        for (const std::string& value : key.get(settings)) identity.push_back({key.info.key, value, "job"});
    }
    return identity;
}

}  // namespace longhaul::runner
