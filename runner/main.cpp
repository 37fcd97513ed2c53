// The longhaul program: selects the command, and prints errors as one line with an exit code.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "engine/failure.hpp"
#include "engine/json.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/help.hpp"
#include "runner/job/value_text.hpp"

namespace {

using namespace longhaul;
using namespace longhaul::runner;

using Arguments = std::vector<std::string>;

int print(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return 0;
}

[[noreturn]] void refuse_command(const std::string& name) {
    const std::string got = "'" + engine::printable(name) + "'";
    if (name == "plan")
        throw UsageError(InputError::format("command line", "", "a command", got,
                                            "`longhaul check` shows the memory, disk space and time that a job needs"));
    Arguments names;
    for (const CommandSyntax& syntax : command_table()) names.push_back(syntax.name);
    Arguments known = names;
    known.insert(known.end(), {"help", "--help", "--version"});
    const std::string near = nearest_word(name, known);
    throw UsageError(InputError::format("command line", "", list_words(names), got,
                                        near.empty() ? "see `longhaul --help`" : "did you mean '" + near + "'?"));
}

std::string help_texts(const Arguments& topics) {
    std::string text;
    for (const std::string& topic : topics) text += help_text(topic);
    return text;
}

int dispatch(const Arguments& all) {
    if (all.empty()) throw UsageError("command line: expected a command, got nothing; see `longhaul --help`");
    const std::string& name = all.front();
    if (name == "--help" || name == "-h" || (name == "help" && all.size() == 1)) return print(help_text());
    if (name == "help") return print(help_texts(Arguments(all.begin() + 1, all.end())));
    if (name == "--version") return print(version_text());
    const std::vector<std::pair<std::string, int (*)(const Arguments&)>> commands{
        {"run", run_command},       {"sweep", sweep_command},     {"generate", generate_command},
        {"status", status_command}, {"results", results_command}, {"inspect", inspect_command},
        {"verify", verify_command}, {"check", check_command},     {"bench", bench_command}};
    const auto command =
        std::find_if(commands.begin(), commands.end(), [&](const auto& entry) { return entry.first == name; });
    if (command == commands.end()) refuse_command(name);
    const Arguments arguments(all.begin() + 1, all.end());
    const auto options_end = std::find(arguments.begin(), arguments.end(), "--");
    const bool help =
        std::any_of(arguments.begin(), options_end, [](const auto& text) { return text == "--help" || text == "-h"; });
    return help ? print(help_text(syntax_of(name))) : command->second(arguments);
}

}  // namespace

int main(int argc, char** argv) {
    std::signal(SIGXFSZ, SIG_IGN);  // with a file size limit, write() fails with EFBIG and the error names the file
    try {
        const int code = dispatch(Arguments(argv + std::min(argc, 1), argv + argc));
        if (code != static_cast<int>(ExitCode::storage)) flush_output();  // otherwise it was reported
        return code;
    } catch (const std::exception&) {
        const Failure failure = current_failure();
        std::fprintf(stderr, "error: %s\n", failure.line.c_str());
        return static_cast<int>(failure.code);
    }
}
