#include "runner/run/replay_run.hpp"

#include <map>
#include <memory>
#include <utility>

#include "engine/error.hpp"
#include "runner/job/settings.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {

/// The rule of a run. Its job file is not parsed as a whole: it may be of a version that knew other keys.
static engine::VerifyRule rule_of(const RunFolder& run) {
    engine::VerifyRule rule;
    for (const Assignment& line : read_job_file(run.root / "job.cfg"))
        if (line.key == "verify") rule = line.value;
    return rule;
}

/// Shared noise is drawn for nothing but the target's own tokens, so a run under `coupled` may be replayed anywhere.
static void check_independent(const RunFolder& run, engine::VerifyRule verify) {
    if (verify == engine::VerifyRule::coupled) return;
    const engine::VerifyRule recorded = rule_of(run);
    if (recorded == engine::VerifyRule::coupled) return;
    throw UsageError("replay-run: expected a run with verify = coupled, got " + run.root.string() + " with verify = " +
                     recorded.name() + "; its tokens depend on random numbers that verify = " + verify.name() +
                     " draws again, which would bias the text (verify = coupled replays any run)");
}

std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_tokens(
    const std::filesystem::path& run, engine::VerifyRule verify) {
    std::vector<std::filesystem::path> runs{run};
    if (num_shards(run) > 0) {
        runs.clear();
        for (const RunFolder& shard : begun_shards_of(run)) runs.push_back(shard.root);
    } else {
        RunFolder{run}.must_exist();
    }
    for (const std::filesystem::path& folder : runs) check_independent({folder}, verify);
    using Recorded = std::map<std::pair<std::string, std::int64_t>, std::vector<std::int32_t>>;
    const auto recorded = std::make_shared<Recorded>();
    const ResultIndex index = ResultIndex::read(runs);
    for (const ResultIndex::Entry& entry : index.entries()) {
        if (entry.failed) continue;
        ResultRecord record = index.load(entry);
        if (record.token_ids.empty() && record.num_tokens > 0) {
            throw InputError(run.string(), "token_ids", "the tokens of each result", "none",
                             "run it with token-ids = true");
        }
        (*recorded)[{record.id, entry.place.key.sample}] = std::move(record.token_ids);
    }
    return [recorded](const std::string& id, std::int64_t sample) {
        const auto at = recorded->find({id, sample});
        return at == recorded->end() ? std::vector<std::int32_t>() : at->second;
    };
}

}  // namespace longhaul::runner
