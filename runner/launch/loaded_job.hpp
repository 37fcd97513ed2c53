// What a launch loads once and runs phases with: model, tokenizer, data, and who they are.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/checkpoint/checkpoint.hpp"
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
    int ranks_on_device = 1;               ///< that share this rank's device, and with it its memory
    std::optional<std::int64_t> own_room;  ///< bytes of it that are this rank's, before anything was there
    std::vector<std::string> devices;      ///< of each rank, "HOST: GPU 0 of 4, …"; "" where processors compute
    double first_token_seconds = 0;        ///< from the program's start to the first token here; 0: none yet
    Fingerprints fingerprints;             ///< data (rank 0's), model, tokenizer, numerics
    bool notices_said = false;             ///< what the model had to say was printed

    /// Model and all that came with it, for another one; the data too, which only some ranks of a replica hold.
    void unload();
};

/// Loads on every rank what is not loaded; errors are agreed. `loaded.data` and its fingerprint are there already on
/// rank 0. Collective over the world, which is split into replicas already.
void load(const World& world, const Settings& settings, LoadedJob& loaded);

/// Who may read a checkpoint of this job.
engine::CheckpointIdentity checkpoint_identity(const Settings& settings, const Fingerprints& fingerprints,
                                               const engine::ModelConfig& config);

}  // namespace longhaul::runner
