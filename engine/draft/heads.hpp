// Trained heads on the target's hidden states (TokenSwift and Medusa; algorithms.md section 5): for head i a matrix W_i
// [hidden, hidden] and the gains of two RMS norms. What is made of them is the draft method's business.
//
// A folder holds config.json ("medusa_heads": how many, "hidden_size", "rms_norm_eps"; "chained": whether each head was
// trained on the one before it) and safetensors with, for i from 0,
//   model.medusa_layers.{i}.linear.weight           [hidden, hidden]
//   model.medusa_layers.{i}.input_layernorm.weight  [hidden], before the matrix
//   model.medusa_layers.{i}.post_layernorm.weight   [hidden], before the target's own output head
// Published TokenSwift checkpoints have both beside the weights of the whole model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/draft/draft_options.hpp"
#include "engine/model/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

struct HeadsConfig {
    std::int64_t num_heads = 0;
    std::int64_t hidden_size = 0;
    double norm_eps = 1e-6;
    bool chained = false;  ///< each head was trained on the one before it
    std::string file;      ///< of these fields, for messages

    /// Throws InputError naming the field, also where the folder has no heads or they are of another width than
    /// `target`'s.
    static HeadsConfig load(const std::filesystem::path& folder, const ModelConfig& target);

    /// Parameters that one use of the heads reads, the target's output head included.
    [[nodiscard]] std::int64_t num_parameters(const ModelConfig& target) const;
};

/// The trees of `options` by these heads, a level each: the method's own are cut to as many levels as there are heads.
/// Throws UsageError for deeper ones, InputError for heads of another method.
TreeShape tree_of_heads(const DraftOptions& options, const HeadsConfig& heads);

/// One line for each tensor that is missing, too many, or of another shape. Reads no weights. Throws InputError as
/// HeadsConfig::load.
std::vector<std::string> head_faults(const std::filesystem::path& folder, const ModelConfig& target);

/// Identity of the heads in `folder`. Throws InputError.
std::uint64_t heads_fingerprint(const std::filesystem::path& folder, const ModelConfig& target);

/// Bytes of the heads as `device` packs them, whole on every rank.
std::int64_t heads_bytes(const HeadsConfig& config, Precision precision, const kernels::Device& device);

class DraftHeads {
  public:
    /// Loads the heads of `folder` onto the device of `target`, whole on every rank. Throws InputError for heads that
    /// do not fit the target, or hold NaN or infinity.
    DraftHeads(const std::filesystem::path& folder, const Model& target);

    struct Head {
        kernels::Matrix linear;
        Norm input_norm, output_norm;
    };
    [[nodiscard]] const HeadsConfig& config() const { return config_; }
    [[nodiscard]] const std::vector<Head>& heads() const { return heads_; }
    [[nodiscard]] std::uint64_t fingerprint() const { return fingerprint_; }

  private:
    HeadsConfig config_;
    std::vector<Head> heads_;
    std::uint64_t fingerprint_ = 0;
};

/// Independent heads: norm_out_i(h0 + W_i norm_in_i(h0)) of the first `count` heads, [count, rows of h0, hidden]: what
/// the target's output head reads without another norm.
HiddenStates independent_heads(Model& target, const DraftHeads& heads, const HiddenStates& h0, std::int64_t count);

}  // namespace longhaul::engine
