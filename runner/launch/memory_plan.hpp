// Plans the memory of one rank (weights, workspace, KV) from the models' config.json, before any weight is read. Used
// by `run` to refuse a job that does not fit and to size the KV cache, and by `check`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/kv/partial_kv.hpp"
#include "engine/model/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/split.hpp"
#include "kernels/device.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// One rank's shard of a model that a job loads.
struct ModelPart {
    engine::ModelConfig config;
    engine::Split split;
    std::vector<kernels::KvLayout> layouts;  ///< by group of layers
    engine::Precision precision = engine::Precision::bf16;
    bool is_draft_layer = false;
    std::int64_t max_cached = std::int64_t{1} << 62;  ///< positions that it caches at most, besides its context
    std::int64_t window_ahead = 0;                    ///< engine::WindowUse::ahead
    bool caches = true;  ///< false: it has no keys and values of its own (the target's copy)
    /// Of the target: the positions that drafts gather beside its own, for items of up to `new_tokens` new tokens.
    engine::PartialCache partial_cache{.mode = engine::PartialMode::full};
    std::int64_t new_tokens = 0;
};

/// One rank's shards of all models of a job, the target first.
using ModelParts = std::vector<ModelPart>;

/// Reads the models' config.json. Throws Error.
ModelParts parts_of(const Settings& settings);

/// Bytes of the weights of all parts, as packed by `device`.
std::int64_t weight_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device);

/// Of a method that can draft without the target's copy (DraftMethod::alternatives): whether the copy fits into
/// `available` bytes of the node's memory and leaves as much for keys and values. 0: unknown, it is taken to fit; and a
/// device with its own memory refuses a job that does not fit (check_memory).
bool copy_fits(const Settings& settings, const kernels::Device& device, std::int64_t available);

/// KV bytes of an item: the target holds `held` positions, draft models see all `positions`.
std::int64_t item_kv_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t held,
                           std::int64_t positions);

/// Bytes that longhaul allocates for the passes of `batch` items, besides weights and KV.
std::int64_t workspace_bytes(const Settings& settings, const ModelParts& parts);

/// Bytes of device memory for the driver and for scratch of the device's operations.
std::int64_t reserved_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device);

/// Bytes of host memory that a rank may use for KV: `host-memory` if `device` can use host memory, else 0.
std::int64_t host_bytes(const Settings& settings, const kernels::Device& device);

/// Bytes of device memory for the staging window of pages in host memory. `host`: bytes of KV in host memory.
std::int64_t window_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t host);

/// Free memory in bytes where `device` computes: its own, or the node's, within the limits of `ranks` processes. 0:
/// unknown.
std::int64_t available_bytes(const kernels::Device& device, int ranks);

/// Name of that memory's place: the device, or this host.
std::string place_of_memory(const kernels::Device& device);

/// Bytes of host memory that the n-grams of `draft-corpus` take on a rank.
std::int64_t corpus_bytes(const Settings& settings);

/// KV capacity of a rank in bytes: `memory`, or its share of the free memory if `ranks` share it. `weights`: bytes of
/// weights that are not loaded yet.
std::int64_t kv_memory_bytes(const Settings& settings, const kernels::Device& device, int ranks,
                             std::int64_t weights = 0);

/// The same for a device with its own memory, where `room` was this rank's share before anything was loaded. What is
/// free later is no measure: it lacks a part of what passes need, but not all of it.
std::int64_t kv_memory_within(const Settings& settings, const kernels::Device& device, std::int64_t room);

/// Share of one of `ranks` ranks in the free memory of a device; nullopt if the device has no memory of its own.
std::optional<std::int64_t> own_room(const kernels::Device& device, int ranks);

/// Error line if the job does not fit into `room` bytes of device memory per rank, with changes that would fit; "" if
/// it fits. The minimum is weights, workspace, and KV of `positions` positions. `ranks_of_node`: number of ranks that
/// share the node's memory, for `host-memory`.
std::string memory_refusal(const Settings& settings, const kernels::Device& device, std::int64_t room,
                           std::int64_t positions, int ranks_of_node);

/// Throws Error if the model and one item of minimal length do not fit into the memory of a device with its own memory.
/// CPU ranks are not checked: the node may grant more memory than is free now, and items without KV memory fail one by
/// one. `ranks` share the device, `ranks_of_node` the node.
void check_memory(const Settings& settings, const kernels::Device& device, int ranks, int ranks_of_node);

/// Throws Error if `ranks` ranks of a node would page-lock more host memory (`host-memory`) than the node has free.
void check_host_memory(const Settings& settings, const kernels::Device& device, int ranks);

}  // namespace longhaul::runner
