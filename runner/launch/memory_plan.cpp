#include "runner/launch/memory_plan.hpp"

#include <algorithm>
#include <cmath>
#include <optional>

#include "engine/draft/draft_layer.hpp"
#include "engine/draft/draft_sampler.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/draft/heads.hpp"
#include "engine/draft/methods.hpp"
#include "engine/error.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/cost_model.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/model/pass_memory.hpp"
#include "engine/replica/replica.hpp"
#include "kernels/token_chooser.hpp"
#include "runner/host/message_text.hpp"
#include "runner/host/process.hpp"
#include "runner/host/resources.hpp"
#include "runner/job/value_text.hpp"
#include "runner/launch/draft_models.hpp"
#include "runner/launch/engine_options.hpp"

namespace longhaul::runner {
namespace {

// Device memory that longhaul does not allocate itself. The process's context is not included: it exists before free
// memory is queried.
constexpr std::int64_t mebibyte = std::int64_t{1} << 20;
constexpr std::int64_t driver_bytes = 256 * mebibyte;  ///< kernel code, which is loaded on first use, and kernel stacks
constexpr std::int64_t granule = 2 * mebibyte;         ///< allocation granularity of device memory
constexpr std::int64_t matrices_of_layer = 5;          ///< allocations, of which each may end in a granule of its own

std::int64_t tree_nodes(const Settings& settings) {
    if (settings.mode != Mode::generate) return 0;
    const engine::DraftOptions drafts = draft_of(settings);
    const auto folder = draft_folders(settings).heads;
    if (folder.empty()) return engine::max_tree_nodes(drafts, drafts.shape());
    const auto heads = engine::HeadsConfig::load(folder, engine::ModelConfig::load(settings.model));
    return engine::max_tree_nodes(drafts, engine::tree_of_heads(drafts, heads));
}

/// Rows of a forward pass.
std::int64_t decode_rows(const Settings& settings) {
    return settings.batch * (1 + tree_nodes(settings));
}
std::int64_t max_rows(const Settings& settings) {
    return decode_rows(settings) + engine::prefill_chunk_of(settings.device == "cuda");
}

bool chooses_tree(const Settings& settings) {
    return settings.mode == Mode::generate && engine::chooses_tree(*settings.draft, settings.draft_tree);
}

/// Rows of a draft model's pass: after a pause in drafting it catches up with all texts.
std::int64_t max_draft_rows(const Settings& settings) {
    const std::int64_t catching_up = chooses_tree(settings) ? settings.batch * engine::max_catching_up : 0;
    return std::max(max_rows(settings), catching_up);
}

std::int64_t max_logit_rows(const Settings& settings, const ModelPart& target) {
    if (chooses_tree(settings)) return std::max(decode_rows(settings), engine::CostModel::max_rows);
    if (!only_scores(settings)) return decode_rows(settings);
    return std::min(max_rows(settings), engine::max_logits_rows(target.config.vocab_size, settings.device == "cuda"));
}

/// Minimum positions of one item: one prompt token (pg19: prompt-tokens) and its new tokens; perplexity: one window.
std::int64_t min_positions(const Settings& settings, const engine::ModelConfig& config) {
    if (settings.mode == Mode::perplexity)
        return settings.window > 0 ? settings.window : std::min<std::int64_t>(config.max_positions, 2048);
    const std::int64_t prompt = settings.task == "pg19" ? settings.prompt_tokens : 1;
    return std::min(prompt + settings.max_tokens, config.max_positions);
}

/// Memory that a job needs on one rank, in bytes.
struct Need {
    std::int64_t weights = 0, passes = 0, kv = 0;
    std::int64_t drafts_kv = 0;  ///< part of `kv` that belongs to draft models; always in device memory
    std::int64_t host = 0;       ///< host memory that KV may use

