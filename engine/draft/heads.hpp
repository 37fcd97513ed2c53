// Trained draft heads on the target's hidden states (TokenSwift and Medusa; ALGORITHMS.md section 5): head i has a
// matrix W_i [hidden, hidden] and the gains of two RMS norms. Draft methods decide how to combine them (medusa.cpp).
//
// A folder holds config.json ("medusa_heads": number of heads, "hidden_size", "rms_norm_eps"; "chained": whether each
// head was trained on the one before it) and safetensors with, for i from 0,
//   model.medusa_layers.{i}.linear.weight           [hidden, hidden]
//   model.medusa_layers.{i}.input_layernorm.weight  [hidden], before the matrix
//   model.medusa_layers.{i}.post_layernorm.weight   [hidden], before the target's output head
// Published TokenSwift checkpoints hold both together with the weights of the whole model.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/draft/draft_options.hpp"
#include "engine/model/config.hpp"
#include "engine/model/model.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

struct HeadsConfig {
    std::int64_t num_heads = 0;
    std::int64_t hidden_size = 0;
    double norm_eps = 1e-6;
    std::optional<bool> chained;  ///< whether each head was trained on the one before it; nullopt: not recorded
    std::string file;             ///< path of config.json, for messages

    /// Reads config.json. Throws InputError that names the field, also if the folder has no heads or their width
    /// differs from the target's.
    static HeadsConfig load(const std::filesystem::path& folder, const ModelConfig& target);

    /// Number of parameters read when drafting with the heads, the target's output head included.
    [[nodiscard]] std::int64_t num_parameters(const ModelConfig& target) const;
};

/// Whether a model's folder holds heads of which each was trained on the one before, as published TokenSwift models do.
/// False if it cannot be read.
bool holds_chained_heads(const std::filesystem::path& model_folder);

/// The methods that draft with the heads of a folder which holds nothing else; "" if it holds none, or cannot be read.
std::string methods_of_heads(const std::filesystem::path& folder);

/// The tree shape of `options` for these heads: one level per head, and before them one per pass for chained heads. The
/// default tree is cut to the number of heads; throws UsageError if a shape given by the user is deeper, InputError if
/// the heads belong to another method.
TreeShape tree_of_heads(const DraftOptions& options, const HeadsConfig& heads);

/// One line for each tensor that is missing, unexpected or of a wrong shape. Reads no weights. Throws InputError like
/// HeadsConfig::load.
std::vector<std::string> head_faults(const std::filesystem::path& folder, const ModelConfig& target);

/// Fingerprint that identifies the heads in `folder`. Throws InputError.
std::uint64_t heads_fingerprint(const std::filesystem::path& folder, const ModelConfig& target);

/// Bytes of the heads in the packed layout of `device`. Heads are not sharded: every rank holds all of them.
std::int64_t heads_bytes(const HeadsConfig& config, Precision precision, const kernels::Device& device);

class DraftHeads {
  public:
    /// Loads the heads of `folder` onto the device of `target`, unsharded on every rank. Throws Error if tensors are
    /// missing or of a wrong shape, InputError if the heads do not fit the target or hold NaN or infinity.
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

/// Independent heads: norm_out_i(h0 + W_i norm_in_i(h0)) of the first `count` heads, [count, rows of h0, hidden]. This
/// is the input of the target's output head, without a further norm.
HiddenStates independent_heads(Model& target, const DraftHeads& heads, const HiddenStates& h0, std::int64_t count);

/// Chained heads: `normed`, which is h0 after the target's final norm, and then norm_out_i(h_i), h_i = h_(i-1) + W_i
/// norm_in_i(h_(i-1)), of the first `count` heads; [1 + count, rows of h0, hidden].
HiddenStates chained_heads(Model& target, const DraftHeads& heads, const HiddenStates& h0, const HiddenStates& normed,
                           std::int64_t count);

}  // namespace longhaul::engine
