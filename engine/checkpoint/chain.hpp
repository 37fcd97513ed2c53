// Links the rounds of one item into a chain, across commits of several replicas and launches. Used by CheckpointStore;
// private to this folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/commit.hpp"

namespace longhaul::engine::detail {

/// The part of a commit that stays in memory, without the contents of its items.
struct CommitInfo {
    std::string name;
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::vector<std::string> keys;  ///< of its items
    std::vector<KvFile> kv_files{}, draft_kv_files{}, state_files{};
    bool damaged = false;  ///< became unreadable after it was first read

    [[nodiscard]] std::vector<KvFile>& files_of(KvFile::Of of) {
        return of == KvFile::Of::drafter ? draft_kv_files : of == KvFile::Of::states ? state_files : kv_files;
    }
    [[nodiscard]] const std::vector<KvFile>& files_of(KvFile::Of of) const {
        return of == KvFile::Of::drafter ? draft_kv_files : of == KvFile::Of::states ? state_files : kv_files;
    }
};

/// One item's entry in one commit: the fields that chains need.
struct Link {
    std::size_t commit_index = 0;
    std::size_t item_index = 0;  ///< index within the commit
    std::string previous_commit;
    std::int64_t prompt_tokens = 0;
    std::int64_t first_token = 0, end_token = 0;
    std::int64_t kv_begin = 0, kv_end = 0;
};

/// The best chain that the links of an item form.
struct Chain {
    std::vector<std::size_t> links;   ///< indices, first round first; empty if no link is whole
    std::vector<std::size_t> broken;  ///< if tokens were lost: links whose previous round is missing or does not fit
};

/// Follows `previous_commit` backwards from every link. A link is whole if all previous rounds exist, have the same
/// prompt and leave no gap. The whole link with the most tokens wins, then the most KV, then the newest epoch and
/// round. Links in a cycle are not whole. Of several links in one commit (only crafted files have them), only the first
/// can be a previous round.
Chain find_chain(const std::vector<Link>& links, const std::vector<CommitInfo>& commits);

}  // namespace longhaul::engine::detail