    /// Device memory without KV.
    [[nodiscard]] std::int64_t fixed() const { return weights + passes; }
    /// Bytes missing in `room` bytes of device memory; 0 or less if it fits.
    [[nodiscard]] std::int64_t lack(std::int64_t room) const { return fixed() + std::max(drafts_kv, kv - host) - room; }
};

/// Device memory of everything but weights and KV.
std::int64_t pass_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device) {
    return workspace_bytes(settings, parts) + reserved_bytes(settings, parts, device) +
           window_bytes(parts, device, host_bytes(settings, device));
}

/// Bytes of KV pages that fit into `bytes` of device memory: each slab takes whole granules.
std::int64_t pages_within(std::int64_t bytes, const ModelParts& parts, const kernels::Device& device) {
    if (bytes <= 0) return 0;
    const std::int64_t page = device.kv_page_bytes(parts.front().layouts.front());
    const std::int64_t slab = engine::PagePool::slab_pages(page) * page;
    const std::int64_t taken = (slab + granule - 1) / granule * granule;
    return std::max<std::int64_t>(bytes - (bytes + taken - 1) / taken * (taken - slab), 0);
}

Need need_of(const Settings& settings, const ModelParts& parts, const kernels::Device& device, std::int64_t positions) {
    return {.weights = weight_bytes(settings, parts, device),
            .passes = pass_bytes(settings, parts, device),
            .kv = item_kv_bytes(parts, device, positions, positions),
            .drafts_kv = item_kv_bytes(parts, device, 0, positions),
            .host = host_bytes(settings, device)};
}

/// A size as written in the job file, rounded up.
std::string rounded_size_text(std::int64_t bytes) {
    const bool large = bytes > std::int64_t{16} << 30;
    const int shift = large ? 30 : 20;
    return std::to_string((bytes + (std::int64_t{1} << shift) - 1) >> shift) + (large ? "GiB" : "MiB");
}

/// Finds single changes of the job's settings that make it fit into `room` bytes.
class FittingChanges {
  public:
    FittingChanges(const Settings& settings, const kernels::Device& device, std::int64_t room, std::int64_t positions,
                   int ranks_of_node)
        : settings_(settings),
          device_(device),
          room_(room),
          positions_(positions),
          host_room_(available_memory_bytes(ranks_of_node) / ranks_of_node) {}

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
        if (draft_folders(settings_).target_copy && draft_copy_precision(settings_))
            try_out("draft-precision = same", [](Settings& s) { s.draft_precision = "same"; });
        if (settings_.draft->own_layer) {
            try_out("draft = self with draft-precision = same", [](Settings& s) {
                s.draft = "self";
                s.draft_precision = "same";
            });
        }
        for (std::int64_t ranks = 2 * settings_.tensor_parallel; ranks <= 8; ranks *= 2) {
            const auto change = [&](Settings& s) { s.tensor_parallel = ranks; };
            if (try_out("tensor-parallel = " + std::to_string(ranks) + " with a device for each rank", change)) break;
        }
        host_memory();
        return std::move(found_);
    }

  private:
    template <typename Change>
    bool try_out(const std::string& name, const Change& change) {
        Settings changed = settings_;
        change(changed);
        try {
            if (need_of(changed, parts_of(changed), device_, positions_).lack(room_) > 0) return false;
        } catch (const Error&) {  // the model cannot be split or packed like that
            return false;
        }
        found_.push_back(name);
        return true;
    }

    /// The staging window for pages in host memory grows with their number, and uses device memory itself.
    void host_memory() {
        if (!device_.can_use_host_memory()) return;
        const ModelParts parts = parts_of(settings_);
        Settings changed = settings_;
        for (int i = 0; i < 16; ++i) {
            const std::int64_t lack = need_of(changed, parts, device_, positions_).lack(room_);
            if (lack <= 0) {
                const std::string size = rounded_size_text(changed.host_memory);
                try_out("host-memory = " + size + " (slow)", [&](Settings& s) { s.host_memory = parse_size(size); });
                return;
            }
            changed.host_memory += lack + (std::int64_t{1} << 20);
            if (host_room_ > 0 && changed.host_memory > host_room_) return;
        }
    }

