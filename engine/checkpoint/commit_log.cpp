#include "engine/checkpoint/commit_log.hpp"

#include <algorithm>
#include <system_error>
#include <tuple>
#include <type_traits>
#include <utility>

#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/error.hpp"

namespace longhaul::engine::detail {
namespace {

void check_identity(const std::string& file, const CheckpointIdentity& ours, const CheckpointIdentity& theirs) {
    const auto compare = [&](const char* field, const auto& expected, const auto& got) {
        if (expected == got) return;
        const auto text = [](const auto& value) {
            if constexpr (std::is_same_v<std::decay_t<decltype(value)>, std::string>)
                return "'" + value + "'";
            else
                return std::to_string(value);
        };
        throw InputError(file, field, text(expected), text(got),
                         "it belongs to another run: use another output folder, or that run's settings");
    };
    compare("job", ours.job, theirs.job);
    compare("model", ours.model, theirs.model);
    compare("tokenizer", ours.tokenizer, theirs.tokenizer);
    compare("numerics_version", ours.numerics_version, theirs.numerics_version);
    compare("kv_dtype", ours.kv_dtype, theirs.kv_dtype);
    compare("num_layers", ours.num_layers, theirs.num_layers);
    compare("num_kv_heads", ours.num_kv_heads, theirs.num_kv_heads);
    compare("head_dim", ours.head_dim, theirs.head_dim);
}

std::size_t bytes_of(const Commit& commit) {
    std::size_t bytes = sizeof commit;
    for (const ItemDelta& item : commit.items) {
        for (const NamedTensor& tensor : item.drafter.tensors) bytes += sizeof(std::int32_t) * tensor.words.size();
        bytes += sizeof item + item.key.size() + item.statistics.size() +
                 sizeof(std::int32_t) * (item.tokens.size() + item.logprobs.size() + item.drafter.rows.size());
    }
    return bytes;
}

/// Drops tensors that a later round replaced.
void drop_superseded(DrafterState& before, const DrafterState& later) {
    std::erase_if(before.tensors, [&](const NamedTensor& old) {
        return std::any_of(later.tensors.begin(), later.tensors.end(),
                           [&](const NamedTensor& tensor) { return tensor.name == old.name; });
    });
}

}  // namespace

std::vector<NamedFile> list_folder(const std::filesystem::path& folder) {
    std::vector<NamedFile> files;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        std::string name = entry->path().filename().string();
        if (const auto parts = parse_file_name(name)) files.push_back({std::move(name), *parts});
    }
    if (error && error != std::errc::no_such_file_or_directory) {
        throw InputError(folder.string(), "", "a readable folder", error.message());
    }
    std::sort(files.begin(), files.end(), [](const NamedFile& a, const NamedFile& b) {
        const auto order = [](const FileName& p) {
            return std::tuple(p.epoch, p.replica, p.round, p.rank, p.temporary);
        };
        return order(a.parts) < order(b.parts);
    });
    return files;
}

std::shared_ptr<const Commit> CommitCache::find(const std::string& name) const {
    const auto found = commits_.find(name);
    return found == commits_.end() ? nullptr : found->second;
}

void CommitCache::put(const std::shared_ptr<const Commit>& commit) {
    constexpr std::size_t max_bytes = std::size_t{64} << 20;
    if (!commits_.emplace(commit->name, commit).second) return;
    order_.push_back(commit->name);
    num_bytes_ += bytes_of(*commit);
    while (num_bytes_ > max_bytes && order_.size() > 1) {
        const auto oldest = commits_.find(order_.front());
        num_bytes_ -= bytes_of(*oldest->second);
        commits_.erase(oldest);
        order_.pop_front();
    }
}

CommitLog::CommitLog(const std::filesystem::path& folder, const CheckpointIdentity& identity, std::int64_t max_epoch)
    : folder_(folder), identity_(identity), max_epoch_(max_epoch) {
    scan();
}

std::shared_ptr<const Commit> CommitLog::load(const std::string& name) {
    if (auto cached = cache_.find(name)) return cached;
    auto commit = std::make_shared<const Commit>(read_commit(folder_ / name));
    const std::string own_name = commit_name(commit->replica, commit->epoch, commit->round);
    if (own_name != name) {
        throw InputError(path(name), "replica, epoch, round", "those of its name", own_name, hdf5::recompute_hint);
    }
    cache_.put(commit);
    return commit;
}

void CommitLog::add_commit(const Commit& commit) {
    CommitInfo info{
        .name = commit.name, .replica = commit.replica, .epoch = commit.epoch, .round = commit.round, .keys = {}};
    for (const KvFile& file : commit.kv_files) info.files_of(file.of()).push_back(file);
    for (std::size_t i = 0; i < commit.items.size(); ++i) {
        const ItemDelta& item = commit.items[i];
        info.keys.push_back(item.key);
        links_[item.key].push_back({.commit_index = commits_.size(),
                                    .item_index = i,
                                    .previous_commit = item.previous_commit,
                                    .prompt_tokens = item.prompt_tokens,
                                    .first_token = item.first_token,
                                    .end_token = item.first_token + static_cast<std::int64_t>(item.tokens.size()),
                                    .kv_begin = item.kv_begin,
                                    .kv_end = item.kv_end});
    }
    commits_.push_back(std::move(info));
}

void CommitLog::mark_damaged(const std::string& name, const std::string& line) {
    if (damaged_.emplace(name, line).second) damage_.push_back(line);
}

