// `longhaul bench WHAT`: parses the options, runs a benchmark of runner/bench and prints its table or JSON.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <new>
#include <stdexcept>
#include <string_view>

#include "engine/failure.hpp"
#include "runner/bench/bench.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/resources.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

std::string cell(const BenchColumn& column, const nlohmann::ordered_json& line) {
    const auto& value = line.at(column.key);
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "NO";
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", column.decimals, value.get<double>() * column.factor);
    return text;
}

/// Prints one line of the table. Columns are as wide as their titles; text is left-aligned.
void print_line(const BenchTable& table, const std::function<std::string(const BenchColumn&)>& text) {
    for (const BenchColumn& column : table.columns) {
        const bool words = table.lines.front().at(column.key).is_string();
        const int width = std::max(8, static_cast<int>(std::string_view(column.title).size()));
        std::printf("  %*s", words ? -width : width, text(column).c_str());
    }
    std::printf("\n");
}

/// Prints the last line of the table; before the first line also the title and the column titles.
void print_last_line(const BenchTable& table, const std::string& title) {
    if (table.lines.size() == 1) {
        std::printf("%s\n", title.c_str());
        print_line(table, [](const BenchColumn& column) { return std::string(column.title); });
    }
    print_line(table, [&](const BenchColumn& column) { return cell(column, table.lines.back()); });
    std::fflush(stdout);
}

void print_table(const BenchTable& table) {
    BenchTable so_far = table;
    so_far.lines.clear();
    for (const auto& line : table.lines) {
        so_far.lines.push_back(line);
        print_last_line(so_far, table.title);
    }
}

BenchTable measure(BenchSetup& setup, const std::string& what) {
    if (what == "decode" || what == "verify" || what == "prefill" || what == "passes") return bench_passes(setup, what);
    if (what == "attention") return bench_attention(setup);
    if (what == "sampling") return bench_sampling(setup);
    if (what == "drafts") return bench_drafts(setup);
    if (what == "self") return bench_self(setup);
    if (what == "layers") return bench_layers(setup);
    if (what == "speculation") return bench_speculation(setup);
    return bench_all_reduce(setup);
}

/// The keys that are settings of the engine. Those of drafts need no draft model here and are not checked as a job's.
std::vector<Assignment> engine_keys(const CommandLine& line) {
    std::vector<Assignment> keys = line.keys;
    std::erase_if(keys, [](const Assignment& key) { return key.key == "draft" || key.key == "draft-tree"; });
    return keys;
}

/// Throws UsageError if `what` cannot be measured with this number of ranks.
void check_ranks(const std::string& what, const Settings& settings, int ranks) {
    if (what == "all-reduce") {
        if (ranks == 2 || ranks == 4 || ranks == 8) return;
        throw UsageError("command line: bench all-reduce: expected 2, 4 or 8 ranks, got " + std::to_string(ranks) +
                         "; start it with `mpirun -n 2`");
    }
    if (what == "attention" || what == "sampling" || what == "drafts" || what == "self" || what == "layers" ||
        what == "speculation") {
        if (ranks == 1) return;
        throw UsageError("command line: bench " + what + ": expected one process, got " + std::to_string(ranks) +
                         " ranks; start it without mpirun");
    }
    if (settings.tensor_parallel == ranks) return;
    throw UsageError("tensor-parallel: expected the number of ranks, " + std::to_string(ranks) + ", got " +
                     std::to_string(settings.tensor_parallel) + "; `mpirun -n` starts more");
}

void check_name(const std::string& what) {
    const std::vector<std::string> names{"decode", "verify", "prefill", "passes",      "attention", "sampling",
                                         "drafts", "self",   "layers",  "speculation", "all-reduce"};
    if (std::find(names.begin(), names.end(), what) != names.end()) return;
    throw UsageError("command line: bench: expected " + list_words(names) + ", got '" + engine::printable(what) + "'");
}

std::int64_t count_of(const CommandLine& line, const char* option, std::int64_t max_count) {
    const std::string text = line.value(option);
    std::int64_t count = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
    if (error == std::errc() && end == text.data() + text.size() && count >= 1 && count <= max_count) return count;
    throw UsageError(std::string("command line: ") + option + ": expected a number from 1 to " +
                     std::to_string(max_count) + ", got '" + engine::printable(text) + "'");
}

/// The numbers of `--acceptance`, each below 1; none: the benchmark's own.
std::vector<double> acceptances_of(const CommandLine& line) {
    std::vector<double> numbers;
    if (!line.has("acceptance")) return numbers;
    const std::string text = line.value("acceptance");
    std::string_view rest = text;
    try {
        for (bool more = true; more;) {
            const std::size_t comma = std::min(rest.find(','), rest.size());
            more = comma < rest.size();
            numbers.push_back(parse_number(rest.substr(0, comma), 0, 1));
            rest.remove_prefix(std::min(rest.size(), comma + 1));
        }
    } catch (const BadValue&) {
        throw UsageError("command line: acceptance: expected numbers from 0 to 1, such as 0.5,0.7, got " + shown(text));
    }
    return numbers;
}

