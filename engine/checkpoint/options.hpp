// What a launch says about its checkpoints: which job they belong to, where they lie, how often they are written.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace longhaul::engine {

/// What must agree for a checkpoint to be used; compared as a whole, told apart by name in messages.
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
    std::int64_t every_tokens =
        2000;  ///< of the replica's whole batch: output tokens, and prompt tokens while prefilling
    double every_seconds = 60;
    bool store_kv = true;
    std::int64_t quota_bytes = 0;  ///< 0 = no limit; beyond it rounds are written without KV
};

}  // namespace longhaul::engine
