#include "runner/job/help.hpp"

#include <H5public.h>
#include <mpi.h>

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "kernels/device.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {
namespace {

constexpr std::size_t line_width = 100;

/// Breaks `text` into lines of at most line_width, each indented by `indent` spaces.
std::string wrapped(const std::string& text, std::size_t indent) {
    std::string result;
    std::string line(indent, ' ');
    std::istringstream words(text);
    for (std::string word; words >> word;) {
        if (line.size() > indent && line.size() + 1 + word.size() > line_width) {
            result += line + "\n";
            line.assign(indent, ' ');
        }
        if (line.size() > indent) line += ' ';
        line += word;
    }
    return result + line + "\n";
}

/// `name` in the left column and `text`, wrapped, in the right one.
std::string entry(const std::string& name, const std::string& text) {
    constexpr std::size_t column = 30;
    const std::string left = "  " + name;
    std::string right = wrapped(text, column);
    if (left.size() + 2 > column) return left + "\n" + right;
    return left + right.substr(left.size());
}

std::string key_entry(const KeyInfo& key) {
    std::string text = key.help;
    const std::vector<std::string>& needed = required_keys();
    const bool is_needed = std::find(needed.begin(), needed.end(), key.key) != needed.end();
    const std::string none = is_needed ? "must be given" : key.repeatable ? "none; repeatable" : "none";
    const std::string value = key.default_text.empty() ? none : key.default_text;
    return entry("--" + key.key + "=" + key.value_name, text + " [" + value + "]");
}

std::string keys_text(const std::vector<KeyInfo>& keys) {
    std::string text, section;
    for (const KeyInfo& key : keys) {
        if (key.section != section) text += "\n" + (section = key.section) + "\n";
        text += key_entry(key);
    }
    return text;
}

/// The word that selects the section of a key: "drafting" for a section that starts with "Drafting".
std::string subject_of(const KeyInfo& key) {
    std::string word = key.section.substr(0, key.section.find(' '));
    std::transform(word.begin(), word.end(), word.begin(), [](unsigned char c) { return std::tolower(c); });
    return word;
}

/// All subjects in the order of the vocabulary, then "all".
std::vector<std::string> subjects() {
    std::vector<std::string> names;
    for (const KeyInfo& key : vocabulary()) {
        if (names.empty() || names.back() != subject_of(key)) names.push_back(subject_of(key));
    }
    names.emplace_back("all");
    return names;
}

std::string usage_line(const CommandSyntax& syntax) {
    std::string line = "longhaul " + syntax.name;
    for (const std::string& place : syntax.places) line += " " + place;
    for (const CommandOption& option : syntax.options) {
        line += " [--" + option.name + (option.value_name.empty() ? "" : " " + option.value_name) + "]";
    }
    return syntax.keys ? line + " [--key=value ...]" : line;
}

std::string kernels_text() {
    std::string text;
    std::vector<kernels::CpuVariant> variants = kernels::available_cpu_variants();
    if (kernels::can_run(kernels::CpuVariant::amx_bf16)) variants.push_back(kernels::CpuVariant::amx_bf16);
    for (const kernels::CpuVariant variant : variants) {
        if (!text.empty()) text += ", ";
        text += kernels::variant_name(variant);
        const std::string flags(kernels::variant_flags(variant));
        if (!flags.empty()) text += " (" + flags + ")";
    }
    return text;
}

std::string gpus_text() {
    const Gpus gpus = gpus_here();
    if (!gpus.built) return "not built";
    return "built; " + std::to_string(gpus.visible) + (gpus.visible == 1 ? " GPU here" : " GPUs here");
}

std::string mpi_text() {
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    MPI_Get_library_version(text, &length);  // may be called before MPI_Init
    const std::string whole(text, std::max(length, 0));
    return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace

std::string help_text() {
    std::string text =
        "longhaul generates very long texts and evaluates language models in bulk, from a laptop to a Slurm cluster.\n"
        "One job file and a seed give one text, on any number of ranks; a run that was killed resumes where it was.\n"
        "\n  mpirun -n 2 longhaul run jobs/demo/demo.cfg --output=runs/first\n"
        "\nCommands (`longhaul COMMAND --help`: options and an example)\n";
    for (const CommandSyntax& syntax : command_table()) text += entry(syntax.name, syntax.summary);
    text += entry("--version", "what this program was built with, and which kernels this processor runs");
    text +=
        "\nA job file has lines `key = value` and # comments. Every key is also an option, and the command line wins.\n"
        "In brackets: the default. The keys that most jobs set:\n";
    for (const char* name :
         {"task", "data", "model", "output", "max-tokens", "temperature", "seed", "batch", "tensor-parallel", "draft"})
        text += key_entry(find_key(name)->info);
    text += "\n" + wrapped("All other keys: `longhaul help KEY`, or a subject: " + list_words(subjects()) + ".", 0);
    text +=
        "\nExit codes: 0 done; 1 error (model, data, checkpoint); 2 usage (command line, job file, a refused resume);\n"
        "3 done, but some items failed; 74 storage full or failing (nothing lost: run again); 75 stopped, all saved.\n";
    return text;
}

std::string help_text(const std::string& topic) {
    const auto& commands = command_table();
    const auto command = std::find_if(commands.begin(), commands.end(),
                                      [&](const CommandSyntax& syntax) { return syntax.name == topic; });
    const std::string of_command = command == commands.end() ? "" : help_text(*command);
    // `verify` is a key and a command.
    if (const Key* key = find_key(topic)) return key_entry(key->info) + (of_command.empty() ? "" : "\n" + of_command);
    if (!of_command.empty()) return of_command;
    std::vector<KeyInfo> keys;
    for (const KeyInfo& key : vocabulary()) {
        if (topic == "all" || topic == subject_of(key)) keys.push_back(key);
    }
    if (!keys.empty()) return keys_text(keys).substr(1);
    std::vector<std::string> topics = subjects();
    for (const CommandSyntax& syntax : commands) topics.push_back(syntax.name);
    for (const KeyInfo& key : vocabulary()) topics.push_back(key.key);
    const std::string near = nearest_word(topic, topics);
    throw UsageError(InputError::format("command line", "help", "a key, a command, or " + list_words(subjects()),
                                        "'" + engine::printable(topic) + "'",
                                        near.empty() ? "see `longhaul --help`" : "did you mean '" + near + "'?"));
}

std::string help_text(const CommandSyntax& syntax) {
    std::string text = usage_line(syntax) + "\n\n" + wrapped(syntax.summary, 0);
    if (!syntax.more.empty()) text += wrapped(syntax.more, 0);
    text += "\nExample\n  " + syntax.example + "\n";
    if (!syntax.options.empty()) text += "\nOptions\n";
    for (const CommandOption& option : syntax.options) {
        text += entry("--" + option.name + (option.value_name.empty() ? "" : "=" + option.value_name), option.help);
    }
    return text + keys_text(keys_of(syntax));
}

std::string version_text() {
    const std::string hdf5 =
        std::to_string(H5_VERS_MAJOR) + "." + std::to_string(H5_VERS_MINOR) + "." + std::to_string(H5_VERS_RELEASE);
    return "longhaul " LONGHAUL_VERSION "\ncompiler: " LONGHAUL_COMPILER "\nbuild: " LONGHAUL_BUILD_TYPE "\nMPI: " +
           mpi_text() + "\nHDF5: " + hdf5 + "\nkernels this processor runs: " + kernels_text() +
           "\nCUDA: " + gpus_text() + "\n";
}

}  // namespace longhaul::runner
