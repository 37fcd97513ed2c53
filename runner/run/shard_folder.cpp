#include "runner/run/shard_folder.hpp"

#include <algorithm>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/host/files.hpp"
#include "runner/host/process.hpp"
#include "runner/run/earlier_results.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const Settings& settings, const std::string& expected, const std::string& fix) {
    throw UsageError(InputError::format(settings.output.string(), "shard", expected, settings.shard.name(), fix));
}

/// Whether the folder is divided into as many shards as the job; false if it is not divided yet. Throws UsageError if
/// the numbers differ.
bool has_same_shard_count(const Settings& settings) {
    const std::int64_t count = num_shards(settings.output);
    if (count == 0 || count == settings.shard.count) return count > 0;
    const std::string all = std::to_string(count);
    refuse(settings, "I/" + all + " (the job in this folder has that many shards)",
           "take I/" + all + ", or another output");
}

}  // namespace

std::int64_t num_shards(const fs::path& root) {
    const fs::path path = root / shards_marker;
    std::error_code error;
    if (!fs::exists(path, error)) return 0;
    const auto json = engine::try_parse_json(read_if_there(path));
    if (json.is_object() && json.contains("shards") && json["shards"].is_number_integer()) {
        const auto count = json["shards"].get<std::int64_t>();
        if (count >= 1 && count <= max_shards) return count;
    }
    throw InputError(path.string(), "shards", "a number from 1 to " + std::to_string(max_shards), "something else",
                     "write {\"shards\": K} into it, K as in the names of the folders beside it");
}

std::vector<RunFolder> shards_of(const fs::path& root) {
    const std::int64_t count = num_shards(root);
    std::vector<RunFolder> shards;
    for (std::int64_t index = 0; index < count; ++index) shards.push_back({shard_path(root, {index, count})});
    return shards;
}

std::vector<RunFolder> begun_shards_of(const fs::path& root) {
    std::vector<RunFolder> shards = shards_of(root);
    std::erase_if(shards, [](const RunFolder& shard) {
        std::error_code error;
        const auto has = [&](const char* name) { return fs::exists(shard.root / name, error); };
        return !has("job.cfg") || !has("identity.json");  // it has not reached its first item
    });
    if (shards.empty()) throw UsageError(root.string() + ": expected a shard that was started, got none");
    return shards;
}

void check_shard_folder(const Settings& settings) {
    const fs::path& root = settings.output;
    if (has_same_shard_count(settings)) return;
    const RunFolder whole{root};
    std::error_code error;
    if (whole.is_begun() && !fs::exists(root / sweep_marker, error))
        refuse(settings, "off (the folder holds a run of the whole job)", "leave it out, or take another output");
    try {
        whole.must_be_usable();
    } catch (const UsageError&) {
        if (!has_same_shard_count(settings)) throw;  // otherwise another shard marked the folder in between
    }
}

void create_shard_folder(const Settings& settings) {
    check_shard_folder(settings);
    make_folder(settings.output);
    const nlohmann::json mark{{"shards", settings.shard.count}};
    if (num_shards(settings.output) == 0 &&
        create_once(settings.output / shards_marker, engine::json_text(mark) + "\n", process_tag()))
        return;
    has_same_shard_count(settings);
}

void check_other_shards(const Settings& settings, const Fingerprints& fingerprints) {
    for (std::int64_t index = 0; index < settings.shard.count; ++index) {
        const RunFolder other{shard_path(settings.output, {index, settings.shard.count})};
        std::error_code error;
        const bool begun = fs::exists(other.root / "identity.json", error) || error;  // one that is hidden is an error
        if (index == settings.shard.index || !begun) continue;
        try {
            return check_same_job(other, settings, fingerprints);  // which was compared with the earlier ones
        } catch (const UsageError&) {
            if (!only_failures_until(other)) throw;
        }
    }
}

}  // namespace longhaul::runner
