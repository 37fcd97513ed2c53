// `longhaul verify RUN`: reads all results and checkpoints of a run that is not running, and names what is damaged or
// missing. Needs no MPI and no model, and writes nothing.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/commands/commands.hpp"
#include "runner/job/command_line.hpp"
#include "runner/job/value_text.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/progress.hpp"
#include "runner/run/result_files.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"
#include "runner/sweep/sweep_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

/// What there is in a run folder, or in one shard of a job.
struct RunContent {
    RunFolder folder;
    std::int64_t done = 0, failed = 0;          ///< items with a result; of these, those that failed
    std::int64_t num_files = 0, num_bytes = 0;  ///< result files, as far as they count
    bool finished = false;
    engine::CheckpointReport checkpoints;
    std::vector<std::string> damage;

    /// Output tokens of the items that have no result yet.
    [[nodiscard]] std::int64_t unfinished_tokens() const {
        std::int64_t sum = 0;
        for (const auto& [key, tokens] : checkpoints.items) sum += tokens;
        return sum;
    }
};

/// The lease of the newest launch. Throws UsageError if it is running: its files change.
LeaseView lease_of(const RunFolder& folder) {
    folder.must_exist();
    std::optional<LeaseView> lease = newest_lease(folder.root);
    if (!lease)
        throw UsageError(
            InputError::format(folder.root.string(), "", "a run that was started", "one without a launch", ""));
    if (lease->state == LeaseState::live)
        throw UsageError(InputError::format(folder.root.string(), "", "a run that is not running",
                                            "one that runs on " + describe_holder(lease->record),
                                            "`longhaul status` shows its progress"));
    return *lease;
}

/// Reads the result files of all launches. Returns the names in checkpoints of the items that have a result.
std::set<std::string> check_results(const LeaseView& lease, RunContent& run) {
    std::set<std::string> done;
    const fs::path folder = run.folder.results();
    const auto damaged = [&](const std::string& name, const std::string& field, const std::string& expected,
                             const std::string& got) {
        run.damage.push_back(InputError::format(
            (folder / name).string(), field, expected, got,
            run.finished ? "results.jsonl still has what it held" : "run the job again: its items are computed again"));
    };
    std::set<std::string> there;
    for (const LaunchFile& file : launch_files(folder, "")) {
        const std::int64_t limit = accepted_bytes(file, lease.record);
        there.insert(file.name);
        if (limit == 0) continue;
        std::int64_t line_number = 0, num_bytes = 0;
        each_line(folder / file.name, limit, [&](std::string_view line, std::int64_t offset) {
            ++line_number;
            num_bytes = offset + std::ssize(line) + 1;
            if (const auto record = parse_journal(line)) {
                done.insert(checkpoint_key(record->id, record->key.sample));
            } else {
                damaged(file.name, "line " + std::to_string(line_number), "a result", "something else");
            }
        });
        ++run.num_files;
        run.num_bytes += num_bytes;
        if (limit != no_limit && num_bytes < limit)
            damaged(file.name, "", std::to_string(limit) + " bytes", std::to_string(num_bytes));
    }
    for (const auto& [name, num_bytes] : lease.record.accepted)
        if (!there.contains(name)) damaged(name, "", std::to_string(num_bytes) + " bytes", "no such file");
    return done;
}

/// Compares FOLDER/results.jsonl with the results of the runs it was written from.
void compare_results(const fs::path& file, const std::vector<fs::path>& runs, const Settings& settings,
                     std::vector<std::string>& damage) {
    const ResultIndex index = ResultIndex::read(runs);
    const ResultFormat format = result_format(settings);
    std::ifstream in(file, std::ios::binary);
    std::int64_t number = 0;
    std::string line;
    const auto differs = [&](const std::string& got) {
        damage.push_back(InputError::format(file.string(), "line " + std::to_string(number),
                                            "the line that results/ gives", got,
                                            "remove the file and run the job again: it is written again"));
    };
    for (const ResultIndex::Entry& entry : index.entries()) {
        const ItemKey& key = entry.place.key;
        if (key.sample >= settings.samples || (settings.limit > 0 && key.index >= settings.limit)) continue;
        ++number;
        if (!std::getline(in, line) || in.eof()) return differs("the end of the file");
        if (line != format_result(index.load(entry), format)) return differs("another one");
    }
    if (std::getline(in, line)) {
        ++number;
        differs("one more");
    }
}

