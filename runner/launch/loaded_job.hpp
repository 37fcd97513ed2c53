// What a launch loads once and uses in all its phases: model, draft parts, tokenizer, data, and their fingerprints. A
// sweep keeps it from point to point.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/identity.hpp"
#include "engine/model/model.hpp"
#include "engine/parallel/group.hpp"
#include "engine/tokenizer/tokenizer.hpp"
#include "kernels/device.hpp"
#include "runner/data/dataset.hpp"
#include "runner/host/placement.hpp"
#include "runner/host/world.hpp"
#include "runner/job/settings.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {

struct LoadedJob {
    Placement placement;
    std::unique_ptr<DataSet> data;
    std::unique_ptr<engine::Tokenizer> tokenizer;
    std::unique_ptr<kernels::Device> device;
    std::unique_ptr<engine::Group> group;
    std::unique_ptr<engine::Model> model;
    DraftModels drafts;
    int ranks_on_device = 1;  ///< ranks that share this rank's device and its memory
    /// this rank's share of the free device memory, in bytes, before anything was loaded
    std::optional<std::int64_t> own_room;
    std::vector<std::string> devices;  ///< of each rank: "HOST: GPU 0 of 4, …"; "" for a CPU rank
    double first_token_seconds = 0;    ///< seconds from program start to the first token of this rank; 0: no token yet
    Fingerprints fingerprints;         ///< of data (rank 0's), model, adapter, tokenizer, numerics
    bool notices_said = false;         ///< the model's notices were printed

    /// KV memory of this rank in bytes, after everything was loaded.
    [[nodiscard]] std::int64_t kv_memory_bytes(const Settings& settings) const;
    /// Releases the model and everything that belongs to it, so that another can be loaded; also the data, which only
    /// some ranks of a replica hold.
    void unload();
};

/// Loads on every rank what is not loaded yet; errors are agreed on. Rank 0 must have `loaded.data` and its fingerprint
/// already. Collective over the world, which must be split into replicas.
void load(const World& world, const Settings& settings, LoadedJob& loaded);

/// The part of `load` that needs no data: device, model and draft parts. `loaded.tokenizer` is there already.
void load_engine(const World& world, const Settings& settings, LoadedJob& loaded);

/// The identity that a checkpoint must have to be read by this job.
engine::CheckpointIdentity checkpoint_identity(const Settings& settings, const Fingerprints& fingerprints,
                                               const engine::ModelConfig& config);

}  // namespace longhaul::runner
