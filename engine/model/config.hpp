// Model configuration: the fields of config.json and generation_config.json that determine a model's shape and
// arithmetic. Read first when a model is loaded, checked or inspected.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "kernels/delta_shape.hpp"

namespace longhaul::engine {

// Fingerprints have the numbers of the enumerators below: append only.

/// RoPE scaling for contexts beyond the trained length (Hugging Face `rope_type`); `none`: no rotation, because
/// positions are learned, or only other layers see them (NoPE).
/// proportional: the pairs behind the first rotary_dims / 2 stand still; frequencies are those of the whole head.
enum class RopeScaling { standard, linear, llama3, yarn, none, longrope, proportional };

/// Rotary position embedding (RoPE). `standard` is Hugging Face's "default". Fields that a scaling does not use keep
/// their default.
struct RopeConfig {
    RopeScaling scaling = RopeScaling::standard;
    double theta = 10000.0;
    double factor = 1.0;                      ///< linear, llama3, yarn, longrope, proportional
    double low_freq_factor = 1.0;             ///< llama3
    double high_freq_factor = 4.0;            ///< llama3
    std::int64_t original_max_positions = 0;  ///< llama3, yarn, longrope; 0: the model's max_positions
    double beta_fast = 32.0;                  ///< yarn
    double beta_slow = 1.0;                   ///< yarn
    double attention_factor = 0.0;            ///< yarn, longrope: factor on cos and sin; 0: from the other numbers
    double mscale = 0.0;                      ///< yarn (0 = absent)
    double mscale_all_dim = 0.0;              ///< yarn (0 = absent)
    bool truncate = true;                     ///< yarn: round the correction range to whole dimensions
    std::int64_t rotary_dims = 0;             ///< dimensions of a head that are rotated; 0: all
    /// Queries at position p are multiplied by 1 + query_growth * log(1 + floor(p / original_max_positions)), as those
    /// of Ministral 3 (llama_4_scaling_beta).
    double query_growth = 0.0;
    /// Factor on the scores of attention, which queries get with cos and sin. Where they have a norm, as in Gemma 3,
    /// its gain has it instead (LayerConfig::query_norm_scale). The two round differently, so neither replaces the
    /// other.
    double score_scale = 1.0;
    bool interleaved = false;  ///< rotated pairs of q and k stand side by side in the files
    /// longrope: divisors of the frequencies, one per rotated pair, for texts up to original_max_positions and for
    /// longer ones.
    std::vector<double> short_factors = {}, long_factors = {};
    std::int64_t head_dim = 0;  ///< of the heads that it rotates; 0: the model's

    /// Dimensions of a head that frequencies count.
    [[nodiscard]] std::int64_t rotated_dims(std::int64_t dim) const {
        return rotary_dims > 0 && scaling != RopeScaling::proportional ? rotary_dims : dim;
    }
    friend bool operator==(const RopeConfig&, const RopeConfig&) = default;
};

enum class NormKind : std::uint8_t {
    rms,                ///< RMS norm with gain
    layer,              ///< LayerNorm with gain and bias
    layer_without_bias  ///< LayerNorm with gain
};
enum class NormPlace : std::uint8_t {
    before,  ///< pre-norm: on the input of each block and of the head
    after,   ///< post-norm: on the residual stream after each block; no final norm
    both,    ///< on the input of each block, with another norm on its output before that is added
    output   ///< on the output of each block before that is added, and on the input of the head
};
/// With a gate: silu, gelu, swiglu_oai (kernels::Gate); without: gelu, gelu_exact, relu, relu_squared
/// (kernels::Activation). gelu is the tanh approximation.
enum class Activation : std::uint8_t { silu, gelu, relu, swiglu_oai, relu_squared, gelu_exact };

/// Whether there is such an MLP.
constexpr bool has_kernel(Activation f, bool gated) {
    if (f == Activation::gelu) return true;
    return gated == (f == Activation::silu || f == Activation::swiglu_oai);
}

/// What a router makes of an expert's logit.
enum class RouterScore : std::uint8_t {
    softmax,  ///< over the experts
    sigmoid
};

/// How the files hold the experts of a layer.
enum class ExpertStack : std::uint8_t {
    none,         ///< a tensor for each matrix of each expert
    alternating,  ///< a tensor has a matrix of all experts, column by column, gates and ups alternating
    columns,      ///< a tensor has a matrix of all experts, column by column, all gates of one before its ups
    rows          ///< the same row by row
};

/// Mixture of experts: a router chooses, for each row, whose MLPs are added.
struct ExpertConfig {
    std::int64_t count = 0;      ///< 0: one MLP, without a router
    std::int64_t per_token = 0;  ///< experts chosen for a row
    RouterScore score = RouterScore::softmax;
    double scale = 1.0;      ///< factor on the weights
    bool normalized = true;  ///< weights of the chosen experts sum to `scale`; false: each is its score times `scale`
    /// Experts are chosen from the `best_groups` best of so many groups of them; 1: from all. A group is as good as its
    /// best expert, with `sigmoid` as the sum of its two best.
    std::int64_t num_groups = 1, best_groups = 1;
    bool corrected = false;  ///< a correction of the files is added to the scores that experts are chosen by
    bool bias = false;  ///< biases on the router's logits and on gate, up and down of each expert; needs `alternating`
    ExpertStack stack = ExpertStack::none;
    /// Router, experts and shared expert have norms of their own on their inputs, and both outputs are normed before
    /// they are added. The weight of an expert is multiplied with a scale of its own.
    bool own_norms = false;
    /// The shared expert's output is multiplied by the sigmoid of a logit of its own, which the router computes last.
    bool shared_gate = false;
    /// Experts work on a projection of a row to so many numbers, and their weighted sum is projected back; 0: on the
    /// row.
    std::int64_t latent_size = 0;

