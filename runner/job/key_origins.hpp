// Where the keys of a job were given, for messages.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace longhaul::runner {

/// One `key = value` as given. `origin` is used in messages: "JOB.cfg:12" or "command line".
struct Assignment {
    std::string key, value, origin;
};

class KeyOrigins {
  public:
    KeyOrigins() = default;  ///< of settings that were not parsed: all keys are of the "job"
    /// `job_file`: "" if there is none.
    KeyOrigins(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
               const std::filesystem::path& job_file);

    [[nodiscard]] bool has(const std::string& key) const { return given_.contains(key); }
    /// Where the key was last given; the whole job file for a key that was not.
    [[nodiscard]] const std::string& of(const std::string& key) const;
    [[nodiscard]] const std::string& whole() const { return whole_; }
    /// Whether the key was given with this value, as written.
    [[nodiscard]] bool has_value(const std::string& key, const std::string& value) const;

    /// The place of its keys does not change a job.
    bool operator==(const KeyOrigins& /*other*/) const { return true; }

  private:
    std::map<std::string, std::vector<Assignment>> given_;  // by key; the command line's replace the file's
    std::string whole_ = "job";
};

}  // namespace longhaul::runner
