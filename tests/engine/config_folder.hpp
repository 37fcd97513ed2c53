// Folders with a config.json made on the spot, for the tests of ModelConfig.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/model/config.hpp"

namespace longhaul::engine::testing {

/// A Llama config in the older form; the rows below change one thing in it.
inline constexpr const char* plain_llama = R"({
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 1000, "hidden_size": 64,
    "intermediate_size": 172, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "rope_scaling": null,
    "hidden_act": "silu", "torch_dtype": "bfloat16", "eos_token_id": 2, "bos_token_id": 1, "pretraining_tp": 1})";

class ModelFolder {
  public:
    ModelFolder() {
        static int count = 0;
        const std::string name = "longhaul-config-" + std::to_string(::getpid()) + "-" + std::to_string(count++);
        path_ = std::filesystem::temp_directory_path() / name;
        std::filesystem::create_directories(path_);
    }
    ~ModelFolder() { std::filesystem::remove_all(path_); }
    ModelFolder(const ModelFolder&) = delete;
    ModelFolder& operator=(const ModelFolder&) = delete;

    void write(const char* name, const std::string& text) const { std::ofstream(path_ / name) << text; }
    [[nodiscard]] const std::filesystem::path& path() const { return path_; }
    [[nodiscard]] ModelConfig load() const { return ModelConfig::load(path_); }

    /// The error of loading, without the folder's name.
    [[nodiscard]] std::string complaint() const {
        try {
            (void)load();
        } catch (const InputError& error) {
            const std::string line = error.what();
            const std::string prefix = path_.string() + "/";
            return line.substr(0, prefix.size()) == prefix ? line.substr(prefix.size()) : line;
        }
        return "(none)";
    }

  private:
    std::filesystem::path path_;
};

/// `base` with the members of `patch` set; a member whose value is "DELETE" is removed.
inline std::string patched(const std::string& base, const std::string& patch) {
    Json json = try_parse_json(base);
    const Json changes = try_parse_json(patch);
    for (const auto& [key, value] : changes.items()) {
        if (value == "DELETE") {
            json.erase(key);
        } else {
            json[key] = value;
        }
    }
    return json_text(json);
}

/// plain_llama, patched.
inline ModelConfig load(const std::string& patch, const std::string& generation = {}) {
    const ModelFolder folder;
    folder.write("config.json", patched(plain_llama, patch));
    if (!generation.empty()) folder.write("generation_config.json", generation);
    return folder.load();
}

/// A config of another family: its model_type and class, over the Llama's sizes.
inline ModelConfig load_family(const std::string& model_type, const std::string& class_name,
                               const std::string& change) {
    const Json names = {{"model_type", model_type}, {"architectures", {class_name}}};
    Json changed = Json::parse(change);
    changed.update(names);
    return load(changed.dump());
}

}  // namespace longhaul::engine::testing
