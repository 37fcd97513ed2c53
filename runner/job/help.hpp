// What `--help` and `--version` print; made from the tables that also parse, so it cannot lag behind them.
#pragma once

#include <string>

#include "runner/job/command_line.hpp"

namespace longhaul::runner {

/// Text of `longhaul --help`: for someone who has never seen the program.
std::string help_text();
/// Text of `longhaul COMMAND --help`.
std::string help_text(const CommandSyntax& syntax);
/// Text of `longhaul --version`: what was built, with what, and what this processor runs of it.
std::string version_text();

}  // namespace longhaul::runner
