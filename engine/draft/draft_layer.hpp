// A draft layer (EAGLE 1 to 3, Lyanna; ALGORITHMS.md section 6): one decoder layer of the target's width whose input
// is a fused pair, the target's hidden state after its final norm and the embedding of the token after it. Its output
// estimates the next hidden state, which the target's output head turns into logits.
//
// A folder holds config.json, as a language model's of one layer ("bias": whether the fusion has one, by default true;
// "qkv_bias"), and safetensors with
//   fc.weight [hidden, 2 hidden], fc.bias [hidden]   on the embedding, then the state
//   layers.0.*                                       as in the target's family, without input_layernorm
// An embed_tokens.weight beside them is not read: the target's is used.
//
// A layer of EAGLE-3 reads the residual streams that enter some layers of the target, fused once, and has an output
// head of its own over "draft_vocab_size" tokens (by default the target's). The layers are those named by
// "eagle_aux_hidden_state_layer_ids", also in "eagle_config".
//   fc.weight [hidden, taps hidden]
//   midlayer.*                                       q, k, v read [input_layernorm(embedding), hidden_norm(state)]
//   norm.weight [hidden], lm_head.weight [draft vocabulary, hidden]
//   d2t [draft vocabulary], integers                 token i of the draft's is token i + d2t[i] of the target's
// The library speculators writes it as layers.0.*, with the layer's fields in "transformer_layer_config", and has norms
// in more places (Eagle3Config): input_norm.weight [taps hidden], or fc_norm.{i}.weight [hidden] of each tap.
//
// A target's own layer for multi-token prediction (MTP; DeepSeek-V3, GLM-4.5, Qwen3-Next) is in the target's folder
// (tensor_names.hpp). It is one of the target's family, with norms on embedding and state before the fusion, and one on
// its output, which is the next state.
//
// A layer of Lyanna has "draft_layer": "lyanna", and token info (token_info.hpp) if "token_info_rank" is above 0:
//   token_info.down.weight [rank, hidden], token_info.up.weight [tokens, rank], token_info.norm.weight [tokens]
//   hot_tokens [tokens], integers, ascending         the tokens that have info; without it all do
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/draft_layer_config.hpp"
#include "engine/draft/token_info.hpp"
#include "engine/model/decoder_layers.hpp"
#include "engine/model/model.hpp"
#include "engine/model/output_head.hpp"
#include "engine/model/split.hpp"
#include "engine/model/tensor_source.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

/// One line for each tensor that is missing, unexpected or of a wrong shape. Reads no weights. Throws InputError like
/// DraftLayerConfig::load.
std::vector<std::string> draft_layer_faults(const std::filesystem::path& folder, const ModelConfig& target,
                                            const DraftMethod& method);

/// Whether a model's folder has a layer for multi-token prediction that can draft, judged without reading weights.
bool holds_mtp_layer(const std::filesystem::path& model_folder);

/// Fingerprint that identifies the layer in `folder`. Throws InputError.
std::uint64_t draft_layer_fingerprint(const std::filesystem::path& folder, const ModelConfig& target,
                                      const DraftMethod& method);

/// Bytes of a rank's part in the packed layout of `device`. Fusion and token info are not sharded. `precision`: the
/// target's, which its own layer has; others are bf16 or fp32.
std::int64_t draft_layer_bytes(const DraftLayerConfig& config, const Split& split, Precision precision,
                               const kernels::Device& device);

class DraftLayer {
  public:
    /// With tensor parallelism: whether a rank holds its part of the layer, or all of it, which needs no sums over
    /// ranks.
    enum class Parallel : std::uint8_t { sharded, replicated };

    /// Loads the layer of `folder` onto the device of `target`. Throws Error if tensors are missing or of a wrong
    /// shape, InputError if the layer does not fit the target or the method, or holds NaN or infinity, UsageError if it
    /// cannot be split.
    DraftLayer(const std::filesystem::path& folder, Model& target, const DraftMethod& method,
               Parallel parallel = Parallel::sharded);
    /// Random weights (benchmarks).
    static std::unique_ptr<DraftLayer> random(const DraftLayerConfig& config, Model& target, std::uint64_t seed);
    ~DraftLayer();

    /// The taps that it needs of the target's passes.
    [[nodiscard]] std::vector<Tap> taps() const;
    /// What it reads of these taps' rows, f32 [rows, hidden]: the first layer input of `forward`.
    HiddenStates states_of(std::span<const HiddenStates> taps, std::span<const std::int32_t> rows);
    /// The layer's output for each row, f32 [rows, hidden]: of row i's token and row i of `states`, at the row's
    /// position, over the layer's own keys and values. It may be the next `states`. Collective. Waits for the device.
    HiddenStates forward(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                         const HiddenStates& states);
    /// The same for states that enter the layer as they are: outputs of an earlier pass. Tokens of the rows are
    /// ignored.
    HiddenStates forward_states(std::span<const ForwardRow> rows, std::span<const KvView> sequences,
                                HiddenStates states);

    /// Logits of such outputs, over the target's vocabulary. Collective.
    Logits logits(const HiddenStates& outputs);

    [[nodiscard]] const DraftLayerConfig& config() const { return config_; }
    [[nodiscard]] const kernels::KvLayout& kv_layout() const { return layers_->layout(); }
    [[nodiscard]] const Split& split() const { return split_; }
    /// Whether this rank writes its keys and values to checkpoints: those of each head are written once.
    [[nodiscard]] bool writes_kv() const;
    [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }
    [[nodiscard]] TokenInfo* token_info() const { return token_info_.get(); }  ///< nullptr: it has none

    struct Parts {
        std::vector<kernels::Matrix> fusion;  ///< each on a part of its input: embedding and state, or each tap
        kernels::Buffer fusion_bias;
        std::vector<LayerWeights> layer;
        TokenInfoWeights token_info;
        Norm embedding_norm, state_norm;  ///< EAGLE-3 and MTP
        Norm output_norm;                 ///< MTP
        std::vector<Norm> tap_norms;      ///< EAGLE-3: of each tap, or one of all side by side
        Weights head;                     ///< EAGLE-3, with its norm
    };

  private:
    DraftLayer(const DraftLayerConfig& config, Model& target, Parallel parallel);
    [[nodiscard]] ComputeContext& context() { return own_ ? own_->context : target_.context(); }
    [[nodiscard]] Group& group() const { return own_ ? *own_->group : target_.group(); }
    void load(TensorSource& source);
    [[nodiscard]] HiddenStates fused(std::span<const HiddenStates* const> inputs);
    [[nodiscard]] HiddenStates normed(const Norm& norm, const HiddenStates& rows);
    [[nodiscard]] HiddenStates side_by_side(std::span<const HiddenStates* const> inputs);
    void load_head();

    /// What a replicated layer runs in instead of the target's group.
    struct OwnGroup {
        explicit OwnGroup(Model& target);
        std::string notice;  ///< none: a group of one needs no connections
        std::unique_ptr<Group> group;
        std::unique_ptr<DeviceGroup> sums;
        ComputeContext context;
    };

    DraftLayerConfig config_;
    Model& target_;
    std::unique_ptr<OwnGroup> own_;  ///< nullptr: the layer is sharded
    Split split_;
    Parts parts_;
    std::unique_ptr<DecoderLayers> layers_;
    std::unique_ptr<TokenInfo> token_info_;
    std::unique_ptr<OutputHead> head_;  ///< its own; nullptr: the target's
    TokenColumns head_tokens_;
    kernels::Buffer absent_;  ///< see Logits::widened
    Scratch sum_;
    std::uint64_t fingerprint_ = 0;
};

}  // namespace longhaul::engine
