// `longhaul verify RUN`: reads the results and checkpoints of a run that is not running, and names what is damaged or
// missing. Needs no MPI and no model, and writes nothing.
#include <cstdio>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/folder_check.hpp"
#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/commands/commands.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/command_line.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/result_files.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"
#include "runner/sweep/sweep_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

/// What there is in a run folder.
struct RunContent {
    RunFolder folder;
    std::int64_t done = 0, failed = 0;          ///< items with a result; of these, those that failed
    std::int64_t num_files = 0, num_bytes = 0;  ///< result files, as far as they count
    bool finished = false;                      ///< by its last launch
    engine::CheckpointReport checkpoints;
    std::vector<std::string> damage;

    /// Output tokens of the items that have no final result yet.
    [[nodiscard]] std::int64_t unfinished_tokens() const {
        std::int64_t sum = 0;
        for (const auto& [key, tokens] : checkpoints.items) sum += tokens;
        return sum;
    }
    void damaged(const std::string& name, const std::string& field, const std::string& expected, const std::string& got,
                 const std::string& fix) {
        damage.push_back(InputError::format((folder.root / name).string(), field, expected, got, fix));
    }
};

/// A run whose files change while they are read.
class RunningRun : public UsageError {
  public:
    RunningRun(const RunFolder& folder, const std::string& got, const std::string& fix)
        : UsageError(InputError::format(folder.root.string(), "", "a run that is not running", got, fix)) {}
};

/// The lease of the newest launch, if that is not running.
LeaseView lease_of(const RunFolder& folder) {
    std::optional<LeaseView> lease = newest_lease(folder.root);
    if (!lease)
        throw InputError((folder.root / "launches").string(), "", "a record of a launch", "none", "run the job again");
    if (lease->state == LeaseState::live)
        throw RunningRun(folder, "one that runs on " + describe_holder(lease->record),
                         "`longhaul status` shows its progress");
    return *lease;
}

/// Reads the result files of all launches line by line.
void check_result_files(const LeaseView& lease, RunContent& run) {
    // A finished run is not computed again; check_finished says whether results.jsonl has what is missing here.
    const std::string fix = run.finished ? "" : "run the job again: it computes again what is not there";
    std::set<std::string> there;
    for (const LaunchFile& file : launch_files(run.folder.results(), "")) {
        const std::int64_t limit = accepted_bytes(file, lease.record);
        const std::string name = "results/" + file.name;
        there.insert(file.name);
        if (limit == 0) continue;
        std::int64_t line_number = 0, num_bytes = 0;
        each_line(run.folder.root / name, limit, [&](std::string_view line, std::int64_t offset) {
            ++line_number;
            num_bytes = offset + std::ssize(line) + 1;
            if (!parse_journal(line))
                run.damaged(name, "line " + std::to_string(line_number), "a result", "something else", fix);
        });
        ++run.num_files;
        run.num_bytes += num_bytes;
        if (limit != no_limit && num_bytes < limit)
            run.damaged(name, "", std::to_string(limit) + " bytes of whole lines", std::to_string(num_bytes), fix);
    }
    for (const auto& [name, num_bytes] : lease.record.accepted)
        if (!there.contains(name))
            run.damaged("results/" + name, "", "a file of results", "no such file", run.finished ? "" : lost_results);
}

/// Hash of the results.jsonl that the result files give.
std::string hash_of_lines(const ResultIndex& index, const Settings& settings) {
    const ResultFormat format = result_format(settings);
    engine::Hash hash;
    for (const ResultIndex::Entry& entry : index.entries()) {
        const ItemKey& key = entry.place.key;
        if (key.sample >= settings.samples || (settings.limit > 0 && key.index >= settings.limit)) continue;
        hash.add(format_result(index.load(entry), format) + "\n");
    }
    return engine::hex(hash.value());
}

/// "" if the summary has no hash: the run is not finished, or an older version wrote it.
std::string hash_in_summary(const fs::path& folder) {
    const auto summary = engine::try_parse_json(read_if_there(folder / "summary.json"));
    return summary.is_object() && summary.contains("results_xxh3") && summary["results_xxh3"].is_string()
               ? summary["results_xxh3"].get<std::string>()
               : "";
}

/// results.jsonl, and whether the result files still say the same. The hash in the summary tells which one changed.
void check_finished(const ResultIndex& index, const Settings& settings, RunContent& run) {
    const fs::path file = run.folder.root / "results.jsonl";
    if (!fs::exists(file))
        return run.damaged("results.jsonl", "", "the results of a finished run", "no such file",
                           "run the job again: it is written again");
    const std::string summary = hash_in_summary(run.folder.root);
    if (summary.empty()) return;
    const std::string ours = hash_of_results(run.folder.root), theirs = hash_of_lines(index, settings);
    if (ours != summary)
        run.damaged("results.jsonl", "", "XXH3 " + summary + " as in summary.json", ours,
                    theirs == summary ? "remove it and run the job again: it is written again from results/"
                                      : "results/ does not give it either");
    if (theirs != summary)
        run.damaged("results", "", "the lines of results.jsonl, XXH3 " + summary, theirs,
                    ours == summary ? "results.jsonl is intact: keep a copy of it" : "");
    if (settings.task == "openai-batch" && !fs::exists(run.folder.root / "batch_output.jsonl"))
        run.damaged("batch_output.jsonl", "", "the answers of a finished run", "no such file",
                    "`longhaul results --form=openai` prints them");
}

