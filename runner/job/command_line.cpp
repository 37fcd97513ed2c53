#include "runner/job/command_line.hpp"

#include <algorithm>
#include <boost/program_options.hpp>
#include <optional>
#include <stdexcept>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

namespace po = boost::program_options;

const char* const origin = "command line";

[[noreturn]] void refuse(const std::string& field, const std::string& expected, const std::string& got,
                         const std::string& fix = "") {
    throw UsageError(InputError::format(origin, field, expected, got, fix));
}

/// "longhaul generate MODEL"
std::string usage_of(const CommandSyntax& syntax) {
    std::string usage = "longhaul " + syntax.name;
    for (const std::string& place : syntax.places) usage += " " + place;
    return usage;
}

std::string help_hint(const CommandSyntax& syntax) {
    return "see `longhaul " + syntax.name + " --help`";
}

po::options_description describe(const CommandSyntax& syntax) {
    po::options_description options;
    const auto add = [&](const std::string& name, po::value_semantic* value) {
        options.add_options()(name.c_str(), value);
    };
    for (const KeyInfo& key : keys_of(syntax)) {
        add(key.key, po::value<std::string>());
    }
    for (const CommandOption& option : syntax.options) {
        add(option.name, po::value<std::string>());
    }
    return options;
}

[[noreturn]] void refuse_unknown(const po::option& option, const CommandSyntax& syntax) {
    const std::string& name = option.string_key;
    const auto& unused = syntax.unused_keys;
    if (std::find(unused.begin(), unused.end(), name) != unused.end()) {
        refuse(name, "a key that `longhaul " + syntax.name + "` uses", in_quotes("--" + name), help_hint(syntax));
    }
    std::vector<std::string> known;
    for (const CommandOption& own : syntax.options) known.push_back(own.name);
    for (const KeyInfo& key : keys_of(syntax)) known.push_back(key.key);
    const std::string near = nearest_word(name, known);
    const std::string dashes = syntax.keys ? "" : "--";
    const std::string fix = near.empty() ? help_hint(syntax) : "did you mean '" + dashes + near + "'?";
    throw UsageError(std::string(origin) + ": unknown " + (syntax.keys ? "key " : "option ") +
                     in_quotes(dashes + name) + "; " + fix);
}

[[noreturn]] void refuse_syntax(const po::error& error, const CommandSyntax& syntax) {
    if (const auto* named = dynamic_cast<const po::error_with_option_name*>(&error)) {
        std::string name = named->get_option_name();
        name.erase(0, name.find_first_not_of('-'));
        using Kind = po::invalid_command_line_syntax;
        const auto* bad = dynamic_cast<const Kind*>(named);
        if (bad != nullptr &&
            (bad->kind() == Kind::missing_parameter || bad->kind() == Kind::empty_adjacent_parameter)) {
            refuse(name, "a value", "nothing", "write --" + name + "=VALUE");
        }
    }
    refuse("", usage_of(syntax), engine::printable(error.what(), 200), help_hint(syntax));
}

enum class Takes { value, truth, nothing };

/// What `--name` takes; nullopt if the name is unknown.
std::optional<Takes> takes_of(const std::string& name, const CommandSyntax& syntax) {
    for (const CommandOption& option : syntax.options) {
        if (option.name == name) return option.value_name.empty() ? Takes::nothing : Takes::value;
    }
    for (const KeyInfo& key : keys_of(syntax)) {
        if (key.key == name) return key.flag ? Takes::truth : Takes::value;
    }
    return std::nullopt;
}

/// The key of `--KEY=`, if its value may be empty; else "".
std::string emptied_key(const std::string& argument, const CommandSyntax& syntax) {
    for (const KeyInfo& key : keys_of(syntax)) {
        if (key.may_be_empty && argument == "--" + key.key + "=") return key.key;
    }
    return "";
}

