#include "runner/run/run_folder.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/host/files.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/run/slurm.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

/// Identity keys and values; the values of a repeated key are joined.
std::map<std::string, std::string> key_values(const Settings& settings) {
    std::map<std::string, std::string> values;
    for (const Assignment& assignment : identity_of(settings)) {
        std::string& value = values[assignment.key];
        value += (value.empty() ? "" : ", ") + assignment.value;
    }
    return values;
}

/// The keys of a stored identity. Earlier versions did not store draft-tree if it was the method's default, so it is
/// added here.
std::map<std::string, std::string> read_keys(const Json& json, const Settings& settings) {
    auto keys = json.get<std::map<std::string, std::string>>();
    // Earlier versions stored the partial cache of every method.
    if (!settings.draft->copies_target)
        std::erase_if(keys, [](const auto& stored) {
            const Key* key = find_key(stored.first);
            return key != nullptr && key->of_copies;
        });
    const auto draft = keys.find("draft");
    if (draft == keys.end() || draft->second != settings.draft->name) return keys;
    const std::string own = (settings.draft->drafts() ? own_tree(settings) : settings.draft_tree).text();
    if (!own.empty()) keys.try_emplace("draft-tree", own);
    return keys;
}

Json extensions_of(const Settings& settings) {
    // limit = 0 means all items, so it is greater than any other limit.
    return {{"limit", settings.limit}, {"samples", settings.samples}, {"max-tokens", settings.max_tokens}};
}

constexpr const char* other_value = "change it back, or take another output";
constexpr const char* other_version =
    "this version of longhaul computes otherwise: finish the run with the one that began it, or take another output";
constexpr const char* other_device =
    "their texts differ: device = cpu, or kernels = cuda-exact on a GPU, resumes what a CPU began, "
    "--allow-device-change resumes anyway";
constexpr const char* began_in_blocks =
    "their texts differ: kernels = amx-bf16 resumes it on any processor with AVX2, --allow-device-change resumes "
    "anyway";
constexpr const char* began_in_pairs =
    "their texts differ: leave out kernels = amx-bf16, --allow-device-change resumes anyway";

[[noreturn]] void refuse(const RunFolder& folder, const std::string& key, const std::string& old_value,
                         const std::string& new_value, const char* fix = other_value) {
    throw UsageError(folder.root.string() + ": " + key + ": expected " + old_value +
                     " (this run was started with it), got " + new_value + "; " + fix);
}

const char* fix_of(const std::string& key, const std::string& old_value, const std::string& new_value) {
    if (key != "device") return other_value;
    const bool was_in_blocks = old_value.starts_with(kind_in_blocks),
               is_in_blocks = new_value.starts_with(kind_in_blocks);
    if (was_in_blocks && is_in_blocks) return other_version;
    if (was_in_blocks) return began_in_blocks;
    return is_in_blocks && old_value == "cpu" ? began_in_pairs : other_device;
}

std::string shown(const std::string& value) {
    return value.empty() ? "nothing" : value;
}

void compare(const RunFolder& folder, const std::map<std::string, std::string>& old_values,
             const std::map<std::string, std::string>& new_values, bool allow_device_change) {
    for (const auto* side : {&old_values, &new_values}) {
        for (const auto& [key, value] : *side) {
            if (key == "device" && allow_device_change) continue;
            const auto before = old_values.find(key);
            const auto now = new_values.find(key);
            const std::string old_value = before == old_values.end() ? "" : before->second;
            const std::string new_value = now == new_values.end() ? "" : now->second;
            if (old_value == new_value) continue;
            refuse(folder, key, shown(old_value), shown(new_value), fix_of(key, old_value, new_value));
        }
    }
}

void compare_extensions(const RunFolder& folder, const Json& old_values, const Settings& settings) {
    const auto before = [&](const char* key) { return old_values.value(key, std::int64_t{0}); };
    const auto check = [&](const char* key, std::int64_t now, bool lowered) {
        if (lowered) refuse(folder, key, "at least " + std::to_string(before(key)), std::to_string(now));
    };
    if (kind_of("max-tokens", settings) == KeyKind::extension) {
        check("max-tokens", settings.max_tokens, settings.max_tokens < before("max-tokens"));
    }
    check("samples", settings.samples, settings.samples < before("samples"));
    const std::int64_t old_limit = before("limit");
    if (old_limit == 0 && settings.limit != 0) refuse(folder, "limit", "0 (all)", std::to_string(settings.limit));
    check("limit", settings.limit, settings.limit != 0 && settings.limit < old_limit);
}

