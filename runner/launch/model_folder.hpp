// Folders of models that cannot be ones, refused by the key that names them.
#pragma once

#include <filesystem>
#include <string>

#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// Throws InputError if `folder`, which `key` names, does not exist, is a file, or has no config.json
/// (`adapter`: adapter_config.json).
void check_model_folder(const Settings& settings, const std::string& key, const std::filesystem::path& folder);

/// check_model_folder for `model`, `adapter` and all folders of `draft-model` that the job drafts with.
void check_model_folders(const Settings& settings);

}  // namespace longhaul::runner
