#include "runner/launch/job_check.hpp"

#include <algorithm>
#include <set>
#include <utility>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/heads.hpp"
#include "engine/hash.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/adapter.hpp"
#include "engine/model/model_fingerprint.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/tensor_faults.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "kernels/numerics.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/resources.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/vocabulary.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/launch/memory_plan.hpp"
#include "runner/launch/model_folder.hpp"
#include "runner/run/draft_corpus.hpp"
#include "runner/run/earlier_results.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

class JobChecker {
  public:
    explicit JobChecker(std::int64_t max_failures) : max_failures_(max_failures) {}

    JobReport check(const fs::path& job_file, const std::vector<Assignment>& command_line) {
        read_job(job_file, command_line);
        if (is_good("model")) check_model();
        if (report_.model && is_good("draft") && is_good("draft-model")) check_draft_models();
        if (report_.model) check_settings_of_model();
        if (is_good("data")) check_data();
        if (is_good("output") && is_good("shard")) check_output();
        estimate();
        return std::move(report_);
    }

  private:
    void add(const char* part, const std::string& line, ExitCode code) { report_.faults.push_back({part, line, code}); }

    /// Runs `action`; an Error becomes a fault and the result is false.
    template <typename Action>
    bool attempt(const char* part, Action&& action) {
        try {
            action();
            return true;
        } catch (const Error& error) {
            add(part, error.what(), error.exit_code());
            return false;
        }
    }

    [[nodiscard]] bool is_good(const std::string& key) const { return !faulty_keys_.contains(key); }

    /// Whether the keys that decide the prompt tokens and their continuations are free of faults, so that the items'
    /// sizes are known.
    [[nodiscard]] bool items_are_known() const {
        for (const KeyInfo& key : vocabulary()) {
            const bool shapes = key.section == "Job" || key.section == "Text";
            if (shapes && key.key != "output" && key.key != "seed" && !is_good(key.key)) return false;
        }
        return true;
    }

    void read_job(const fs::path& job_file, const std::vector<Assignment>& command_line) {
        const FaultSink sink = [this](const std::string& key, const std::string& line) {
            faulty_keys_.insert(key);
            add("job", line, ExitCode::usage);
        };
        const std::vector<Assignment> file = read_job_file(job_file, sink);
        for (const auto* place : {&file, &command_line}) {
            for (const Assignment& given : *place) {
                if (given.key == "device" || given.key == "kernels") device_is_auto_ &= given.value == "auto";
            }
        }
        report_.settings = parse_settings(file, command_line, job_file, {"task", "data", "model", "output"}, sink);
    }

    void check_model() {
        const fs::path& folder = report_.settings.model;
        ModelFacts facts;
        const bool good = attempt("model", [&] {
            check_model_folder(report_.settings, "model", folder);
            facts.config = engine::ModelConfig::load(folder);
        });
        if (!good) return;
        attempt("model", [&] {
            const auto tensors = engine::SafetensorsFolder::open(folder);
            for (const std::string& line : engine::tensor_faults(facts.config, tensors))
                add("model", line, ExitCode::error);
            facts.num_tensors = tensors.tensors().size();
            for (const auto& [name, view] : tensors.tensors()) facts.tensor_bytes += view.num_bytes;
            fingerprints_["model"] = engine::hex(engine::model_fingerprint(facts.config, tensors.fingerprint()));
        });
        attempt("model", [&] {
            tokenizer_ = load_tokenizer(folder, facts.config);
            facts.tokenizer_size = tokenizer_->vocab_size();
            fingerprints_["tokenizer"] = engine::hex(tokenizer_->fingerprint());
        });
        if (!report_.settings.adapter.empty() && is_good("adapter")) check_adapter(facts);
        fingerprints_["numerics"] = std::to_string(kernels::numerics_version);
        report_.model = std::move(facts);
    }

    void check_adapter(ModelFacts& facts) {
        const fs::path& folder = report_.settings.adapter;
        attempt("adapter", [&] {
            check_model_folder(report_.settings, "adapter", folder);
            auto adapter = engine::Adapter::open(folder);
            adapter.fit(facts.config);
            facts.adapter = folder.string() + ", " + adapter.summary();
            fingerprints_["adapter"] = engine::hex(adapter.fingerprint());
        });
    }

