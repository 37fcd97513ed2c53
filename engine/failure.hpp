// What an exception means to a user: the line after "error: ", and the exit code.
#pragma once

#include <string>

#include "engine/error.hpp"

namespace longhaul {

struct Failure {
    std::string line;
    ExitCode code = ExitCode::error;
};

/// Of the exception that is being handled; call it in a catch block.
Failure current_failure();

}  // namespace longhaul