/// Content of identity.json; "" if there is none. Throws InputError if it cannot be read.
std::string identity_text(const RunFolder& folder) {
    const fs::path path = folder.root / "identity.json";
    std::error_code error;
    if (!fs::exists(path, error) && !error) return "";
    const InputFile file(path);
    return file.read(0, file.num_bytes());
}

/// Whether a launch has got to its first item; it writes identity.json before.
bool has_work(const RunFolder& folder) {
    return !names_in(folder.results()).empty() || !names_in(folder.checkpoints()).empty();
}

constexpr const char* lost_identity = "restore it from a copy, or keep the results and take another output";

std::string hash_text(const std::string& text) {
    return engine::hex(engine::hash_of(text));
}

std::vector<fs::path> folders_of(const RunFolder& folder) {
    return {folder.root / "launches", folder.results(), folder.checkpoints(), folder.status(), folder.log()};
}

/// Whether the folder is empty, or has only what a launch leaves that died while it created its folders.
bool holds_only_run_folders(const RunFolder& folder) {
    const std::vector<fs::path> ours = folders_of(folder);
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(folder.root, error)) {
        const std::string name = entry.path().filename().string();
        if (name == batch_folder && fs::is_directory(entry.path(), error)) continue;
        if (name.starts_with(shards_marker)) continue;  // another shard is creating it now
        if (std::find(ours.begin(), ours.end(), entry.path()) == ours.end()) return false;
        if (!fs::is_directory(entry.path(), error) || !fs::is_empty(entry.path(), error)) return false;
    }
    return true;
}

}  // namespace

fs::path shard_path(const fs::path& output, const Shard& shard) {
    return output / ("shard-" + std::to_string(shard.index) + "-of-" + std::to_string(shard.count));
}

RunFolder run_folder_of(const Settings& settings) {
    return {settings.shard.is_part() ? shard_path(settings.output, settings.shard) : settings.output};
}

bool RunFolder::is_begun() const {
    std::error_code error;
    if (fs::is_regular_file(root / "identity.json", error)) return true;
    return fs::is_directory(root / "launches", error) && !fs::is_empty(root / "launches", error);
}

void RunFolder::must_be_new() const {
    std::error_code error;
    const auto refuse = [&](const char* got) {
        throw UsageError(root.string() + ": output: expected a run folder or an empty one, got " + got);
    };
    if (fs::exists(root / sweep_marker, error)) refuse("the folder of a sweep");
    if (fs::exists(root / shards_marker, error))
        refuse("the folder of a divided job; give shard = I/K, or take another output");
    if (!fs::exists(root, error)) return;
    if (!fs::is_directory(root, error)) throw UsageError(root.string() + ": output: expected a folder, got a file");
    if (!holds_only_run_folders(*this)) refuse("a folder of other files");
}

void RunFolder::must_be_usable() const {
    std::error_code error;
    const bool marked = fs::exists(root / sweep_marker, error) || fs::exists(root / shards_marker, error);
    if (marked || !is_begun()) must_be_new();
    const fs::path nearest = nearest_existing(root);
    const int reason = !fs::is_directory(nearest, error)             ? ENOTDIR
                       : ::access(nearest.c_str(), W_OK | X_OK) != 0 ? errno
                                                                     : 0;
    if (reason == 0) return;
    throw UsageError(root.string() + ": output: expected a folder that can be written, got " + std::strerror(reason));
}

void RunFolder::create() const {
    must_be_usable();
    make_folder(root);
    for (const fs::path& folder : folders_of(*this)) make_folder(folder);
}

void RunFolder::must_exist() const {
    std::error_code error;
    if (fs::exists(root / sweep_marker, error)) {
        throw UsageError(root.string() + ": expected a run folder, got the folder of a sweep; name a folder in it");
    }
    if (fs::exists(root / shards_marker, error)) {
        throw UsageError(root.string() +
                         ": expected a run folder, got that of a divided job; name the folder of a shard in it");
    }
    if (is_begun()) return;
    throw UsageError(root.string() + ": expected a run folder, got " +
                     (fs::exists(root, error) ? "something without launches/ and identity.json" : "nothing there"));
}

