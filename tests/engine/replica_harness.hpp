// A replica over the tiny model of tests/data/parity, run by one call. Shared by the tests of whole replicas.
#pragma once

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "engine/checkpoint/folder_check.hpp"
#include "engine/checkpoint/store.hpp"
#include "engine/draft/draft_layer.hpp"
#include "engine/draft/heads.hpp"
#include "engine/model/model.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/parallel/group.hpp"
#include "engine/replica/replica.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/numerics.hpp"
#include "tests/engine/thread_group.hpp"

namespace longhaul::engine::testing {

/// Token i is the text "<i>"; token 3 is special.
class NumberTokenizer final : public Tokenizer {
  public:
    NumberTokenizer() {
        for (int i = 0; i < 4096; ++i) names_.push_back("<" + std::to_string(i) + ">");
    }
    [[nodiscard]] std::vector<std::int32_t> encode(std::string_view) const override { return {}; }
    [[nodiscard]] const std::string& token_bytes(std::int32_t id) const override {
        return names_.at(static_cast<std::size_t>(id));
    }
    [[nodiscard]] bool is_special(std::int32_t id) const override { return id == 3; }
    [[nodiscard]] std::string decode(std::span<const std::int32_t> ids, bool skip_special) const override {
        std::string text;
        for (const std::int32_t id : ids) text += skip_special && is_special(id) ? "" : token_bytes(id);
        return text;
    }
    void decode_next(DecodeState&, std::int32_t id, std::string& text) const override {
        text += decode(std::span(&id, 1), true);
    }
    void decode_rest(DecodeState&, std::string&) const override {}
    [[nodiscard]] std::int32_t vocab_size() const override { return 4096; }
    [[nodiscard]] std::optional<std::int32_t> bos_id() const override { return {}; }
    [[nodiscard]] bool adds_bos() const override { return false; }
    [[nodiscard]] std::uint64_t fingerprint() const override { return 1; }

