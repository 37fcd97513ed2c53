// `longhaul run`: starts a job, or goes on with it where its run folder stands.
#include <cstdio>
#include <filesystem>

#include "engine/error.hpp"
#include "runner/commands/commands.hpp"
#include "runner/host/files.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/signals.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/launch/launch.hpp"
#include "runner/run/progress.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

/// The job, read by rank 0 alone: a shared file system may show the ranks different files.
Settings read_settings(const World& world, const std::vector<std::string>& arguments) {
    std::vector<Assignment> file, keys;
    std::string folder;
    world.agree([&] {
        if (!world.is_first()) return;
        CommandLine line = parse_command_line(arguments, syntax_of("run"));
        const fs::path job = line.places.front();
        file = read_job_file(job);
        keys = std::move(line.keys);
        folder = fs::absolute(job).parent_path().string();
    });
    broadcast(world, file);
    broadcast(world, keys);
    world.broadcast(folder);
    Settings settings;
    world.agree([&] {
        settings = parse_settings(file, keys, folder);
        check_ranks(world, settings);
        check_device(settings, gpus_here());
    });
    return settings;
}

/// `threads` before MPI is there; 0 where it cannot be known yet (the errors come later, once).
int threads_of_run(const std::vector<std::string>& arguments) {
    try {
        const CommandLine line = parse_command_line(arguments, syntax_of("run"));
        const fs::path job = line.places.front();
        return static_cast<int>(parse_settings(read_job_file(job), line.keys, fs::absolute(job).parent_path()).threads);
    } catch (const Error&) {
        return 0;
    }
}

int run_job(World& world, const std::vector<std::string>& arguments, const Placement& placement) {
    LoadedJob loaded;
    loaded.placement = placement;
    Launch launch{.world = world, .loaded = loaded, .settings = read_settings(world, arguments)};
    if (const std::optional<Finished> finished = open_run(launch)) {
        world.agree([&] {
            if (!world.is_first()) return;
            std::fprintf(stderr, "longhaul: all %s items are done already\n", grouped(finished->items).c_str());
            join_if_last(launch.settings);
            print_answer(read_if_there(launch.folder.root / "summary.txt"));
        });
        return exit_code_of(*finished);
    }
    load_run(launch);
    return carry_out(launch, [](const Summary& summary) { print_answer(summary.to_table()); }).code;
}

}  // namespace

int run_command(const std::vector<std::string>& arguments) {
    install_stop_signals();  // before anything else: a stop may be asked for at any time
    const Placement placement = place_this_rank(threads_of_run(arguments));
    World world;
    return exit_code_of_ranks([&] { return run_job(world, arguments, placement); });
}

}  // namespace longhaul::runner
