#include "runner/launch/model_folder.hpp"

#include <algorithm>
#include <cctype>

#include "engine/error.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

std::string kind_of_folder(const Settings& settings, const std::string& key) {
    if (key == "model") return "the folder of a Hugging Face model";
    if (key == "adapter") return "the folder of a LoRA adapter";
    if (settings.draft->part == engine::DraftPart::heads) return "the folder of trained heads";
    if (settings.draft->part == engine::DraftPart::layer) return "the folder of a draft layer";
    return "the folder of a draft model";
}

/// "OWNER/NAME" if the key was given like this, as the Hugging Face hub names its models; else "".
std::string hub_name(const Settings& settings, const std::string& key, const fs::path& folder) {
    std::string name = (folder.parent_path().filename() / folder.filename()).string();
    const auto is_letter = [](unsigned char c) { return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.'; };
    const std::ptrdiff_t others = name.size() - std::count_if(name.begin(), name.end(), is_letter);  // the slash
    return others == 1 && settings.origins.has_value(key, name) ? name : "";
}

}  // namespace

void check_model_folder(const Settings& settings, const std::string& key, const fs::path& folder) {
    const auto refuse = [&](const std::string& got, const std::string& fix) {
        throw InputError(settings.origins.of(key), key, kind_of_folder(settings, key), got, fix);
    };
    const std::string name = shown(folder.string());
    std::error_code error;  // other errors are reported when the folder is read
    const fs::file_status status = fs::status(folder, error);
    if (folder.extension() == ".gguf" && !fs::is_directory(status))
        refuse(name, "GGUF is not read: jobs/convert_gguf.py FILE FOLDER writes a model folder from it");
    if (status.type() == fs::file_type::not_found) {
        const std::string hub = hub_name(settings, key, folder);
        refuse(
            name + ", which does not exist",
            hub.empty() ? "" : "a model of the hub: download it first (`hf download " + hub + " --local-dir FOLDER`)");
    }
    if (fs::is_regular_file(status)) refuse("the file " + name, "give its folder");
    const std::string config = key == "adapter" ? "adapter_config.json" : "config.json";
    if (fs::is_directory(status) && fs::status(folder / config, error).type() == fs::file_type::not_found)
        refuse(name + ", which has no " + config, "");
}

void check_model_folders(const Settings& settings) {
    check_model_folder(settings, "model", settings.model);
    if (!settings.adapter.empty()) check_model_folder(settings, "adapter", settings.adapter);
    for (const fs::path& folder : draft_folders(settings).all())
        if (folder != settings.model) check_model_folder(settings, "draft-model", folder);
}

}  // namespace longhaul::runner
