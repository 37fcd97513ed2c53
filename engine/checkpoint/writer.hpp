// The thread that writes checkpoints while decoding continues.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/commit.hpp"
#include "engine/checkpoint/identity.hpp"
#include "engine/checkpoint/kv_source.hpp"

namespace longhaul::engine {

/// One round's work for the writer thread of a rank: a KV file.
struct RoundJob {
    std::int64_t round = 0;
    CheckpointIdentity identity;  ///< of the target's keys and values, or the drafter's
    std::string kv_name;
    std::int64_t first_kv_head = 0, num_kv_heads = 0;
    std::vector<KvSource> kv;
};

/// Result of one unit of writer work.
struct RoundResult {
    std::int64_t round = 0;
    bool committed = false;  ///< the commit is durable; false for a KV file, and for a commit that failed
    std::optional<KvFile> kv_file;
    std::string
        error;  ///< "" if it succeeded, else the StorageError's message: the round is void, older ones are intact
    double seconds = 0;
};

/// The writer thread of a rank: writes checkpoints while decoding continues. It calls no MPI and blocks all signals.
/// Creates the folder if it is missing.
class CheckpointWriter {
  public:
    explicit CheckpointWriter(std::filesystem::path folder);
    ~CheckpointWriter();  ///< finishes the current unit of work and all removals, drops the rest

    void submit(RoundJob job);   ///< writes a KV file of this rank
    void submit(Commit commit);  ///< writes the commit; first rank only, after all ranks' KV files are durable
    /// Removes files, commits first, in queue order with the other work. No result: files that cannot be removed stay.
    void remove(std::vector<std::string> names);
    std::vector<RoundResult> poll();  ///< finished work, in order; does not wait
    void wait_idle();                 ///< waits until all submitted work is finished

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
