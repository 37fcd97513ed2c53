// CheckpointStore: reads all commits of a checkpoint folder at construction, finds the chain of an item and verifies
// its KV files when the item is restored.
#include <algorithm>
#include <array>
#include <deque>
#include <set>
#include <stdexcept>
#include <system_error>
#include <tuple>
#include <unordered_map>
#include <unordered_set>

#include "engine/checkpoint/chain.hpp"
#include "engine/checkpoint/checkpoint.hpp"
#include "engine/checkpoint/commit_file.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/kv_file_set.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

using detail::Chain;
using detail::CommitInfo;
using detail::FileName;
using detail::KvFileSet;
using detail::KvReader;
using detail::Link;
using detail::Segment;

struct NamedFile {
    std::string name;
    FileName parts;
};

/// Checkpoint files in a folder, oldest epoch first. A missing folder counts as empty.
std::vector<NamedFile> list_folder(const std::filesystem::path& folder) {
    std::vector<NamedFile> files;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
        std::string name = entry->path().filename().string();
        if (const auto parts = detail::parse_file_name(name)) files.push_back({std::move(name), *parts});
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

/// Cache of decoded commits: when the items of a replica are restored one after another, each commit need not be read
/// again for every item. Bounded to 64 MiB, because a folder may hold the tokens of a thousand long items.
class CommitCache {
  public:
    std::shared_ptr<const Commit> find(const std::string& name) const {
        const auto found = commits_.find(name);
        return found == commits_.end() ? nullptr : found->second;
    }

    void put(const std::shared_ptr<const Commit>& commit) {
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

  private:
    static std::size_t bytes_of(const Commit& commit) {
        std::size_t bytes = sizeof commit;
        for (const ItemDelta& item : commit.items) {
            for (const NamedTensor& tensor : item.drafter.tensors) bytes += sizeof(std::int32_t) * tensor.words.size();
            bytes += sizeof item + item.key.size() + item.statistics.size() +
                     sizeof(std::int32_t) * (item.tokens.size() + item.logprobs.size() + item.drafter.rows.size());
        }
        return bytes;
    }

    std::unordered_map<std::string, std::shared_ptr<const Commit>> commits_;
    std::deque<std::string> order_;
    std::size_t num_bytes_ = 0;
};

/// Keys or values of one head in one layer.
struct HeadRows {
    std::size_t group;
    std::int64_t layer, kv_head;
    bool values;
};

/// Drops tensors that a later round replaced.
void drop_superseded(DrafterState& before, const DrafterState& later) {
    std::erase_if(before.tensors, [&](const NamedTensor& old) {
        return std::any_of(later.tensors.begin(), later.tensors.end(),
                           [&](const NamedTensor& tensor) { return tensor.name == old.name; });
    });
}

}  // namespace

struct CheckpointStore::State {
    State(const std::filesystem::path& of, const CheckpointIdentity& with, std::int64_t epoch)
        : folder(of), identity(with), max_epoch(epoch), files(of, with), state_files(of, with.of_states()) {}

    std::filesystem::path folder;
    CheckpointIdentity identity;
    std::int64_t max_epoch = 0;

    std::vector<CommitInfo> commits;
    std::map<std::string, std::string> damaged;  ///< message by commit name
    std::map<std::string, std::vector<Link>> links;
    std::map<std::string, std::int64_t> items;
    std::vector<std::string> damage;
    CommitCache cache;
    std::function<void()> progress;

    KvFileSet files;
    std::map<std::string, std::vector<Segment>> segments;  ///< by item
    KvFileSet state_files;
    std::map<std::string, std::vector<Segment>> state_segments;
    std::optional<KvFileSet> draft_files;  ///< of the drafter that restore_draft_kv named last
    std::map<std::string, std::vector<Segment>> draft_segments;

    [[nodiscard]] std::string path(const std::string& name) const { return (folder / name).string(); }

    void scan();
    std::shared_ptr<const Commit> load(const std::string& name);
    void add_commit(const Commit& commit);
    void mark_damaged(const std::string& name, const std::string& line);

    std::optional<RestoredItem> assemble(const std::string& key, const Chain& chain);
    [[nodiscard]] std::vector<std::string> broken_lines(const std::string& key, const Chain& chain) const;

    bool segment_intact(const std::string& key, const Link& link, std::vector<std::string>& lines);
    std::vector<Segment> find_segments(const std::string& key, const Chain& chain, std::int64_t longest_short_text,
                                       std::vector<std::string>& lines);
    void find_states(const std::string& key, const Chain& chain, std::int64_t kv_tokens,
                     std::vector<std::string>& lines);
    [[nodiscard]] bool wrote_draft_kv(const std::string& key, const Link& link);
    std::vector<Segment> find_draft_segments(const std::string& key, const Chain& chain,
                                             std::int64_t longest_short_text, std::vector<std::string>& lines);
    void read_segments(KvFileSet& of, const std::vector<Segment>& from, const std::string& key, const HeadRows& rows,
                       std::int64_t first, std::int64_t count, std::byte* to);
    [[nodiscard]] std::vector<std::size_t> candidates_of(const std::string& key, const Chain& chain,
                                                         std::int64_t longest_short_text) const;

    [[nodiscard]] std::set<std::string> rounds_with_states(const std::unordered_set<std::string>& keys,
                                                           const std::vector<NamedFile>& there) const;
    [[nodiscard]] std::vector<std::string> unneeded(const std::vector<std::string>& unfinished,
                                                    std::int64_t epoch) const;
};

// --- commits -------------------------------------------------------------------------------------------------------

std::shared_ptr<const Commit> CheckpointStore::State::load(const std::string& name) {
    if (auto cached = cache.find(name)) return cached;
    auto commit = std::make_shared<const Commit>(read_commit(folder / name));
    const std::string own_name = commit_name(commit->replica, commit->epoch, commit->round);
    if (own_name != name) {
        throw InputError(path(name), "replica, epoch, round", "those of its name", own_name, hdf5::recompute_hint);
    }
    cache.put(commit);
    return commit;
}

void CheckpointStore::State::add_commit(const Commit& commit) {
    CommitInfo info{
        .name = commit.name, .replica = commit.replica, .epoch = commit.epoch, .round = commit.round, .keys = {}};
    for (const KvFile& file : commit.kv_files) info.files_of(file.of()).push_back(file);
    for (std::size_t i = 0; i < commit.items.size(); ++i) {
        const ItemDelta& item = commit.items[i];
        info.keys.push_back(item.key);
        links[item.key].push_back({.commit_index = commits.size(),
                                   .item_index = i,
                                   .previous_commit = item.previous_commit,
                                   .prompt_tokens = item.prompt_tokens,
                                   .first_token = item.first_token,
                                   .end_token = item.first_token + static_cast<std::int64_t>(item.tokens.size()),
                                   .kv_begin = item.kv_begin,
                                   .kv_end = item.kv_end});
    }
    commits.push_back(std::move(info));
}

void CheckpointStore::State::mark_damaged(const std::string& name, const std::string& line) {
    if (damaged.emplace(name, line).second) damage.push_back(line);
}

void CheckpointStore::State::scan() {
    for (const NamedFile& file : list_folder(folder)) {
        if (file.parts.temporary || file.parts.rank >= 0 || file.parts.epoch > max_epoch) continue;
        std::shared_ptr<const Commit> commit;
        try {
            commit = load(file.name);
        } catch (const detail::NewerFormat&) {
            throw;
        } catch (const InputError& error) {
            mark_damaged(file.name, error.what());
            continue;
        }
        check_identity(path(file.name), identity, commit->identity);
        add_commit(*commit);
    }
    for (const auto& [key, item_links] : links) {
        const Chain chain = detail::find_chain(item_links, commits);
        if (!chain.links.empty()) items.emplace(key, item_links[chain.links.back()].end_token);
    }
}

// --- items ---------------------------------------------------------------------------------------------------------

std::vector<std::string> CheckpointStore::State::broken_lines(const std::string& key, const Chain& chain) const {
    std::vector<std::string> lines;
    for (const std::size_t index : chain.broken) {
        const Link& link = links.at(key)[index];
        const std::string field = "items/previous_commit of '" + key + "'";
        const std::string expected = link.previous_commit.empty() ? "a first round that begins at token 0"
                                                                  : link.previous_commit + " with the tokens before";
        const auto why = damaged.find(link.previous_commit);
        const std::string got = why != damaged.end() ? "a damaged file (" + why->second + ")" : "no round that fits";
        lines.push_back(
            InputError::format(path(commits[link.commit_index].name), field, expected, got, hdf5::recompute_hint));
    }
    return lines;
}

/// Tokens and drafter rows of a chain. nullopt if a commit has become unreadable since it was first read: it is then
/// marked as damaged, and the caller has to find another chain.
std::optional<RestoredItem> CheckpointStore::State::assemble(const std::string& key, const Chain& chain) {
    RestoredItem restored;
    restored.key = key;
    for (const std::size_t index : chain.links) {
        const Link& link = links.at(key)[index];
        CommitInfo& info = commits[link.commit_index];
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

// --- keys and values -----------------------------------------------------------------------------------------------

/// Whether the positions of this link are intact for all heads. Adds a line for each damage found, without duplicates.
bool CheckpointStore::State::segment_intact(const std::string& key, const Link& link, std::vector<std::string>& lines) {
    const CommitInfo& commit = commits[link.commit_index];
    return files.have(commit.kv_files, key, {link.kv_begin, link.kv_end, link.commit_index}, path(commit.name),
                      progress, lines);
}

/// Rounds with the states behind their last position, of those whose keys and values are there. Older ones are looked
/// at only if newer ones are damaged.
void CheckpointStore::State::find_states(const std::string& key, const Chain& chain, std::int64_t kv_tokens,
                                         std::vector<std::string>& lines) {
    std::vector<Segment>& found = state_segments[key];
    found.clear();
    for (auto at = chain.links.rbegin(); at != chain.links.rend() && found.empty(); ++at) {
        const Link& link = links.at(key)[*at];
        const CommitInfo& commit = commits[link.commit_index];
        if (link.kv_end > kv_tokens || link.kv_end == link.kv_begin || commit.state_files.empty()) continue;
        const Segment wanted{link.kv_end - 1, link.kv_end, link.commit_index};
        if (state_files.have(commit.state_files, key, wanted, path(commit.name), progress, lines))
            found.push_back(wanted);
    }
}

/// The rounds of a chain whose keys and values are of use.
std::vector<std::size_t> CheckpointStore::State::candidates_of(const std::string& key, const Chain& chain,
                                                               std::int64_t longest_short_text) const {
    std::vector<std::size_t> candidates = chain.links;
    const auto is_short = [&](std::size_t at) {
        const Link& link = links.at(key)[at];
        return link.prompt_tokens + link.end_token <= longest_short_text;
    };
    if (!is_short(chain.links.back())) std::erase_if(candidates, is_short);
    return candidates;
}

/// Finds the segments that cover the positions from 0 on, up to the first one that no intact round has. Rounds may
/// overlap: positions recomputed after damage are stored again by a later round. Files beyond the first gap are not
/// read.
std::vector<Segment> CheckpointStore::State::find_segments(const std::string& key, const Chain& chain,
                                                           std::int64_t longest_short_text,
                                                           std::vector<std::string>& lines) {
    std::vector<Segment> found;
    std::vector<std::size_t> candidates = candidates_of(key, chain, longest_short_text);
    std::int64_t covered = 0;
    for (bool grew = true; grew;) {
        grew = false;
        for (auto candidate = candidates.begin(); candidate != candidates.end();) {
            const Link& link = links.at(key)[*candidate];
            if (link.kv_begin > covered) {
                ++candidate;
                continue;
            }
            if (link.kv_end > covered && segment_intact(key, link, lines)) {
                found.push_back({covered, link.kv_end, link.commit_index});
                covered = link.kv_end;
                grew = true;
            }
            candidate = candidates.erase(candidate);
        }
    }
    return found;
}

/// Whether the drafter of `draft_files` drafted for the item in this round.
bool CheckpointStore::State::wrote_draft_kv(const std::string& key, const Link& link) {
    if (commits[link.commit_index].draft_kv_files.empty()) return false;
    try {
        const auto commit = load(commits[link.commit_index].name);
        const auto& items = commit->items;
        return link.item_index < items.size() && items[link.item_index].key == key &&
               items[link.item_index].drafter.kind == draft_files->identity().model;
    } catch (const InputError&) {
        return false;  // damaged since it was first read
    }
}

/// As find_segments, but the last positions without a gap count, and a round without new positions is no damage.
std::vector<Segment> CheckpointStore::State::find_draft_segments(const std::string& key, const Chain& chain,
                                                                 std::int64_t longest_short_text,
                                                                 std::vector<std::string>& lines) {
    std::vector<Segment> stored;
    for (const std::size_t at : candidates_of(key, chain, longest_short_text)) {
        const Link& link = links.at(key)[at];
        if (!wrote_draft_kv(key, link)) continue;
        const std::vector<KvFile>& of_round = commits[link.commit_index].draft_kv_files;
        draft_files->add_damage(of_round, progress, lines);
        Segment common{0, std::numeric_limits<std::int64_t>::max(), link.commit_index};
        for (std::int64_t head = 0; head < draft_files->identity().num_kv_heads; ++head) {
            const KvFile* file = draft_files->file_of_head(of_round, key, head, progress);
            const KvReader::Range range =
                file == nullptr ? KvReader::Range{} : draft_files->verdict(*file, progress).items.at(key);
            common.begin = std::max(common.begin, range.kv_begin);
            common.end = std::min(common.end, range.kv_end);
        }
        if (common.begin < common.end) stored.push_back(common);
    }
    return stored;
}

/// Reads positions [first, first + count), which `from` covers, in any order of its segments.
void CheckpointStore::State::read_segments(KvFileSet& of, const std::vector<Segment>& from, const std::string& key,
                                           const HeadRows& rows, std::int64_t first, std::int64_t count,
                                           std::byte* to) {
    const std::size_t row_bytes = detail::kv_token_bytes(of.identity(), rows.group);
    const KvGroup group = of.identity().kv_groups().at(rows.group);  // may have fewer heads: see FORMAT.md
    const std::int64_t head_in_files =
        rows.kv_head * std::max<std::int64_t>(of.identity().num_kv_heads / group.num_kv_heads, 1);
    for (const Segment& segment : from) {
        const std::int64_t begin = std::max(first, segment.begin);
        const std::int64_t end = std::min(first + count, segment.end);
        if (begin >= end) continue;
        const CommitInfo& commit = commits[segment.commit_index];
        const auto& candidates = &of == &files         ? commit.kv_files
                                 : &of == &state_files ? commit.state_files
                                                       : commit.draft_kv_files;
        const KvReader& reader = of.open(*of.file_of_head(candidates, key, head_in_files, progress));
        reader.read(reader.items().at(key), rows.group, rows.layer, rows.kv_head, rows.values, begin, end - begin,
                    to + static_cast<std::size_t>(begin - first) * row_bytes);
    }
}

// --- removal -------------------------------------------------------------------------------------------------------

/// Commits whose states are kept: the newest ones of each unfinished item that have all of them.
std::set<std::string> CheckpointStore::State::rounds_with_states(const std::unordered_set<std::string>& keys,
                                                                 const std::vector<NamedFile>& there) const {
    std::set<std::string> names, kept;
    for (const NamedFile& file : there) names.insert(file.name);
    const auto is_there = [&](const KvFile& file) { return names.contains(file.name); };
    for (const auto& [key, item_links] : links) {
        if (!keys.contains(key)) continue;
        const detail::Chain chain = detail::find_chain(item_links, commits);
        std::int64_t found = 0;
        for (auto at = chain.links.rbegin(); at != chain.links.rend(); ++at) {
            const CommitInfo& commit = commits[item_links[*at].commit_index];
            const bool stores = item_links[*at].kv_end > item_links[*at].kv_begin && !commit.state_files.empty();
            if (!stores || !std::all_of(commit.state_files.begin(), commit.state_files.end(), is_there)) continue;
            if (++found > CheckpointIdentity::States::kept_rounds) break;
            kept.insert(commit.name);
        }
    }
    return kept;
}

/// Names of the files to remove, in order of removal: commits before KV files, newest first. An interruption then
/// leaves shorter chains, but never commits that name missing files.
std::vector<std::string> CheckpointStore::State::unneeded(const std::vector<std::string>& unfinished,
                                                          std::int64_t epoch) const {
    const std::unordered_set<std::string> keys(unfinished.begin(), unfinished.end());
    std::set<std::string> kept;
    std::set<std::string> known;
    for (const CommitInfo& commit : commits) {
        known.insert(commit.name);
        const auto needed = [&](const std::string& key) { return keys.contains(key); };
        if (std::any_of(commit.keys.begin(), commit.keys.end(), needed)) kept.insert(commit.name);
    }
    std::vector<NamedFile> files = list_folder(folder);
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
            else if (damaged.contains(commit))
                unneeded_here = unneeded_here && keys.empty();
            else if (parts.rank < 0 || parts.epoch > max_epoch)
                unneeded_here = false;
        }
        if (unneeded_here) names.push_back(name);
    }
    return names;
}

// --- public interface ----------------------------------------------------------------------------------------------

CheckpointStore::CheckpointStore(const std::filesystem::path& folder, const CheckpointIdentity& identity,
                                 std::int64_t max_epoch)
    : state_(std::make_unique<State>(folder, identity, max_epoch)) {
    state_->scan();
}

CheckpointStore::~CheckpointStore() = default;
CheckpointStore::CheckpointStore(CheckpointStore&&) noexcept = default;

const std::map<std::string, std::int64_t>& CheckpointStore::items() const {
    return state_->items;
}
const std::vector<std::string>& CheckpointStore::damage() const {
    return state_->damage;
}

void CheckpointStore::set_progress(std::function<void()> progress) {
    state_->progress = std::move(progress);
}

std::optional<RestoredItem> CheckpointStore::restore(const std::string& key, std::int64_t longest_short_text) {
    const auto item_links = state_->links.find(key);
    if (item_links == state_->links.end()) return std::nullopt;
    while (true) {
        const Chain chain = detail::find_chain(item_links->second, state_->commits);
        std::vector<std::string> lines = state_->broken_lines(key, chain);
        if (chain.links.empty()) {
            state_->damage.insert(state_->damage.end(), lines.begin(), lines.end());
            return std::nullopt;
        }
        std::optional<RestoredItem> restored = state_->assemble(key, chain);
        if (!restored) continue;  // terminates: each attempt excludes one more commit
        const std::vector<Segment> segments = state_->find_segments(key, chain, longest_short_text, lines);
        for (const Segment& segment : segments) restored->kv_ends.push_back(segment.end);
        if (!segments.empty()) restored->kv_tokens = segments.back().end;
        if (state_->identity.states.num_layers > 0) {
            state_->find_states(key, chain, restored->kv_tokens, lines);
            for (const Segment& segment : state_->state_segments[key]) restored->states_at.push_back(segment.end);
        }
        restored->damage = std::move(lines);
        state_->segments[key] = segments;
        return restored;
    }
}

void CheckpointStore::read_kv(const std::string& key, std::size_t group, std::int64_t layer, std::int64_t kv_head,
                              bool values, std::int64_t first, std::int64_t count, std::byte* to) {
    const auto found = state_->segments.find(key);
    const std::int64_t kv_tokens =
        found == state_->segments.end() || found->second.empty() ? 0 : found->second.back().end;
    const CheckpointIdentity& identity = state_->identity;
    const std::array bounds{std::pair{layer, identity.kv_groups().at(group).num_layers - 1},
                            std::pair{kv_head, identity.kv_groups().at(group).num_kv_heads - 1},
                            std::pair{first, kv_tokens}, std::pair{count, kv_tokens - first}};
    for (const auto& [value, max] : bounds) {
        if (value < 0 || value > max) throw std::logic_error("read_kv: beyond what restore gave of '" + key + "'");
    }
    if (found == state_->segments.end()) return;
    state_->read_segments(state_->files, found->second, key, {group, layer, kv_head, values}, first, count, to);
}

void CheckpointStore::read_state(const std::string& key, std::int64_t positions, std::int64_t layer, std::int64_t head,
                                 bool second_half, float* to) {
    const CheckpointIdentity::States& states = state_->identity.states;
    const auto found = state_->state_segments.find(key);
    const bool known =
        found != state_->state_segments.end() && !found->second.empty() && found->second.front().end == positions;
    if (!known || layer < 0 || layer >= states.num_layers || head < 0 || head >= states.num_heads)
        throw std::logic_error("read_state: beyond what restore gave of '" + key + "'");
    state_->read_segments(state_->state_files, found->second, key, {0, layer, head, second_half}, positions - 1, 1,
                          reinterpret_cast<std::byte*>(to));
}

RestoredDraftKv CheckpointStore::restore_draft_kv(const std::string& key, const CheckpointIdentity& drafter,
                                                  std::int64_t end, std::int64_t longest_short_text) {
    RestoredDraftKv restored;
    const auto item_links = state_->links.find(key);
    if (item_links == state_->links.end()) return restored;
    const Chain chain = detail::find_chain(item_links->second, state_->commits);
    if (chain.links.empty()) return restored;
    if (!state_->draft_files || !(state_->draft_files->identity() == drafter)) {
        state_->draft_files.emplace(state_->folder, drafter);
        state_->draft_segments.clear();
    }
    std::vector<Segment> stored = state_->find_draft_segments(key, chain, longest_short_text, restored.damage);
    std::erase_if(stored, [&](const Segment& segment) { return segment.begin >= end; });
    for (const Segment& segment : stored) restored.end = std::max(restored.end, std::min(segment.end, end));
    restored.first = restored.end;
    std::vector<Segment>& found = state_->draft_segments[key];
    found.clear();
    for (bool grew = true; grew;) {
        grew = false;
        const std::int64_t reached = restored.first;
        for (const Segment& segment : stored) {
            if (segment.end < reached || segment.begin >= restored.first) continue;
            if (grew) found.pop_back();
            found.push_back({segment.begin, reached, segment.commit_index});
            restored.first = segment.begin;
            grew = true;
        }
    }
    return restored;
}

void CheckpointStore::read_draft_kv(const std::string& key, std::int64_t kv_head, bool values, std::int64_t first,
                                    std::int64_t count, std::byte* to) {
    const auto found = state_->draft_segments.find(key);
    const bool covers = found != state_->draft_segments.end() && !found->second.empty() && count >= 0 &&
                        first >= found->second.back().begin && first + count <= found->second.front().end;
    if (!covers || kv_head < 0 || kv_head >= state_->draft_files->identity().num_kv_heads)
        throw std::logic_error("read_draft_kv: beyond what restore_draft_kv gave of '" + key + "'");
    state_->read_segments(*state_->draft_files, found->second, key, {0, 0, kv_head, values}, first, count, to);
}

std::int64_t CheckpointStore::num_bytes() const {
    std::int64_t sum = 0;
    for (const NamedFile& file : list_folder(state_->folder)) {
        std::error_code gone;
        const auto size = static_cast<std::int64_t>(std::filesystem::file_size(state_->folder / file.name, gone));
        if (!gone) sum += size;
    }
    return sum;
}

void CheckpointStore::remove_unneeded(const std::vector<std::string>& unfinished, std::int64_t epoch) noexcept {
    try {
        for (const std::string& name : state_->unneeded(unfinished, epoch)) {
            detail::remove_file(state_->path(name));
        }
    } catch (...) {
        // Remaining files only take space until the next launch cleans up.
    }
}

}  // namespace longhaul::engine
