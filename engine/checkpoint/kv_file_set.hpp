// The KV files of a checkpoint folder with one identity, the target's or a drafter's: each is verified once, when an
// item that it holds is restored. Used by CheckpointStore; private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <list>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_file.hpp"

namespace longhaul::engine::detail {

/// Positions [begin, end) of an item, stored in the KV files of one commit.
struct Segment {
    std::int64_t begin = 0, end = 0;
    std::size_t commit_index = 0;
};

class KvFileSet {
  public:
    /// The result of verifying one file.
    struct Verdict {
        std::string damage;  ///< "" = intact
        std::map<std::string, KvReader::Range> items;
    };

    KvFileSet(std::filesystem::path folder, CheckpointIdentity identity)
        : folder_(std::move(folder)), identity_(std::move(identity)) {}

    [[nodiscard]] const CheckpointIdentity& identity() const { return identity_; }

    /// Verifies a file unless it was verified before. `progress` is called after every megabyte.
    const Verdict& verdict(const KvFile& file, const std::function<void()>& progress);
    /// Adds a line for each of `files` that is damaged, without duplicates.
    void add_damage(std::span<const KvFile> files, const std::function<void()>& progress,
                    std::vector<std::string>& lines);
    /// Whether the intact ones of these files have exactly positions `wanted` of an item, for all heads. Adds a line
    /// for each damage found, without duplicates; `of_commit`: the path that names what is missing.
    bool have(std::span<const KvFile> files, const std::string& key, const Segment& wanted,
              const std::string& of_commit, const std::function<void()>& progress, std::vector<std::string>& lines);
    /// The intact one of these files that holds a head of this item; nullptr if there is none.
    const KvFile* file_of_head(std::span<const KvFile> files, const std::string& key, std::int64_t kv_head,
                               const std::function<void()>& progress);
    /// Opens a verified file. Throws InputError. The reader is valid until the next call.
    const KvReader& open(const KvFile& file);

  private:
    std::filesystem::path folder_;
    CheckpointIdentity identity_;
    std::map<std::string, Verdict> verdicts_;                 ///< by file name
    std::list<std::pair<std::string, KvReader>> open_files_;  ///< most recently used first
};

}  // namespace longhaul::engine::detail