Settings RunFolder::settings() const {
    const fs::path path = root / "job.cfg";
    if (read_job_file(path).empty())
        throw InputError(path.string(), "", "a job", "nothing", "run the job again: the file is written again");
    return load_settings(path, {});
}

static void check_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints,
                           bool extensions) {
    const std::string text = identity_text(folder);
    if (text.empty() && !has_work(folder)) return;
    const Json json = engine::try_parse_json(text);
    const std::string file = (folder.root / "identity.json").string();
    if (!json.is_object())
        throw InputError(file, "", "the identity of a run", text.empty() ? "nothing" : "something else", lost_identity);
    try {
        compare(folder, read_keys(json.at("keys"), settings), key_values(settings), settings.allow_device_change);
        if (extensions) compare_extensions(folder, json.at("extensions"), settings);
        const auto recorded = json.at("fingerprints").get<Fingerprints>();
        const auto changed = [&](const std::string& name, const std::string& value) {
            const auto now = fingerprints.find(name);
            return now != fingerprints.end() && now->second != value;
        };
        constexpr const char* version = "numerics";  // another one may have other fingerprints of the same contents
        if (const auto found = recorded.find(version); found != recorded.end() && changed(version, found->second))
            refuse(folder, version, found->second, fingerprints.at(version), other_version);
        for (const auto& [name, value] : recorded) {
            if (changed(name, value))
                refuse(folder, name, "contents with fingerprint " + value, "changed contents, " + fingerprints.at(name),
                       "restore them, or take another output");
        }
    } catch (const Json::exception& error) {
        throw InputError(file, "", "the identity of a run", error.what(), lost_identity);
    }
}

void check_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints) {
    check_identity(folder, settings, fingerprints, true);
}

void check_same_job(const RunFolder& other, const Settings& settings, const Fingerprints& fingerprints) {
    check_identity(other, settings, fingerprints, false);
}

std::optional<std::int64_t> recorded_max_tokens(const RunFolder& folder) {
    const Json json = engine::try_parse_json(identity_text(folder));
    try {
        if (!json.is_object()) return std::nullopt;
        return json.at("extensions").at("max-tokens").get<std::int64_t>();
    } catch (const Json::exception&) {
        return std::nullopt;
    }
}

std::vector<std::string> device_kinds(const RunFolder& folder) {
    const Json json = engine::try_parse_json(read_if_there(folder.root / "identity.json"));
    try {
        if (!json.is_object()) return {};
        if (json.contains("devices")) return json.at("devices").get<std::vector<std::string>>();
        return {json.at("keys").at("device").get<std::string>()};
    } catch (const Json::exception&) {
        return {};
    }
}

void write_identity(const RunFolder& folder, const Settings& settings, const Fingerprints& fingerprints) {
    Json json{{"format", 1},
              {"keys", key_values(settings)},
              {"extensions", extensions_of(settings)},
              {"fingerprints", fingerprints}};
    std::vector<std::string> devices = device_kinds(folder);
    if (devices.empty() || devices.back() != device_kind(settings)) devices.push_back(device_kind(settings));
    if (devices.size() > 1) json["devices"] = devices;
    replace_file(folder.root / "identity.json", engine::json_text(json, 2) + "\n", Durable::yes, "own");
}

Fingerprints read_fingerprints(const RunFolder& folder) {
    const fs::path path = folder.root / "identity.json";
    const Json json = engine::try_parse_json(read_if_there(path));
    try {
        Fingerprints fingerprints = json.at("fingerprints").get<Fingerprints>();
        for (const char* name : {"data", "model", "tokenizer"}) static_cast<void>(fingerprints.at(name));
        return fingerprints;
    } catch (const std::exception&) {
        throw InputError(path.string(), "fingerprints", "those of a run", "none",
                         "the run never got to its first item");
    }
}

