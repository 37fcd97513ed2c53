// `longhaul bench WHAT`.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <stdexcept>

#include "engine/error.hpp"
#include "runner/bench/bench.hpp"
#include "runner/command_line.hpp"
#include "runner/commands/commands.hpp"
#include "runner/machine.hpp"
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
    const auto width = [&](const BenchColumn& column) {
        std::size_t widest = std::max<std::size_t>(8, std::string(column.title).size());
        for (const auto& line : table.lines) widest = std::max(widest, cell(column, line).size());
        return static_cast<int>(widest);
    };
    for (const BenchColumn& column : table.columns) std::printf("  %*s", width(column), column.title);
    std::printf("\n");
    for (const auto& line : table.lines) {
        for (const BenchColumn& column : table.columns) std::printf("  %*s", width(column), cell(column, line).c_str());
        std::printf("\n");
    }
}

BenchTable measure(BenchSetup& setup, const std::string& what) {
    if (what == "decode" || what == "verify" || what == "prefill") return bench_passes(setup, what);
    if (what == "attention") return bench_attention(setup);
    if (what == "sampling") return bench_sampling(setup);
    if (what == "speculation") return bench_speculation(setup);
    if (what == "start") return bench_start(setup);
    throw UsageError(
        "command line: bench: expected decode, verify, prefill, attention, sampling, speculation or start, got '" +
        what + (what == "all-reduce" ? "'; it is not in this version" : "'"));
}

}  // namespace

int bench_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("bench"));
    const std::string& what = line.places.at(0);
    BenchSetup setup;
    setup.settings = parse_settings({}, line.keys, std::filesystem::current_path(), {});
    setup.threads = setup.settings.threads > 0 ? static_cast<int>(setup.settings.threads) : usable_processors();
    setup.device = make_device(setup.settings, setup.threads);
    setup.variant = variant_of(*setup.device);
    setup.shape_name = line.has("model") ? line.value("model") : line.value("shape", "1.1b");
    if (line.has("model")) setup.model = line.value("model");
    setup.shape = line.has("model") ? engine::ModelConfig::load(setup.model) : bench_shape(setup.shape_name);
    BenchTable table = measure(setup, what);
    table.title = what + ", shape " + setup.shape_name + ", precision " + setup.settings.precision + ", " +
                  std::string(setup.device->name()) + " kernels, " + std::to_string(setup.threads) + " threads" +
                  table.title;
    if (line.has("json")) {
        const nlohmann::ordered_json json{{"bench", what},
                                          {"shape", setup.shape_name},
                                          {"precision", setup.settings.precision},
                                          {"kernels", std::string(setup.device->name())},
                                          {"threads", setup.threads},
                                          {"lines", table.lines}};
        std::printf("%s\n", engine::json_text(json, 2).c_str());
    } else {
        print_table(table);
    }
    return 0;
}

}  // namespace longhaul::runner
