#include "runner/run/replay_run.hpp"

#include <map>
#include <memory>
#include <utility>

#include "engine/error.hpp"
#include "runner/run/results.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {

std::function<std::vector<std::int32_t>(const std::string& id, std::int64_t sample)> recorded_tokens(
    const std::filesystem::path& run) {
    std::vector<std::filesystem::path> runs{run};
    if (num_shards(run) > 0) {
        runs.clear();
        for (const RunFolder& shard : begun_shards_of(run)) runs.push_back(shard.root);
    } else {
        RunFolder{run}.must_exist();
    }
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