    [[nodiscard]] bool stacked() const { return stack != ExpertStack::none; }
    /// Terms of the weighted sum that is a row's output.
    [[nodiscard]] std::int64_t num_terms() const { return per_token + (shared_gate ? 1 : 0); }
    /// Rows of the router's matrix.
    [[nodiscard]] std::int64_t num_logits() const { return count + (shared_gate ? 1 : 0); }
};

/// The heads of a layer's attention. The number of query heads is that of the model.
struct HeadShape {
    std::int64_t dim = 0;        ///< of queries and keys, and of values in the KV cache
    std::int64_t value_dim = 0;  ///< outputs of a head's attention
    std::int64_t num_kv_heads = 0;
    friend bool operator==(const HeadShape&, const HeadShape&) = default;
};

/// Configuration of one layer.
struct LayerConfig {
    NormKind norm = NormKind::rms;
    NormPlace norm_place = NormPlace::before;
    Activation activation = Activation::silu;
    bool gated = true;                  ///< down(activation(gate x) * up x); false: down(activation(up x))
    bool qkv_bias = false;              ///< biases on q, k and v
    bool output_bias = false;           ///< bias on the output projection
    bool mlp_bias = false;              ///< biases on gate, up and down
    bool head_norm = false;             ///< RMS norms on every head of q and k, before the rotation
    bool whole_norm = false;            ///< instead: on all heads of q together, and on all of k
    double query_norm_scale = 1.0;      ///< factor on q; needs head_norm, into whose gain it goes
    double block_scale = 1.0;           ///< factor on the output of each block, before it is added
    bool value_norm = false;            ///< RMS norm on every head of v, without gain; needs head_norm
    bool keys_are_values = false;       ///< v is projected as k is (and neither normed by its gain nor rotated)
    bool output_scale = false;          ///< the residual stream is multiplied by a number of the files after the layer
    bool sinks = false;                 ///< attention sinks: each head has one more score, without a value
    bool output_gate = false;           ///< attention's output times the sigmoid of a projection of the block's input
    bool linear = false;                ///< linear attention (LinearAttentionConfig) instead of attention
    std::int64_t attention_window = 0;  ///< sliding window: positions that a row sees, itself included; 0: all
    std::int64_t head_dim = 0;          ///< 0: the model's
    std::int64_t num_kv_heads = 0;      ///< a divisor of the model's; 0: the model's
    RopeConfig rope{};
    ExpertConfig experts{};  ///< the same in all layers that have any; excludes mlp_bias
    /// Attends to the keys and values of the last layer before it, of its group, that has its own. Needs head_norm.
    bool shares_kv = false;
    std::int64_t intermediate_size = 0;  ///< of the MLP; 0: the model's
    bool has_mlp = true;                 ///< false: attention is all of the layer
    /// The MLP does not see what attention adds: its input is that of attention, or the same rows with a norm of its
    /// own, and both outputs are added.
    bool parallel = false;
    /// Number of its attention in files that count attention and MLPs (the MLP's is the next); -1: they count layers.
    std::int64_t block = -1;