/// Resolves what Boost would guess wrongly: it takes the next argument as the value of `--seed` even if that is
/// `--limit=1`, and as the value of a flag even if it is the job file. It refuses `--stop=`, but takes an empty next
/// argument.
std::vector<std::string> without_guesses(const std::vector<std::string>& arguments, const CommandSyntax& syntax) {
    std::vector<std::string> clear;
    for (std::size_t i = 0; i < arguments.size(); ++i) {
        if (const std::string key = emptied_key(arguments[i], syntax); !key.empty()) {
            clear.push_back("--" + key);
            clear.emplace_back();
            continue;
        }
        clear.push_back(arguments[i]);
        if (arguments[i] == "--") {
            clear.insert(clear.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i) + 1, arguments.end());
            break;
        }
        const std::string name = arguments[i].starts_with("--") ? arguments[i].substr(2) : "";
        const std::optional<Takes> takes = takes_of(name, syntax);
        const std::string next = i + 1 < arguments.size() ? arguments[i + 1] : "";
        if (takes == Takes::value) {
            if (next.starts_with("--")) refuse(name, "a value", "nothing", "write --" + name + "=VALUE");
            if (i + 1 < arguments.size()) clear.push_back(arguments[++i]);
        } else if (takes) {
            const bool has_value = takes == Takes::truth && (next == "true" || next == "false");
            clear.back() += "=" + (has_value ? next : std::string("true"));
            i += has_value ? 1 : 0;
        }
    }
    return clear;
}

/// Options in the order given, as Boost parses them. Abbreviations are off, so that a new key cannot change the meaning
/// of an existing job.
std::vector<po::option> split(const std::vector<std::string>& arguments, const CommandSyntax& syntax) {
    using namespace po::command_line_style;
    const auto style = allow_long | long_allow_next | long_allow_adjacent;
    const po::options_description options = describe(syntax);
    try {
        return po::command_line_parser(without_guesses(arguments, syntax))
            .options(options)
            .style(style)
            .allow_unregistered()
            .run()
            .options;
    } catch (const po::error& error) {
        refuse_syntax(error, syntax);
    }
}

void add_place(CommandLine& line, const std::string& text, const CommandSyntax& syntax) {
    if (line.places.size() >= syntax.places.size()) {
        const std::string fix = text.starts_with('-') ? "options begin with --" : help_hint(syntax);
        refuse("", usage_of(syntax), "one more argument, " + in_quotes(text), fix);
    }
    line.places.push_back(text);
}

void add_option(CommandLine& line, const po::option& option, const CommandSyntax& syntax) {
    const Assignment assignment{option.string_key, option.value.empty() ? "" : option.value.front(), origin};
    const bool own = std::any_of(syntax.options.begin(), syntax.options.end(),
                                 [&](const CommandOption& known) { return known.name == option.string_key; });
    if (!own) {
        line.keys.push_back(assignment);
        return;
    }
    if (takes_of(assignment.key, syntax) == Takes::nothing && assignment.value != "true") {
        refuse(assignment.key, "no value", in_quotes(assignment.value));
    }
    if (line.has(assignment.key)) refuse(assignment.key, "every option once", "this option again");
    line.options.push_back(assignment);
}

}  // namespace

bool CommandLine::has(const std::string& option) const {
    return std::any_of(options.begin(), options.end(), [&](const Assignment& given) { return given.key == option; });
}

std::string CommandLine::value(const std::string& option, const std::string& fallback) const {
    for (const Assignment& given : options) {
        if (given.key == option) return given.value;
    }
    return fallback;
}

std::vector<KeyInfo> keys_of(const CommandSyntax& syntax) {
    std::vector<KeyInfo> keys;
    if (!syntax.keys) return keys;
    for (const KeyInfo& key : vocabulary()) {
        const bool unused =
            std::find(syntax.unused_keys.begin(), syntax.unused_keys.end(), key.key) != syntax.unused_keys.end();
        if (!unused) keys.push_back(key);
    }
    return keys;
}

CommandLine parse_command_line(const std::vector<std::string>& arguments, const CommandSyntax& syntax) {
    CommandLine line;
    for (const po::option& option : split(arguments, syntax)) {
        if (option.unregistered) refuse_unknown(option, syntax);
        if (option.position_key >= 0) {
            for (const std::string& text : option.value) add_place(line, text, syntax);
        } else {
            add_option(line, option, syntax);
        }
    }
    if (line.places.size() < syntax.places.size())
        refuse("", usage_of(syntax), "no " + syntax.places[line.places.size()], help_hint(syntax));
    return line;
}