    void check_draft_models() {
        std::string fingerprint;
        const DraftFolders parts = draft_folders(report_.settings);
        for (const fs::path& folder : parts.models) {
            const bool good = attempt("draft", [&] {
                check_model_folder(report_.settings, "draft-model", folder);
                const engine::ModelConfig config = engine::ModelConfig::load(folder);
                if (tokenizer_) check_draft_vocabulary(folder, config, report_.model->config, *tokenizer_);
                const bool sharded = is_draft_sharded(report_.settings, folder, config);
                // Throws if the model cannot be split.
                engine::Split(config, 0, sharded ? static_cast<int>(report_.settings.tensor_parallel) : 1);
                const auto tensors = engine::SafetensorsFolder::open(folder);
                for (const std::string& line : engine::tensor_faults(config, tensors))
                    add("draft", line, ExitCode::error);
                const std::string of_one = engine::hex(engine::model_fingerprint(config, tensors.fingerprint()));
                fingerprint += (fingerprint.empty() ? "" : "+") + of_one;
            });
            drafts_are_bad_ = drafts_are_bad_ || !good;
        }
        if (const fs::path& folder = parts.layer; !folder.empty()) {
            drafts_are_bad_ = !attempt("draft", [&] {
                check_model_folder(report_.settings, "draft-model", folder);
                const engine::ModelConfig& target = report_.model->config;
                const engine::DraftMethod& method = *report_.settings.draft;
                layer_parallel(report_.settings, folder, target);  // throws if it cannot be split and has to be
                for (const std::string& line : engine::draft_layer_faults(folder, target, method))
                    add("draft", line, ExitCode::error);
                fingerprint = engine::hex(engine::draft_layer_fingerprint(folder, target, method));
            });
        }
        if (const fs::path& folder = parts.heads; !folder.empty()) {
            drafts_are_bad_ = !attempt("draft", [&] {
                check_model_folder(report_.settings, "draft-model", folder);
                const engine::ModelConfig& target = report_.model->config;
                for (const std::string& line : engine::head_faults(folder, target)) add("draft", line, ExitCode::error);
                engine::tree_of_heads(draft_of(report_.settings), engine::HeadsConfig::load(folder, target));
                fingerprint = engine::hex(engine::heads_fingerprint(folder, target));
            });
        }
        if (parts.target_copy && draft_copy_precision(report_.settings))
            fingerprint += (fingerprint.empty() ? "" : "+") + fingerprints_["model"];
        if (!parts.corpus.empty() && tokenizer_)
            attempt("draft-corpus", [&] { read_draft_corpus(parts.corpus, *tokenizer_); });
        if (!report_.settings.is_coupled() && !fingerprint.empty()) fingerprints_["draft-model"] = fingerprint;
    }

    /// Checks keys that depend on the model.
    void check_settings_of_model() {
        const Settings& settings = report_.settings;
        const engine::ModelConfig& config = report_.model->config;
        if (const std::string warning = lossy_rule_warning(settings); !warning.empty())
            report_.warnings.push_back(warning);
        if (tokenizer_) attempt("job", [&] { puts_bos(settings, *tokenizer_); });
        attempt("job", [&] { split_.emplace(config, 0, static_cast<int>(settings.tensor_parallel)); });
        if (split_) attempt("job", [&] { layouts_ = engine::kv_layouts_of(config, *split_, kv_dtype_of(settings)); });
        if (is_good("draft") && is_good("replay-run")) attempt("job", [&] { replica_options(settings, config); });
        attempt("job", [&] { packed_folder(settings); });
        try {
            device_ = make_device(settings, 1);
        } catch (const UsageError& error) {
            if (settings.device == "cuda" && !gpus_here().built) {
                add("job", error.what(), ExitCode::usage);
            } else {
                report_.warnings.emplace_back(error.what());  // the node that runs the job may have the device
            }
            Settings any = settings;
            any.kernels = "auto";
            any.device = "cpu";
            device_is_here_ = settings.device == "cpu";
            device_ = make_device(any, 1);
        }
    }

    void check_data() {
        if (!items_are_known()) return;
        std::unique_ptr<DataSet> data;
        if (!attempt("data", [&] { data = DataSet::open(report_.settings); })) return;
        // The fingerprint reads all the data: compute it only if there is one to compare with.
        if (fs::exists(run_folder_of(report_.settings).root / "identity.json"))
            attempt("data", [&] { fingerprints_["data"] = data->fingerprint(); });
        if (!tokenizer_) return;
        for (std::string& notice : data->notices(*tokenizer_)) report_.warnings.push_back("data: " + notice);
        ItemSurvey survey = survey_items(*data, *tokenizer_, report_.settings,
                                         max_item_positions(report_.settings, report_.model->config),
                                         usable_processors(), max_failures_);
        if (survey.longest_index >= 0) report_.longest_id = data->id(survey.longest_index);
        report_.items = std::move(survey);
        show_first_prompt(*data);
    }