    [[nodiscard]] bool norms_outputs() const {
        return norm_place == NormPlace::both || norm_place == NormPlace::output;
    }
    /// Number of matrices in the MLP's first matmul: gate and up, or up alone.
    [[nodiscard]] std::int64_t num_up() const { return gated ? 2 : 1; }
};

/// A layer among those of its group (ModelConfig::layer_groups).
struct LayerPlace {
    std::size_t group = 0;
    std::int64_t index = 0;
};

/// Multi-head latent attention (MLA, arXiv 2405.04434 section 2.1). A position has one latent vector, from which each
/// head's key and value are projected, and one rotated part of the keys, which all heads share. Here the projections of
/// keys are applied to the queries, and those of values to the sums of latents, so that all heads attend to one KV head
/// of kv_rank + rope_dim dimensions.
struct LatentConfig {
    std::int64_t query_rank = 0;  ///< width of the latent that queries are projected from; 0: from the layer's input
    std::int64_t kv_rank = 0;     ///< width of the latent of keys and values; 0: no latent attention
    std::int64_t nope_dim = 0;    ///< of a head's queries and keys: dimensions without rotation
    std::int64_t rope_dim = 0;    ///< and with
    std::int64_t value_dim = 0;   ///< of a head's values
    bool interleaved = true;      ///< rotated pairs stand side by side in the files; false: half of rope_dim apart

    [[nodiscard]] std::int64_t query_dim() const { return nope_dim + rope_dim; }
};

/// Linear attention by the gated delta rule (Gated DeltaNet, arXiv 2412.06464), or Mamba-2 (arXiv 2405.21060): a layer
/// has a state of fixed size instead of keys and values of all positions.
struct LinearAttentionConfig {
    kernels::StateRule rule = kernels::StateRule::delta;  ///< sum: Mamba-2, whose queries and keys are called C and B
    /// 0: no layer is linear. Mamba-2: parts of the value heads, for ranks to share; each has a copy of the query and
    /// key of its group.
    std::int64_t num_key_heads = 0;
    std::int64_t num_value_heads = 0;  ///< a multiple of them
    std::int64_t num_groups = 1;  ///< Mamba-2: queries and keys in the files, and norms; a divisor of num_key_heads
    std::int64_t key_dim = 0, value_dim = 0;
    std::int64_t taps = 0;     ///< positions that the convolution before it reads
    bool filter_bias = false;  ///< Mamba-2: biases of the convolution
    /// In the files, a key head's projections stand side by side: those of its q, k, v and output gates in one tensor,
    /// of its steps and rates in another.
    bool fused = false;

    /// That of a rank, if they are divided into so many equal parts.
    [[nodiscard]] kernels::DeltaShape shape(std::int64_t parts) const {
        return {.num_key_heads = num_key_heads / parts,
                .values_per_key = num_key_heads > 0 ? num_value_heads / num_key_heads : 0,
                .key_dim = key_dim,
                .value_dim = value_dim,
                .taps = taps,
                .rule = rule};
    }
};

/// Where the files hold the projections to q, k and v.
enum class QkvTensors : std::uint8_t {
    separate,
    fused,         ///< one tensor: all heads of q, then those of k, then those of v
    fused_by_head  ///< one tensor: q, k and v of a head, then those of the next; as many heads of k and v as of q
};

/// How the files hold a model, besides what its experts and its linear attention say: it changes what is read, not what
/// is computed.
struct TensorLayout {
    bool norm_adds_one = false;  ///< the gains of norms are stored less 1
    QkvTensors qkv = QkvTensors::separate;
    bool fused_gate_up = false;  ///< gate and up are one tensor
    bool by_columns = false;     ///< matrices of layers are stored column by column
};

/// A decoder-only model: of the Llama family (the others, from Qwen2 to Gemma 4, differ from it as these fields say) or
/// of OPT. All sizes are for the whole model, before tensor parallelism.
struct ModelConfig {
    std::int64_t vocab_size = 0;
    std::int64_t hidden_size = 0;
    std::int64_t intermediate_size = 0;         ///< of layers without experts
    std::int64_t expert_intermediate_size = 0;  ///< of each expert; 0: no layer has any
    std::int64_t shared_intermediate_size = 0;  ///< of the shared expert, which all rows have; 0: none
    std::int64_t layer_embedding_size = 0;      ///< of the embeddings that each layer has of its own; 0: none
    std::int64_t num_layers = 0;
    std::int64_t num_heads = 0;
    std::int64_t num_kv_heads = 0;
    std::int64_t head_dim = 0;  ///< of keys and values; latent attention: one KV head of kv_rank + rope_dim
    LatentConfig latent{};
    LinearAttentionConfig linear{};
    std::int64_t max_positions = 0;
    std::int64_t embedding_size = 0;  ///< width of token embeddings if the model has in/out projections; 0: hidden_size
    double norm_eps = 1e-6;
    bool learned_positions = false;       ///< learned position embeddings instead of RoPE
    std::int64_t first_position_row = 0;  ///< of their table: position p uses this row plus p
    bool tied_embeddings = false;
    bool head_bias = false;               ///< bias on the logits
    double embedding_scale = 1.0;         ///< factor on the embeddings of tokens
    bool rounds_embedding_scale = false;  ///< to the type of the weights, as transformers does for Gemma
    double logits_scale = 1.0;            ///< factor on the logits
    double logit_cap = 0.0;               ///< soft cap: logits are cap * tanh(logit / cap); 0: none
    double score_cap = 0.0;               ///< likewise of the scores of attention
    std::vector<LayerConfig> layers = std::vector<LayerConfig>(1);  ///< one per layer, or a single entry for all
    TensorLayout files{};
    std::string dtype;                  ///< of the model's files: "bfloat16", "float16", "float32"
    std::string quantization;           ///< quant_method of config.json, "gptq"; "" if it has none
    std::vector<std::int32_t> eos_ids;  ///< from generation_config.json, else config.json; ascending, may be empty
    std::string model_type;             ///< as in config.json: "llama", "qwen3", …

