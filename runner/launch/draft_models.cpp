#include "runner/launch/draft_models.hpp"

#include <algorithm>
#include <stdexcept>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/split.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/run/draft_corpus.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

/// Below this size a forward pass on one rank is faster than the two all-reduces per layer of a sharded pass.
constexpr std::int64_t min_sharded_parameters = 100'000'000;

/// Whether the folder has a tokenizer that maps all token ids of `other` to the same bytes.
bool has_tokens_of(const std::filesystem::path& folder, const engine::Tokenizer& other) {
    try {
        const auto tokenizer = engine::Tokenizer::load(folder);
        for (std::int32_t id = 0; id < other.vocab_size(); ++id) {
            if (tokenizer->token_bytes(id) != other.token_bytes(id)) return false;
        }
        return true;
    } catch (const InputError&) {
        return false;
    }
}

/// See is_draft_sharded.
bool is_sharded(const Settings& settings, const std::filesystem::path& folder, const engine::ModelConfig& config,
                std::int64_t num_parameters) {
    if (settings.tensor_parallel == 1 || settings.draft_parallel == "replicated") return false;
    const std::string obstacle = engine::Split::obstacle(config, settings.tensor_parallel);
    if (settings.draft_parallel == "auto") return obstacle.empty() && num_parameters >= min_sharded_parameters;
    if (obstacle.empty()) return true;
    throw UsageError("draft-parallel: expected auto or replicated with tensor-parallel = " +
                     std::to_string(settings.tensor_parallel) + ", got sharded: " + (folder / "config.json").string() +
                     ": " + obstacle);
}

}  // namespace

bool is_draft_sharded(const Settings& settings, const std::filesystem::path& folder,
                      const engine::ModelConfig& config) {
    return is_sharded(settings, folder, config, engine::num_parameters(config));
}

engine::DraftLayer::Parallel layer_parallel(const Settings& settings, const std::filesystem::path& folder,
                                            const engine::ModelConfig& target) {
    const auto config = engine::DraftLayerConfig::load(folder, target, *settings.draft);
    const std::int64_t head = config.has_own_head() ? config.num_head_parameters(target) : 0;
    return is_sharded(settings, folder, config.layer, config.num_stored_parameters() + head)
               ? engine::DraftLayer::Parallel::sharded
               : engine::DraftLayer::Parallel::replicated;
}

void check_draft_vocabulary(const std::filesystem::path& folder, const engine::ModelConfig& draft,
                            const engine::ModelConfig& target, const engine::Tokenizer& tokenizer) {
    if (draft.vocab_size == target.vocab_size) return;
    const bool fits = tokenizer.vocab_size() <= std::min(draft.vocab_size, target.vocab_size);
    if (fits && has_tokens_of(folder, tokenizer)) return;
    throw InputError((folder / "config.json").string(), "vocab_size",
                     "the target's, " + std::to_string(target.vocab_size), std::to_string(draft.vocab_size),
                     "a draft model shares the target's tokenizer");
}

engine::DraftMethodRef method_without_copy(const engine::DraftMethod& method) {
    for (const char* name : method.alternatives) {
        if (const engine::DraftMethodRef one = name; !one->copies_target) return one;
    }
    throw std::logic_error("all alternatives of draft = " + method.name + " copy the target");
}

std::string copy_warning(const Settings& settings) {
    return "draft: expected memory for the model's copy of draft-precision = " + settings.draft_precision +
           " and as much for keys and values, got less; draft = " + method_without_copy(*settings.draft)->name +
           " runs alone";
}

void DraftModels::load(const Settings& settings, engine::Model& target, const engine::Tokenizer& tokenizer,
                       kernels::Device& device, engine::Group& group, bool with_copy) {
    const DraftFolders folders = draft_folders(settings);
    std::string wanted = settings.precision + " " + settings.kv_precision + " " + settings.draft_parallel;
    wanted += " part " + std::to_string(static_cast<int>(settings.draft->part));
    if (!folders.layer.empty()) wanted += " of " + std::string(settings.draft->name);
    for (const auto& folder : folders.all()) wanted += "\n" + folder.string();
    if (folders.target_copy) wanted += " " + (with_copy ? settings.draft_precision : "no copy");
    wanted += "\n" + folders.corpus.string();
    if (wanted == loaded_) return;
    unload();
    load_models(settings, folders.models, target.config(), tokenizer, device, group);
    if (folders.target_copy && with_copy) load_copy(settings, target, device, group);
    if (folders.target_copy && !with_copy) notice_ = copy_warning(settings);
    engine::agree(group, [&] {
        if (!folders.layer.empty())
            layer_ = std::make_unique<engine::DraftLayer>(folders.layer, target, *settings.draft,
                                                          layer_parallel(settings, folders.layer, target.config()));
        if (!folders.heads.empty()) heads_ = std::make_unique<engine::DraftHeads>(folders.heads, target);
        if (!folders.corpus.empty())
            corpus_ = std::make_shared<engine::DraftCorpus>(read_draft_corpus(folders.corpus, tokenizer));
    });
    loaded_ = std::move(wanted);
}

