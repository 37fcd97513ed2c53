#include "runner/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/replica.hpp"
#include "runner/draft_models.hpp"
#include "runner/lease.hpp"
#include "runner/machine.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

/// Of a device's own memory, what its operations may need for themselves (partial results of attention over many
/// chunks), and what its driver and others take.
constexpr std::int64_t reserved_part = 16;

/// Of a device's own memory, what one of `ranks` that share it may take.
std::int64_t own_room(const kernels::Device& device, int ranks) {
    const kernels::DeviceMemory memory = device.own_memory().value();
    return std::max<std::int64_t>(memory.free_bytes - memory.total_bytes / reserved_part, 0) / ranks;
}

std::int64_t tree_nodes(const Settings& settings) {
    const engine::DraftMethod& method = engine::find_draft_method(settings.draft);
    if (settings.mode != "generate" || settings.draft_tree.empty()) return 0;
    return engine::tree_of(method, settings.draft_tree).num_nodes();
}

/// Of one item, at the least: its new tokens, and one of a prompt.
std::int64_t least_positions(const Settings& settings, const engine::ModelConfig& config) {
    if (settings.mode == "perplexity")
        return settings.window > 0 ? settings.window : std::min<std::int64_t>(config.max_positions, 2048);
    const std::int64_t prompt = settings.task == "pg19" ? settings.prompt_tokens : 1;
    return std::min(prompt + settings.max_tokens, config.max_positions);
}

/// A job's memory on one rank.
struct Need {
    std::int64_t weights = 0, workspace = 0, kv = 0;
    [[nodiscard]] std::int64_t sum() const { return weights + workspace + kv; }
};

Need need_of(const Settings& settings, const ModelParts& parts, const kernels::Device& device, std::int64_t positions) {
    return {.weights = weight_bytes(settings, parts, device),
            .workspace = workspace_bytes(settings, parts),
            .kv = item_kv_bytes(parts, device, positions, positions)};
}

/// What of a job may be made smaller, one thing at a time, until it fits into `room`.
class Ways {
  public:
    Ways(const Settings& settings, const kernels::Device& device, std::int64_t room, std::int64_t positions)
        : settings_(settings), device_(device), room_(room), positions_(positions) {}

    std::vector<std::string> find() {
        for (std::int64_t batch = settings_.batch / 2; batch >= 1; batch /= 2) {
            if (try_out("batch = " + std::to_string(batch), [&](Settings& s) { s.batch = batch; })) break;
        }
        shorter_items();
        if (settings_.kv_precision != "int8")
            try_out("kv-precision = int8", [](Settings& s) { s.kv_precision = "int8"; });
        for (const char* precision : {"int8", "int4"}) {
            if (settings_.precision == precision || settings_.precision == "int4") break;
            const auto change = [&](Settings& s) { s.precision = precision; };
            if (try_out(std::string("precision = ") + precision, change)) break;
        }
        for (std::int64_t ranks = 2 * settings_.tensor_parallel; ranks <= 8; ranks *= 2) {
            const auto change = [&](Settings& s) { s.tensor_parallel = ranks; };
            if (try_out("tensor-parallel = " + std::to_string(ranks) + " with a device for each rank", change)) break;
        }
        return std::move(found_);
    }

  private:
    template <typename Change>
    bool try_out(const std::string& name, const Change& change) {
        Settings changed = settings_;
        change(changed);
        try {
            if (need_of(changed, parts_of(changed), device_, positions_).sum() > room_) return false;
        } catch (const Error&) {  // the model cannot be split or held so
            return false;
        }
        found_.push_back(name);
        return true;
    }

    void shorter_items() {
        const ModelParts parts = parts_of(settings_);
        const Need none = need_of(settings_, parts, device_, 0);
        const std::int64_t a_page = item_kv_bytes(parts, device_, 1, 1);
        const std::int64_t positions =
            (room_ - none.sum()) / std::max<std::int64_t>(a_page, 1) * kernels::KvLayout::page_tokens;
        const std::int64_t tokens = settings_.max_tokens - (positions_ - positions);
        if (settings_.mode == "generate" && positions < positions_ && tokens > 0)
            found_.push_back("max-tokens = " + std::to_string(tokens));
    }

    const Settings& settings_;
    const kernels::Device& device_;
    std::int64_t room_, positions_;
    std::vector<std::string> found_;
};

}  // namespace