    /// The first item that can run.
    void show_first_prompt(const DataSet& data) {
        const std::int64_t positions = max_item_positions(report_.settings, report_.model->config);
        for (std::int64_t index = 0; index < data.size(); ++index) {
            Prompt prompt = data.prompt(index, *tokenizer_, positions);
            if (!prompt.error.empty()) continue;
            cut_at_choices(prompt);
            std::string text = tokenizer_->decode(prompt.tokens, false);
            report_.first_prompt = FirstPrompt{data.id(index), std::move(prompt.tokens), std::move(text), {}};
            for (const PromptChoice& choice : prompt.choices) {
                const std::vector<std::int64_t>& right = prompt.right_choices;
                const auto number = std::ssize(report_.first_prompt->choices);
                const bool is_right = std::find(right.begin(), right.end(), number) != right.end();
                std::vector<std::int32_t> shown = choice.prompt;
                shown.insert(shown.end(), choice.tokens.begin(), choice.tokens.end());
                report_.first_prompt->choices.push_back(
                    {tokenizer_->decode(shown, false), std::ssize(choice.tokens), is_right});
            }
            return;
        }
    }

    /// Of choices that stand within prompts of their own, leaves to `prompt` what these begin alike with, and to each
    /// choice the rest.
    static void cut_at_choices(Prompt& prompt) {
        if (prompt.choices.empty() || prompt.choices.front().prompt.empty()) return;
        for (const PromptChoice& choice : prompt.choices) {
            const auto differing =
                std::mismatch(prompt.tokens.begin(), prompt.tokens.end(), choice.prompt.begin(), choice.prompt.end());
            prompt.tokens.erase(differing.first, prompt.tokens.end());
        }
        const auto common = std::ssize(prompt.tokens);
        for (PromptChoice& choice : prompt.choices)
            choice.prompt.erase(choice.prompt.begin(), choice.prompt.begin() + common);
    }

    void check_output() {
        const Settings& settings = report_.settings;
        const RunFolder folder = run_folder_of(settings);
        const bool usable = attempt("output", [&] {
            if (settings.shard.is_part()) check_shard_folder(settings);
            folder.must_be_usable();
        });
        if (!usable) return;
        // If keys have faults, the job is not known well enough to be compared.
        Settings there = settings;
        there.allow_device_change |= device_is_auto_ || !device_is_here_;  // decided on the node that runs the job
        bool afresh = false;
        const bool same = !faulty_keys_.empty() || attempt("output", [&] {
            const auto data = fingerprints_.find("data");  // as a launch, which has no model yet when it decides
            const bool known = data != fingerprints_.end();
            afresh = check_own_folder(folder, there, known ? Fingerprints{*data} : Fingerprints()).has_value();
            if (!afresh) check_identity(folder, there, fingerprints_);
            if (settings.shard.is_part()) check_other_shards(there, fingerprints_);
        });
        if (!same || afresh || !fs::exists(folder.root / "identity.json")) return;
        report_.is_begun = true;
        if (report_.model && is_good("max-tokens"))
            attempt("output", [&] { check_texts_fit(settings, report_.model->config.max_positions); });
        attempt("output", [&] { report_.items_before = ResultIndex::read(folder.root).entries().size(); });
        const std::optional<LeaseView> newest = newest_lease(folder.root);
        if (newest && newest->state == LeaseState::live) {
            report_.warnings.push_back(folder.root.string() + ": a launch is running in it, " +
                                       describe_holder(newest->record));
        }
    }

    void estimate() {
        if (!report_.items || layouts_.empty() || !device_) return;
        if (drafts_are_bad_) return;
        for (const char* key : {"precision", "kv-precision", "batch", "tensor-parallel", "memory", "checkpoint-kv",
                                "draft", "draft-model", "draft-precision", "draft-tree"}) {
            if (!is_good(key)) return;
        }
        if (!attempt("draft", [&] { drop_large_copy(); })) return;
        if (!attempt("draft", [&] { parts_ = parts_of(report_.settings); })) return;
        estimate_memory();
        estimate_lengths();
        if (is_good("output")) estimate_disk();
    }

