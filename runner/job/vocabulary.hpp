// The table behind settings.hpp: one entry a key, with how its value is read, checked and written.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"

namespace longhaul::runner {

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

}  // namespace longhaul::runner
