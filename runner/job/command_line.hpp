// Parses the arguments of a command (with Boost.Program_options) by its entry in the table of commands. Called by
// runner/commands; main.cpp and help.cpp use the table.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {

/// An option of one command that is not a key of the vocabulary: `--partial`, `--prompt TEXT`.
struct CommandOption {
    std::string name;        ///< without the dashes
    std::string value_name;  ///< "" if it is a flag
    std::string help;
};

/// Syntax of a command. The parser and --help use it.
struct CommandSyntax {
    std::string name;                 ///< "run"
    std::vector<std::string> places;  ///< required positional arguments: {"JOB.cfg"}
    std::vector<CommandOption> options;
    bool keys = false;                       ///< accepts keys of the vocabulary as --key=value
    std::vector<std::string> unused_keys{};  ///< keys that it does not accept
    std::string summary;                     ///< one line
    std::string example;
    std::string more;  ///< paragraph for `longhaul COMMAND --help`
};

/// All commands, in the order of --help.
const std::vector<CommandSyntax>& command_table();

/// The entry of `command`, which must be in the table.
const CommandSyntax& syntax_of(const std::string& command);

/// A parsed command line that matches its syntax.
struct CommandLine {
    std::vector<std::string> places;  ///< positional arguments, as many as in the syntax
    std::vector<Assignment> keys;     ///< values as typed; `parse_settings` checks them
    std::vector<Assignment> options;  ///< options of the command; the value of a flag is "true"

    [[nodiscard]] bool has(const std::string& option) const;
    /// Value of an option; `fallback` if it was not given.
    [[nodiscard]] std::string value(const std::string& option, const std::string& fallback = "") const;
};

/// Parses `--key=value`, `--key value` and `--flag`; `--` ends the options. Does not accept abbreviations. For an
/// unknown option the error names the nearest known one. Throws UsageError ("command line: …").
CommandLine parse_command_line(const std::vector<std::string>& arguments, const CommandSyntax& syntax);

/// The key `threads`, needed before MPI starts, as `read` finds it in the command line. 0 if that fails: faults are
/// reported later, once.
int threads_of(const std::string& command, const std::vector<std::string>& arguments,
               const std::function<std::int64_t(const CommandLine&)>& read);

/// The keys of the vocabulary that `syntax` accepts.
std::vector<KeyInfo> keys_of(const CommandSyntax& syntax);

}  // namespace longhaul::runner
