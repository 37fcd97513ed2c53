// Shared by the tests of job settings: a minimal complete job, and the message of a refused one.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "engine/error.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

inline const std::vector<Assignment> whole_job{{"task", "prompts", "j.cfg:1"},
                                               {"data", "p.jsonl", "j.cfg:2"},
                                               {"model", "m", "j.cfg:3"},
                                               {"output", "out", "j.cfg:4"}};

inline std::vector<Assignment> on_command_line(const std::string& key, const std::string& value) {
    return {{key, value, "command line"}};
}

inline Settings with(const std::string& key, const std::string& value) {
    return parse_settings(whole_job, on_command_line(key, value), "/jobs/j.cfg");
}

inline std::string message_of(const std::function<void()>& action) {
    try {
        action();
    } catch (const UsageError& error) {
        EXPECT_EQ(error.exit_code(), ExitCode::usage);
        return error.what();
    }
    return "(no error)";
}

}  // namespace longhaul::runner
