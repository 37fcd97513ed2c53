// Checkpoint settings of a launch: the identity of the job, the folder, how often to write.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/checkpoint/identity.hpp"

namespace longhaul::engine {

struct CheckpointOptions {
    std::filesystem::path folder;  ///< "" = no checkpoints
    CheckpointIdentity identity;
    std::int64_t replica = 0, epoch = 0;
    /// Tokens of the replica's whole batch between rounds: output tokens, and prompt tokens while prefilling.
    std::int64_t every_tokens = 2000;
    double every_seconds = 60;
    /// Of a round's keys and values, and of its records: a round begins before it has more. Its KV file is built in
    /// memory.
    std::int64_t max_bytes = std::int64_t{256} << 20;
    bool store_kv = true;
    std::int64_t quota_bytes = 0;    ///< of KV files; when reached, rounds are written without KV. 0: no limit
    std::int64_t earlier_bytes = 0;  ///< of files of earlier launches, which count as well
};

}  // namespace longhaul::engine