ModelParts parts_of(const Settings& settings) {
    ModelParts parts;
    const auto add = [&](const engine::ModelConfig& config, std::int64_t ranks) {
        const engine::Split split(config, 0, static_cast<int>(ranks));
        parts.push_back({config, split, engine::kv_layout_of(config, split, kv_dtype_of(settings))});
    };
    add(engine::ModelConfig::load(settings.model), settings.tensor_parallel);
    for (const auto& folder : wanted_draft_models(settings)) {
        const engine::ModelConfig config = engine::ModelConfig::load(folder);
        add(config, is_draft_sharded(settings, folder, config) ? settings.tensor_parallel : 1);
    }
    return parts;
}

std::int64_t weight_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device) {
    std::int64_t bytes = 0;
    for (const ModelPart& part : parts)
        bytes += engine::packed_weight_bytes(part.config, part.split, precision_of(settings), device);
    return bytes;
}

std::int64_t item_kv_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t held,
                           std::int64_t positions) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        const std::int64_t seen = i == 0 ? held : std::min(positions, parts[i].config.max_positions);
        bytes += engine::PagePool::pages_for(seen) * static_cast<std::int64_t>(device.kv_page_bytes(parts[i].layout));
    }
    return bytes;
}

/// What prompts by a library take beside: a layer's largest matrix by rows, and a block of rows with its outputs.
static std::int64_t library_bytes(const ModelPart& target) {
    constexpr std::int64_t bf16 = 2, f32 = 4, block_rows = 512;
    const engine::ModelConfig& config = target.config;
    const std::int64_t hidden = target.split.padded_hidden, heads = target.split.num_heads * config.head_dim;
    const std::int64_t qkv = heads + 2 * target.split.num_kv_heads * config.head_dim;
    const std::int64_t up = (config.gated_mlp ? 2 : 1) * target.split.intermediate;
    const std::int64_t widest = std::max({qkv, up, hidden});
    return hidden * widest * bf16 + block_rows * widest * (bf16 + f32);
}

std::int64_t workspace_bytes(const Settings& settings, const ModelParts& parts) {
    const std::int64_t nodes = settings.batch * (1 + tree_nodes(settings));
    const std::int64_t rows = nodes + engine::prefill_chunk_of(settings.device == "cuda");
    const std::int64_t logit_rows = settings.mode == "perplexity" ? rows : nodes;
    std::int64_t bytes = settings.kernels == "cuda-cublas" ? library_bytes(parts.front()) : 0;
    for (const ModelPart& part : parts)
        bytes += engine::pass_bytes(part.config, part.split, precision_of(settings), rows, logit_rows);
    return bytes;
}

std::int64_t available_bytes(const kernels::Device& device, int ranks) {
    const auto memory = device.own_memory();
    return memory ? memory->free_bytes : available_memory_bytes(ranks);
}

std::string place_of_memory(const kernels::Device& device) {
    return device.own_memory() ? device.place() : ProcessId::mine().host;
}

std::int64_t kv_memory_bytes(const Settings& settings, const kernels::Device& device, int ranks, std::int64_t weights) {
    if (settings.memory > 0) return settings.memory;
    constexpr std::int64_t unknown = std::int64_t{8} << 30;
    if (!device.own_memory()) {
        const std::int64_t available = available_bytes(device, ranks);
        return (available > 0 ? kv_share(available - weights) : unknown) / ranks;
    }
    const std::int64_t rest = own_room(device, ranks) - weights;
    return std::max<std::int64_t>(rest - workspace_bytes(settings, parts_of(settings)), 0);
}

std::string memory_refusal(const Settings& settings, const kernels::Device& device, std::int64_t room,
                           std::int64_t positions) {
    const Need need = need_of(settings, parts_of(settings), device, positions);
    if (need.sum() <= room) return "";
    const std::vector<std::string> ways = Ways(settings, device, room, positions).find();
    return InputError::format(
        "memory", "",
        "room on a rank's device for weights of " + size_text(need.weights) + ", passes of " +
            size_text(need.workspace) + ", and keys and values of " + std::to_string(positions) + " tokens, " +
            size_text(need.kv),
        size_text(room) + " on " + place_of_memory(device),
        ways.empty() ? "a device with more memory, or a smaller model" : "what fits: " + list_words(ways));
}

void check_memory(const Settings& settings, const kernels::Device& device, int ranks) {
    if (!device.own_memory()) return;
    const std::int64_t positions = least_positions(settings, engine::ModelConfig::load(settings.model));
    const std::string line = memory_refusal(settings, device, own_room(device, ranks), positions);
    if (!line.empty()) throw Error(line);
}

}  // namespace longhaul::runner
