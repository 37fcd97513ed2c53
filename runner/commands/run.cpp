// `longhaul run`: starts a job or resumes it from its run folder.
#include <cstdio>

#include "runner/commands/commands.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/signals.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/launch/launch.hpp"

namespace longhaul::runner {
namespace {

/// The checked job. Collective.
Settings read_settings(const World& world, const std::vector<std::string>& arguments) {
    const JobLines lines = read_job_lines(world, "run", arguments);
    Settings settings;
    world.agree([&] {
        settings = parse_settings(lines.file, lines.keys, lines.path);
        check_ranks(world, settings);
        check_device(settings, gpus_here());
    });
    return settings;
}

/// The summary of a finished run, with the place of its results as of now: the folder may have been moved.
std::string summary_of(const RunFolder& folder) {
    std::string table = read_if_there(folder.root / "summary.txt");
    const std::string row = "\n  results ";
    const std::size_t at = table.rfind(row);
    if (at == std::string::npos) return table;
    const std::size_t begin = table.find_first_not_of(' ', at + row.size()), end = table.find('\n', begin);
    if (end == std::string::npos) return table;
    return table.replace(begin, end - begin, (folder.root / "results.jsonl").string());
}

int run_job(World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    LoadedJob loaded;
    loaded.placement = placement;
    Launch launch{.world = world, .loaded = loaded, .settings = read_settings(world, arguments)};
    if (const std::optional<Finished> finished = open_run(launch)) {
        world.agree([&] {
            if (!world.is_first()) return;
            std::fprintf(stderr, "longhaul: %s\n",
                         finished->items == 1
                             ? "the one item is done already"
                             : ("all " + grouped(finished->items) + " items are done already").c_str());
            join_if_last(launch.settings);
            print_answer(summary_of(launch.folder));
        });
        return exit_code_of(*finished);
    }
    return load_and_carry_out(launch, [](const Summary& summary) { print_answer(summary.to_table()); }).code;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
    install_stop_signals();  // first, since a stop may be requested at any time
    const Placement placement = place_this_rank(threads_of("run", arguments, [](const CommandLine& line) {
        return load_settings(line.places.front(), line.keys).threads;
    }));
    World world;
    return exit_code_of_ranks([&] { return run_job(world, arguments, placement); });
}

}  // namespace longhaul::runner
