// Joins the finished shards of a job (shard_folder.hpp) into the files that a run of the whole job writes.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <optional>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
#include "runner/host/process.hpp"
#include "runner/run/batch_answers.hpp"
#include "runner/run/job_outcome.hpp"
#include "runner/run/results.hpp"
#include "runner/run/shard_folder.hpp"
#include "runner/run/summary.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// A finished shard.
struct DoneShard {
    RunFolder folder;
    Settings settings;
    Finished finished;
    Json identity;  ///< keys, fingerprints and extensions
    std::string summary;
};

std::optional<DoneShard> read_done(const RunFolder& folder) {
    if (!folder.is_begun()) return std::nullopt;
    const std::optional<Finished> finished = read_last_finish(folder);
    if (!finished) return std::nullopt;
    Json identity = engine::try_parse_json(read_if_there(folder.root / "identity.json"));
    if (!identity.is_object()) return std::nullopt;
    return DoneShard{.folder = folder,
                     .settings = folder.settings(),
                     .finished = *finished,
                     .identity = std::move(identity),
                     .summary = read_if_there(folder.root / "summary.json")};
}

/// First difference between two shards' jobs, including `limit`, `samples` and `max-tokens`; "" if there is none.
std::string difference(const DoneShard& first, const DoneShard& other) {
    for (const char* part : {"keys", "fingerprints", "extensions"}) {
        const Json before = first.identity.value(part, Json::object()),
                   now = other.identity.value(part, Json::object());
        for (const auto& [name, value] : before.items()) {
            const Json got = now.value(name, Json());
            if (got == value) continue;
            const auto shown = [](const Json& of) { return of.is_string() ? of.get<std::string>() : of.dump(); };
            return InputError::format(other.folder.root.string(), name,
                                      shown(value) + " as in " + first.folder.root.filename().string(), shown(got),
                                      "not joined: run the shards that are behind once more with the same keys");
        }
    }
    return "";
}

/// Hash of everything that decides the joined files: the shards' summaries contain the hashes of their results.
std::string state_of(const std::vector<DoneShard>& shards) {
    engine::Hash hash;
    for (const DoneShard& shard : shards) hash.add(shard.summary + shard.identity.dump());
    return engine::hex(hash.value());
}

/// Reads a JSONL file line by line; has the current line and its id.
class LineSource {
  public:
    explicit LineSource(const fs::path& path) : in_(path, std::ios::binary) { next(); }
    [[nodiscard]] const std::string& line() const { return line_; }
    [[nodiscard]] bool is_of(const std::string& id) const { return !line_.empty() && id_ == id; }
    void next() {
        if (!std::getline(in_, line_)) line_.clear();
        const Json json = engine::try_parse_json(line_);
        id_ = json.is_object() ? json.value("id", "") : "";
    }

  private:
    std::ifstream in_;
    std::string line_, id_;
};

/// Merges the shards' references in input order, which is taken from the results.
void join_references(const fs::path& root, const std::string& tag, const std::vector<DoneShard>& shards,
                     const ResultIndex& results) {
    std::vector<LineSource> sources;
    for (const DoneShard& shard : shards) sources.emplace_back(shard.folder.root / "references.jsonl");
    const bool any = std::any_of(sources.begin(), sources.end(), [](const auto& of) { return !of.line().empty(); });
    if (!any) return;
    FileReplacement file(root / "references.jsonl", tag);
    for (const ResultIndex::Entry& entry : results.entries()) {
        const ItemKey& key = entry.place.key;
        LineSource& source = sources[static_cast<std::size_t>(key.index) % sources.size()];
        if (key.sample > 0 || source.line().empty() || !source.is_of(results.load(entry).id)) continue;
        file.append(source.line() + "\n");
        source.next();
    }
    file.commit(Durable::yes);
}

/// Combines the shards' comparisons with plain decoding; nullopt unless all shards have one.
std::optional<BaselineReport> join_baselines(const std::vector<DoneShard>& shards) {
    BaselineReport report{.speed = {}, .identical = {}};
    const bool promised = shards.front().settings.is_coupled();
    if (promised) report.identical = true;
    JobOutcome times;
    for (const DoneShard& shard : shards) {
        if (!shard.finished.baseline) return std::nullopt;
        const Json summary = engine::try_parse_json(shard.summary);
        if (promised && !summary.value("/baseline/identical"_json_pointer, false)) report.identical = false;
        add_times(shard.folder.root / "baseline", times);
    }
    report.speed = times.speed;
    return report;
}

void write_joined(const fs::path& root, const std::vector<DoneShard>& shards, const std::string& state) {
    const std::string tag = process_tag();
    std::vector<fs::path> runs;
    Settings settings = shards.front().settings;
    settings.shard = {};
    settings.output = root;
    JobOutcome outcome;
    outcome.all_done = true;
    for (const DoneShard& shard : shards) {
        runs.push_back(shard.folder.root);
        outcome.items += shard.finished.items;
        outcome.done += shard.finished.items;
        outcome.failed += shard.finished.failed;
    }
    replace_file(root / "job.cfg", format_settings(settings), Durable::yes, tag);
    const ResultIndex results = ResultIndex::read(runs);
    for (const std::string& line : add_statistics(runs, root, tag, results, outcome))
        std::fprintf(stderr, "warning: %s\n", line.c_str());
    const auto failed = std::find_if(results.entries().begin(), results.entries().end(),
                                     [](const ResultIndex::Entry& entry) { return entry.failed; });
    if (failed != results.entries().end()) outcome.first_failure = failure_of(results.load(*failed));
    join_references(root, tag, shards, results);
    if (settings.task == "openai-batch") write_batch_answers(root, tag, results, settings);
    write_results(root, tag, results, outcome.items / settings.samples, settings);
    const Summary summary{.outcome = outcome,
                          .settings = settings,
                          .results = (root / "results.jsonl").string(),
                          .results_hash = hash_of_results(root),
                          .kernels = {},
                          .baseline = join_baselines(shards),
                          .shards = static_cast<std::int64_t>(shards.size())};
    replace_file(root / "summary.txt", summary.to_table(), Durable::yes, tag);
    replace_file(root / "summary.json", engine::json_text(summary.to_json(), 2) + "\n", Durable::yes, tag);
    replace_file(root / "joined.json", engine::json_text(Json{{"shards_xxh3", state}}, 2) + "\n", Durable::yes, tag);
}

}  // namespace

JoinReport join_shards(const fs::path& root) {
    std::vector<DoneShard> shards;
    for (const RunFolder& folder : shards_of(root)) {
        std::optional<DoneShard> shard = read_done(folder);
        if (!shard) return {.state = Joining::waiting, .why = folder.root.string() + " is not done"};
        shards.push_back(std::move(*shard));
    }
    if (shards.empty()) return {};
    for (const DoneShard& shard : shards) {
        if (std::string why = difference(shards.front(), shard); !why.empty())
            return {.state = Joining::differing, .why = std::move(why)};
    }
    const std::string state = state_of(shards);
    const Json before = engine::try_parse_json(read_if_there(root / "joined.json"));
    std::error_code error;
    const bool there = fs::exists(root / "results.jsonl", error);
    if (there && before.is_object() && before.value("shards_xxh3", "") == state)
        return {.state = Joining::current, .why = ""};
    write_joined(root, shards, state);
    return {.state = Joining::joined, .why = ""};
}

}  // namespace longhaul::runner
