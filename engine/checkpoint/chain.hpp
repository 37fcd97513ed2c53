// How the rounds of one item hang together over commits of several replicas and launches. Private to this room.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"

namespace longhaul::engine::detail {

/// A commit without the bulk of its items: what stays in memory of each.
struct CommitInfo {
    std::string name;
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::vector<std::string> keys;  ///< of its items
    std::vector<KvFile> kv_files;
    bool damaged = false;  ///< found unreadable after it was read once
};

/// One item's part of one commit, as far as chains need it.
struct Link {
    std::size_t commit_index = 0;
    std::size_t item_index = 0;  ///< in the commit
    std::string previous_commit;
    std::int64_t prompt_tokens = 0;
    std::int64_t first_token = 0, end_token = 0;
    std::int64_t kv_begin = 0, kv_end = 0;
};

/// The best that the links of an item give.
struct Chain {
    std::vector<std::size_t> links;  ///< indices, first round first; empty where no round is whole
    std::vector<std::size_t>
        broken;  ///< links whose round before is missing or does not fit, where tokens were lost by it
};

/// Follows `previous_commit` backwards from every link. Whole is a link whose rounds before are all there, of the same
/// prompt and without a gap; of these the one with most tokens wins, then most KV, then newest epoch and round. Hostile
/// links (cycles, several with one commit) are not whole.
Chain find_chain(const std::vector<Link>& links, const std::vector<CommitInfo>& commits);

}  // namespace longhaul::engine::detail