    void shorter_items() {
        const ModelParts parts = parts_of(settings_);
        const Need none = need_of(settings_, parts, device_, 0);
        const std::int64_t bytes_per_page = item_kv_bytes(parts, device_, 1, 1);
        const std::int64_t positions = (room_ - none.fixed() + none.host) / std::max<std::int64_t>(bytes_per_page, 1) *
                                       kernels::KvLayout::page_tokens;
        const std::int64_t tokens = settings_.max_tokens - (positions_ - positions);
        if (settings_.mode == Mode::generate && positions < positions_ && tokens > 0)
            found_.push_back("max-tokens = " + std::to_string(tokens));
    }

    const Settings& settings_;
    const kernels::Device& device_;
    std::int64_t room_, positions_;
    std::int64_t host_room_;  ///< host memory per rank of the node; 0: unknown
    std::vector<std::string> found_;
};

/// The part of the memory left after the weights that KV may use.
std::int64_t kv_share(std::int64_t available_bytes) {
    return std::max<std::int64_t>(available_bytes, 0) / 4 * 3;
}

/// Throws UsageError if the device has no attention over heads as wide as the model's.
void check_head_dim(const Settings& settings, const engine::ModelConfig& config, const kernels::Device& device) {
    const std::int64_t most = device.max_head_dim(kv_dtype_of(settings));
    if (config.widest_head() <= most) return;
    throw UsageError(InputError::format(
        settings.origins.of("kv-precision"), "kv-precision",
        "a type with which heads may have " + std::to_string(config.widest_head()) + " dimensions",
        in_quotes(settings.kv_precision), "with this one a GPU takes at most " + std::to_string(most)));
}

}  // namespace

ModelParts parts_of(const Settings& settings) {
    ModelParts parts;
    const auto add = [&](const engine::ModelConfig& config, std::int64_t ranks) {
        const engine::Split split(config, 0, static_cast<int>(ranks));
        parts.push_back(
            {config, split, engine::kv_layouts_of(config, split, kv_dtype_of(settings)), precision_of(settings)});
    };
    add(engine::ModelConfig::load(settings.model), settings.tensor_parallel);
    parts.front().window_ahead = engine::window_ahead(engine::prefill_chunk_of(settings.device == "cuda"));
    if (settings.mode == Mode::generate && settings.draft->copies_target) {
        parts.front().partial_cache = draft_of(settings).partial_cache;
        parts.front().new_tokens = settings.max_tokens;
    }
    const DraftFolders drafts = draft_folders(settings);
    for (const auto& folder : drafts.models) {
        const engine::ModelConfig config = engine::ModelConfig::load(folder);
        add(config, is_draft_sharded(settings, folder, config) ? settings.tensor_parallel : 1);
        if (settings.draft->has_two_stages()) parts.back().max_cached = engine::small_text_window;
    }
    if (!drafts.layer.empty()) {
        const engine::ModelConfig& target = parts.front().config;
        const bool sharded = layer_parallel(settings, drafts.layer, target) == engine::DraftLayer::Parallel::sharded;
        add(engine::DraftLayerConfig::load(drafts.layer, target, *settings.draft).layer,
            sharded ? settings.tensor_parallel : 1);
        parts.back().is_draft_layer = true;
    }
    const std::optional<engine::Precision> copy = draft_copy_precision(settings);
    if (drafts.target_copy && copy) {
        parts.push_back(parts.front());
        parts.back().precision = *copy;
        parts.back().caches = false;
    }
    return parts;
}

std::int64_t weight_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device) {
    std::int64_t bytes = 0;
    const DraftFolders drafts = draft_folders(settings);
    for (const ModelPart& part : parts) {
        bytes += part.is_draft_layer
                     ? engine::draft_layer_bytes(
                           engine::DraftLayerConfig::load(drafts.layer, parts.front().config, *settings.draft),
                           part.split, part.precision, device)
                     : engine::packed_weight_bytes(part.config, part.split, part.precision, device);
    }
    if (!drafts.heads.empty())
        bytes += engine::heads_bytes(engine::HeadsConfig::load(drafts.heads, parts.front().config),
                                     precision_of(settings), device);
    return bytes;
}