void CommitLog::scan() {
    for (const NamedFile& file : list_folder(folder_)) {
        if (file.parts.temporary || file.parts.rank >= 0 || file.parts.epoch > max_epoch_) continue;
        std::shared_ptr<const Commit> commit;
        try {
            commit = load(file.name);
        } catch (const NewerFormat&) {
            throw;
        } catch (const InputError& error) {
            mark_damaged(file.name, error.what());
            continue;
        }
        check_identity(path(file.name), identity_, commit->identity);
        add_commit(*commit);
    }
    for (const auto& [key, item_links] : links_) {
        const Chain chain = find_chain(item_links, commits_);
        if (!chain.links.empty()) items_.emplace(key, item_links[chain.links.back()].end_token);
    }
}

std::vector<std::string> CommitLog::broken_lines(const std::string& key, const Chain& chain) const {
    std::vector<std::string> lines;
    for (const std::size_t index : chain.broken) {
        const Link& link = links_.at(key)[index];
        const std::string field = "items/previous_commit of '" + key + "'";
        const std::string expected = link.previous_commit.empty() ? "a first round that begins at token 0"
                                                                  : link.previous_commit + " with the tokens before";
        const auto why = damaged_.find(link.previous_commit);
        const std::string got = why != damaged_.end() ? "a damaged file (" + why->second + ")" : "no round that fits";
        lines.push_back(
            InputError::format(path(commits_[link.commit_index].name), field, expected, got, hdf5::recompute_hint));
    }
    return lines;
}

std::optional<RestoredItem> CommitLog::assemble(const std::string& key, const Chain& chain) {
    RestoredItem restored;
    restored.key = key;
    for (const std::size_t index : chain.links) {
        const Link& link = links_.at(key)[index];
        CommitInfo& info = commits_[link.commit_index];
        try {
            const auto commit = load(info.name);
            if (link.item_index >= commit->items.size() || commit->items[link.item_index].key != key) {
                throw InputError(path(info.name), "items/key", "'" + key + "' as before", "another",
                                 hdf5::recompute_hint);
            }
            const ItemDelta& item = commit->items[link.item_index];
            // All rounds must have the same number of words per token, which delimits the rows.
            const bool fits =
                item.logprobs.size() * restored.tokens.size() == restored.logprobs.size() * item.tokens.size();
            if (!fits && !item.tokens.empty()) {
                throw InputError(path(info.name), "items/logprobs",
                                 "the same number of words per token as earlier rounds",
                                 std::to_string(item.logprobs.size()) + " words", hdf5::recompute_hint);
            }
            restored.tokens.insert(restored.tokens.end(), item.tokens.begin(), item.tokens.end());
            restored.logprobs.insert(restored.logprobs.end(), item.logprobs.begin(), item.logprobs.end());
            for (DrafterState& before : restored.drafter) drop_superseded(before, item.drafter);
            if (!item.drafter.kind.empty()) restored.drafter.push_back(item.drafter);
            restored.prompt_tokens = item.prompt_tokens;
            restored.statistics = item.statistics;
            restored.last_commit = info.name;
        } catch (const InputError& error) {
            info.damaged = true;
            mark_damaged(info.name, error.what());
            return std::nullopt;
        }
    }
    return restored;
}

/// Commits whose states are kept: the newest ones of each unfinished item that have all of them.
std::set<std::string> CommitLog::rounds_with_states(const std::unordered_set<std::string>& keys,
                                                    const std::vector<NamedFile>& there) const {
    std::set<std::string> names, kept;
    for (const NamedFile& file : there) names.insert(file.name);
    const auto is_there = [&](const KvFile& file) { return names.contains(file.name); };
    for (const auto& [key, item_links] : links_) {
        if (!keys.contains(key)) continue;
        const Chain chain = find_chain(item_links, commits_);
        std::int64_t found = 0;
        for (auto at = chain.links.rbegin(); at != chain.links.rend(); ++at) {
            const CommitInfo& commit = commits_[item_links[*at].commit_index];
            const bool stores = item_links[*at].kv_end > item_links[*at].kv_begin && !commit.state_files.empty();
            if (!stores || !std::all_of(commit.state_files.begin(), commit.state_files.end(), is_there)) continue;
            if (++found > CheckpointIdentity::States::kept_rounds) break;
            kept.insert(commit.name);
        }
    }
    return kept;
}

std::vector<std::string> CommitLog::unneeded(const std::vector<std::string>& unfinished, std::int64_t epoch) const {
    const std::unordered_set<std::string> keys(unfinished.begin(), unfinished.end());
    std::set<std::string> kept;
    std::set<std::string> known;
    for (const CommitInfo& commit : commits_) {
        known.insert(commit.name);
        const auto needed = [&](const std::string& key) { return keys.contains(key); };
        if (std::any_of(commit.keys.begin(), commit.keys.end(), needed)) kept.insert(commit.name);
    }
    std::vector<NamedFile> files = list_folder(folder_);
    std::stable_sort(files.begin(), files.end(), [](const NamedFile& a, const NamedFile& b) {
        const auto order = [](const FileName& p) { return std::tuple(p.rank >= 0, -p.epoch, -p.round); };
        return order(a.parts) < order(b.parts);
    });
    const std::set<std::string> with_states = rounds_with_states(keys, files);
    std::vector<std::string> names;
    for (const auto& [name, parts] : files) {
        const std::string commit = commit_name(parts.replica, parts.epoch, parts.round);
        bool unneeded_here = parts.epoch < epoch;  // for files without a commit: their writer is gone
        if (!parts.temporary) {
            if (known.contains(commit))
                unneeded_here =
                    !kept.contains(commit) || (parts.of == KvFile::Of::states && !with_states.contains(commit));
            else if (damaged_.contains(commit))
                unneeded_here = unneeded_here && keys.empty();
            else if (parts.rank < 0 || parts.epoch > max_epoch_)
                unneeded_here = false;
        }
        if (unneeded_here) names.push_back(name);
    }
    return names;
}

}  // namespace longhaul::engine::detail
