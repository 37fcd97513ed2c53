// The table behind settings.hpp: one entry a key, with how its value is read, checked and written.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runner/job/job.hpp"

namespace longhaul::runner {

/// One entry of the vocabulary, for --help, the command line and tests.
struct KeyInfo {
    std::string key{};           ///< "top-p"
    std::string value_name{};    ///< "NUMBER", or the values it takes: "store|recompute"
    std::string default_text{};  ///< "" where a value must be given or there is none
    std::string help{};          ///< what it does, its unit, and the value that turns it off
    std::string section{};
    bool repeatable = false;
    bool flag = false;  ///< `--key` alone means true
};

struct Key {
    KeyInfo info;
    /// As written in the table; kind_of adds the rules that depend on other keys.
    enum class Kind { identity, extension, execution, draft } kind = Kind::identity;
    /// Reads one value into its field; a repeatable key appends. `folder`: what relative paths are relative to. Throws
    /// BadValue.
    std::function<void(Settings& settings, const std::string& value, const std::filesystem::path& folder)> set;
    /// Values as a job file would have them, one a line; empty where there is nothing to write.
    std::function<std::vector<std::string>(const Settings& settings)> get;
};

/// All keys in the order of --help and of the resolved job.
const std::vector<Key>& key_table();

/// nullptr for an unknown key.
const Key* find_key(const std::string& key);

/// What the table says of its keys, in the same order.
const std::vector<KeyInfo>& vocabulary();

}  // namespace longhaul::runner