  private:
    std::vector<std::string> names_;
};

inline const std::filesystem::path tiny_model = LONGHAUL_TEST_DATA "/parity/llama-default-bf16";

inline GenerationOptions base_generation() {
    GenerationOptions options;
    options.max_tokens = 60;
    options.sampling.temperature = 0.8;
    options.sampling.min_p = 0.02;
    options.sampling.repetition_penalty = 1.05;
    options.sampling.penalty_window = 64;
    return options;
}

struct Job {
    ReplicaOptions options;
    GenerationOptions generation = base_generation();
    std::map<std::int64_t, GenerationOptions> own{};  // of items that differ from `generation`
    std::map<std::int64_t, std::vector<std::int32_t>> continuations{};
    std::map<std::int64_t, EarlierOutput> earlier{};
    Precision precision = Precision::bf16;
    std::filesystem::path model = tiny_model;
    std::vector<std::filesystem::path> draft_models{};
    std::filesystem::path heads{};  // for methods that draft with heads
    std::filesystem::path layer{};  // for methods that draft with a layer
    DraftLayer::Parallel layer_parallel = DraftLayer::Parallel::sharded;
    std::optional<Precision> copy{};                              // of the target, for methods that draft with one
    bool draft_sharded = false;                                   // split over the ranks; else each holds a copy
    std::map<std::int64_t, std::vector<std::int32_t>> prompts{};  // default: prompt_of
    int ranks = 1;
    int items = 5;
    std::int64_t stop_after = -1;       // emitted tokens of this launch
    std::function<bool()> stop_when{};  // asked before each step of this launch
    bool results_durable = false;       // the runner reports the result of each finished item as durable
    std::chrono::milliseconds step{0};  // minimum duration of a step, which leaves the writer time for several rounds
    kernels::CpuVariant variant = kernels::available_cpu_variants().back();
    std::function<std::unique_ptr<kernels::Device>()> make_device{};  // one per rank; default: `variant`
    std::function<void(int rank, ReplicaOptions& options)> adapt{};   // changes the options of one rank
};

struct JobResult {
    std::map<std::int64_t, FinishedItem> items;
    ReplicaOutcome outcome;
    ItemStatistics sum;
    std::vector<std::string> damage;  // of checkpoints, as reported
};

inline std::vector<std::int32_t> prompt_of(std::int64_t item) {
    std::vector<std::int32_t> prompt;
    for (std::int64_t i = 0; i < 20 + 37 * item; ++i)
        prompt.push_back(static_cast<std::int32_t>((i * i + 3 * item + i / 5) % 90));
    return prompt;
}

inline ReplicaOptions base_options() {
    ReplicaOptions options;
    options.draft.method = "ngram";
    options.draft.tree = "3x4:8";
    options.kv_memory_bytes = std::int64_t{256} << 20;
    options.prefill_chunk = 32;
    return options;
}

inline WorkItem work_item(const Job& job, std::int64_t index) {
    WorkItem item;
    item.number = index;
    item.id = "item-" + std::to_string(index);
    item.checkpoint_key = "key-" + std::to_string(index);
    const auto prompt = job.prompts.find(index);
    item.prompt = prompt == job.prompts.end() ? prompt_of(index) : prompt->second;
    if (const auto given = job.continuations.find(index); given != job.continuations.end())
        item.continuation = given->second;
    if (const auto earlier = job.earlier.find(index); earlier != job.earlier.end()) item.earlier = earlier->second;
    const auto own = job.own.find(index);
    item.options = std::make_shared<const GenerationOptions>(own == job.own.end() ? job.generation : own->second);
    return item;
}

/// One launch. `done`: items finished by earlier launches.
inline JobResult launch(const Job& job, const std::map<std::int64_t, FinishedItem>& done = {}) {
    const NumberTokenizer tokenizer;
    auto groups = make_thread_groups(job.ranks);
    JobResult result;
    std::vector<std::string> errors(static_cast<std::size_t>(job.ranks));
    std::vector<std::thread> threads;
    std::int64_t next = 0;
    std::atomic<std::int64_t> emitted{0};
    for (int rank = 0; rank < job.ranks; ++rank) {
        threads.emplace_back([&, rank] {
            try {
                Group& group = *groups[static_cast<std::size_t>(rank)];
                const auto device = job.make_device ? job.make_device() : kernels::make_cpu_device(job.variant, 1);
                const auto model = Model::load(job.model, job.precision, *device, group);
                ReplicaOptions options = job.options;
                if (job.adapt) job.adapt(rank, options);
                const auto alone = make_local_group();
                std::vector<std::unique_ptr<Model>> drafts;
                for (const auto& folder : job.draft_models) {
                    drafts.push_back(Model::load(folder, job.precision, *device, job.draft_sharded ? group : *alone));
                    options.draft.models.push_back(drafts.back().get());
                }
                if (job.copy)
                    drafts.push_back(Model::load(job.model, *job.copy, *device, group, model->kv_layout().dtype));
                if (job.options.draft.method->copies_target)
                    options.draft.models.push_back(job.copy ? drafts.back().get() : model.get());
                std::unique_ptr<DraftHeads> heads;
                if (!job.heads.empty()) heads = std::make_unique<DraftHeads>(job.heads, *model);
                options.draft.heads = heads.get();
                std::unique_ptr<DraftLayer> layer;
                if (!job.layer.empty() && job.options.draft.method->part == DraftPart::layer)
                    layer =
                        std::make_unique<DraftLayer>(job.layer, *model, *job.options.draft.method, job.layer_parallel);
                options.draft.layer = layer.get();
                std::unique_ptr<CheckpointStore> store;
                if (!options.checkpoint.folder.empty()) {
                    options.checkpoint.identity = {"job",
                                                   "model",
                                                   "tokenizer",
                                                   kernels::numerics_version,
                                                   job.precision == Precision::fp32 ? "f32" : "bf16",
                                                   model->config().num_layers,
                                                   model->config().num_kv_heads,
                                                   model->config().head_dim};
                    const Split whole(model->config(), 0, 1);
                    for (const auto& layout : kv_layouts_of(model->config(), whole, kernels::DType::bf16))
                        options.checkpoint.identity.add_layers(layout);
                    store = std::make_unique<CheckpointStore>(options.checkpoint.folder, options.checkpoint.identity,
                                                              options.checkpoint.epoch - 1);
                }
                ReplicaHooks hooks;
                hooks.store = store.get();
                hooks.next_work = [&]() -> std::optional<WorkItem> {
                    while (next < job.items && done.contains(next)) ++next;
                    if (next >= job.items) return {};
                    return work_item(job, next++);
                };
                Replica* running = nullptr;
                hooks.finished = [&](FinishedItem item) {
                    if (job.results_durable) running->results_durable(std::span(&item.number, 1));
                    result.items[item.number] = std::move(item);
                };
                hooks.stop_requested = [&] {
                    return (job.stop_after >= 0 && emitted >= job.stop_after) || (job.stop_when && job.stop_when());
                };
                hooks.damaged = [&](const std::string& line) { result.damage.push_back(line); };
                hooks.poke = [&] { std::this_thread::sleep_for(job.step); };
                hooks.progress = [&](const ReplicaProgress& progress) { emitted = progress.emitted_tokens; };
                Replica replica(*model, group, tokenizer, options, hooks);
                running = &replica;
                const ReplicaOutcome outcome = replica.run();
                if (group.is_first()) result.outcome = outcome;
            } catch (const std::exception& error) {
                errors[static_cast<std::size_t>(rank)] = error.what();
            }
        });
    }
    for (auto& thread : threads) thread.join();
    for (const std::string& error : errors) {
        if (!error.empty()) throw std::runtime_error(error);
    }
    for (const auto& [index, item] : result.items) {
        result.sum.drafted += item.statistics.drafted;
        result.sum.accepted += item.statistics.accepted;
        result.sum.accepted_ngram += item.statistics.accepted_ngram;
        result.sum.accepted_ngram_path += item.statistics.accepted_ngram_path;
        result.sum.accepted_resampled += item.statistics.accepted_resampled;
        result.sum.draft_model_calls += item.statistics.draft_model_calls;
        result.sum.accepted_draft_model += item.statistics.accepted_draft_model;
        result.sum.branched_trees += item.statistics.branched_trees;
        result.sum.resumes += item.statistics.resumes;
        result.sum.recomputed_rows += item.statistics.recomputed_rows;
        result.sum.target_calls += item.statistics.target_calls;
        result.sum.draft_calls += item.statistics.draft_calls;
        result.sum.decode_tokens += item.statistics.decode_tokens;
    }
    return result;
}

/// Runs launches that alternate over `jobs`, each stopped after `tokens` tokens and resumed by the next one, until all
/// items are done. Returns the finished items, the sums of recomputed rows and resumes, and the first checkpoint error.
inline JobResult launch_in_parts(const std::vector<Job>& jobs, const std::filesystem::path& folder,
                                 std::int64_t tokens) {
    JobResult all;
    for (int epoch = 1; epoch < 40 && all.items.size() < static_cast<std::size_t>(jobs[0].items); ++epoch) {
        Job part = jobs[static_cast<std::size_t>(epoch - 1) % jobs.size()];
        part.options.checkpoint.folder = folder;
        part.options.checkpoint.epoch = epoch;
        part.options.checkpoint.every_tokens = 16;
        part.stop_after = tokens;
        const JobResult result = launch(part, all.items);
        if (all.outcome.checkpoint_error.empty()) all.outcome.checkpoint_error = result.outcome.checkpoint_error;
        all.sum.recomputed_rows += result.sum.recomputed_rows;
        all.sum.resumes += result.sum.resumes;
        all.items.insert(result.items.begin(), result.items.end());
        all.damage.insert(all.damage.end(), result.damage.begin(), result.damage.end());
        if (epoch > 2 && all.items.size() < static_cast<std::size_t>(jobs[0].items))
            continue;  // the check takes longest
        std::set<std::string> done;
        for (const auto& [index, item] : all.items) done.insert("key-" + std::to_string(index));
        for (const std::string& line : check_checkpoints(folder, epoch, done).damage) all.damage.push_back(line);
    }
    return all;
}

inline std::map<std::int64_t, std::vector<std::int32_t>> tokens_of(const std::map<std::int64_t, FinishedItem>& items) {
    std::map<std::int64_t, std::vector<std::int32_t>> tokens;
    for (const auto& [index, item] : items) tokens[index] = item.tokens;
    return tokens;
}

/// The texts of `job` without drafts.
inline std::map<std::int64_t, std::vector<std::int32_t>> plain_texts(Job job = {base_options()}) {
    job.options.draft.method = "ar";
    job.draft_models.clear();
    job.copy.reset();
    return tokens_of(launch(job).items);
}

/// Drafts decide the text of `job`: expects one text whatever the batch, the split over 2 ranks and interruptions, with
/// keys and values in checkpoints and without. Returns it.
inline std::map<std::int64_t, std::vector<std::int32_t>> expect_one_text(Job job) {
    job.options.batch = 1;
    const auto alone = tokens_of(launch(job).items);
    job.options.batch = 3;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "another batch";
    job.ranks = 2;
    EXPECT_EQ(tokens_of(launch(job).items), alone) << "2 ranks";
    job.ranks = 1;
    const auto folder = std::filesystem::temp_directory_path() / ("one_text_test." + std::to_string(::getpid()));
    for (const bool store_kv : {true, false}) {
        std::filesystem::remove_all(folder);
        job.options.checkpoint.store_kv = store_kv;
        const JobResult result = launch_in_parts({job}, folder, 97);
        EXPECT_EQ(tokens_of(result.items), alone) << "resumed";
        EXPECT_GT(result.sum.resumes, 1);
    }
    std::filesystem::remove_all(folder);
    return alone;
}

}  // namespace longhaul::engine::testing
