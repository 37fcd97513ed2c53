// Text of `--help` and `--version`, generated from the tables that the parsers use. Called by main.cpp.
#pragma once

#include <string>

#include "runner/job/command_line.hpp"

namespace longhaul::runner {

/// Text of `longhaul --help`: commands and the keys that most jobs set, for someone who has never seen the program.
std::string help_text();
/// Text of `longhaul help TOPIC`: a key, a command, a subject (a section of the vocabulary) or "all". Throws
/// UsageError.
std::string help_text(const std::string& topic);
/// Text of `longhaul COMMAND --help`.
std::string help_text(const CommandSyntax& syntax);
/// Text of `longhaul --version`: version, compiler and libraries, and which kernels this processor runs.
std::string version_text();

}  // namespace longhaul::runner
