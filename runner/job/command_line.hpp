// Arguments of a command, taken apart (Boost.Program_options inside).
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "runner/job/settings.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {

/// An option of one command that is no key of the vocabulary: `--partial`, `--prompt TEXT`.
struct CommandOption {
    std::string name;        ///< without the dashes
    std::string value_name;  ///< "" for a flag
    std::string help;
};

/// What a command understands; --help is made from it.
struct CommandSyntax {
    std::string name;                 ///< "run"
    std::vector<std::string> places;  ///< its positional arguments, all needed: {"JOB.cfg"}
    std::vector<CommandOption> options;
    bool keys = false;                       ///< takes the keys of the vocabulary as --key=value
    std::vector<std::string> unused_keys{};  ///< but for these, which mean nothing to it
    std::string summary;                     ///< one line
    std::string example;
    std::string more;  ///< lines for `longhaul COMMAND --help`
};

/// The commands in the order of --help.
const std::vector<CommandSyntax>& command_table();

/// The entry of one command; it must be in the table.
const CommandSyntax& syntax_of(const std::string& command);

/// A command line, checked against its syntax.
struct CommandLine {
    std::vector<std::string> places;  ///< one for each of the syntax
    std::vector<Assignment> keys;     ///< values as typed; `parse_settings` checks them
    std::vector<Assignment> options;  ///< of the command itself; a flag has the value "true"

    [[nodiscard]] bool has(const std::string& option) const;
    /// Value of an option, `fallback` where it was not given.
    [[nodiscard]] std::string value(const std::string& option, const std::string& fallback = "") const;
};

/// `--key=value`, `--key value`, `--flag`; `--` ends the options. Abbreviations are not guessed, unknown options are
/// refused naming the nearest known one. Throws UsageError ("command line: …").
CommandLine parse_command_line(const std::vector<std::string>& arguments, const CommandSyntax& syntax);

/// Keys that `syntax` takes.
std::vector<KeyInfo> keys_of(const CommandSyntax& syntax);

}  // namespace longhaul::runner
