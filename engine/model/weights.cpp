#include "engine/model/weights.hpp"

#include <cmath>

namespace longhaul::engine {
namespace {

using kernels::Matrix;

std::int64_t bytes(const Matrix& matrix) {
    return static_cast<std::int64_t>(matrix.data.num_bytes());
}

std::int64_t bytes(const LatentWeights& w) {
    std::int64_t sum = bytes(w.query_down) + bytes(w.kv_down) + bytes(w.key_rope) + bytes(w.query_up);
    for (const auto* of_heads : {&w.key_up, &w.value_up}) {
        for (const Matrix& matrix : *of_heads) sum += bytes(matrix);
    }
    return sum;
}

std::int64_t bytes_without_experts(const LayerWeights& w) {
    return bytes(w.qkv) + bytes(w.output_gate) + bytes(w.latent) + bytes(w.linear.inputs) + bytes(w.linear.gates) +
           bytes(w.output) + bytes(w.gate_up) + bytes(w.down) + bytes(w.router) + bytes(w.embedding_gate) +
           bytes(w.embedding_output) + bytes(w.expert_latent_down) + bytes(w.expert_latent_up);
}

std::int64_t expert_bytes(const LayerWeights& w) {
    std::int64_t sum = 0;
    for (const Expert& expert : w.experts) sum += bytes(expert.gate_up) + bytes(expert.down);
    return sum;
}

}  // namespace

double read_share(const ExpertConfig& experts, std::int64_t rows) {
    const double chosen = static_cast<double>(experts.per_token) / static_cast<double>(experts.count);
    return 1.0 - std::pow(1.0 - chosen, static_cast<double>(rows));
}

std::int64_t Weights::resident_bytes() const {
    std::int64_t sum = bytes(embedding) + bytes(head) + bytes(positions) + bytes(project_in) + bytes(project_out) +
                       bytes(layer_embedding) + bytes(layer_projection);
    for (const LayerWeights& w : layers) sum += bytes_without_experts(w) + expert_bytes(w);
    return sum;
}

std::int64_t Weights::streamed_bytes(const ModelConfig& config, std::int64_t rows) const {
    std::int64_t sum = bytes(head_or_embedding()) + bytes(project_in) + bytes(project_out) + bytes(layer_projection);
    for (std::size_t i = 0; i < layers.size(); ++i) {
        sum += bytes_without_experts(layers[i]);
        if (layers[i].experts.empty()) continue;
        const double share = read_share(config.layer(static_cast<std::int64_t>(i)).experts, rows);
        sum += std::llround(share * static_cast<double>(expert_bytes(layers[i])));
    }
    return sum;
}

}  // namespace longhaul::engine
