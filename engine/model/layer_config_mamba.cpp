// The layers of families with Mamba-2: what config.json says of them, and what their transformers class fixes.
#include <algorithm>
#include <numeric>

#include "engine/model/config_section.hpp"
#include "engine/model/layer_parts.hpp"

namespace longhaul::engine::detail {

namespace {

/// How a family's keys are called, and what its class of transformers fills in.
struct MambaKeys {
    std::string_view heads, head_dim, groups, state, taps, filter_bias;
    std::int64_t default_groups, default_state;
};

constexpr MambaKeys granite_keys{.heads = "mamba_n_heads",
                                 .head_dim = "mamba_d_head",
                                 .groups = "mamba_n_groups",
                                 .state = "mamba_d_state",
                                 .taps = "mamba_d_conv",
                                 .filter_bias = "mamba_conv_bias",
                                 .default_groups = 1,
                                 .default_state = 256};
constexpr MambaKeys nemotron_keys{.heads = "mamba_num_heads",
                                  .head_dim = "mamba_head_dim",
                                  .groups = "n_groups",
                                  .state = "ssm_state_size",
                                  .taps = "conv_kernel",
                                  .filter_bias = "use_conv_bias",
                                  .default_groups = 8,
                                  .default_state = 128};

/// Width of the values of all heads together, and of one: Granite's.
void read_granite_width(const Section& top, const ModelConfig& config, LinearAttentionConfig& linear) {
    const MambaKeys& keys = granite_keys;
    linear.num_value_heads = top.size_or(keys.heads, 128, max_heads);
    const std::int64_t width = top.size_or("mamba_expand", 2, 64) * config.hidden_size;
    const Json* given = top.find(keys.head_dim);
    const bool is_auto = given == nullptr || *given == "auto";
    linear.value_dim = is_auto ? width / linear.num_value_heads : linear_dim(top, keys.head_dim, 64);
    if (linear.value_dim * linear.num_value_heads != width || linear.value_dim % 16 != 0 ||
        linear.value_dim > max_head_dim || width > max_intermediate_size)
        top.refuse(is_auto ? keys.heads : keys.head_dim,
                   "heads of a multiple of 16 dimensions, mamba_expand * hidden_size = " + std::to_string(width) +
                       " together");
}

/// Everything but the width. Heads are divided for up to 8 ranks.
void read_mamba(const Section& top, const MambaKeys& keys, LinearAttentionConfig& linear) {
    constexpr std::string_view limit = "time_step_limit";
    constexpr std::int64_t max_ranks = 8;
    linear.rule = kernels::StateRule::sum;
    linear.num_groups = top.size_or(keys.groups, keys.default_groups, max_heads);
    if (linear.num_value_heads % linear.num_groups != 0)
        top.refuse(keys.groups,
                   "a divisor of " + std::string(keys.heads) + " = " + std::to_string(linear.num_value_heads));
    linear.num_key_heads = linear.num_groups * std::gcd(linear.num_value_heads / linear.num_groups,
                                                        max_ranks / std::gcd(linear.num_groups, max_ranks));
    linear.key_dim = linear_dim(top, keys.state, keys.default_state);
    linear.taps = get_int_or(top.json, keys.taps, 4, 2, 16, top.file, top.within);
    linear.filter_bias = top.flag_or(keys.filter_bias, true);
    if (top.flag("mamba_proj_bias")) top.refuse("mamba_proj_bias", "false");
    const Json none = {0.0, {{"__float__", "Infinity"}}};  // as read_json gives it
    if (top.find(limit) != nullptr && *top.find(limit) != none) top.refuse(limit, "null: steps without limits");
}

bool is_linear(const LayerConfig& layer) {
    return layer.linear;
}

}  // namespace

void read_granite4_layer_types(const Section& top, ModelConfig& config) {
    constexpr std::string_view key = "layer_types";
    const Json* types = top.find(key);
    if (types == nullptr || !types->is_array() || std::ssize(*types) != config.num_layers)
        top.refuse(key, "an array of num_hidden_layers = " + std::to_string(config.num_layers));
    config.layers.resize(static_cast<std::size_t>(config.num_layers), config.layers.front());
    for (std::size_t at = 0; at < config.layers.size(); ++at) {
        const Json& type = (*types)[at];
        LayerConfig& layer = config.layers[at];
        layer.linear = type == "mamba" || type == linear_attention;
        if (!layer.linear && type != "attention" && type != full_attention)
            throw InputError(top.file, top.field(key), R"("attention" or "mamba")", describe(type));
        if (layer.linear) layer.qkv_bias = layer.output_bias = false;
    }
    if (std::all_of(config.layers.begin(), config.layers.end(), is_linear))
        throw InputError(top.file, top.field(key), "a layer of attention", "none");
    if (std::none_of(config.layers.begin(), config.layers.end(), is_linear)) return;
    read_granite_width(top, config, config.linear);
    read_mamba(top, granite_keys, config.linear);
}

namespace {

/// Nemotron-H counts attention, Mamba-2 and MLPs in one row.
enum class Block : std::uint8_t { attention, mamba, mlp, experts };

/// As a list of names, or as a character for each.
std::vector<Block> read_blocks(const Section& top) {
    constexpr std::string_view list = "layers_block_type", pattern = "hybrid_override_pattern";
    const bool is_list = top.find(list) != nullptr;
    std::vector<Json> names;
    if (is_list) {
        if (!top.find(list)->is_array()) top.refuse(list, "an array");
        names.assign(top.find(list)->begin(), top.find(list)->end());
    } else {
        for (const char c : top.text_or(pattern, "")) names.emplace_back(std::string(1, c));
    }
    const std::string_view key = is_list ? list : pattern;
    if (names.empty() || std::ssize(names) > max_layers)
        top.refuse(key, "1 to " + std::to_string(max_layers) + " layers");
    std::vector<Block> blocks;
    for (const Json& name : names) {
        if (name == "M" || name == "mamba" || name == linear_attention) {
            blocks.push_back(Block::mamba);
        } else if (name == "*" || name == "attention" || name == full_attention) {
            blocks.push_back(Block::attention);
        } else if (name == "-" || name == "mlp") {
            blocks.push_back(Block::mlp);
        } else if (name == "E" || name == "moe") {
            blocks.push_back(Block::experts);
        } else {
            throw InputError(top.file, top.field(key),
                             is_list ? R"("mamba", "attention", "mlp" or "moe")" : "the characters M, *, - and E",
                             describe(name));
        }
    }
    constexpr std::string_view count = "num_hidden_layers";
    if (top.find(count) != nullptr && top.size(count, max_layers) != std::ssize(blocks))
        top.refuse(count, std::to_string(blocks.size()) + ", as many as " + std::string(key) + " has");
    return blocks;
}

/// The experts of Nemotron 3, and the width of the one that all rows have.
ExpertConfig read_nemotron_experts(const Section& top, ModelConfig& config) {
    constexpr std::string_view count = "n_routed_experts", shared = "n_shared_experts", latent = "moe_latent_size";
    ExpertConfig experts = read_experts(top, config, count, 8, 2);
    experts.score = RouterScore::sigmoid;
    experts.corrected = true;
    experts.normalized = top.flag_or("norm_topk_prob", true);
    experts.scale = top.positive_or("routed_scaling_factor", 1.0, 1e6);
    read_expert_groups(top, count, 1, 1, experts);
    if (top.find(latent) != nullptr) experts.latent_size = top.size(latent, max_hidden_size);
    if (top.size_or(shared, 1, max_experts) != 1) top.refuse(shared, "1");
    config.expert_intermediate_size = top.size_or("moe_intermediate_size", 7688, max_intermediate_size);
    config.shared_intermediate_size = top.size_or("moe_shared_expert_intermediate_size", 7688, max_intermediate_size);
    return experts;
}

/// A layer for each block of attention or Mamba-2, with the MLP behind it.
void set_blocks(const Section& top, const std::vector<Block>& blocks, ModelConfig& config) {
    const LayerConfig kind = config.layers.front();
    config.layers.clear();
    for (std::size_t at = 0; at < blocks.size(); ++at) {
        if (blocks[at] == Block::attention || blocks[at] == Block::mamba) {
            LayerConfig& layer = config.layers.emplace_back(kind);
            layer.linear = blocks[at] == Block::mamba;
            layer.block = static_cast<std::int64_t>(at);
            layer.has_mlp = false;
            continue;
        }
        if (config.layers.empty() || config.layers.back().has_mlp)
            throw InputError(top.file, top.field("layers_block_type or hybrid_override_pattern"),
                             "an MLP behind attention or Mamba-2", "one at " + std::to_string(at) + " without",
                             "layers of MLPs alone are not in this version");
        config.layers.back().has_mlp = true;
    }
    config.num_layers = std::ssize(config.layers);
    if (std::find(blocks.begin(), blocks.end(), Block::experts) == blocks.end()) return;
    const ExpertConfig experts = read_nemotron_experts(top, config);
    for (LayerConfig& layer : config.layers) {
        const auto behind = static_cast<std::size_t>(layer.block + 1);
        if (layer.has_mlp && blocks[behind] == Block::experts) layer.experts = experts;
    }
}

}  // namespace

/// Nemotron-H, and Nemotron 3 with experts. time_step_min is not read: its class limits the steps of whole texts by it,
/// but not those of single tokens.
void read_nemotron_h_layers(const Section& top, ModelConfig& config) {
    config.norm_eps = top.positive_or("layer_norm_epsilon", 1e-5, 1.0);
    config.tied_embeddings = top.flag("tie_word_embeddings");
    for (const char* key : {"attention_bias", "mlp_bias", "use_bias"}) {
        if (top.flag(key)) top.refuse(key, "false");
    }
    if (top.find("sliding_window") != nullptr) top.refuse("sliding_window", "null");
    if (top.text_or("mamba_hidden_act", "silu") != "silu") top.refuse("mamba_hidden_act", R"("silu")");
    LayerConfig& layer = config.layers.front();
    layer.activation = Activation::relu_squared;
    layer.gated = false;
    layer.rope = {.scaling = RopeScaling::none};
    set_blocks(top, read_blocks(top), config);
    if (std::all_of(config.layers.begin(), config.layers.end(), is_linear))
        throw InputError(top.file, top.field("layers_block_type or hybrid_override_pattern"), "a layer of attention",
                         "none");
    if (std::none_of(config.layers.begin(), config.layers.end(), is_linear)) return;
    LinearAttentionConfig& linear = config.linear;
    linear.num_value_heads = top.size_or(nemotron_keys.heads, 128, max_heads);
    linear.value_dim = linear_dim(top, nemotron_keys.head_dim, 64);
    if (linear.num_value_heads * linear.value_dim > max_intermediate_size)
        top.refuse(nemotron_keys.heads, "heads of at most " + std::to_string(max_intermediate_size) + " together");
    read_mamba(top, nemotron_keys, linear);
}

}  // namespace longhaul::engine::detail
