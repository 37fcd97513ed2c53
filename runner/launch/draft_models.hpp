// Loads the parts that draft for a job (language models, heads, texts for n-grams); keeps them loaded if the next run
// of a sweep uses the same ones.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_options.hpp"
#include "engine/draft/heads.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/device.hpp"
#include "runner/job/settings.hpp"
#include "runner/run/results.hpp"

namespace longhaul::runner {

class DraftModels {
  public:
    /// Loads the draft models, the target's copy and the heads of `settings`, unless they are loaded already; none if
    /// the draft method uses none or the job does not generate. `draft-parallel` decides whether a model is sharded
    /// over `group` (the target's) or replicated on each of its ranks. `with_copy`: false leaves out the
    /// target's copy of a method that can draft without (copy_fits). Collective over the group. Throws InputError if a
    /// model's vocabulary is not the target's, or heads do not fit it.
    void load(const Settings& settings, engine::Model& target, const engine::Tokenizer& tokenizer,
              kernels::Device& device, engine::Group& group, bool with_copy = true);
    void unload();

    /// Sets the pointers to the models and heads in `options`, and of a method whose copy was left out also the method
    /// that drafts without it.
    void give_to(engine::DraftOptions& options) const;
    /// Parameters read per tree level (heads, and the passes before them: once per tree), divided by the target's
    /// parameters; of a copy of the target: bytes by bytes.
    [[nodiscard]] DraftCost cost(const engine::ModelConfig& target, const engine::DraftOptions& options) const;
    /// Fingerprints of the heads and models, joined in order; "" if nothing is loaded.
    [[nodiscard]] std::string fingerprint() const;
    /// A line for the log about a copy that was left out; "" otherwise.
    [[nodiscard]] const std::string& notice() const { return notice_; }
    /// Fingerprint of the corpus's tokens; "" if there is none. Ranks of a group must draft from the same.
    [[nodiscard]] std::string corpus_fingerprint() const;

  private:
    void load_models(const Settings& settings, const std::vector<std::filesystem::path>& folders,
                     const engine::ModelConfig& target, const engine::Tokenizer& tokenizer, kernels::Device& device,
                     engine::Group& group);
    void load_copy(const Settings& settings, engine::Model& target, kernels::Device& device, engine::Group& group);

    std::string loaded_;  ///< key of what was requested; "" if nothing is loaded
    std::unique_ptr<engine::Group> alone_;
    std::vector<std::unique_ptr<engine::Model>> models_;  ///< language models
    std::unique_ptr<engine::Model> copy_;                 ///< of the target, if it drafts with a lower precision
    std::unique_ptr<engine::DraftLayer> layer_;
    std::unique_ptr<engine::DraftHeads> heads_;
    std::shared_ptr<const engine::DraftCorpus> corpus_;
    engine::Model* drafting_target_ = nullptr;  ///< the target, if it drafts for itself
    std::string notice_;
};

/// Whether the ranks of a replica shard a draft model instead of replicating it, according to `draft-parallel`; `auto`
/// decides by its size and by whether it can be split. Throws UsageError if `sharded` is set and the model cannot be
/// split.
bool is_draft_sharded(const Settings& settings, const std::filesystem::path& folder, const engine::ModelConfig& config);

/// Which of both a draft layer is, decided likewise. Also throws as DraftLayerConfig::load does.
engine::DraftLayer::Parallel layer_parallel(const Settings& settings, const std::filesystem::path& folder,
                                            const engine::ModelConfig& target);

/// Throws InputError if a draft model's vocabulary is not the target's. If only the sizes differ (padding), all tokens
/// of the target's tokenizer must have the same ids and bytes in the draft model's tokenizer, and both vocabularies
/// must contain them.
void check_draft_vocabulary(const std::filesystem::path& folder, const engine::ModelConfig& draft,
                            const engine::ModelConfig& target, const engine::Tokenizer& tokenizer);

/// What drafts where the target's copy of a method with alternatives does not fit into memory: the one that needs none.
engine::DraftMethodRef method_without_copy(const engine::DraftMethod& method);

/// Warning of such a job.
std::string copy_warning(const Settings& settings);

}  // namespace longhaul::runner
