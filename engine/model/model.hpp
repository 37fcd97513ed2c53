// A decoder (config.hpp) on one rank of a tensor-parallel group: weights, and the one forward pass that is
// prefill, decode and tree verification alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/kv/kv_cache.hpp"
#include "engine/model/config.hpp"
#include "engine/model/logits.hpp"
#include "engine/parallel/group.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// What the weights are held in. Activations are f32 with fp32 and bf16 otherwise; with int4 the embedding and the
/// head, whose errors weigh most, are int8.
enum class Precision { bf16, fp32, int8, int4 };

/// One row of a forward pass: a prompt token, the root of a tree, or a draft node.
struct ForwardRow {
    std::int32_t token_id = 0;
    std::int64_t position = 0;
    std::int32_t sequence = 0;  ///< index into the call's KV sequences
    std::int64_t in_pages = 0;  ///< positions the row reads from (and, if it is position+1, also stores to) the pages
    std::vector<std::int32_t>
        path;  ///< scratch slots of positions in_pages..position; empty: the row goes to the pages
    bool wants_logits = false;
    bool of_prompt = false;  ///< given text, by its position alone; such rows stand together (PassRows)
};

/// How a rank came by its weights.
struct LoadReport {
    double seconds = 0;  ///< of `load`, without the wait for other ranks
    std::string how;     ///< "packed from the model's files", "mapped from FILE"
};

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

    /// Runs the rows through all layers, writing their keys and values. Returns the logits of the rows that want them,
    /// in the order of the rows, valid until the next call. Same bits on every rank. A row's result depends on its own
    /// path alone.
    Logits& forward(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences);

    /// For measurements: the rows through `count` layers from `first` alone, nothing before and after. What it leaves
    /// in their pages means nothing.
    void forward_layers(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences, std::int64_t first,
                        std::int64_t count);
    /// For measurements: the attention of one layer alone, with whatever stands in the queries.
    void forward_attention(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences,
                           std::int64_t layer);
    /// For measurements: what comes behind the last layer alone.
    void forward_head(std::span<const ForwardRow> rows, std::span<KvSequence* const> sequences);

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
    explicit Model(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace longhaul::engine