bool copy_fits(const Settings& settings, const kernels::Device& device, std::int64_t available) {
    const std::optional<engine::Precision> copy = draft_copy_precision(settings);
    if (!settings.draft->chooses_method() || !copy || device.own_memory() || available == 0) return true;
    const engine::ModelConfig config = engine::ModelConfig::load(settings.model);
    const engine::Split split(config, 0, static_cast<int>(settings.tensor_parallel));
    return 2 * settings.tensor_parallel * engine::packed_weight_bytes(config, split, *copy, device) <= available;
}

std::int64_t item_kv_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t held,
                           std::int64_t positions) {
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
        if (!parts[i].caches) continue;
        const std::int64_t seen =
            i == 0 ? held : std::min({positions, parts[i].config.max_positions, parts[i].max_cached});
        const std::int64_t prompt = std::max<std::int64_t>(seen - parts[i].new_tokens, 0);
        const std::int64_t gathered = parts[i].partial_cache.max_gathered({seen, prompt});
        bytes += engine::sequence_bytes(device, parts[i].layouts, seen, 0, parts[i].window_ahead) +
                 engine::PagePool::pages_for(gathered) *
                     static_cast<std::int64_t>(device.kv_page_bytes(parts[i].layouts.front()));
    }
    return bytes;
}

/// Bytes of the distributions kept for `num_nodes` draft nodes of `num_models` draft models: slabs in whole granules.
static std::int64_t kept_bytes(std::int64_t num_nodes, std::int64_t vocab, std::size_t num_models) {
    const std::int64_t slab =
        engine::kept_per_slab * static_cast<std::int64_t>(kernels::KeptDistribution::num_bytes(vocab));
    const std::int64_t slabs = num_nodes / engine::kept_per_slab + static_cast<std::int64_t>(num_models);
    return slabs * ((slab + granule - 1) / granule * granule);
}

/// Extra memory of prompts computed by the GEMM library: the largest matrix of a layer in row-major order, and a block
/// of rows with its outputs.
static std::int64_t library_bytes(const ModelPart& target) {
    constexpr std::int64_t bf16 = 2, f32 = 4, block_rows = 512;
    const std::int64_t hidden = target.split.padded_hidden;
    const std::int64_t widest = engine::widest_matrix(target.config, target.split);
    return hidden * widest * bf16 + block_rows * widest * (bf16 + f32);
}

std::int64_t workspace_bytes(const Settings& settings, const ModelParts& parts) {
    const std::int64_t rows = max_rows(settings), logit_rows = max_logit_rows(settings, parts.front());
    std::int64_t bytes = settings.kernels == "cuda-cublas" ? library_bytes(parts.front()) : 0;
    for (const ModelPart& part : parts) {
        const bool drafts = &part != &parts.front() && part.caches;  // the target's copy has the target's cache
        bytes += engine::pass_bytes(part.config, part.split, part.precision, drafts ? max_draft_rows(settings) : rows,
                                    logit_rows);
    }
    if (const auto folder = draft_folders(settings).heads;
        !folder.empty()) {  // tapped states, and per tree level one row of states and one row of logits
        const engine::ModelConfig& target = parts.front().config;
        const engine::HeadsConfig heads = engine::HeadsConfig::load(folder, target);
        const std::int64_t levels = settings.batch * engine::tree_of_heads(draft_of(settings), heads).depth;
        bytes += std::int64_t{sizeof(float)} * ((rows + 2 * levels) * target.hidden_size + levels * target.vocab_size);
    }
    if (const auto folder = draft_folders(settings).layer; !folder.empty()) {
        // The layer's inputs, side by side and as taps; per expanded node a row of logits, and two of what is added to
        // it.
        const engine::ModelConfig& target = parts.front().config;
        const auto layer = engine::DraftLayerConfig::load(folder, target, *settings.draft);
        const engine::TreeShape shape = draft_of(settings).shape();
        const std::int64_t per_tap = layer.eagle3.norm_before_fusion ? 4 : layer.eagle3.norms_taps ? 3 : 2;
        const std::int64_t wide = 6 + (layer.has_own_head() ? per_tap * std::ssize(layer.eagle3.tap_layers) : 0) +
                                  (layer.is_targets_own() ? 3 : 0);  // its inputs and output, normed
        const std::int64_t logits = settings.batch * (3 * 2 * shape.width + shape.depth);
        bytes += std::int64_t{sizeof(float)} * (rows * wide * target.hidden_size + logits * target.vocab_size);
    }
    return bytes;
}

