#include "engine/checkpoint/kv_file_set.hpp"

#include <algorithm>

#include "engine/error.hpp"

namespace longhaul::engine::detail {

const KvReader& KvFileSet::open(const KvFile& file) {
    // A few, because the files of several ranks are read alternately. An open file costs about a megabyte of the
    // library's caches.
    constexpr std::size_t max_open_files = 8;
    const auto found = std::find_if(open_files_.begin(), open_files_.end(),
                                    [&](const auto& named) { return named.first == file.name; });
    if (found != open_files_.end()) {
        open_files_.splice(open_files_.begin(), open_files_, found);
    } else {
        open_files_.emplace_front(file.name, KvReader((folder_ / file.name).string(), file, identity_));
        if (open_files_.size() > max_open_files) open_files_.pop_back();
    }
    return open_files_.front().second;
}

const KvFileSet::Verdict& KvFileSet::verdict(const KvFile& file, const std::function<void()>& progress) {
    const auto [found, is_new] = verdicts_.try_emplace(file.name);
    if (is_new) {
        try {
            verify_kv_file((folder_ / file.name).string(), file, progress);
            found->second.items = open(file).items();
        } catch (const InputError& error) {
            found->second.damage = error.what();
        }
    }
    return found->second;
}

void KvFileSet::add_damage(std::span<const KvFile> files, const std::function<void()>& progress,
                           std::vector<std::string>& lines) {
    for (const KvFile& file : files) {
        const std::string& damage = verdict(file, progress).damage;
        if (!damage.empty() && std::find(lines.begin(), lines.end(), damage) == lines.end()) lines.push_back(damage);
    }
}

bool KvFileSet::have(std::span<const KvFile> files, const std::string& key, const Segment& wanted,
                     const std::string& of_commit, const std::function<void()>& progress,
                     std::vector<std::string>& lines) {
    add_damage(files, progress, lines);
    for (std::int64_t kv_head = 0; kv_head < identity_.num_kv_heads; ++kv_head) {
        const KvFile* file = file_of_head(files, key, kv_head, progress);
        const KvReader::Range range = file == nullptr ? KvReader::Range{} : verdict(*file, progress).items.at(key);
        if (file != nullptr && range.kv_begin == wanted.begin && range.kv_end == wanted.end) continue;
        const std::string line = InputError::format(
            of_commit, "kv_files",
            "positions " + std::to_string(wanted.begin) + " to " + std::to_string(wanted.end) + " of '" + key +
                "' for KV head " + std::to_string(kv_head),
            file == nullptr ? "no intact file with them" : "other positions in " + file->name, hdf5::recompute_hint);
        if (std::find(lines.begin(), lines.end(), line) == lines.end()) lines.push_back(line);
        return false;
    }
    return true;
}

const KvFile* KvFileSet::file_of_head(std::span<const KvFile> files, const std::string& key, std::int64_t kv_head,
                                      const std::function<void()>& progress) {
    for (const KvFile& file : files) {
        const bool has_head = file.first_kv_head <= kv_head && kv_head < file.first_kv_head + file.num_kv_heads;
        if (!has_head) continue;
        const Verdict& said = verdict(file, progress);
        if (said.damage.empty() && said.items.contains(key)) return &file;
    }
    return nullptr;
}

}  // namespace longhaul::engine::detail
