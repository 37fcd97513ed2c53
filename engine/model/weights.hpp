// Weights of a decoder on one rank, as its passes use them.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/config.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// f32 [hidden]: RMS norm with gain, or LayerNorm with gain and bias. Empty if the model does not have this norm.
struct Norm {
    kernels::Buffer gain, bias;
    float eps = 0;
};

/// Every rank has its part of each expert's MLP, so a rank's work does not depend on which experts are chosen.
struct Expert {
    kernels::Matrix gate_up;  // [2 expert_intermediate, inputs], without a gate [expert_intermediate, inputs]
    kernels::Matrix down;     // [inputs, expert_intermediate], row-parallel
};

/// Projections of latent attention (LatentConfig). Those to the latents are on every rank. Those of heads are not
/// quantized: a head's matrix has too few inputs.
struct LatentWeights {
    kernels::Matrix query_down;  // [query_rank, hidden]; empty if there is no latent of queries
    kernels::Matrix kv_down;     // [kv_rank, hidden]
    kernels::Matrix key_rope;    // [rope_dim, hidden]; as of queries, the first of all rotated pairs come first
    Norm query_norm, kv_norm;
    kernels::Matrix query_up;               // [heads query_dim, query_rank or hidden]
    std::vector<kernels::Matrix> key_up;    // of each head: [kv_rank, nope_dim]
    std::vector<kernels::Matrix> value_up;  // of each head: [value_dim, kv_rank]
};

/// Linear attention (LinearAttentionConfig). Each key head has its rows side by side, in the order of DeltaShape.
struct LinearWeights {
    kernels::Matrix inputs;  // [key heads channels + value heads value_dim, hidden]: convolution inputs, output gates
    kernels::Matrix gates;   // [DeltaShape::gates_width, hidden]: rates, then steps; not quantized
    kernels::Buffer filter;  // f32 [key heads, taps, channels]
    kernels::Buffer log_rate, step_bias;  // f32 [value heads]
    Norm norm;                            // gain f32 [value_dim], of every value head's output
    // Mamba-2: f32 [key heads, channels] and [value heads]. Its norm, gain f32 [value heads value_dim], is that of all
    // heads of a group together, also of other ranks.
    kernels::Buffer filter_bias, skip;
};

struct LayerWeights {
    Norm attention_norm, mlp_norm;
    Norm attention_out_norm, mlp_out_norm;  // on the outputs of the two blocks; empty if the model has none
    // Gains f32 [head_dim], with LayerConfig::whole_norm [heads head_dim] and [kv_heads head_dim], in the order of the
    // heads' dimensions; likewise.
    Norm query_norm, key_norm;
    // [(heads + 2 kv_heads) head_dim, hidden]. If only a part of a head is rotated, the rotated dimensions of q and k
    // come first in each half of the head. LayerConfig::shares_kv: the rows of the queries alone.
    kernels::Matrix qkv;
    kernels::Matrix output_gate;  // [heads head_dim, hidden]; LayerConfig::output_gate
    LatentWeights latent;         // with latent attention, instead of qkv
    LinearWeights linear;         // with linear attention, likewise
    kernels::Matrix output;       // [hidden, heads value_dim], row-parallel
    kernels::Matrix down;         // [hidden, intermediate], row-parallel
    // [2 intermediate, hidden]: gate rows, then up rows; packed for gated_matmul if there is no bias. Without a gate:
    // [intermediate, hidden].
    kernels::Matrix gate_up;
    kernels::Buffer qkv_bias, output_bias, gate_up_bias, down_bias;  // f32; empty if the model has none
    kernels::Buffer sinks;                                           // f32 [heads]; empty if the model has none
    // If the layer has experts, gate_up and down are those of the shared expert, or empty. The experts' biases are f32
    // [experts, outputs]; the score correction, f32 [experts], is that of ExpertConfig::corrected; empty if the model
    // has none.
    kernels::Matrix router;  // [experts, hidden], replicated
    kernels::Buffer router_bias, score_correction, experts_up_bias, experts_down_bias;
    // With ExpertConfig::own_norms. The router's gain includes hidden^-1/2; expert_scales: f32 [experts].
    Norm router_norm, expert_norm, expert_out_norm, shared_out_norm;
    kernels::Buffer expert_scales;
    kernels::Buffer output_scale;  // f32 [1]; empty if the model has none
    // With embeddings per layer: [layer_embedding_size, hidden] and [hidden, layer_embedding_size], replicated.
    kernels::Matrix embedding_gate, embedding_output;
    Norm embedding_out_norm;
    kernels::Matrix expert_latent_down,
        expert_latent_up;  // [latent_size, hidden] and back, replicated; ExpertConfig::latent_size
    std::vector<Expert> experts;
    kernels::Buffer expert_memory;  // where all of them are, if the device has its own memory (place_experts)
};

/// Part of the experts of a layer that a pass of `rows` rows reads, if the router chooses all equally often.
double read_share(const ExpertConfig& experts, std::int64_t rows);

struct Weights {
    kernels::Matrix embedding;    // [vocab, embedding], vocabulary-parallel
    kernels::Matrix head;         // the same; empty if tied to the embedding
    kernels::Buffer head_bias;    // f32 [vocab], likewise; empty if the model has none
    kernels::Matrix positions;    // [position_rows, hidden], replicated; empty if the model has no learned positions
    kernels::Matrix project_in;   // [hidden, embedding], replicated; empty if the two are equal
    kernels::Matrix project_out;  // [embedding, hidden], likewise
    // Embeddings per layer, those of all layers side by side; empty if the model has none.
    kernels::Matrix layer_embedding;   // [vocab, layer_embeddings_width], vocabulary-parallel
    kernels::Matrix layer_projection;  // [layer_embeddings_width, hidden], replicated
    Norm layer_projection_norm;        // gain f32 [layer_embedding_size]
    Norm final_norm;
    std::vector<LayerWeights> layers;

    [[nodiscard]] const kernels::Matrix& head_or_embedding() const { return head.data ? head : embedding; }
    [[nodiscard]] std::int64_t resident_bytes() const;
    /// Bytes read by a pass of `rows` rows: everything except tables of which only single rows are read (an untied
    /// embedding, positions, embeddings per layer), and except experts that are not chosen (read_share).
    [[nodiscard]] std::int64_t streamed_bytes(const ModelConfig& config, std::int64_t rows) const;
};

}  // namespace longhaul::engine
