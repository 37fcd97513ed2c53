// The vocabulary: a table with one entry per key of a job and how its value is read and written. settings.cpp, the
// command line and --help use it.
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
    std::string default_text{};  ///< "" if there is none
    std::string help{};          ///< what it does, its unit, and the value that turns it off
    std::string section{};
    bool repeatable = false;
    bool flag = false;          ///< `--key` without a value means true
    bool may_be_empty = false;  ///< an empty value means none, also of what was given before it
};

struct Key {
    KeyInfo info;
    /// Kind as written in the table; kind_of adds the rules that depend on other keys.
    enum class Kind { identity, extension, execution, draft } kind = Kind::identity;
    /// Runs of earlier versions do not record it. They did what its default says, which the identity leaves out.
    bool later = false;
    /// Only methods whose drafts copy the target have it: with others it is no part of the identity.
    bool of_copies = false;
    std::string earlier_value{};  ///< what earlier versions wrote of a key of copies with every method
    bool for_generate = true;     ///< `longhaul generate` uses it
    /// Parses one value and sets its field; a repeatable key appends. Relative paths are relative to `folder`. Throws
    /// BadValue.
    std::function<void(Settings& settings, const std::string& value, const std::filesystem::path& folder)> set;
    /// Values as in a job file, one per line; empty if there is nothing to write.
    std::function<std::vector<std::string>(const Settings& settings)> get;
};

/// All keys, in the order of --help and of the resolved job.
const std::vector<Key>& key_table();

/// The keys that every job sets.
const std::vector<std::string>& required_keys();

/// The values of the key `mode`, in the order of Mode.
const std::vector<std::string>& mode_names();
std::string name_of(Mode mode);

/// Returns nullptr if the key is unknown.
const Key* find_key(const std::string& key);

/// The KeyInfo of all keys, in the order of key_table().
const std::vector<KeyInfo>& vocabulary();

}  // namespace longhaul::runner