std::int64_t reserved_bytes(const Settings& settings, const ModelParts& parts, const kernels::Device& device) {
    std::int64_t bytes = driver_bytes;
    std::int64_t operations = 0;  // maximum over the models, which run one after another
    const std::int64_t logit_rows = max_logit_rows(settings, parts.front());
    const bool chooses = device.token_chooser() != nullptr;
    for (const ModelPart& part : parts) {  // the logits parts of all ranks, as received and in row order
        if (part.split.size > 1 && chooses)
            bytes += 2 * logit_rows * std::int64_t{sizeof(float)} * part.split.vocab * part.split.size;
    }
    const std::int64_t vocab = parts.front().config.vocab_size;
    const bool decides = chooses && !settings.is_coupled();
    const bool alone = parts.size() == 1 && draft_folders(settings).target_copy;  // the target itself drafts
    if (const std::size_t drafting = alone ? 1 : parts.size() - 1; decides && drafting > 0 && settings.draft->samples())
        bytes += kept_bytes(decode_rows(settings), vocab, drafting);
    for (const ModelPart& part : parts) {
        bytes += granule * matrices_of_layer * part.config.num_layers;
        const bool quantized = part.precision == engine::Precision::int8 || part.precision == engine::Precision::int4;
        const kernels::PassSize pass{.rows = max_rows(settings),
                                     .positions = part.config.max_positions,
                                     .q_heads = part.split.num_heads,
                                     .ranks = settings.tensor_parallel,
                                     .logit_rows = logit_rows,
                                     .widest_quantized = quantized ? engine::widest_matrix(part.config, part.split) : 0,
                                     .decided_vocab = decides ? vocab : 0};
        std::int64_t of_attention = 0, of_states = 0;
        for (const kernels::KvLayout& layout : part.layouts) {
            std::int64_t& of_kind = layout.is_state() ? of_states : of_attention;
            of_kind = std::max(of_kind, device.operation_bytes(layout, pass));
        }
        operations = std::max(operations, of_attention + of_states);
    }
    return bytes + operations;
}

std::int64_t host_bytes(const Settings& settings, const kernels::Device& device) {
    return device.can_use_host_memory() ? settings.host_memory : 0;
}

std::int64_t window_bytes(const ModelParts& parts, const kernels::Device& device, std::int64_t host) {
    if (host == 0) return 0;
    constexpr std::int64_t windows = 2, step_pages = 16;  // the window grows by step_pages at a time
    const kernels::KvLayout& layout = parts.front().layouts.front();
    const std::int64_t page_bytes = device.kv_page_bytes(layout);
    return windows * (host / page_bytes + step_pages) * (page_bytes / layout.num_layers);
}

std::int64_t available_bytes(const kernels::Device& device, int ranks) {
    const auto memory = device.own_memory();
    return memory ? memory->free_bytes : available_memory_bytes(ranks);
}

std::string place_of_memory(const kernels::Device& device) {
    return device.own_memory() ? device.place() : ProcessId::mine().host;
}

