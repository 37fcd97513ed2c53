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