RunContent check_run(const RunFolder& folder) {
    const LeaseView lease = lease_of(folder);
    RunContent run;
    run.folder = folder;
    run.finished = read_last_finish(folder).has_value();
    const std::set<std::string> done = check_results(lease, run);
    const ResultIndex index = ResultIndex::read(folder.root);
    run.done = std::ssize(index.entries());
    for (const ResultIndex::Entry& entry : index.entries()) run.failed += entry.failed ? 1 : 0;
    if (run.finished && run.damage.empty())
        compare_results(folder.root / "results.jsonl", {folder.root}, folder.settings(), run.damage);
    run.checkpoints = engine::check_checkpoints(folder.checkpoints(), lease.record.epoch);
    std::erase_if(run.checkpoints.items, [&](const auto& item) { return done.contains(item.first); });
    for (const std::string& line : run.checkpoints.damage) run.damage.push_back(line);
    return run;
}

/// The run folder itself, the shards of a job or the points of a sweep that were started.
std::vector<RunFolder> runs_in(const fs::path& root) {
    if (num_shards(root) > 0) return begun_shards_of(root);
    if (!is_sweep_folder(root)) return {RunFolder{root}};
    std::vector<RunFolder> runs;
    for (const SweepPoint& point : points_of(read_sweep(root / sweep_marker, {}))) {
        if (const RunFolder folder{root / point.name}; folder.is_begun()) runs.push_back(folder);
    }
    return runs;
}

void print_table(const RunContent& run) {
    const engine::CheckpointReport& rounds = run.checkpoints;
    const std::string failed = run.failed > 0 ? ", " + grouped(run.failed) + " of them failed" : "";
    std::printf("%s%s\n", run.folder.root.c_str(), run.finished ? " (finished)" : "");
    std::printf("  results            %s%s; %s of %s\n", counted(run.done, "item", "items").c_str(), failed.c_str(),
                counted(run.num_files, "file", "files").c_str(), size_text(run.num_bytes).c_str());
    std::printf("  checkpoints        %s, %s of %s\n", counted(rounds.num_rounds, "round", "rounds").c_str(),
                counted(rounds.num_files, "file", "files").c_str(), size_text(rounds.num_bytes).c_str());
    if (!rounds.items.empty())
        std::printf("  unfinished         %s with %s\n", counted(std::ssize(rounds.items), "item", "items").c_str(),
                    counted(run.unfinished_tokens(), "token", "tokens").c_str());
    for (const std::string& line : run.damage) std::printf("  damage             %s\n", line.c_str());
}

Ordered to_json(const RunContent& run) {
    return {{"run", run.folder.root.string()},
            {"finished", run.finished},
            {"done", run.done},
            {"failed", run.failed},
            {"result_files", run.num_files},
            {"result_bytes", run.num_bytes},
            {"checkpoint_rounds", run.checkpoints.num_rounds},
            {"checkpoint_files", run.checkpoints.num_files},
            {"checkpoint_bytes", run.checkpoints.num_bytes},
            {"unfinished", run.checkpoints.items},
            {"damage", run.damage}};
}

}  // namespace

int verify_command(const std::vector<std::string>& arguments) {
    const CommandLine line = parse_command_line(arguments, syntax_of("verify"));
    const fs::path root = line.places.front();
    std::vector<RunContent> runs;
    for (const RunFolder& folder : runs_in(root)) runs.push_back(check_run(folder));
    std::vector<std::string> damage;  // of the joined results
    std::int64_t num_damaged = 0;
    for (const RunContent& run : runs) num_damaged += std::ssize(run.damage);
    if (num_shards(root) > 0 && num_damaged == 0 && fs::exists(root / "results.jsonl")) {
        std::vector<fs::path> folders;
        for (const RunContent& run : runs) folders.push_back(run.folder.root);
        compare_results(root / "results.jsonl", folders, runs.front().folder.settings(), damage);
        num_damaged += std::ssize(damage);
    }
    if (line.has("json")) {
        Ordered json{{"intact", num_damaged == 0}, {"runs", Ordered::array()}, {"damage", damage}};
        for (const RunContent& run : runs) json["runs"].push_back(to_json(run));
        std::printf("%s\n", engine::json_text(json, 2).c_str());
    } else {
        for (const RunContent& run : runs) print_table(run);
        for (const std::string& joined : damage) std::printf("damage: %s\n", joined.c_str());
        std::printf("%s\n", num_damaged == 0 ? "all intact" : counted(num_damaged, "fault", "faults").c_str());
    }
    return static_cast<int>(num_damaged == 0 ? ExitCode::done : ExitCode::error);
}

}  // namespace longhaul::runner
