#include "runner/job/key_origins.hpp"

#include <algorithm>

namespace longhaul::runner {

KeyOrigins::KeyOrigins(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                       const std::filesystem::path& job_file)
    : whole_(job_file.empty() ? "command line" : job_file.string()) {
    for (const Assignment& assignment : file) given_[assignment.key].push_back(assignment);
    for (const Assignment& assignment : command_line) given_.erase(assignment.key);
    for (const Assignment& assignment : command_line) given_[assignment.key].push_back(assignment);
    // "JOB.cfg:12" without the line number stands for the whole file.
    if (!file.empty()) whole_ = file.front().origin.substr(0, file.front().origin.rfind(':'));
}

const std::string& KeyOrigins::of(const std::string& key) const {
    return has(key) ? given_.at(key).back().origin : whole_;
}

bool KeyOrigins::has_value(const std::string& key, const std::string& value) const {
    return has(key) && std::any_of(given_.at(key).begin(), given_.at(key).end(),
                                   [&](const Assignment& assignment) { return assignment.value == value; });
}

}  // namespace longhaul::runner