void check_content(const LeaseView& lease, RunContent& run) {
    const Settings settings = run.folder.settings();
    run.finished = lease.ending.is_object() && lease.ending.value("state", "") == "finished";
    check_result_files(lease, run);
    const ResultIndex index = ResultIndex::read(run.folder.root);
    std::set<std::string> done;
    for (const ResultIndex::Entry& entry : index.entries()) {
        run.failed += entry.failed ? 1 : 0;
        if (ResultIndex::is_done(entry, settings))
            done.insert(checkpoint_key(index.load(entry).id, entry.place.key.sample));
    }
    run.done = std::ssize(index.entries());
    if (run.finished) check_finished(index, settings, run);
    run.checkpoints = engine::check_checkpoints(run.folder.checkpoints(), lease.record.epoch, done);
    run.damage.insert(run.damage.end(), run.checkpoints.damage.begin(), run.checkpoints.damage.end());
}

/// Of a run that has something which belongs to its identity.
void check_identity_file(RunContent& run) {
    const engine::Json identity = engine::try_parse_json(read_if_there(run.folder.root / "identity.json"));
    if (!identity.is_object() || !identity.contains("keys") || !identity.contains("fingerprints"))
        run.damaged("identity.json", "", "the identity of a run", "something else",
                    "restore it from a copy, or keep the results and take another output");
}

RunContent check_run(const RunFolder& folder) {
    RunContent run;
    run.folder = folder;
    try {
        const LeaseView lease = lease_of(folder);
        check_content(lease, run);
        if (lease_of(folder).record.epoch != lease.record.epoch)
            throw RunningRun(folder, "one that was started meanwhile", "try again when it has ended");
    } catch (const RunningRun&) {
        throw;
    } catch (const Error& error) {
        run.damage.emplace_back(error.what());
    }
    if (run.done > 0 || !run.checkpoints.items.empty()) check_identity_file(run);
    return run;
}

struct RunsThere {
    std::vector<RunFolder> runs;
    std::int64_t not_started = 0;  ///< shards of the job or points of the sweep
};

/// The run folder itself, the shards of a job or the points of a sweep, and their runs of plain decoding for
/// comparison.
RunsThere runs_in(const fs::path& root) {
    std::vector<RunFolder> all{{root}};
    if (num_shards(root) > 0) {
        all = shards_of(root);
    } else if (is_sweep_folder(root)) {
        all.clear();
        for (const SweepPoint& point : points_of(read_sweep(root / sweep_marker, {})))
            all.push_back({root / point.name});
    } else {
        all.front().must_exist();
    }
    RunsThere there;
    for (const RunFolder& run : all) {
        if (!run.is_begun()) {
            ++there.not_started;
            continue;
        }
        there.runs.push_back(run);
        if (const RunFolder baseline{run.root / "baseline"}; baseline.is_begun()) there.runs.push_back(baseline);
    }
    return there;
}

/// The joined results of a job in shards, if they were joined.
std::vector<std::string> check_joined(const fs::path& root) {
    const fs::path file = root / "results.jsonl";
    const std::string summary = hash_in_summary(root);
    if (num_shards(root) == 0 || summary.empty()) return {};
    const std::string got = fs::exists(file) ? hash_of_results(root) : "no such file";
    if (got == summary) return {};
    return {InputError::format(file.string(), "", "XXH3 " + summary + " as in summary.json", got,
                               "remove it and run `longhaul results`: the shards are joined again")};
}

void print_table(const RunContent& run) {
    const engine::CheckpointReport& rounds = run.checkpoints;
    const std::string failed = run.failed > 0 ? ", " + grouped(run.failed) + " of them failed" : "";
    std::printf("%s%s\n", run.folder.root.c_str(), run.finished ? " (finished)" : "");
    std::printf("  results            %s%s; %s of %s\n", counted(run.done, "item", "items").c_str(), failed.c_str(),
                counted(run.num_files, "file", "files").c_str(), size_text(run.num_bytes).c_str());
    if (!rounds.items.empty())
        std::printf("  checkpoints        %s with %s, in %s of %s\n",
                    counted(std::ssize(rounds.items), "unfinished item", "unfinished items").c_str(),
                    counted(run.unfinished_tokens(), "token", "tokens").c_str(),
                    counted(rounds.num_files, "file", "files").c_str(), size_text(rounds.num_bytes).c_str());
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
    const RunsThere there = runs_in(root);
    for (const RunFolder& folder : there.runs) runs.push_back(check_run(folder));
    const std::vector<std::string> joined = check_joined(root);
    std::int64_t num_damaged = std::ssize(joined);
    for (const RunContent& run : runs) num_damaged += std::ssize(run.damage);
    if (line.has("json")) {
        Ordered json{{"intact", num_damaged == 0},
                     {"runs", Ordered::array()},
                     {"not_started", there.not_started},
                     {"damage", joined}};
        for (const RunContent& run : runs) json["runs"].push_back(to_json(run));
        std::printf("%s\n", engine::json_text(json, 2).c_str());
    } else {
        for (const RunContent& run : runs) print_table(run);
        if (there.not_started > 0)
            std::printf("not started          %s\n", counted(there.not_started, "part", "parts").c_str());
        for (const std::string& damage : joined) std::printf("damage               %s\n", damage.c_str());
        std::printf("%s\n", num_damaged == 0 ? "all intact" : (grouped(num_damaged) + " damaged or missing").c_str());
    }
    return static_cast<int>(num_damaged == 0 ? ExitCode::done : ExitCode::error);
}

}  // namespace longhaul::runner