/// Options of `bench speculation`.
void read_speculation(const CommandLine& line, BenchSetup& setup) {
    setup.acceptances = acceptances_of(line);
    setup.draft_shape = line.value("draft-shape");
    if (!setup.draft_shape.empty()) static_cast<void>(bench_shape(setup.draft_shape));
    for (const Assignment& key : line.keys) {
        if (key.key == "draft-tree") setup.tree = key.value;
        if (key.key == "draft") setup.draft = key.value;
    }
    const bool speculates = line.places.at(0) == "speculation";
    if (!speculates && (line.has("acceptance") || line.has("draft-shape") || !setup.draft.empty()))
        throw UsageError(
            "command line: acceptance, draft-shape, draft: expected with bench speculation alone, got them "
            "with " +
            line.places.at(0));
    if (setup.draft_shape.empty() && !setup.draft.empty())
        throw UsageError(
            "command line: draft: expected --draft-shape with it, got none; it names the draft model's shape");
}

/// Everything except the group: what each rank sets up by itself. `threads`: this rank's share of the node; 0: one
/// process, which uses the key `threads` or all processors.
BenchSetup make_setup(const CommandLine& line, int ranks, int threads) {
    BenchSetup setup;
    setup.settings = parse_settings({}, engine_keys(line), {}, {});
    check_name(line.places.at(0));
    check_ranks(line.places.at(0), setup.settings, ranks);
    const auto asked = static_cast<int>(setup.settings.threads);
    setup.threads = threads > 0 ? threads : asked > 0 ? asked : usable_processors();
    setup.device = make_device(setup.settings, setup.threads, node_rank_from_environment().rank);
    if (line.has("context")) setup.context = count_of(line, "context", 131072 - 65536);
    if (line.has("rows")) setup.rows = count_of(line, "rows", 65536);
    setup.rounds = line.has("rounds")                   ? count_of(line, "rounds", 1000)
                   : line.places.at(0) == "speculation" ? 3
                   : line.places.at(0) == "self"        ? 5
                   : line.places.at(0) == "layers"      ? 9
                                                        : 1;
    read_speculation(line, setup);
    if (line.has("explain")) {
        auto timed = std::make_unique<TimedDevice>(std::move(setup.device));
        setup.timed = timed.get();
        setup.device = std::move(timed);
    }
    setup.shape_name = line.has("model") ? line.value("model") : line.value("shape", "1.1b");
    if (line.has("model")) setup.model = line.value("model");
    setup.shape = line.has("model") ? engine::ModelConfig::load(setup.model) : bench_shape(setup.shape_name);
    return setup;
}

std::string title_of(const std::string& what, const BenchSetup& setup) {
    const int ranks = setup.group->size();
    return what + ", shape " + setup.shape_name + ", precision " + setup.settings.precision + ", " +
           std::string(setup.device->name()) + " kernels, " + (ranks > 1 ? std::to_string(ranks) + " ranks of " : "") +
           std::to_string(setup.threads) + " threads";
}

nlohmann::ordered_json json_of(const std::string& what, const BenchSetup& setup, const BenchTable& table) {
    nlohmann::ordered_json json{{"bench", what},
                                {"shape", setup.shape_name},
                                {"precision", setup.settings.precision},
                                {"kernels", std::string(setup.device->name())},
                                {"ranks", setup.group->size()},
                                {"threads", setup.threads},
                                {"lines", table.lines}};
    for (const BenchTable& detail : table.details) json["parts"].push_back(detail.lines);
    return json;
}

/// Measures, and prints if `shown`: table lines as they are measured, then the detail tables; JSON at the end instead.
void measure_and_print(BenchSetup& setup, const CommandLine& line, bool shown) {
    const std::string& what = line.places.at(0);
    const bool json = line.has("json");
    if (shown && !json) {
        setup.line_done = [title = title_of(what, setup)](const BenchTable& so_far) {
            print_last_line(so_far, title + so_far.title);
        };
    }
    const BenchTable table = measure(setup, what);
    if (!shown) return;
    if (json) std::printf("%s\n", engine::json_text(json_of(what, setup, table), 2).c_str());
    for (std::size_t i = 0; i < table.details.size() && !json; ++i) {
        std::printf("\n");
        print_table(table.details[i]);
    }
}

/// One process without MPI.
int bench_alone(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("bench"));
    BenchSetup setup = make_setup(line, 1, 0);
    setup.group = engine::make_local_group();
    measure_and_print(setup, line, true);
    return 0;
}

/// All ranks of a launch together. Collective.
void bench_ranks(const World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    CommandLine line;
    BenchSetup setup;
    world.agree([&] {
        line = parse_command_line(arguments, syntax_of("bench"));
        setup = make_setup(line, world.size(), placement.threads);
    });
    setup.world = &world;
    setup.group = engine::make_mpi_group(world.comm(), {.threads = setup.threads});
    world.agree([&] {
        try {
            measure_and_print(setup, line, world.is_first());
        } catch (const std::bad_alloc&) {  // on this rank only: the others wait in a collective
            const Failure failure = current_failure();
            abort_all(failure.line, static_cast<int>(failure.code));
        }
    });
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
    if (!started_by_launcher()) return bench_alone(arguments);
    const Placement placement = place_this_rank(threads_of("bench", arguments, [](const CommandLine& line) {
        return parse_settings({}, engine_keys(line), {}, {}).threads;
    }));
    const World world;
    return exit_code_of_ranks([&] {
        bench_ranks(world, arguments, placement);
        return 0;
    });
}

}  // namespace longhaul::runner
