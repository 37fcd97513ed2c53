// Parts of config.json that several families of models have: windows, RoPE, biases, experts. Private to the readers of
// layers (layer_config*.cpp).
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "engine/model/config_section.hpp"

namespace longhaul::engine::detail {

inline constexpr std::string_view full_attention = "full_attention", sliding_attention = "sliding_attention";
inline constexpr std::string_view linear_attention = "linear_attention";

/// `sliding_window`: `fallback` if config.json does not have it, 0 (none) if it is null.
std::int64_t window_of(const Section& top, std::int64_t fallback);

/// Which layers have a window: those that `layer_types` names, else those for which `by_default` holds.
std::vector<bool> windowed_layers(const Section& top, std::int64_t num_layers,
                                  const std::function<bool(std::int64_t)>& by_default);

/// One entry per layer, with a window of `window` positions in the layers that are `windowed`.
void set_windows(const Section& top, std::int64_t window, const std::vector<bool>& windowed, ModelConfig& config);

/// One entry per layer; those that are not `rotated` have no rotation (NoPE).
void set_rotated(const std::vector<bool>& rotated, ModelConfig& config);

/// Windows in all layers but each so many, the number at `period_key`, or as `layer_types` says; layers without a
/// window are not rotated.
void read_rotated_windows(const Section& top, std::int64_t window, std::string_view period_key, ModelConfig& config);

/// RoPE parameters of one kind of layers, where each has its own.
Section of_kind(const Section& shared, std::string_view kind);

/// Gives `rope` to the layers that are `windowed`.
void set_ropes(const std::vector<bool>& windowed, const RopeConfig& rope, ModelConfig& config);

/// How many experts there are, `count_key`, and how many a token has. Defaults of 0: they must be there.
ExpertConfig read_experts(const Section& top, const ModelConfig& config, std::string_view count_key,
                          std::int64_t default_count, std::int64_t default_per_token,
                          std::string_view per_token_key = "num_experts_per_tok");

/// Whether embeddings are tied, and the RoPE of all layers.
void read_common(const Section& top, ModelConfig& config, double default_theta = 1e4);

/// read_common, with the biases of Llama.
void read_llama_attention(const Section& top, ModelConfig& config, double default_theta);

/// read_common, with the biases and norms of Qwen3.
void read_qwen3_attention(const Section& top, ModelConfig& config, double default_theta = 1e4);

/// The factors of Granite.
void read_granite_factors(const Section& top, ModelConfig& config);

/// A size of the heads of linear attention, whose kernels compute 16 columns at a time.
std::int64_t linear_dim(const Section& top, std::string_view key, std::int64_t fallback);

/// The groups of experts, `count_key`, from which those of a row are chosen.
void read_expert_groups(const Section& top, std::string_view count_key, std::int64_t default_groups,
                        std::int64_t default_best, ExpertConfig& experts);

/// Granite 4: which layers are Mamba-2 instead of attention, as `layer_types` says, and its sizes. `config` has one
/// layer.
void read_granite4_layer_types(const Section& top, ModelConfig& config);

/// The attention of EXAONE 4: all layers but for their MLPs and the places of norms.
void read_exaone_attention(const Section& top, ModelConfig& config);

/// Windows in all layers, but those that layer_types names otherwise.
void read_windows(const Section& top, std::int64_t window, ModelConfig& config);

}  // namespace longhaul::engine::detail
