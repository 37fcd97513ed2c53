// CheckpointStore: finds the keys, values and states of the chains in a CommitLog, and verifies the files that hold
// them when an item is restored.
#include "engine/checkpoint/store.hpp"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>
#include <system_error>

#include "engine/checkpoint/chain.hpp"
#include "engine/checkpoint/commit_log.hpp"
#include "engine/checkpoint/durable_file.hpp"
#include "engine/checkpoint/kv_file.hpp"
#include "engine/checkpoint/kv_file_set.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

using detail::Chain;
using detail::CommitInfo;
using detail::CommitLog;
using detail::KvFileSet;
using detail::KvReader;
using detail::Link;
using detail::Segment;

}  // namespace

struct CheckpointStore::State {
    /// What the folder has of one kind of keys and values.
    struct StoredKv {
        KvFile::Of of;
        KvFileSet files;
        std::map<std::string, std::vector<Segment>> segments{};  ///< by item

        [[nodiscard]] std::span<const Segment> segments_of(const std::string& key) const {
            const auto found = segments.find(key);
            return found == segments.end() ? std::span<const Segment>() : found->second;
        }
    };

    State(const std::filesystem::path& folder, const CheckpointIdentity& identity, std::int64_t max_epoch)
        : log(folder, identity, max_epoch),
          target{KvFile::Of::target, {folder, identity}},
          states{KvFile::Of::states, {folder, identity.of_states()}},
          draft{KvFile::Of::drafter, {folder, {}}} {}

    CommitLog log;
    std::function<void()> progress;

    StoredKv target, states;
    StoredKv draft;  ///< of the drafter that restore_draft_kv named last

    bool segment_intact(const std::string& key, const Link& link, std::vector<std::string>& lines);
    std::vector<Segment> find_segments(const std::string& key, const Chain& chain, std::int64_t longest_short_text,
                                       std::vector<std::string>& lines);
    void find_states(const std::string& key, const Chain& chain, std::int64_t kv_tokens,
                     std::vector<std::string>& lines);
    [[nodiscard]] bool wrote_draft_kv(const std::string& key, const Link& link);
    std::vector<Segment> find_draft_segments(const std::string& key, const Chain& chain,
                                             std::int64_t longest_short_text, std::vector<std::string>& lines);
    void read_segments(StoredKv& from, const std::string& key, const KvRows& rows, std::byte* to);
    [[nodiscard]] std::vector<std::size_t> candidates_of(const std::string& key, const Chain& chain,
                                                         std::int64_t longest_short_text) const;
};

// --- keys and values -----------------------------------------------------------------------------------------------

/// Whether the positions of this link are intact for all heads. Adds a line for each damage found, without duplicates.
bool CheckpointStore::State::segment_intact(const std::string& key, const Link& link, std::vector<std::string>& lines) {
    const CommitInfo& commit = log.commit(link.commit_index);
    return target.files.have(commit.kv_files, key, {link.kv_begin, link.kv_end, link.commit_index},
                             log.path(commit.name), progress, lines);
}

/// Rounds with the states behind their last position, of those whose keys and values are there. Older ones are looked
/// at only if newer ones are damaged.
void CheckpointStore::State::find_states(const std::string& key, const Chain& chain, std::int64_t kv_tokens,
                                         std::vector<std::string>& lines) {
    std::vector<Segment>& found = states.segments[key];
    found.clear();
    for (auto at = chain.links.rbegin(); at != chain.links.rend() && found.empty(); ++at) {
        const Link& link = log.link(key, *at);
        const CommitInfo& commit = log.commit(link.commit_index);
        if (link.kv_end > kv_tokens || link.kv_end == link.kv_begin || commit.state_files.empty()) continue;
        const Segment wanted{link.kv_end - 1, link.kv_end, link.commit_index};
        if (states.files.have(commit.state_files, key, wanted, log.path(commit.name), progress, lines))
            found.push_back(wanted);
    }
}

