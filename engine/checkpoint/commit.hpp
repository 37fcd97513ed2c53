// Commits: what one round adds to each item, and which KV files hold its keys and values. Format: FORMAT.md.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/identity.hpp"
#include "engine/draft/draft_state.hpp"

namespace longhaul::engine {

inline constexpr int checkpoint_format_version = 3;

/// The additions of one round to one item.
struct ItemDelta {
    std::string key;              ///< unique in the job; the runner makes it from id and sample
    std::string previous_commit;  ///< file name of the commit with this item's previous round; "" for the first
    std::int64_t prompt_tokens = 0;
    std::int64_t first_token = 0;      ///< output tokens before this round
    std::vector<std::int32_t> tokens;  ///< output tokens added by this round
    /// The same number of words for each of `tokens`; empty without `logprobs` (engine/sampling/log_softmax.hpp).
    /// Opaque here.
    std::vector<std::int32_t> logprobs{};
    std::int64_t kv_begin = 0;  ///< positions [kv_begin, kv_end) are in this round's KV files; equal under `recompute`
    std::int64_t kv_end = 0;
    DrafterState drafter;    ///< rows changed since the previous round
    std::string statistics;  ///< JSON of cumulative counters; opaque here
};

/// A KV file, as recorded in its commit.
struct KvFile {
    /// Whose keys and values: the target's, those of a drafter's own layer, or the states of linear attention.
    enum class Of : std::uint8_t { target, drafter, states };

    std::string name;  ///< kv_file_name
    std::uint64_t num_bytes = 0;
    std::uint64_t checksum = 0;      ///< XXH3-64 of the whole file
    std::int64_t first_kv_head = 0;  ///< global index
    std::int64_t num_kv_heads = 0;

    [[nodiscard]] Of of() const;
};

struct Commit {
    std::string name;  ///< file name of the commit
    CheckpointIdentity identity;
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::vector<ItemDelta> items;
    std::vector<KvFile> kv_files;  ///< also those of a drafter
};

/// Publishes a commit under `commit.name`. Throws StorageError.
void write_commit(const std::filesystem::path& folder, const Commit& commit);

/// Reads and verifies one commit. Throws InputError that names file and dataset.
Commit read_commit(const std::filesystem::path& path);

}  // namespace longhaul::engine