std::int64_t corpus_bytes(const Settings& settings) {
    return draft_folders(settings).corpus.empty() ? 0 : engine::max_corpus_bytes;
}

/// Host memory that a checkpoint round takes for states of linear attention: a copy, and the image of its file.
static std::int64_t round_bytes(const Settings& settings) {
    if (settings.checkpoint_kv != "store" || settings.model.empty()) return 0;
    const ModelParts parts = parts_of(settings);
    const kernels::KvLayout* const states = engine::state_layout(parts.front().layouts);
    const std::int64_t floats = states != nullptr ? states->delta.sequence_floats(states->num_layers) : 0;
    return 2 * settings.batch * floats * std::int64_t{sizeof(float)};
}

std::int64_t kv_memory_bytes(const Settings& settings, const kernels::Device& device, int ranks, std::int64_t weights) {
    if (settings.memory > 0) return settings.memory;
    constexpr std::int64_t unknown = std::int64_t{8} << 30;
    if (!device.own_memory()) {
        const std::int64_t available = available_bytes(device, ranks);
        return (available > 0 ? kv_share(available - weights - ranks * (corpus_bytes(settings) + round_bytes(settings)))
                              : unknown) /
               ranks;
    }
    const ModelParts parts = parts_of(settings);
    return pages_within(own_room(device, ranks).value() - weights - pass_bytes(settings, parts, device), parts, device);
}

std::int64_t kv_memory_within(const Settings& settings, const kernels::Device& device, std::int64_t room) {
    if (settings.memory > 0) return settings.memory;
    const ModelParts parts = parts_of(settings);
    const std::int64_t fixed = weight_bytes(settings, parts, device) + pass_bytes(settings, parts, device);
    return pages_within(room - fixed, parts, device);
}

std::optional<std::int64_t> own_room(const kernels::Device& device, int ranks) {
    const auto memory = device.own_memory();
    return memory ? std::optional(memory->free_bytes / ranks) : std::nullopt;
}

std::string memory_refusal(const Settings& settings, const kernels::Device& device, std::int64_t room,
                           std::int64_t positions, int ranks_of_node) {
    const Need need = need_of(settings, parts_of(settings), device, positions);
    if (need.lack(room) <= 0) return "";
    const std::vector<std::string> fitting = FittingChanges(settings, device, room, positions, ranks_of_node).find();
    return InputError::format(
        "memory", "",
        "room on a rank's device for weights of " + size_text(need.weights) + ", passes of " + size_text(need.passes) +
            ", and keys and values of " + std::to_string(positions) + " tokens, " + size_text(need.kv),
        size_text(room) + " on " + place_of_memory(device) +
            (need.host > 0 ? " and host-memory of " + size_text(need.host) : ""),
        fitting.empty() ? "a device with more memory, or a smaller model" : "what fits: " + list_words(fitting));
}

void check_memory(const Settings& settings, const kernels::Device& device, int ranks, int ranks_of_node) {
    const std::optional<std::int64_t> room = own_room(device, ranks);
    if (!room) return;
    const auto config = engine::ModelConfig::load(settings.model);
    check_head_dim(settings, config, device);
    const std::int64_t positions = min_positions(settings, config);
    const std::string line = memory_refusal(settings, device, *room, positions, ranks_of_node);
    if (!line.empty()) throw Error(line);
}

void check_host_memory(const Settings& settings, const kernels::Device& device, int ranks) {
    const std::int64_t wanted = host_bytes(settings, device), available = available_memory_bytes(ranks);
    if (wanted == 0 || available == 0 || wanted <= available / ranks) return;
    throw Error(InputError::format("host-memory", "",
                                   "at most " + size_text(available / ranks) + " per rank, which " +
                                       ProcessId::mine().host + " has free for " + std::to_string(ranks) +
                                       (ranks == 1 ? " rank" : " ranks"),
                                   size_text(wanted), "page-locked memory cannot be swapped; give less"));
}

}  // namespace longhaul::runner
