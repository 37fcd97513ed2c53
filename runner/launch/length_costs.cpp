#include "runner/launch/length_costs.hpp"

#include <algorithm>

#include "engine/model/model_plan.hpp"

namespace longhaul::runner {
namespace {

/// Keys and values that one row reads behind `positions` others.
std::int64_t kv_read(const ModelPart& target, std::int64_t positions) {
    std::int64_t bytes = 0;
    for (const kernels::KvLayout& layout : target.layouts)
        bytes += layout.position_bytes() * (layout.window > 0 ? std::min(layout.window, positions) : positions);
    return bytes;
}

}  // namespace

std::vector<LengthCost> length_costs(const ModelParts& parts, const kernels::Device& device, std::int64_t longest) {
    const ModelPart& target = parts.front();
    const std::int64_t weights = engine::streamed_weight_bytes(target.config, target.split, target.precision, device);
    std::vector<std::int64_t> lengths{4096, 32768, 102400};
    std::erase_if(lengths, [&](std::int64_t length) { return length >= longest; });
    lengths.push_back(longest);
    std::vector<LengthCost> costs;
    for (const std::int64_t length : lengths)
        costs.push_back({.positions = length,
                         .kv_bytes = item_kv_bytes(parts, device, length, length),
                         .read_bytes = weights + kv_read(target, length)});
    return costs;
}

double total_read_bytes(const ModelParts& parts, const kernels::Device& device, const WorkSize& work) {
    const ModelPart& target = parts.front();
    const auto weights =
        static_cast<double>(engine::streamed_weight_bytes(target.config, target.split, target.precision, device));
    const auto kv = static_cast<double>(kv_read(target, work.mean_positions / 2));
    return static_cast<double>(work.new_tokens) * (weights / static_cast<double>(work.batch_size) + kv);
}

}  // namespace longhaul::runner