/// The rounds of a chain whose keys and values are of use.
std::vector<std::size_t> CheckpointStore::State::candidates_of(const std::string& key, const Chain& chain,
                                                               std::int64_t longest_short_text) const {
    std::vector<std::size_t> candidates = chain.links;
    const auto is_short = [&](std::size_t at) {
        const Link& link = log.link(key, at);
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
            const Link& link = log.link(key, *candidate);
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

/// Whether the drafter of `draft` drafted for the item in this round.
bool CheckpointStore::State::wrote_draft_kv(const std::string& key, const Link& link) {
    if (log.commit(link.commit_index).draft_kv_files.empty()) return false;
    try {
        const auto commit = log.load(log.commit(link.commit_index).name);
        const auto& items = commit->items;
        return link.item_index < items.size() && items[link.item_index].key == key &&
               items[link.item_index].drafter.kind == draft.files.identity().model;
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
        const Link& link = log.link(key, at);
        if (!wrote_draft_kv(key, link)) continue;
        const std::vector<KvFile>& of_round = log.commit(link.commit_index).draft_kv_files;
        draft.files.add_damage(of_round, progress, lines);
        Segment common{0, std::numeric_limits<std::int64_t>::max(), link.commit_index};
        for (std::int64_t head = 0; head < draft.files.identity().num_kv_heads; ++head) {
            const KvFile* file = draft.files.file_of_head(of_round, key, head, progress);
            const KvReader::Range range =
                file == nullptr ? KvReader::Range{} : draft.files.verdict(*file, progress).items.at(key);
            common.begin = std::max(common.begin, range.kv_begin);
            common.end = std::min(common.end, range.kv_end);
        }
        if (common.begin < common.end) stored.push_back(common);
    }
    return stored;
}

/// Reads rows whose positions the item's segments cover, in any order.
void CheckpointStore::State::read_segments(StoredKv& from, const std::string& key, const KvRows& rows, std::byte* to) {
    const CheckpointIdentity& identity = from.files.identity();
    const std::size_t row_bytes = detail::kv_token_bytes(identity, rows.group);
    const KvGroup group = identity.kv_groups().at(rows.group);  // may have fewer heads: see FORMAT.md
    const std::int64_t head_in_files =
        rows.kv_head * std::max<std::int64_t>(identity.num_kv_heads / group.num_kv_heads, 1);
    for (const Segment& segment : from.segments_of(key)) {
        KvRows part = rows;
        part.first = std::max(rows.first, segment.begin);
        part.count = std::min(rows.first + rows.count, segment.end) - part.first;
        if (part.count <= 0) continue;
        const std::vector<KvFile>& candidates = log.commit(segment.commit_index).files_of(from.of);
        const KvReader& reader = from.files.open(*from.files.file_of_head(candidates, key, head_in_files, progress));
        reader.read(reader.items().at(key), part, to + static_cast<std::size_t>(part.first - rows.first) * row_bytes);
    }
}

// --- public interface ----------------------------------------------------------------------------------------------

CheckpointStore::CheckpointStore(const std::filesystem::path& folder, const CheckpointIdentity& identity,
                                 std::int64_t max_epoch)
    : state_(std::make_unique<State>(folder, identity, max_epoch)) {}

CheckpointStore::~CheckpointStore() = default;
CheckpointStore::CheckpointStore(CheckpointStore&&) noexcept = default;

const std::map<std::string, std::int64_t>& CheckpointStore::items() const {
    return state_->log.items();
}
const std::vector<std::string>& CheckpointStore::damage() const {
    return state_->log.damage();
}

void CheckpointStore::set_progress(std::function<void()> progress) {
    state_->progress = std::move(progress);
}

std::optional<RestoredItem> CheckpointStore::restore(const std::string& key, std::int64_t longest_short_text) {
    CommitLog& log = state_->log;
    if (!log.has(key)) return std::nullopt;
    while (true) {
        const Chain chain = log.chain_of(key);
        std::vector<std::string> lines = log.broken_lines(key, chain);
        if (chain.links.empty()) {
            log.damage().insert(log.damage().end(), lines.begin(), lines.end());
            return std::nullopt;
        }
        std::optional<RestoredItem> restored = log.assemble(key, chain);
        if (!restored) continue;  // terminates: each attempt excludes one more commit
        const std::vector<Segment> segments = state_->find_segments(key, chain, longest_short_text, lines);
        for (const Segment& segment : segments) restored->kv_ends.push_back(segment.end);
        if (!segments.empty()) restored->kv_tokens = segments.back().end;
        if (log.identity().states.num_layers > 0) {
            state_->find_states(key, chain, restored->kv_tokens, lines);
            for (const Segment& segment : state_->states.segments[key]) restored->states_at.push_back(segment.end);
        }
        restored->damage = std::move(lines);
        state_->target.segments[key] = segments;
        return restored;
    }
}

void CheckpointStore::read_kv(const std::string& key, const KvRows& rows, std::byte* to) {
    const std::span<const Segment> segments = state_->target.segments_of(key);
    const std::int64_t kv_tokens = segments.empty() ? 0 : segments.back().end;
    const KvGroup group = state_->log.identity().kv_groups().at(rows.group);
    const std::array bounds{std::pair{rows.layer, group.num_layers - 1},
                            std::pair{rows.kv_head, group.num_kv_heads - 1}, std::pair{rows.first, kv_tokens},
                            std::pair{rows.count, kv_tokens - rows.first}};
    for (const auto& [value, max] : bounds) {
        if (value < 0 || value > max) throw std::logic_error("read_kv: beyond what restore gave of '" + key + "'");
    }
    state_->read_segments(state_->target, key, rows, to);
}

void CheckpointStore::read_state(const std::string& key, const KvRows& half, float* to) {
    const CheckpointIdentity::States& states = state_->log.identity().states;
    const std::span<const Segment> segments = state_->states.segments_of(key);
    const bool known = !segments.empty() && half.group == 0 && half.first == segments.front().begin && half.count == 1;
    if (!known || half.layer < 0 || half.layer >= states.num_layers || half.kv_head < 0 ||
        half.kv_head >= states.num_heads)
        throw std::logic_error("read_state: beyond what restore gave of '" + key + "'");
    state_->read_segments(state_->states, key, half, reinterpret_cast<std::byte*>(to));
}

RestoredDraftKv CheckpointStore::restore_draft_kv(const std::string& key, const CheckpointIdentity& drafter,
                                                  std::int64_t end, std::int64_t longest_short_text) {
    RestoredDraftKv restored;
    if (!state_->log.has(key)) return restored;
    const Chain chain = state_->log.chain_of(key);
    if (chain.links.empty()) return restored;
    if (!(state_->draft.files.identity() == drafter))
        state_->draft = {KvFile::Of::drafter, {state_->log.folder(), drafter}};
    std::vector<Segment> stored = state_->find_draft_segments(key, chain, longest_short_text, restored.damage);
    std::erase_if(stored, [&](const Segment& segment) { return segment.begin >= end; });
    for (const Segment& segment : stored) restored.end = std::max(restored.end, std::min(segment.end, end));
    restored.first = restored.end;
    std::vector<Segment>& found = state_->draft.segments[key];
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

void CheckpointStore::read_draft_kv(const std::string& key, const KvRows& rows, std::byte* to) {
    const std::span<const Segment> segments = state_->draft.segments_of(key);
    const bool covers = !segments.empty() && rows.group == 0 && rows.layer == 0 && rows.count >= 0 &&
                        rows.first >= segments.back().begin && rows.first + rows.count <= segments.front().end;
    if (!covers || rows.kv_head < 0 || rows.kv_head >= state_->draft.files.identity().num_kv_heads)
        throw std::logic_error("read_draft_kv: beyond what restore_draft_kv gave of '" + key + "'");
    state_->read_segments(state_->draft, key, rows, to);
}

std::int64_t CheckpointStore::num_bytes() const {
    std::int64_t sum = 0;
    for (const detail::NamedFile& file : detail::list_folder(state_->log.folder())) {
        std::error_code gone;
        const auto size = static_cast<std::int64_t>(std::filesystem::file_size(state_->log.folder() / file.name, gone));
        if (!gone) sum += size;
    }
    return sum;
}

void CheckpointStore::remove_unneeded(const std::vector<std::string>& unfinished, std::int64_t epoch) noexcept {
    try {
        for (const std::string& name : state_->log.unneeded(unfinished, epoch)) {
            detail::remove_file(state_->log.path(name));
        }
    } catch (...) {
        // Remaining files only take space until the next launch cleans up.
    }
}

}  // namespace longhaul::engine
