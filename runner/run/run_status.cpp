#include "runner/run/run_status.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>

#include "engine/checkpoint/commit.hpp"
#include "engine/error.hpp"
#include "runner/host/files.hpp"
#include "runner/run/results.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Ordered = nlohmann::ordered_json;

/// Which results are final under the settings of the newest launch: an item that ended at a lower max-tokens is not.
class FinalResults {
  public:
    explicit FinalResults(const RunFolder& folder) {
        try {
            settings_ = folder.settings();
            settings_->retry_failed = false;  // an item that failed again is done
        } catch (const Error&) {
            // Without job.cfg all results count.
        }
    }
    [[nodiscard]] bool has(const ResultIndex::Entry& entry) const {
        return !settings_ || ResultIndex::is_done(entry, *settings_);
    }

  private:
    std::optional<Settings> settings_;
};

void add(ProgressLine& line, const RunFolder& folder) {
    const ResultIndex results = ResultIndex::read(folder.root);
    const FinalResults final_results(folder);
    std::map<std::string, Checkpointed> unfinished = items_in_checkpoints(folder);
    for (const ResultIndex::Entry& entry : results.entries()) {
        const bool done = final_results.has(entry);
        line.done += done ? 1 : 0;
        line.failed += done && entry.failed ? 1 : 0;
        line.tokens += entry.num_tokens;
        if (unfinished.empty()) continue;  // the item's id is only in its result line, so read that again
        const auto at = unfinished.find(checkpoint_key(results.load(entry).id, entry.place.key.sample));
        if (at == unfinished.end()) continue;
        if (done) {
            unfinished.erase(at);
        } else {
            at->second.tokens = std::max<std::int64_t>(at->second.tokens - entry.num_tokens, 0);
        }
    }
    for (const auto& [key, item] : unfinished) {
        line.tokens += item.tokens;
        line.positions += item.positions;
    }
    line.stop_seconds = std::max(line.stop_seconds, longest_stop_seconds(folder.root));
}

std::string state_of(const RunFolder& folder) {
    const std::optional<LeaseView> lease = newest_lease(folder.root);
    return lease ? state_of(*lease) : "new";
}

}  // namespace

std::map<std::string, Checkpointed> items_in_checkpoints(const RunFolder& folder) {
    std::map<std::string, Checkpointed> items;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.checkpoints(), error)) {
        const bool commit = entry.path().extension() == ".h5" && entry.path().stem().extension().empty();
        if (!commit) continue;
        try {
            for (const engine::ItemDelta& item : engine::read_commit(entry.path()).items) {
                Checkpointed& most = items[item.key];
                most.tokens = std::max(most.tokens, item.first_token + static_cast<std::int64_t>(item.tokens.size()));
                most.positions = std::max(most.positions, item.kv_end);
                most.prompt_tokens = item.prompt_tokens;
            }
        } catch (const Error&) {
            continue;
        }
    }
    return items;
}

std::string state_of(const LeaseView& lease) {
    if (lease.state == LeaseState::live) return "running";
    if (lease.state == LeaseState::stale) return "crashed";
    return lease.ending.value("state", "failed");
}

RunStatus read_status(const RunFolder& folder) {
    RunStatus status;
    status.lease = newest_lease(folder.root);
    if (!status.lease) return status;
    status.state = state_of(*status.lease);
    status.stop_seconds = longest_stop_seconds(folder.root);
    const std::int64_t epoch = status.lease->record.epoch;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.status(), error)) {
        if (entry.path().extension() != ".json") continue;
        const Ordered json = Ordered::parse(read_if_there(entry.path()), nullptr, false);
        if (!json.is_object() || json.value("epoch", std::int64_t{0}) != epoch) continue;
        (entry.path().filename() == "run.json" ? status.progress : status.replicas.emplace_back()) = json;
    }
    std::sort(status.replicas.begin(), status.replicas.end(),
              [](const Ordered& a, const Ordered& b) { return a.value("replica", 0) < b.value("replica", 0); });
    const ResultIndex results = ResultIndex::read(folder.root);
    const FinalResults final_results(folder);
    for (const ResultIndex::Entry& entry : results.entries()) {
        if (!final_results.has(entry)) continue;
        ++status.done;
        status.failed += entry.failed ? 1 : 0;
    }
    return status;
}

JobProgress progress_of(const RunStatus& status) {
    JobProgress progress;
    progress.done = status.done;
    progress.failed = status.failed;
    if (status.progress.is_null()) return progress;
    const Ordered& json = status.progress;
    progress.items = json.value("items", std::int64_t{0});
    progress.in_flight = status.state == "running" ? json.value("in_flight", std::int64_t{0}) : 0;
    progress.share = json.value("share", 0.0);
    progress.tokens_per_second = json.value("tokens_per_second", 0.0);
    progress.acceptance = json.value("acceptance", -1.0);
    progress.block_efficiency = json.value("block_efficiency", 0.0);
    progress.eta_seconds = status.state == "running" ? json.value("eta_seconds", -1.0) : -1.0;
    return progress;
}

std::string state_of_all(const std::vector<std::string>& states) {
    const auto is = [](const std::string& word) { return [&word](const std::string& state) { return state == word; }; };
    for (const std::string word : {"running", "crashed", "failed"}) {
        if (std::any_of(states.begin(), states.end(), is(word))) return word;
    }
    for (const std::string word : {"new", "finished"}) {
        if (std::all_of(states.begin(), states.end(), is(word))) return word;
    }
    return "stopped";
}

std::string ProgressLine::text() const {
    // Rounded up, so that a measured time is never shown as 0.
    std::array<char, 32> seconds{};
    std::snprintf(seconds.data(), seconds.size(), "%.1f", std::ceil(stop_seconds * 10) / 10);
    return "state=" + (state == "finished" ? "done" : state) + " done=" + std::to_string(done) +
           " failed=" + std::to_string(failed) + " tokens=" + std::to_string(tokens) +
           " positions=" + std::to_string(positions) + " stop_seconds=" + seconds.data();
}

ProgressLine read_progress_line(const fs::path& root) {
    ProgressLine line;
    const RunFolder folder{root};
    std::error_code error;
    if (num_shards(root) > 0) {
        std::vector<std::string> states;
        for (const RunFolder& shard : shards_of(root)) {
            states.push_back(state_of(shard));
            if (states.back() != "new") add(line, shard);
        }
        line.state = state_of_all(states);
    } else if (folder.is_begun()) {
        line.state = state_of(folder);
        add(line, folder);
    } else if (fs::exists(root, error)) {
        try {
            folder.must_be_new();
        } catch (const UsageError&) {
            if (num_shards(root) == 0 && !folder.is_begun()) throw;
            return read_progress_line(root);  // a launch started in between
        }
    }
    return line;
}

}  // namespace longhaul::runner
