// The language models that draft for a job: loaded, and kept where the next run of a sweep drafts with the same.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft/draft_options.hpp"
#include "engine/draft/heads.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/device.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

class DraftModels {
  public:
    /// Loads those of `settings` (none where its method takes none, or nothing is generated), unless they are loaded.
    /// A model is sharded over `group`, the target's, or held whole by each of its ranks: `draft-parallel` says.
    /// Collective over the group. Throws InputError where a model has not the target's vocabulary.
    void load(const Settings& settings, const engine::ModelConfig& target, const engine::Tokenizer& tokenizer,
              kernels::Device& device, engine::Group& group);
    /// Loads the heads of `settings`, where its method drafts with such, unless they are loaded. Throws InputError.
    void load_heads(const Settings& settings, const engine::Model& target);
    void unload();

    /// Where `options` say what drafts.
    void give_to(engine::DraftOptions& options) const;
    /// Parameters that are read for each level of a tree (of heads: once for a tree), over the target's; 0 for none.
    [[nodiscard]] double cost_of_level(const engine::ModelConfig& target) const;
    /// Of all of them, in their order; "" for none.
    [[nodiscard]] std::string fingerprint() const;

  private:
    std::string loaded_;  ///< what was asked for
    std::unique_ptr<engine::Group> alone_;
    std::vector<std::unique_ptr<engine::Model>> models_;
    std::filesystem::path heads_folder_;
    std::unique_ptr<engine::DraftHeads> heads_;
};

/// Whether the ranks of a replica share a draft model, rather than hold it each: `draft-parallel` says, auto by its
/// size and where it can be split. Throws UsageError where it cannot and is to be.
bool is_draft_sharded(const Settings& settings, const std::filesystem::path& folder, const engine::ModelConfig& config);

/// Throws InputError where a draft model's vocabulary is not the target's. Where their sizes differ, as they are
/// padded, the tokens of the target's tokenizer are to be the same and within both.
void check_draft_vocabulary(const std::filesystem::path& folder, const engine::ModelConfig& draft,
                            const engine::ModelConfig& target, const engine::Tokenizer& tokenizer);

}  // namespace longhaul::runner