    /// As a launch does (DraftModels::load): without the target's copy where it does not fit beside the other weights.
    void drop_large_copy() {
        Settings& settings = report_.settings;
        if (!settings.draft->chooses_method() || !device_is_here_ || scores()) return;
        Settings without = settings;
        without.draft = method_without_copy(*settings.draft);
        const std::int64_t others = weight_bytes(without, parts_of(without), *device_);
        const std::int64_t available = available_bytes(*device_, 1);
        if (copy_fits(settings, *device_, available > 0 ? std::max<std::int64_t>(available - others, 1) : 0)) return;
        report_.warnings.push_back(copy_warning(settings));
        settings = without;
    }

    [[nodiscard]] bool scores() const { return only_scores(report_.settings); }

    [[nodiscard]] std::vector<std::int64_t> longest_items() const {
        return report_.items->positions.largest(report_.settings.batch);
    }

    /// Maximum positions of an item whose KV is held at the same time: scoring holds one window.
    [[nodiscard]] std::int64_t held(std::int64_t positions) const {
        const std::int64_t window = report_.settings.window;
        return scores() ? std::min(positions, window > 0 ? window : report_.model->config.max_positions) : positions;
    }

    /// KV bytes of an item on one rank, including the draft models'.
    [[nodiscard]] std::int64_t kv_bytes(std::int64_t positions) const {
        return item_kv_bytes(parts_, *device_, held(positions), positions);
    }

    void estimate_memory() {
        const Settings& settings = report_.settings;
        MemoryNeed need;
        need.weights = weight_bytes(settings, parts_, *device_);
        for (const std::int64_t positions : longest_items()) need.batch_kv += kv_bytes(positions);
        need.longest_kv = kv_bytes(report_.items->positions.largest());
        need.available = device_is_here_ ? available_bytes(*device_, 1) : 0;
        need.host = place_of_memory(*device_);
        need.host_memory = host_bytes(settings, *device_);
        need.max_kv = kv_memory_bytes(settings, *device_, 1, need.weights) + need.host_memory;
        if (!attempt("memory", [&] { check_memory(settings, *device_, 1, 1); })) return;
        if (!attempt("host-memory", [&] { check_host_memory(settings, *device_, 1); })) return;
        warn_of_memory(need);
        report_.memory = std::move(need);
    }

    void estimate_lengths() {
        const Counts& positions = report_.items->positions;
        if (positions.empty()) return;
        report_.lengths = length_costs(parts_, *device_, held(positions.largest()));
        if (!scores())
            report_.read_bytes = total_read_bytes(parts_, *device_,
                                                  {.new_tokens = report_.items->new_tokens,
                                                   .mean_positions = positions.sum() / positions.size(),
                                                   .batch_size = std::ssize(longest_items())});
        const bool on_cpu = device_is_here_ && !device_->own_memory();
        if (on_cpu) report_.threads = report_.settings.threads > 0 ? report_.settings.threads : usable_processors();
    }

    /// ", or take …": settings with which weights take less memory; "" if there is none.
    [[nodiscard]] std::string lighter_weights() const {
        const Settings& settings = report_.settings;
        const engine::Precision precision = precision_of(settings);
        std::string offer;
        if (draft_copy_precision(settings) && settings.draft->copies_target) offer = "draft-precision = same";
        if (precision == engine::Precision::int4) return offer.empty() ? "" : ", or take " + offer;
        if (!offer.empty()) offer += " or ";
        return ", or take " + offer + "precision = " + (precision == engine::Precision::int8 ? "int4" : "int8");
    }

    void warn_of_memory(const MemoryNeed& need) {
        const auto warn = [&](const std::string& expected, const std::string& got, const std::string& fix) {
            report_.warnings.push_back(InputError::format("memory", "", expected, got, fix));
        };
        if (need.available > 0 && need.weights > need.available) {
            warn("memory for weights of " + size_text(need.weights) + " per rank",
                 size_text(need.available) + " on " + need.host, "raise tensor-parallel" + lighter_weights());
            return;
        }
        if (need.available == 0 && report_.settings.memory == 0) return;
        const std::string room = size_text(need.max_kv) +
                                 (report_.settings.memory > 0 ? " (memory)" : " for a single rank on " + need.host) +
                                 (need.host_memory > 0 ? ", host-memory among them" : "");
        const std::string keys = device_->can_use_host_memory() ? "memory, host-memory" : "memory";
        if (need.longest_kv > need.max_kv) {
            warn("memory for keys and values of the longest item, " + size_text(need.longest_kv) + " per rank", room,
                 "items of this length fail; raise " + keys + " or tensor-parallel, or take kv-precision = int8");
        } else if (need.batch_kv > need.max_kv) {
            warn("memory for keys and values of the longest items, " + size_text(need.batch_kv) + " per rank", room,
                 "fewer than batch will be in flight at a time");
        }
    }