void DraftModels::load_copy(const Settings& settings, engine::Model& target, kernels::Device& device,
                            engine::Group& group) {
    drafting_target_ = &target;
    if (const auto precision = draft_copy_precision(settings)) {
        copy_ = engine::Model::load(settings.model, *precision, device, group, kv_dtype_of(settings),
                                    packed_folder(settings), settings.adapter);
    }
}

void DraftModels::load_models(const Settings& settings, const std::vector<std::filesystem::path>& folders,
                              const engine::ModelConfig& target, const engine::Tokenizer& tokenizer,
                              kernels::Device& device, engine::Group& group) {
    alone_ = engine::make_local_group();
    std::vector<bool> sharded;
    engine::agree(group, [&] {
        for (const auto& folder : folders) {
            const engine::ModelConfig config = engine::ModelConfig::load(folder);
            check_draft_vocabulary(folder, config, target, tokenizer);
            sharded.push_back(is_draft_sharded(settings, folder, config));
        }
    });
    for (std::size_t i = 0; i < folders.size(); ++i) {
        const auto load_over = [&](engine::Group& ranks) {
            models_.push_back(engine::Model::load(folders[i], precision_of(settings), device, ranks,
                                                  kv_dtype_of(settings), packed_folder(settings)));
        };
        // Node-local folders may hold different models under one name; load_drafts compares the fingerprints only
        // later. Until then all ranks must take the same branch.
        if (engine::min_over_ranks(group, sharded[i] ? 1 : 0) == 1) {
            load_over(group);
        } else {
            engine::agree(group, [&] { load_over(*alone_); });
        }
    }
}

void DraftModels::unload() {
    models_.clear();
    copy_.reset();
    alone_.reset();
    loaded_.clear();
    layer_.reset();
    heads_.reset();
    corpus_.reset();
    drafting_target_ = nullptr;
    notice_.clear();
}

void DraftModels::give_to(engine::DraftOptions& options) const {
    options.models.clear();
    for (const auto& model : models_) options.models.push_back(model.get());
    if (drafting_target_ != nullptr) options.models.push_back(copy_ ? copy_.get() : drafting_target_);
    options.layer = layer_.get();
    options.heads = heads_.get();
    options.corpus = corpus_;
    if (options.method->chooses_method() && drafting_target_ == nullptr)
        options.method = method_without_copy(*options.method);
}

DraftCost DraftModels::cost(const engine::ModelConfig& target, const engine::DraftOptions& options) const {
    const auto all = static_cast<double>(engine::num_active_parameters(target));
    const double heads = heads_ ? static_cast<double>(heads_->config().num_parameters(target)) / all : 0;
    if (layer_) {  // a chain of states has one product with the head for all its levels
        const double layer = static_cast<double>(layer_->config().num_parameters()) / all;
        const double head = static_cast<double>(layer_->config().num_head_parameters(target)) / all;
        if (layer_->config().chains_states) return {.level = layer, .levels = 0, .tree = head};
        return {.level = layer + head, .levels = 0};
    }
    double models = 0, copy = 0;
    for (const auto& model : models_)
        models += static_cast<double>(engine::num_active_parameters(model->config())) / all;
    if (drafting_target_ != nullptr) {  // the same parameters, perhaps with fewer bits of each
        copy = copy_ ? static_cast<double>(copy_->streamed_weight_bytes()) /
                           static_cast<double>(drafting_target_->streamed_weight_bytes())
                     : 1.0;
    }
    // In two stages, each draft call is a pass of the copy and the small model's before it.
    if (options.method->has_two_stages()) {
        const std::int64_t drafts = std::min(engine::small_drafts_per_pass, options.shape().depth - 1);
        return {.level = static_cast<double>(drafts) * models + copy, .levels = 0};
    }
    if (copy > 0 && options.method->chooses_method()) return {.level = copy, .levels = 0, .draft_model = models};
    models += copy;
    const auto passes = static_cast<double>(options.passes);
    if (options.chooses_tree()) return {.level = models + heads / passes, .levels = 0};  // of each pass that was run
    return {.level = passes * models + heads, .levels = heads_ ? 1 : options.shape().depth};
}

std::string DraftModels::fingerprint() const {
    std::string all = heads_ ? engine::hex(heads_->fingerprint()) : layer_ ? engine::hex(layer_->fingerprint()) : "";
    for (const auto& model : models_) all += (all.empty() ? "" : "+") + engine::hex(model->fingerprint());
    if (copy_) all += (all.empty() ? "" : "+") + engine::hex(copy_->fingerprint());
    return all;
}

std::string DraftModels::corpus_fingerprint() const {
    if (!corpus_) return "";
    engine::Hash hash;
    for (const std::vector<std::int32_t>& text : *corpus_) {
        hash.add(text.data(), text.size() * sizeof(std::int32_t));
        hash.add("\n");
    }
    return engine::hex(hash.value());
}

}  // namespace longhaul::runner
