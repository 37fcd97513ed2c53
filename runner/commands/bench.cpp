// `longhaul bench WHAT`.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <new>
#include <stdexcept>

#include "engine/error.hpp"
#include "runner/bench/bench.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/machine.hpp"
#include "runner/placement.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

kernels::CpuVariant variant_of(const kernels::Device& device) {
    for (const kernels::CpuVariant variant : kernels::available_cpu_variants()) {
        if (kernels::variant_name(variant) == device.name()) return variant;
    }
    throw std::logic_error("no processor variant '" + std::string(device.name()) + "'");
}

std::string cell(const BenchColumn& column, const nlohmann::ordered_json& line) {
    const auto& value = line.at(column.key);
    if (value.is_string()) return value.get<std::string>();
    if (value.is_boolean()) return value.get<bool>() ? "yes" : "NO";
    char text[64];
    std::snprintf(text, sizeof text, "%.*f", column.decimals, value.get<double>() * column.factor);
    return text;
}

void print_table(const BenchTable& table) {
    std::printf("%s\n", table.title.c_str());
    std::vector<std::vector<std::string>> rows(1);
    for (const BenchColumn& column : table.columns) rows.front().emplace_back(column.title);
    for (const auto& line : table.lines) {
        std::vector<std::string>& row = rows.emplace_back();
        for (const BenchColumn& column : table.columns) row.push_back(cell(column, line));
    }
    std::vector<std::size_t> widths(table.columns.size(), 8);
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    for (const auto& row : rows) {
        for (std::size_t i = 0; i < row.size(); ++i) {
            const bool words = !table.lines.empty() && table.lines.front().at(table.columns[i].key).is_string();
            std::printf("  %*s", static_cast<int>(words ? -static_cast<std::ptrdiff_t>(widths[i]) : widths[i]),
                        row[i].c_str());
        }
        std::printf("\n");
    }
    for (const BenchTable& detail : table.details) {
        std::printf("\n");
        print_table(detail);
    }
}

BenchTable measure(BenchSetup& setup, const std::string& what) {
    if (what == "decode" || what == "verify" || what == "prefill") return bench_passes(setup, what);
    if (what == "attention") return bench_attention(setup);
    if (what == "sampling") return bench_sampling(setup);
    if (what == "speculation") return bench_speculation(setup);
    if (what == "start") return bench_start(setup);
    return bench_all_reduce(setup);
}

/// `threads` before MPI is there; 0 where it cannot be known (the error comes later, once).
int wanted_threads(const std::vector<std::string>& arguments) {
    try {
        const CommandLine line = parse_command_line(arguments, syntax_of("bench"));
        return static_cast<int>(parse_settings({}, line.keys, std::filesystem::current_path(), {}).threads);
    } catch (const Error&) {
        return 0;
    }
}

/// Throws UsageError where `what` cannot be measured with so many ranks.
void check_ranks(const std::string& what, const Settings& settings, int ranks) {
    if (what == "all-reduce") {
        if (ranks == 2 || ranks == 4 || ranks == 8) return;
        throw UsageError("command line: bench all-reduce: expected 2, 4 or 8 ranks, got " + std::to_string(ranks) +
                         "; start it with `mpirun -n 2`");
    }
    if (what == "attention" || what == "sampling" || what == "speculation" || what == "start") {
        if (ranks == 1) return;
        throw UsageError("command line: bench " + what + ": expected one process, got " + std::to_string(ranks) +
                         " ranks; start it without mpirun");
    }
    if (settings.tensor_parallel == ranks) return;
    throw UsageError("tensor-parallel: expected the number of ranks, " + std::to_string(ranks) + ", got " +
                     std::to_string(settings.tensor_parallel) + "; `mpirun -n` starts more");
}

void check_name(const std::string& what) {
    const std::vector<std::string> names{"decode",   "verify",      "prefill",    "attention",
                                         "sampling", "speculation", "all-reduce", "start"};
    if (std::find(names.begin(), names.end(), what) != names.end()) return;
    throw UsageError("command line: bench: expected " + list_words(names) + ", got '" + engine::printable(what) + "'");
}

std::int64_t rows_of(const std::string& text) {
    constexpr std::int64_t most = 65536;
    std::int64_t rows = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), rows);
    if (error == std::errc() && end == text.data() + text.size() && rows >= 1 && rows <= most) return rows;
    throw UsageError("command line: rows: expected a number from 1 to " + std::to_string(most) + ", got '" +
                     engine::printable(text) + "'");
}

/// All but the group: what each rank finds out by itself. `threads`: of this rank's share of the node; 0: alone here.
BenchSetup make_setup(const CommandLine& line, int ranks, int threads) {
    BenchSetup setup;
    setup.settings = parse_settings({}, line.keys, std::filesystem::current_path(), {});
    check_name(line.places.at(0));
    check_ranks(line.places.at(0), setup.settings, ranks);
    const auto asked = static_cast<int>(setup.settings.threads);
    setup.threads = threads > 0 ? threads : asked > 0 ? asked : usable_processors();
    setup.device = make_device(setup.settings, setup.threads);
    setup.variant = variant_of(*setup.device);
    if (line.has("rows")) setup.rows = rows_of(line.value("rows"));
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

void print_answer(const CommandLine& line, const BenchSetup& setup, BenchTable& table) {
    const std::string& what = line.places.at(0);
    const int ranks = setup.group->size();
    if (line.has("json")) {
        nlohmann::ordered_json json{{"bench", what},
                                    {"shape", setup.shape_name},
                                    {"precision", setup.settings.precision},
                                    {"kernels", std::string(setup.device->name())},
                                    {"ranks", ranks},
                                    {"threads", setup.threads},
                                    {"lines", table.lines}};
        for (const BenchTable& detail : table.details) json["parts"].push_back(detail.lines);
        std::printf("%s\n", engine::json_text(json, 2).c_str());
        return;
    }
    table.title = what + ", shape " + setup.shape_name + ", precision " + setup.settings.precision + ", " +
                  std::string(setup.device->name()) + " kernels, " +
                  (ranks > 1 ? std::to_string(ranks) + " ranks of " : "") + std::to_string(setup.threads) + " threads" +
                  table.title;
    print_table(table);
}

/// One process, no MPI.
int bench_alone(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("bench"));
    BenchSetup setup = make_setup(line, 1, 0);
    setup.group = engine::make_local_group();
    BenchTable table = measure(setup, line.places.at(0));
    print_answer(line, setup, table);
    return 0;
}

/// All ranks of a launch together.
void bench_ranks(const World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    CommandLine line;
    BenchSetup setup;
    world.agree([&] {
        line = parse_command_line(arguments, syntax_of("bench"));
        setup = make_setup(line, world.size(), placement.threads);
    });
    setup.world = &world;
    setup.group = engine::make_mpi_group(world.comm(), {.threads = setup.threads});
    BenchTable table;
    world.agree([&] {
        try {
            table = measure(setup, line.places.at(0));
        } catch (const std::bad_alloc&) {  // here alone: the others wait in a collective
            int code = 1;
            const std::string failure = describe_failure(code);
            abort_all(failure, code);
        }
    });
    if (world.is_first()) print_answer(line, setup, table);
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
    if (!started_by_launcher()) return bench_alone(arguments);
    const Placement placement = place_this_rank(wanted_threads(arguments));
    const World world;
    return exit_code_of_ranks([&] {
        bench_ranks(world, arguments, placement);
        return 0;
    });
}

}  // namespace longhaul::runner
