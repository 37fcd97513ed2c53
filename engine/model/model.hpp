// A decoder (config.hpp) on one rank of a tensor-parallel group: embedding, decoder layers and output head, and the one
// forward pass through them that is prefill, decode and tree verification alike.
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

/// What the weights are held in. Activations are f32 with fp32 and bf16 otherwise; with int4 the embedding and the
/// head, whose errors weigh most, are int8.
enum class Precision { bf16, fp32, int8, int4 };

/// How a rank came by its weights.
struct LoadReport {
    double seconds = 0;  ///< of `load`, without the wait for other ranks
    std::string how;     ///< "packed from the model's files", "mapped from FILE"
};

struct ComputeContext;
struct LoadedModel;
struct Norm;

class Model {
  public:
    /// Loads `folder`. Collective over `group`: a rank that fails makes every rank throw, the first one with the
    /// reason. `kv_dtype`: of stored keys and values; the precision's own type by default. `packed_folder`: where
    /// packed weights are kept from one start to the next (packed_file.hpp); "": nowhere.
    static std::unique_ptr<Model> load(const std::filesystem::path& folder, Precision precision,
                                       kernels::Device& device, Group& group,
                                       std::optional<kernels::DType> kv_dtype = {},
                                       const std::filesystem::path& packed_folder = {});

    /// Random weights of a shape (benchmarks).
    static std::unique_ptr<Model> random(const ModelConfig& config, Precision precision, kernels::Device& device,
                                         Group& group, std::uint64_t seed, std::optional<kernels::DType> kv_dtype = {});
    ~Model();

    /// Called between layers on every rank: a pass over many rows of a large model takes seconds, and MPI and the
    /// watchdog want to hear from us.
    void set_layer_hook(std::function<void()> hook);

    /// Runs the rows through all layers, writing their keys and values, and keeps what the taps name. A row's result
    /// depends on what it sees alone. Collective; same bits on every rank. The rows stay where they are until the next
    /// pass.
    PassResult forward(const Pass& pass);
    /// What the first layer reads of these rows, whose place in keys and values does not matter. Collective.
    HiddenStates embed(std::span<const ForwardRow> rows);
    /// Logits of all `rows`, normed by `norm` (as they are where it is empty), by default the model's last: of a tap
    /// of Tap::At::last_hidden those of its pass. Collective.
    Logits logits(const HiddenStates& rows, const Norm* norm = nullptr);
    /// Room for hidden states that somebody computes.
    [[nodiscard]] HiddenStates hidden_states(std::int64_t num_rows);
    /// What parts of a draft head compute with (DecoderLayers), between the passes of this model.
    [[nodiscard]] ComputeContext& context();

    /// For measurements: the rows through `count` layers from `first` alone, nothing before and after. What it leaves
    /// in their pages means nothing.
    void forward_layers(const Pass& pass, std::int64_t first, std::int64_t count);
    /// For measurements: the attention of one layer alone, with whatever stands in the queries.
    void forward_attention(const Pass& pass, std::int64_t layer);
    /// For measurements: what comes behind the last layer alone.
    void forward_head(const Pass& pass);

    [[nodiscard]] const ModelConfig& config() const;
    [[nodiscard]] Precision precision() const;
    [[nodiscard]] const kernels::KvLayout& kv_layout() const;  ///< of this rank
    [[nodiscard]] std::int64_t first_kv_head() const;          ///< global index of this rank's first KV head
    /// Whether this rank is the lowest that holds its KV heads (it writes them to checkpoints).
    [[nodiscard]] bool writes_kv() const;
    [[nodiscard]] std::int64_t resident_weight_bytes() const;  ///< packed, this rank
    [[nodiscard]] std::int64_t streamed_weight_bytes() const;  ///< read by one decode step on this rank
    [[nodiscard]] std::int64_t head_bytes() const;             ///< of these, the head
    [[nodiscard]] std::uint64_t fingerprint() const;           ///< of weights and config
    [[nodiscard]] const LoadReport& load_report() const;
    [[nodiscard]] kernels::Device& device() const;
    [[nodiscard]] Group& group() const;
    /// Things a user should read once ("fp16 rounded to bf16"); the first rank has those of all.
    [[nodiscard]] const std::vector<std::string>& notices() const;

  private:
    struct State;
    Model(std::unique_ptr<LoadedModel> loaded, kernels::Device& device, Group& group);
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
