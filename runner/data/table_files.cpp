#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "engine/error.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Names = std::vector<std::string>;

constexpr std::int64_t max_state_bytes = 1 << 24;

bool is_table_name(const fs::path& name) {
    return name.extension() == ".parquet" || name.extension() == ".arrow";
}

/// "train-00000-of-00004.parquet", as the Hub and save_to_disk name the files of a split.
struct PartName {
    std::string split;
    std::int64_t number = 0, count = 0;
};

std::optional<PartName> part_name(const std::string& name) {
    const std::string stem = fs::path(name).stem().string();
    const std::size_t of = stem.rfind("-of-");
    const std::size_t dash = of == std::string::npos || of == 0 ? of : stem.rfind('-', of - 1);
    if (dash == std::string::npos || of == std::string::npos || dash == of) return std::nullopt;
    try {
        constexpr std::int64_t most = 99'999;
        const std::int64_t number = parse_integer(stem.substr(dash + 1, of - dash - 1), 0, most);
        return PartName{stem.substr(0, dash), number, parse_integer(stem.substr(of + 4), 1, most)};
    } catch (const BadValue&) {
        return std::nullopt;
    }
}

Names entries_of(const fs::path& folder, bool folders) {
    Names names;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        std::error_code unreadable;
        const std::string name = it->path().filename().string();
        if (it->is_directory(unreadable) == folders && !name.starts_with('.')) names.push_back(name);
    }
    std::sort(names.begin(), names.end());
    return names;
}

/// The files that state.json of save_to_disk lists; other .arrow files beside them are caches of `datasets`.
Names saved_files(const fs::path& folder) {
    const fs::path state = folder / "state.json";
    const engine::Json json = engine::read_json(state, max_state_bytes);
    const engine::Json* const files = engine::find_member(json, "_data_files", state.string());
    if (files == nullptr || !files->is_array())
        throw InputError(state.string(), "_data_files", "a list of files", "nothing", "save the dataset again");
    Names names;
    for (const engine::Json& file : *files) {
        const std::string name = engine::get_string_or(file, "filename", "", state.string(), "_data_files");
        if (name.empty() || name.find('/') != std::string::npos || !is_text(name))
            throw InputError(state.string(), "_data_files.filename", "the name of a file in this folder", shown(name));
        names.push_back(name);
    }
    return names;
}

bool is_saved(const fs::path& folder) {
    std::error_code error;
    return fs::exists(folder / "dataset_info.json", error) && fs::exists(folder / "state.json", error);
}

/// Names of the table files in `folder` itself; empty if there are none.
Names files_in(const fs::path& folder) {
    if (is_saved(folder)) return saved_files(folder);
    const Names all = entries_of(folder, false);
    for (const char* extension : {".parquet", ".arrow"}) {
        Names names;
        std::copy_if(all.begin(), all.end(), std::back_inserter(names),
                     [&](const std::string& name) { return fs::path(name).extension() == extension; });
        if (!names.empty()) return names;
    }
    return {};
}

/// Subfolders with table files: the splits of a dataset that save_to_disk wrote.
Names split_folders(const fs::path& folder) {
    Names names;
    for (const std::string& name : entries_of(folder, true)) {
        if (!files_in(folder / name).empty()) names.push_back(name);
    }
    return names;
}

/// A folder that may hold the files, and whether its name chose the split already.
struct Place {
    fs::path folder;
    bool is_split = false;
};

std::vector<Place> places_of(const fs::path& path, const std::string& split) {
    std::vector<Place> places;
    if (!split.empty()) places = {{path / split, true}, {path / "data" / split, true}};
    places.push_back({path, false});
    places.push_back({path / "data", false});
    return places;
}

void refuse_missing_part(const fs::path& folder, const Names& names) {
    std::map<std::string, std::set<std::int64_t>> numbers;
    std::map<std::string, std::int64_t> counts;
    for (const std::string& name : names) {
        const std::optional<PartName> part = part_name(name);
        if (!part) continue;
        numbers[part->split].insert(part->number);
        counts[part->split] = std::max(counts[part->split], part->count);
    }
    for (const auto& [split, found] : numbers) {
        const std::int64_t count = counts[split];
        if (static_cast<std::int64_t>(found.size()) == count) continue;
        throw InputError(folder.string(), "", "all " + std::to_string(count) + " files of " + in_quotes(split),
                         std::to_string(found.size()), "download the dataset again, or name one file as data");
    }
}

/// The files of `names` that belong to the split. Throws InputError if that is not one split.
Names of_one_split(const Place& place, Names names, const std::string& split) {
    if (names.empty()) return names;
    std::set<std::string> splits;
    for (const std::string& name : names) {
        if (const auto part = part_name(name)) splits.insert(part->split);
    }
    const std::string all = list_words({splits.begin(), splits.end()});
    if (!split.empty() && !place.is_split) {
        std::erase_if(names, [&](const std::string& name) {
            const auto part = part_name(name);
            return (part ? part->split : fs::path(name).stem().string()) != split;
        });
        if (names.empty())
            throw InputError(place.folder.string(), "", "files of the split " + in_quotes(split),
                             splits.empty() ? "none" : "files of " + engine::printable(all));
    } else if (splits.size() > 1) {
        throw InputError(place.folder.string(), "", "the files of one split", "files of " + engine::printable(all),
                         "choose one: split = " + engine::printable(*splits.begin()));
    }
    return names;
}

}  // namespace

bool is_table(const fs::path& path) {
    std::error_code error;
    if (!fs::is_directory(path, error)) return is_table_name(path);
    const auto has = [](const fs::path& folder) {
        const Names names = entries_of(folder, false);
        return is_saved(folder) ||
               std::any_of(names.begin(), names.end(), [](const std::string& name) { return is_table_name(name); });
    };
    if (has(path) || has(path / "data") || fs::exists(path / "dataset_dict.json", error)) return true;
    for (const fs::path& folder : {path, path / "data"}) {
        for (const std::string& name : entries_of(folder, true)) {
            if (has(folder / name)) return true;
        }
    }
    return false;
}

std::vector<fs::path> table_files(const fs::path& path, const std::string& split) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
        if (split.empty()) return {path};
        throw InputError(path.string(), "", "a folder with the split " + in_quotes(split), "a file",
                         "leave split out, or name the folder as data");
    }
    for (const Place& place : places_of(path, split)) {
        const Names names = of_one_split(place, files_in(place.folder), split);
        if (names.empty()) continue;
        refuse_missing_part(place.folder, names);
        std::vector<fs::path> files;
        for (const std::string& name : names) files.push_back(place.folder / name);
        return files;
    }
    Names splits = split_folders(path);
    for (const std::string& name : split_folders(path / "data")) splits.push_back(name);
    if (splits.empty()) throw InputError(path.string(), "", "files NAME.parquet or NAME.arrow", "none");
    throw InputError(path.string(), "", split.empty() ? "the files of one split" : "the split " + in_quotes(split),
                     "the folders " + engine::printable(list_words(splits)),
                     "choose one: split = " + engine::printable(splits.front()));
}

}  // namespace longhaul::runner
