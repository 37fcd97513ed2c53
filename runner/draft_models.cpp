#include "runner/draft_models.hpp"

#include <algorithm>

#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "runner/machine.hpp"
#include "runner/run_folder.hpp"

namespace longhaul::runner {
namespace {

/// Below it, a rank computes a pass sooner than ranks bring its parts together (twice a layer).
constexpr std::int64_t least_sharded_parameters = 100'000'000;

bool is_sharded(const Settings& settings, const engine::ModelConfig& config) {
    if (settings.tensor_parallel == 1) return false;
    if (settings.draft_parallel != "auto") return settings.draft_parallel == "sharded";
    return engine::num_parameters(config) >= least_sharded_parameters;
}

}  // namespace

std::vector<std::filesystem::path> wanted_draft_models(const Settings& settings) {
    const bool wanted = settings.mode == "generate" && engine::find_draft_method(settings.draft).least_models > 0;
    return wanted ? settings.draft_model : std::vector<std::filesystem::path>{};
}

void check_draft_config(const std::filesystem::path& folder, const engine::ModelConfig& draft,
                        const engine::ModelConfig& target) {
    if (draft.vocab_size == target.vocab_size) return;
    throw InputError((folder / "config.json").string(), "vocab_size",
                     "the target's, " + std::to_string(target.vocab_size), std::to_string(draft.vocab_size),
                     "a draft model shares the target's tokenizer");
}

void DraftModels::load(const Settings& settings, const engine::ModelConfig& target, kernels::Device& device,
                       engine::Group& group) {
    std::string wanted = settings.precision + " " + settings.kv_precision + " " + settings.draft_parallel;
    for (const auto& folder : wanted_draft_models(settings)) wanted += "\n" + folder.string();
    if (wanted == loaded_) return;
    unload();
    alone_ = engine::make_local_group();
    for (const auto& folder : wanted_draft_models(settings)) {
        const engine::ModelConfig config = engine::ModelConfig::load(folder);
        check_draft_config(folder, config, target);
        models_.push_back(engine::Model::load(folder, precision_of(settings), device,
                                              is_sharded(settings, config) ? group : *alone_, kv_dtype_of(settings),
                                              packed_folder(settings)));
    }
    loaded_ = std::move(wanted);
}

void DraftModels::unload() {
    models_.clear();
    alone_.reset();
    loaded_.clear();
}

std::vector<engine::Model*> DraftModels::pointers() const {
    std::vector<engine::Model*> pointers;
    for (const auto& model : models_) pointers.push_back(model.get());
    return pointers;
}

double DraftModels::cost_of_level(const Settings& settings, const engine::ModelConfig& target) const {
    if (models_.empty()) return 0;
    // Chain k is drawn from model k: with fewer chains than models the last ones never run.
    const engine::DraftMethod& method = engine::find_draft_method(settings.draft);
    const auto chains = static_cast<std::size_t>(engine::tree_of(method, settings.draft_tree).width);
    const std::size_t running = models_.size() == 1 ? 1 : std::min(models_.size(), chains);
    std::int64_t parameters = 0;
    for (std::size_t i = 0; i < running; ++i) parameters += engine::num_parameters(models_[i]->config());
    return static_cast<double>(parameters) / static_cast<double>(engine::num_parameters(target));
}

std::string DraftModels::fingerprint() const {
    std::string all;
    for (const auto& model : models_) all += (all.empty() ? "" : "+") + hex(model->fingerprint());
    return all;
}

}  // namespace longhaul::runner