int threads_of(const std::string& command, const std::vector<std::string>& arguments,
               const std::function<std::int64_t(const CommandLine&)>& read) {
    try {
        return static_cast<int>(read(parse_command_line(arguments, syntax_of(command))));
    } catch (const Error&) {
        return 0;
    }
}

const CommandSyntax& syntax_of(const std::string& command) {
    for (const CommandSyntax& syntax : command_table()) {
        if (syntax.name == command) return syntax;
    }
    throw std::logic_error("no command '" + command + "' in the table");
}

namespace {
std::vector<std::string> keys_not_for_generate() {
    std::vector<std::string> others;
    for (const Key& key : key_table()) {
        if (!key.for_generate) others.push_back(key.info.key);
    }
    return others;
}

/// All keys of the vocabulary except `used`.
std::vector<std::string> keys_but(const std::vector<std::string>& used) {
    std::vector<std::string> others;
    for (const KeyInfo& key : vocabulary()) {
        if (std::find(used.begin(), used.end(), key.key) == used.end()) others.push_back(key.key);
    }
    return others;
}
}  // namespace

const std::vector<CommandSyntax>& command_table() {
    static const std::vector<CommandSyntax> table{
        {.name = "run",
         .places = {"JOB.cfg"},
         .options = {},
         .keys = true,
         .unused_keys = {},
         .summary = "start a job, or resume it from its run folder",
         .example = "mpirun -n 2 longhaul run jobs/demo/demo.cfg --output=runs/first",
         .more = "Alone it is one rank. What may change between launches of one run folder: everything that does not "
                 "decide the "
                 "text (ranks, batch, threads, drafts, checkpoints), and limit, samples and max-tokens upwards."},
        {.name = "sweep",
         .places = {"SWEEP.cfg"},
         .options = {},
         .keys = true,
         .unused_keys = {},
         .summary = "run a job with every combination of some keys; results in one table",
         .example = "mpirun -n 2 longhaul sweep jobs/sweep-example.cfg --output=runs/sweep",
         .more = "A sweep file is a job file with two more kinds of lines: `grid KEY = v1 | v2` tries every value, "
                 "`variant NAME = key=value key=value` is a named set of keys. Points are all variants times all "
                 "values of the grids; each is a run folder in the output folder. Finished points are skipped, and "
                 "values added later extend a sweep. With baseline = true plain decoding runs once for all points that "
                 "differ only in draft keys. The table, written after every point: sweep.md, sweep.csv, sweep.json."},
        {.name = "generate",
         .places = {"MODEL"},
         .options = {{"prompt", "TEXT", "the text to continue"},
                     {"prompt-file", "FILE", "the same, read from a file; - reads standard input"}},
         .keys = true,
         .unused_keys = keys_not_for_generate(),
         .summary = "continue one prompt, streamed to the terminal; Ctrl-C ends it",
         .example = "longhaul generate jobs/demo/model --prompt \"It was a dark night\" --max-tokens=200",
         .more =
             "The text goes to standard output, a line of statistics to standard error. It equals the text of a job "
             "with this one prompt (id 1). `mpirun -n 4 longhaul generate …` divides the model among 4 ranks."},
        {.name = "status",
         .places = {"RUN"},
         .options = {{"json", "", "for programs"}, {"progress", "", "one line of key=value, for shell scripts"}},
         .keys = false,
         .unused_keys = {},
         .summary = "show the progress of a run, a sweep or a job in shards",
         .example = "longhaul status runs/first",
         .more = "--progress prints state (new, running, stopped, done, failed, crashed), done and failed (items), "
                 "tokens (durable: in results and checkpoints), positions (of unfinished items, prompts included, in "
                 "checkpoints) and stop_seconds (the longest time from a request to "
                 "stop to the end of the launch; 0 = not measured yet). A folder that does not exist is new."},
        {.name = "results",
         .places = {"RUN"},
         .options = {{"partial", "", "also what unfinished items have so far"},
                     {"form", "openai", "task = openai-batch: as batch_output.jsonl has them"}},
         .keys = false,
         .unused_keys = {},
         .summary = "print the results of a run, in the order of the input, as JSON lines",
         .example = "longhaul results runs/first --partial",
         .more = "For a job in shards: the results of all shards, joined in its folder once all are done."},
        {.name = "verify",
         .places = {"RUN"},
         .options = {{"json", "", "for programs"}},
         .keys = false,
         .unused_keys = {},
         .summary = "read the results and checkpoints of a run, and name what is damaged or missing",
         .example = "longhaul verify runs/first",
         .more = "RUN may also be the folder of a sweep or of a job in shards. Needs no model and changes nothing. "
                 "Exit code 0: all is intact; 1: something is not. Damaged checkpoints cost time alone: the same job, "
                 "run again, computes what they held."},
        {.name = "inspect",
         .places = {"PATH"},
         .options = {{"json", "", "for programs"}},
         .keys = false,
         .unused_keys = {},
         .summary = "show what a model folder, a LoRA adapter, a draft layer, draft heads or a checkpoint file hold",
         .example = "longhaul inspect jobs/demo/model",
         .more = ""},
        {.name = "check",
         .places = {"JOB.cfg"},
         .options = {{"json", "", "for programs; lists all items that would fail"},
                     {"print", "KEY", "for scripts: read only the job file, and print its output or tensor-parallel"}},
         .keys = true,
         .unused_keys = {},
         .summary = "find every fault of a job, and the memory and disk it needs; runs nothing",
         .example = "longhaul check jobs/demo/demo.cfg --output=runs/first",
         .more = "Reports faults of the job file, the model folder, the run folder and every prompt, the lengths of "
                 "the prompts, and the memory and disk space that the job needs. One process, no MPI; writes nothing. "
                 "Exit codes, most severe first: 2 the job would be refused; 1 model or data cannot be used; 3 some "
                 "items would fail; 0 no fault."},
        {.name = "bench",
         .places = {"WHAT"},
         .options =
             {{"shape", "NAME",
               "random weights of this shape: 115m, 135m, 1.1b (default), 3b, 7b, 8b, gemma3-1b, mistral-7b, "
               "qwen3.5-4b, granite-4-h-micro, nemotron-3-nano, qwen3-30b-a3b, gpt-oss-20b, deepseek-v2-lite, or with "
               "sliding windows in all layers 1.1b-window"},
              {"draft-shape", "NAME",
               "speculation: a draft model of this shape drafts (--draft=rsd-s, default: sd, spectr, rsd-c and rsd-s); "
               "without it drafts cost nothing"},
              {"acceptance", "NUMBERS",
               "speculation: probabilities that a draft continues an accepted path (0.5,0.7,0.8,0.9)"},
              {"model", "FOLDER", "instead of a shape"},
              {"rows", "NUMBER", "this number of rows only: verify, prefill, passes"},
              {"context", "NUMBER", "positions before the rows: decode, verify, passes (512)"},
              {"rounds", "NUMBER",
               "speculation, self, layers: rounds whose medians are shown (3, 5, 9); decode, verify, prefill, passes: "
               "rounds, one line each (1)"},
              {"explain", "", "also split the time of a pass: decode, verify, prefill, passes"},
              {"json", "", "for programs"}},
         .keys = true,
         .unused_keys =
             keys_but({"precision", "kv-precision", "threads", "tensor-parallel", "kernels", "device", "packed-weights",
                       "draft", "draft-tree", "draft-precision", "partial-cache", "all-reduce"}),
         .summary = "time decode, verify, prefill, passes (these three), attention, sampling, drafts, self, layers, "
                    "speculation or all-reduce, beside the machine's limits",
         .example = "longhaul bench decode --shape 1.1b --threads=2",
         .more =
             "share = time at the measured bandwidth or peak (the larger) / time measured. On several "
             "ranks: mpirun -n 2 longhaul bench decode --tensor-parallel=2, and mpirun -n 2 longhaul bench all-reduce"},
    };
    return table;
}

}  // namespace longhaul::runner
