// What a job needs of a rank's memory, and whether the device has it: known before a weight is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

/// A rank's part of a model that a job loads.
struct ModelPart {
    engine::ModelConfig config;
    engine::Split split;
    kernels::KvLayout layout;
};

/// A rank's parts of all of them, the target's first.
using ModelParts = std::vector<ModelPart>;

/// Reads the models' config.json. Throws Error.
ModelParts parts_of(const Settings& settings);

/// Weights of all parts as `device` packs them.
std::int64_t weight_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device);

/// Keys and values of an item of which `held` positions are held by the target and all `positions` seen by drafts.
std::int64_t item_kv_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t held,
                           std::int64_t positions);

/// What the passes of `batch` items take beside weights, keys and values, allocated by us.
std::int64_t workspace_bytes(const Settings& settings, const ModelParts& parts);

/// What else goes of a device's own memory: to its driver, and to operations themselves.
std::int64_t reserved_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device);

/// Bytes of the node's memory that a rank may use for keys and values: `host-memory`, where `device` has a use for it.
std::int64_t host_bytes(const Settings& settings, const kernels::Device& device);

/// What of the device's own memory those pass through.
std::int64_t window_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t far);

/// Memory where `device` computes that `ranks` of us may take now: its own, or the node's. 0 where nobody says.
std::int64_t available_bytes(const kernels::Device& device, int ranks);

/// Where that is: the device, or this host.
std::string place_of_memory(const kernels::Device& device);

/// Bytes of the device that a rank may use for keys and values: `memory`, or its share of what is free where `ranks`
/// compute.
/// `weights`: of what is not there yet.
std::int64_t kv_memory_bytes(const Settings& settings, const kernels::Device& device, int ranks,
                             std::int64_t weights = 0);

/// The same on a device with memory of its own, of which `room` was this rank's before anything was there: what is free
/// later lacks some of what passes take, but not all.
std::int64_t kv_memory_within(const Settings& settings, const kernels::Device& device, std::int64_t room);

/// Of a device's own memory, what one of `ranks` that share it may take; nullopt: it has none.
std::optional<std::int64_t> own_room(const kernels::Device& device, int ranks);

/// Why the job cannot be run in `room` bytes a rank of a device's own memory, and what would fit, in a line; "" where
/// it can. At the least it takes weights, workspace, and keys and values of `positions` positions.
/// `ranks_of_node`: that share the node's memory, which `host-memory` is of.
std::string memory_refusal(const Settings& settings, const kernels::Device& device, std::int64_t room,
                           std::int64_t positions, int ranks_of_node);

/// Throws Error where the model, and one item of it, do not fit into the memory of a device that has its own; of the
/// node's memory more may be had than is free, and items that find none fail alone.
/// `ranks` share the device, `ranks_of_node` the node.
void check_memory(const Settings& settings, const kernels::Device& device, int ranks, int ranks_of_node);

/// Throws Error where `ranks` of a node would page-lock more for `host-memory` than the node has.
void check_host_memory(const Settings& settings, const kernels::Device& device, int ranks);

}  // namespace longhaul::runner
