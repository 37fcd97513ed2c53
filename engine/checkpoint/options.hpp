// Checkpoint settings of a launch: the identity of the job, the folder, how often to write.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace longhaul::engine {

/// A checkpoint can only be used if all of these fields match. Messages name the field that differs.
struct CheckpointIdentity {
    std::string job;    ///< fingerprint of the identity keys of the job, hexadecimal
    std::string model;  ///< fingerprint of weights and config
    std::string tokenizer;
    int numerics_version = 0;
    std::string kv_dtype;  ///< "bf16", "f32", "int8"
    std::int64_t num_layers = 0;
    std::int64_t num_kv_heads = 0;  ///< of the whole model
    std::int64_t head_dim = 0;

    bool operator==(const CheckpointIdentity&) const = default;
};

struct CheckpointOptions {
    std::filesystem::path folder;  ///< "" = no checkpoints
    CheckpointIdentity identity;
    std::int64_t replica = 0, epoch = 0;
    /// Tokens of the replica's whole batch between rounds: output tokens, and prompt tokens while prefilling.
    std::int64_t every_tokens = 2000;
    double every_seconds = 60;
    bool store_kv = true;
    std::int64_t quota_bytes = 0;  ///< of KV files; when reached, rounds are written without KV. 0: no limit
};

}  // namespace longhaul::engine
