// A decoder model (config.hpp) on one rank of a tensor-parallel group: embedding, decoder layers and output head. Its
// forward pass serves prefill, decode steps and tree verification; called by Replica, drafters and benchmarks.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/model/config.hpp"
#include "engine/model/pass.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

struct Split;  // engine/model/split.hpp

/// Storage type of the weights. Activations are f32 with fp32 weights and bf16 otherwise. With int4 the embedding and
/// the head, whose errors have the largest effect, are int8.
enum class Precision { bf16, fp32, int8, int4 };

/// How a rank obtained its weights.
struct LoadReport {
    double seconds = 0;  ///< time of `load`, without waiting for other ranks
    std::string how;     ///< "packed from the model's files", "mapped from FILE"
};

struct ComputeContext;
struct LoadedModel;
struct Norm;

class Model {
  public:
    /// Loads `folder`. Collective over `group`: if a rank fails, every rank throws, with the reason of the lowest
    /// failing rank. `kv_dtype`: type of stored keys and values; by default the type of the activations.
    /// `packed_folder`: where packed weights are cached between runs (packed_file.hpp); "": nowhere. `adapter`: folder
    /// of the LoRA adapter that is merged into the weights (adapter.hpp); "": none.
    static std::unique_ptr<Model> load(const std::filesystem::path& folder, Precision precision,
                                       kernels::Device& device, Group& group,
                                       std::optional<kernels::DType> kv_dtype = {},
                                       const std::filesystem::path& packed_folder = {},
                                       const std::filesystem::path& adapter = {});

    /// A model with random weights of the given shape, the same in all layers (benchmarks).
    static std::unique_ptr<Model> random(const ModelConfig& config, Precision precision, kernels::Device& device,
                                         Group& group, std::uint64_t seed, std::optional<kernels::DType> kv_dtype = {});
    ~Model();

    /// Sets a function called after each layer on every rank: a pass over many rows of a large model takes seconds, and
    /// MPI and the watchdog need regular calls.
    void set_layer_hook(std::function<void()> hook);

    /// Runs the rows through all layers, writes their keys and values, and keeps the hidden states named by the taps. A
    /// row's result depends only on what the row sees. Collective; same bits on every rank. The rows must stay valid
    /// until the next pass.
    PassResult forward(const Pass& pass);
    /// Embeddings of the rows: the input of the first layer. Ignores the rows' KV slots. Collective.
    HiddenStates embed(std::span<const ForwardRow> rows);
    /// Logits of all `rows` after the norm `norm` (by default the model's final norm; none if it is empty). On a
    /// tap of Tap::At::last_hidden this gives the logits of that pass. Collective.
    Logits logits(const HiddenStates& rows, const Norm* norm = nullptr);
    /// Allocates uninitialized hidden states for the caller to fill.
    [[nodiscard]] HiddenStates hidden_states(std::int64_t num_rows);
    /// Execution state for the layers of a draft head (DecoderLayers); use it only between passes of this model.
    [[nodiscard]] ComputeContext& context();

    /// For measurements: runs the rows only through `count` layers starting at `first`. What they compute is
    /// meaningless, but rows of different tokens have different experts.
    void forward_layers(const Pass& pass, std::int64_t first, std::int64_t count);
    /// For measurements: runs only the attention of one layer, on the current contents of the query buffer.
    void forward_attention(const Pass& pass, std::int64_t layer);
    /// For measurements: runs only the output head.
    void forward_head(const Pass& pass);

    [[nodiscard]] const ModelConfig& config() const;
    [[nodiscard]] Precision precision() const;
    /// KV layouts on this rank, one per group of layers (ModelConfig::layer_groups).
    [[nodiscard]] std::span<const kernels::KvLayout> kv_layouts() const;
    [[nodiscard]] const kernels::KvLayout& kv_layout() const { return kv_layouts().front(); }
    /// This rank's part of the layers.
    [[nodiscard]] const Split& split() const;
    /// Global index of this rank's first KV head in the layers of a group.
    [[nodiscard]] std::int64_t first_kv_head(std::size_t group = 0) const;
    [[nodiscard]] std::int64_t resident_weight_bytes() const;  ///< packed weights of this rank
    /// Weights that a pass of `rows` rows reads on this rank.
    [[nodiscard]] std::int64_t streamed_weight_bytes(std::int64_t rows = 1) const;
    [[nodiscard]] std::int64_t head_bytes() const;            ///< part of streamed_weight_bytes used by the head
    [[nodiscard]] std::uint64_t fingerprint() const;          ///< identity of weights and config, without the adapter
    [[nodiscard]] std::uint64_t adapter_fingerprint() const;  ///< 0: there is no adapter
    [[nodiscard]] const LoadReport& load_report() const;
    [[nodiscard]] kernels::Device& device() const;
    [[nodiscard]] Group& group() const;
    /// Messages for the user ("fp16 rounded to bf16"); the first rank has those of all ranks.
    [[nodiscard]] const std::vector<std::string>& notices() const;

  private:
    struct State;
    Model(std::unique_ptr<LoadedModel> loaded, kernels::Device& device, Group& group);
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
