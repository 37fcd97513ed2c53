// All commits of a checkpoint folder: read once, linked into the chain of each item. Used by CheckpointStore; private
// to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "engine/checkpoint/chain.hpp"
#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/file_name.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/restored_item.hpp"

namespace longhaul::engine::detail {

/// A checkpoint file, by its name.
struct NamedFile {
    std::string name;
    FileName parts;
};

/// Checkpoint files in a folder, oldest epoch first. A missing folder counts as empty. Throws InputError.
std::vector<NamedFile> list_folder(const std::filesystem::path& folder);

/// Cache of decoded commits: when the items of a replica are restored one after another, each commit need not be read
/// again for every item. Bounded to 64 MiB, because a folder may hold the tokens of a thousand long items.
class CommitCache {
  public:
    /// nullptr if it is not there.
    [[nodiscard]] std::shared_ptr<const Commit> find(const std::string& name) const;
    void put(const std::shared_ptr<const Commit>& commit);

  private:
    std::unordered_map<std::string, std::shared_ptr<const Commit>> commits_;
    std::deque<std::string> order_;
    std::size_t num_bytes_ = 0;
};

class CommitLog {
  public:
    /// See CheckpointStore, whose constructor this is.
    CommitLog(const std::filesystem::path& folder, const CheckpointIdentity& identity, std::int64_t max_epoch);

    [[nodiscard]] const std::filesystem::path& folder() const { return folder_; }
    [[nodiscard]] const CheckpointIdentity& identity() const { return identity_; }
    [[nodiscard]] std::string path(const std::string& name) const { return (folder_ / name).string(); }

    /// Output tokens of the items that have a chain, by key.
    [[nodiscard]] const std::map<std::string, std::int64_t>& items() const { return items_; }
    /// One line for each damaged commit, and what callers add.
    [[nodiscard]] std::vector<std::string>& damage() { return damage_; }

    /// Whether any commit has an entry of the item. The members below that take a `key` need it.
    [[nodiscard]] bool has(const std::string& key) const { return links_.contains(key); }
    /// `index`: of Chain.
    [[nodiscard]] const Link& link(const std::string& key, std::size_t index) const { return links_.at(key)[index]; }
    [[nodiscard]] const CommitInfo& commit(std::size_t index) const { return commits_[index]; }
    /// The item's longest intact chain.
    [[nodiscard]] Chain chain_of(const std::string& key) const { return find_chain(links_.at(key), commits_); }
    /// A line for each link of the chain whose previous round is missing.
    [[nodiscard]] std::vector<std::string> broken_lines(const std::string& key, const Chain& chain) const;

    /// The whole commit. Throws InputError.
    std::shared_ptr<const Commit> load(const std::string& name);
    /// Tokens and drafter rows of a chain. nullopt if a commit has become unreadable since it was first read: it is
    /// then marked as damaged, and the caller has to find another chain.
    std::optional<RestoredItem> assemble(const std::string& key, const Chain& chain);

    /// Names of the files that CheckpointStore::remove_unneeded removes, in order of removal: commits before KV files,
    /// newest first. An interruption then leaves shorter chains, but never commits that name missing files.
    [[nodiscard]] std::vector<std::string> unneeded(const std::vector<std::string>& unfinished,
                                                    std::int64_t epoch) const;

  private:
    void scan();
    void add_commit(const Commit& commit);
    void mark_damaged(const std::string& name, const std::string& line);
    [[nodiscard]] std::set<std::string> rounds_with_states(const std::unordered_set<std::string>& keys,
                                                           const std::vector<NamedFile>& there) const;

    std::filesystem::path folder_;
    CheckpointIdentity identity_;
    std::int64_t max_epoch_;
    std::vector<CommitInfo> commits_;
    std::map<std::string, std::string> damaged_;  ///< message by commit name
    std::map<std::string, std::vector<Link>> links_;
    std::map<std::string, std::int64_t> items_;
    std::vector<std::string> damage_;
    CommitCache cache_;
};

}  // namespace longhaul::engine::detail