    void estimate_disk() {
        const Settings& settings = report_.settings;
        constexpr std::int64_t text_bytes = 5, id_bytes = 7, statistics_bytes = 500, line_bytes = 150, entry_bytes = 21,
                               word_bytes = sizeof(std::int32_t);
        DiskNeed need;
        const engine::Split whole(report_.model->config, 0, 1);
        const auto layouts = engine::kv_layouts_of(report_.model->config, whole, layouts_.front().dtype);
        const std::int64_t kv_bytes =
            settings.checkpoint_kv == "store" && !scores() ? engine::position_bytes(layouts) : 0;
        const kernels::KvLayout* const states = engine::state_layout(layouts);
        // Those of this launch, of the one before, and of a round that is being written.
        constexpr std::int64_t rounds = 2 * engine::CheckpointIdentity::States::kept_rounds + 1;
        const std::int64_t state_bytes =
            kv_bytes > 0 && states != nullptr
                ? rounds * states->delta.sequence_floats(states->num_layers) * std::int64_t{sizeof(float)}
                : 0;
        for (const std::int64_t positions :
             settings.mode == Mode::multiple_choice ? std::vector<std::int64_t>() : longest_items())
            need.checkpoints +=
                positions * (kv_bytes + word_bytes * (1 + engine::logprob_words(settings.logprobs))) + state_bytes;
        if (settings.checkpoint_quota > 0) need.checkpoints = std::min(need.checkpoints, settings.checkpoint_quota);
        // Results are stored twice: in the files of each launch, and at the end in results.jsonl.
        const std::int64_t token_bytes = (scores() ? 0 : text_bytes) + (settings.token_ids ? id_bytes : 0) +
                                         (settings.logprobs > 0 ? (settings.logprobs + 1) * entry_bytes : 0);
        const std::int64_t lines = report_.items->inputs * settings.samples * (line_bytes + statistics_bytes);
        constexpr std::int64_t choice_bytes = 30;  // its log-probability, and its share of the text
        const std::int64_t choices = report_.items->choices * choice_bytes;
        need.results = 2 * (report_.items->new_tokens * token_bytes + choices + lines);
        // Once: what an item needs to continue under a greater max-tokens.
        if (settings.is_coupled() && !has_given_texts(settings)) need.results += report_.items->new_tokens * id_bytes;
        std::error_code error;
        const fs::space_info space = fs::space(nearest_existing(settings.output), error);
        if (error) return;
        need.available = space.available;
        if (need.checkpoints + need.results > need.available) {
            report_.warnings.push_back(InputError::format(
                settings.output.string(), "",
                "room for about " + size_text(need.checkpoints + need.results) + " of checkpoints and results",
                size_text(need.available), "checkpoint-kv = recompute or checkpoint-quota take less"));
        }
        report_.disk = need;
    }

    std::int64_t max_failures_;
    JobReport report_;
    std::set<std::string> faulty_keys_;
    Fingerprints fingerprints_;
    std::unique_ptr<engine::Tokenizer> tokenizer_;
    std::unique_ptr<kernels::Device> device_;
    bool device_is_auto_ = true;
    bool device_is_here_ = true;  ///< false: `device_` is a CPU device in place of the job's device
    bool drafts_are_bad_ = false;
    ModelParts parts_;
    std::optional<engine::Split> split_;
    std::vector<kernels::KvLayout> layouts_;
};

}  // namespace

ExitCode JobReport::code() const {
    for (const ExitCode code : {ExitCode::usage, ExitCode::error, ExitCode::storage}) {
        if (std::any_of(faults.begin(), faults.end(), [&](const JobFault& fault) { return fault.code == code; }))
            return code;
    }
    return items && items->failed > 0 ? ExitCode::items_failed : ExitCode::done;
}

JobReport check_job(const fs::path& job_file, const std::vector<Assignment>& command_line, std::int64_t max_failures) {
    return JobChecker(max_failures).check(job_file, command_line);
}

}  // namespace longhaul::runner