std::string identity_hash(const Settings& settings, const Fingerprints& fingerprints) {
    std::map<std::string, std::string> keys = key_values(settings);
    // for compatibility with checkpoints of earlier versions
    if (settings.draft_tree == own_tree(settings)) keys.erase("draft-tree");
    if (!settings.is_coupled() && !settings.draft->copies_target) {
        for (const Key& key : key_table()) {
            if (!key.earlier_value.empty()) keys.emplace(key.info.key, key.earlier_value);
        }
    }
    keys["device"] = "cpu";  // likewise; with --allow-device-change, checkpoints of another device kind are read
    std::string text;
    for (const auto& [key, value] : keys) text.append(key).append("=").append(value).append("\n");
    for (const auto& [name, value] : fingerprints) text.append(name).append(":").append(value).append("\n");
    return hash_text(text);
}

std::string quick_fingerprint(const fs::path& model) {
    std::vector<std::string> lines;
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(model, error)) {
        struct stat status {};
        if (::stat(entry.path().c_str(), &status) != 0) continue;
        lines.push_back(entry.path().filename().string() + " " + std::to_string(status.st_size) + " " +
                        std::to_string(status.st_mtim.tv_sec) + "." + std::to_string(status.st_mtim.tv_nsec));
    }
    std::sort(lines.begin(), lines.end());
    std::string text = model.string();
    for (const std::string& line : lines) text += "\n" + line;
    return hash_text(text);
}

/// Fingerprint of the files of the model and its adapter.
static std::string model_files(const Settings& settings) {
    const std::string model = quick_fingerprint(settings.model);
    return settings.adapter.empty() ? model : model + "+" + quick_fingerprint(settings.adapter);
}

/// Fingerprint of the draft models' or heads' files if they affect the text, else "".
static std::string draft_files(const Settings& settings) {
    if (settings.is_coupled()) return "";
    std::string all;
    for (const fs::path& folder : draft_folders(settings).all())
        all += (all.empty() ? "" : "+") + quick_fingerprint(folder);
    return all;
}

/// nullopt if the job requests more than was finished.
static std::optional<Finished> parse_finished(const RunFolder& folder, const Settings& settings, const Json& json) {
    std::error_code error;
    if (!json.is_object() || !fs::exists(folder.root / "results.jsonl", error)) return std::nullopt;
    try {
        const Finished finished{json.at("items"), json.at("failed"), json.at("baseline")};
        const bool measure = settings.baseline && settings.draft->drafts() && !finished.baseline;
        const bool same = json.at("extensions") == extensions_of(settings);
        return same && !measure ? std::optional(finished) : std::nullopt;
    } catch (const Json::exception&) {
        return std::nullopt;
    }
}

static Json read_finish(const RunFolder& folder) {
    return engine::try_parse_json(read_if_there(folder.root / "finished.json"));
}

std::optional<Finished> read_finished(const RunFolder& folder, const Settings& settings) {
    const Json json = read_finish(folder);
    const std::optional<Finished> finished = parse_finished(folder, settings, json);
    if (!finished || json.value("model_files", Json()) != model_files(settings)) return std::nullopt;
    if (json.value("draft_files", Json("")) != draft_files(settings)) return std::nullopt;
    if (settings.retry_failed && finished->failed > 0) return std::nullopt;
    return finished;
}

std::optional<Finished> read_last_finish(const RunFolder& folder) {
    const Json json = read_finish(folder);
    if (!json.is_object()) return std::nullopt;
    // A launch that asks for more replaces identity.json first; if it dies then, job.cfg is still the finished one.
    const Json identity = engine::try_parse_json(read_if_there(folder.root / "identity.json"));
    if (identity.is_object() && identity.value("extensions", Json()) != json.value("extensions", Json()))
        return std::nullopt;
    return parse_finished(folder, folder.settings(), json);
}

void write_finished(const RunFolder& folder, const Settings& settings, const Finished& finished) {
    const Json json{{"items", finished.items},
                    {"failed", finished.failed},
                    {"baseline", finished.baseline},
                    {"extensions", extensions_of(settings)},
                    {"model_files", model_files(settings)},
                    {"draft_files", draft_files(settings)}};
    replace_file(folder.root / "finished.json", engine::json_text(json, 2) + "\n", Durable::yes, "own");
}

}  // namespace longhaul::runner
