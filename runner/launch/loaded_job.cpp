#include "runner/launch/loaded_job.hpp"

#include <algorithm>
#include <cstdlib>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/model/model_plan.hpp"
#include "kernels/numerics.hpp"
#include "runner/job/device_choice.hpp"
#include "runner/launch/engine_options.hpp"
#include "runner/launch/memory_plan.hpp"
#include "runner/launch/model_folder.hpp"

namespace longhaul::runner {
namespace {

/// Checks that all ranks see the same content: node-local folders may hold different things under one name.
void check_same_everywhere(const World& world, const std::string& what, const std::string& mine) {
    std::string first = mine;
    world.broadcast(first);
    world.agree([&] {
        if (first == mine) return;
        throw Error(what + ": expected the same on all ranks (fingerprint " + first + " on rank 0), got " + mine +
                    " on rank " + std::to_string(world.rank()) + " (host " + world.host() + ")");
    });
}

void load_target(const World& world, const Settings& settings, LoadedJob& loaded) {
    loaded.group = settings.tensor_parallel == 1
                       ? engine::make_local_group()
                       : engine::make_mpi_group(world.replica_comm(), {.threads = loaded.placement.threads});
    world.agree_on_collective([&] {
        loaded.model = engine::Model::load(settings.model, precision_of(settings), *loaded.device, *loaded.group,
                                           kv_dtype_of(settings), packed_folder(settings), settings.adapter);
    });
    loaded.fingerprints["model"] = engine::hex(loaded.model->fingerprint());
    loaded.fingerprints["tokenizer"] = engine::hex(loaded.tokenizer->fingerprint());
    loaded.fingerprints["numerics"] = std::to_string(kernels::numerics_version);
    check_same_everywhere(world, settings.model.string(), loaded.fingerprints["model"]);
    if (settings.adapter.empty()) return;
    loaded.fingerprints["adapter"] = engine::hex(loaded.model->adapter_fingerprint());
    check_same_everywhere(world, settings.adapter.string(), loaded.fingerprints["adapter"]);
}

/// Loads the draft parts. Their fingerprint is part of the job's identity if the verification rule lets drafts affect
/// the text.
void load_drafts(const World& world, const Settings& settings, LoadedJob& loaded) {
    bool fits = true;
    world.agree(
        [&] { fits = copy_fits(settings, *loaded.device, available_bytes(*loaded.device, world.node_size())); });
    const bool with_copy = !world.any(!fits);
    world.agree_on_collective([&] {
        loaded.drafts.load(settings, *loaded.model, *loaded.tokenizer, *loaded.device, *loaded.group, with_copy);
    });
    loaded.fingerprints.erase("draft-model");
    const std::string fingerprint = loaded.drafts.fingerprint();
    check_same_everywhere(world, "draft-model", fingerprint);
    check_same_everywhere(world, "draft-corpus", loaded.drafts.corpus_fingerprint());
    if (!settings.is_coupled() && !fingerprint.empty()) loaded.fingerprints["draft-model"] = fingerprint;
}

}  // namespace

std::int64_t LoadedJob::kv_memory_bytes(const Settings& settings) const {
    return own_room ? kv_memory_within(settings, *device, *own_room)
                    : runner::kv_memory_bytes(settings, *device, ranks_on_device);
}

void LoadedJob::unload() {
    drafts.unload();
    model.reset();  // refers to device and group
    group.reset();
    device.reset();
    tokenizer.reset();
    data.reset();
    fingerprints.clear();
    notices_said = false;
}

/// Ranks may have chosen different devices (`device` = auto), and GPUs of different generations give different bits.
static void check_same_device(const World& world, const Settings& settings) {
    std::string mine;
    world.agree([&] {
        mine = settings.kernels == "cuda-exact" ? settings.device : device_kind(settings, gpu_of(world.node_rank()));
    });
    std::string first = mine;
    world.broadcast(first);
    world.agree([&] {
        if (first == mine) return;
        throw UsageError("device: expected " + first + " as on rank 0, got " + mine + " on rank " +
                         std::to_string(world.rank()) + " (host " + world.host() +
                         "); give nodes of one kind, or device = cpu");
    });
}

/// Gathers each rank's device and host (GPUs only) and counts the ranks that share this rank's device.
static void gather_devices(const World& world, LoadedJob& loaded) {
    const std::string place = loaded.device->place();
    const std::string mine = place.empty() ? "" : world.host() + ": " + place;
    const std::vector<std::string> places = world.gather(mine);
    std::string all = engine::json_text(nlohmann::json(places));
    world.broadcast(all);
    loaded.devices = engine::try_parse_json(all).get<std::vector<std::string>>();
    const auto sharing = std::count(loaded.devices.begin(), loaded.devices.end(), mine);
    loaded.ranks_on_device = mine.empty() ? world.node_size() : static_cast<int>(sharing);
    loaded.own_room = own_room(*loaded.device, loaded.ranks_on_device);
}

void load(const World& world, const Settings& settings, LoadedJob& loaded) {
    world.agree([&] {
        check_model_folders(settings);
        if (!loaded.model) loaded.tokenizer = load_tokenizer(settings.model, engine::ModelConfig::load(settings.model));
        puts_bos(settings, *loaded.tokenizer);  // throws if the tokenizer has no BOS token but the job requires one
        if (!loaded.data && world.rank_in_replica() == 0) loaded.data = DataSet::open(settings);
    });
    load_engine(world, settings, loaded);
}

void load_engine(const World& world, const Settings& settings, LoadedJob& loaded) {
    check_same_device(world, settings);
    if (!loaded.model) {
        world.agree([&] { loaded.device = make_device(settings, loaded.placement.threads, world.node_rank()); });
        gather_devices(world, loaded);
        world.agree([&] {
            check_memory(settings, *loaded.device, loaded.ranks_on_device, world.node_size());
            check_host_memory(settings, *loaded.device, world.node_size());
        });
        load_target(world, settings, loaded);
    }
    load_drafts(world, settings, loaded);
}

engine::CheckpointIdentity checkpoint_identity(const Settings& settings, const Fingerprints& fingerprints,
                                               const engine::ModelConfig& config) {
    engine::CheckpointIdentity identity;
    Fingerprints of_job{{"data", fingerprints.at("data")}};
    for (const char* part : {"adapter", "draft-model"}) {
        if (const auto found = fingerprints.find(part); found != fingerprints.end()) of_job.insert(*found);
    }
    identity.job = identity_hash(settings, of_job);
    identity.model = fingerprints.at("model");
    identity.tokenizer = fingerprints.at("tokenizer");
    identity.numerics_version = kernels::numerics_version;
    identity.kv_dtype = settings.kv_precision == "fp32" ? "f32" : settings.kv_precision;
    identity.num_layers = config.num_layers;
    identity.num_kv_heads = config.num_kv_heads;
    identity.head_dim = config.head_dim;
    for (const auto& layout : engine::kv_layouts_of(config, engine::Split(config, 0, 1), kernels::DType::bf16))
        identity.add_layers(layout);
    return identity;
}

}  // namespace longhaul::runner
