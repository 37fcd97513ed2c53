#include "runner/run/job_outcome.hpp"

#include <algorithm>
#include <map>

#include "engine/json.hpp"
#include "runner/host/files.hpp"
#include "runner/run/results.hpp"

namespace longhaul::runner {

void add_times(const std::filesystem::path& run, JobOutcome& outcome) {
    std::map<std::int64_t, double> longest;  // longest replica of each launch, by epoch
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(run / "status", error)) {
        const auto json = engine::try_parse_json(read_if_there(entry.path()));
        if (!json.is_object() || !json.contains("decode_seconds")) continue;
        const double decode_seconds = json.value("decode_seconds", 0.0);
        outcome.speed.tokens +=
            json.value("decode_tokens", std::int64_t{0}) - json.value("mixed_tokens", std::int64_t{0});
        outcome.speed.seconds += decode_seconds;
        double& seconds = longest[json.value("epoch", std::int64_t{0})];
        seconds =
            std::max(seconds, decode_seconds + json.value("mixed_seconds", 0.0) + json.value("prefill_seconds", 0.0));
    }
    for (const auto& [epoch, seconds] : longest) outcome.working_seconds += seconds;
}

std::vector<std::string> add_statistics(std::span<const std::filesystem::path> runs, const std::filesystem::path& to,
                                        const std::string& tag, const ResultIndex& results, JobOutcome& outcome) {
    std::vector<std::string> damage = write_statistics(to, tag, runs, results, [&](const nlohmann::ordered_json& line) {
        const auto count = [&](const char* name) { return line.value(name, std::int64_t{0}); };
        outcome.total_tokens += count("num_tokens");
        outcome.target_calls += count("target_calls");
        outcome.drafted += count("drafted");
        outcome.accepted += count("accepted");
        outcome.branched_trees += count("branched_trees");
        outcome.resumed_items += count("resumes") > 0 ? 1 : 0;
        outcome.recomputed_tokens += count("recomputed_tokens");
        outcome.recomputed_rows += count("recomputed_rows");
        outcome.prompt_tokens += count("prompt_tokens");
        outcome.cached_tokens += count("cached_tokens");
        outcome.checkpoint_stall_seconds += line.value("checkpoint_stall_seconds", 0.0);
        const double efficiency = line.value("block_efficiency", 0.0);
        const double mbsu = line.value("mbsu", efficiency);  // absent for plain decoding
        if (mbsu > 0) outcome.memory_bound_calls += static_cast<double>(count("target_calls")) * efficiency / mbsu;
        outcome.nll += line.value("nll", 0.0);
        outcome.scored_tokens += count("scored_tokens");
        outcome.scored_bytes += count("scored_bytes");
        outcome.judged_tokens += line.contains("greedy_tokens") ? count("scored_tokens") : 0;
        outcome.greedy_tokens += count("greedy_tokens");
        if (!line.contains("acc")) return;
        const auto add_answer = [&](AnswerCounts& to) {
            to.questions += 1;
            to.right += count("acc");
            to.with_norm += line.contains("acc_norm") ? 1 : 0;
            to.right_norm += count("acc_norm");
            if (!line.contains("mc2")) return;
            const double mc2 = line.value("mc2", 0.0);
            to.with_mc2 += 1;
            to.mc2 += mc2;
            to.squares_of_mc2 += mc2 * mc2;
        };
        add_answer(outcome.answers);
        if (const std::string group = line.value("group", ""); !group.empty()) add_answer(outcome.groups[group]);
    });
    const auto lacks_answer = [](const ResultIndex::Entry& entry) { return entry.lacks_answer; };
    outcome.without_answer = std::count_if(results.entries().begin(), results.entries().end(), lacks_answer);
    for (const std::filesystem::path& run : runs) add_times(run, outcome);
    return damage;
}

}  // namespace longhaul::runner