    /// Layers with the same window and heads, or those with linear attention. They share a KV layout.
    struct LayerGroup {
        std::int64_t window = 0;
        bool linear = false;
        RopeConfig rope{};  ///< of the first of them that has any rotation
        HeadShape heads{};
    };
    /// The groups of the layers. If some layers see all positions, their group is the first.
    [[nodiscard]] std::vector<LayerGroup> layer_groups() const;
    /// Index in layer_groups() of each layer's group.
    [[nodiscard]] std::vector<std::int64_t> groups_of_layers() const;
    /// The RoPE configurations of the layers, each once, and the index of each layer's.
    [[nodiscard]] std::vector<RopeConfig> ropes() const;
    [[nodiscard]] std::vector<std::int64_t> ropes_of_layers() const;
    /// Where the keys and values are that each layer attends to.
    [[nodiscard]] std::vector<LayerPlace> places_of_layers() const;

    [[nodiscard]] const LayerConfig& layer(std::int64_t index) const { return layers[layers.size() == 1 ? 0 : index]; }
    [[nodiscard]] bool has_experts() const { return expert_intermediate_size > 0; }
    /// Whether a final norm precedes the head; its kind is that of the last layer.
    [[nodiscard]] bool has_final_norm() const { return layers.back().norm_place != NormPlace::after; }
    /// RoPE configuration of the layers that see all positions, if any of them is rotated; else of the first that is.
    [[nodiscard]] RopeConfig rope() const;
    /// longrope: the longest text with the short frequencies. All keys of a longer text have the long ones, so those
    /// of the text up to here are computed again when it grows longer. Without longrope: no text is longer.
    [[nodiscard]] std::int64_t longest_short_text() const;
    [[nodiscard]] bool has_linear_attention() const { return linear.num_key_heads > 0; }
    [[nodiscard]] bool has_latent_attention() const { return latent.kv_rank > 0; }
    [[nodiscard]] HeadShape heads(const LayerConfig& layer) const {
        const std::int64_t dim = layer.head_dim > 0 ? layer.head_dim : head_dim;
        return {.dim = dim,
                .value_dim = has_latent_attention() ? latent.value_dim : dim,
                .num_kv_heads = layer.num_kv_heads > 0 ? layer.num_kv_heads : num_kv_heads};
    }
    /// Layers in the files' way of counting (LayerConfig::block).
    [[nodiscard]] std::int64_t num_blocks() const {
        const LayerConfig& last = layers.back();
        return last.block < 0 ? num_layers : last.block + (last.has_mlp ? 2 : 1);
    }
    /// Inputs and outputs of an expert.
    [[nodiscard]] std::int64_t expert_hidden_size(const ExpertConfig& experts) const {
        return experts.latent_size > 0 ? experts.latent_size : hidden_size;
    }
    [[nodiscard]] std::int64_t mlp_width(const LayerConfig& layer) const {
        return layer.intermediate_size > 0 ? layer.intermediate_size : intermediate_size;
    }
    /// Layers that have keys and values of their own.
    [[nodiscard]] std::int64_t num_kv_layers() const;
    /// Width of the embeddings of all layers together.
    [[nodiscard]] std::int64_t layer_embeddings_width() const { return num_layers * layer_embedding_size; }
    /// Dimensions of the widest heads of a layer.
    [[nodiscard]] std::int64_t widest_head() const;
    [[nodiscard]] std::int64_t embedding_width() const { return embedding_size > 0 ? embedding_size : hidden_size; }
    /// Rows of the learned position table.
    [[nodiscard]] std::int64_t position_rows() const { return max_positions + first_position_row; }

    /// Reads and validates `folder`/config.json and, if present, generation_config.json. Accepts the older format
    /// (`rope_theta`, `rope_scaling`, `torch_dtype`) and that of transformers 5 (`rope_parameters`, `dtype`). Throws
    /// InputError naming the field.
    static ModelConfig load(const std::filesystem::path& folder);
    /// The same with `json` in place of what config.json holds: draft layers may have their fields elsewhere.
    static ModelConfig load(const std::filesystem::path& folder, const nlohmann::json& json);
};

}  // namespace longhaul::engine
