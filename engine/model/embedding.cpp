#include "engine/model/embedding.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "engine/error.hpp"
#include "kernels/convert.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {

namespace {

/// Gemma's is 62, not 61.97, for 3840 dimensions in bf16.
float scale_of(const ModelConfig& config, double scale, kernels::DType act) {
    const auto exact = static_cast<float>(scale);
    const bool rounds = config.rounds_embedding_scale && act == kernels::DType::bf16;
    return rounds ? kernels::bf16_to_f32(kernels::f32_to_bf16(exact)) : exact;
}

float root_of(std::int64_t size) {
    return std::sqrt(static_cast<float>(size));
}

}  // namespace

Embedding::Embedding(ComputeContext& context, const ModelConfig& config, const Split& split, const Weights& weights)
    : context_(context),
      config_(config),
      split_(split),
      weights_(weights),
      scale_(scale_of(config, config.embedding_scale, context.act)) {}

/// Row of the learned position table. Tree nodes may have positions beyond the last one, which text never reaches;
/// their embedding does not matter, so they use the last row.
std::int32_t Embedding::position_row(const ForwardRow& row) const {
    const std::int64_t last = config_.max_positions - 1;
    if (row.position > last && row.place.in == KvPlace::In::pages) {
        throw UsageError("context: expected at most " + std::to_string(config_.max_positions) +
                         " positions, as this model has learned, got " + std::to_string(row.position + 1));
    }
    return static_cast<std::int32_t>(std::min(row.position, last) + config_.first_position_row);
}

/// Row of this rank's part of the tables; -1: another rank has it.
std::int32_t Embedding::table_row(const ForwardRow& row) const {
    const std::int64_t local = row.token_id - split_.rank * split_.vocab;
    return local >= 0 && local < split_.vocab ? static_cast<std::int32_t>(local) : -1;
}

void Embedding::enter(std::span<const ForwardRow> rows, const HiddenStates* states, float* x) {
    table_rows_.clear();
    position_rows_.clear();
    merged_rows_.clear();
    state_rows_.clear();
    const std::int64_t num_rows = std::ssize(rows);
    for (const ForwardRow& row : rows) {
        table_rows_.push_back(row.state < 0 ? table_row(row) : -1);
        if (config_.learned_positions) position_rows_.push_back(position_row(row));
        if (row.state < 0) {
            merged_rows_.push_back(static_cast<std::int32_t>(table_rows_.size() - 1));
            continue;
        }
        if (states == nullptr || row.state >= states->num_rows() || states->width() != config_.hidden_size)
            throw std::logic_error("a row enters as a hidden state that is not there");
        merged_rows_.push_back(static_cast<std::int32_t>(num_rows + std::ssize(state_rows_)));
        state_rows_.push_back(row.state);
    }
    if (state_rows_.empty()) return embed(num_rows, x);
    if (std::ssize(state_rows_) == num_rows)
        return context_.device.gather(states->data(), state_rows_, config_.hidden_size, x);
    float* all = context_.projected.floats((num_rows + std::ssize(state_rows_)) * config_.hidden_size);
    embed(num_rows, all);
    context_.device.gather(states->data(), state_rows_, config_.hidden_size, all + num_rows * config_.hidden_size);
    context_.device.gather(all, merged_rows_, config_.hidden_size, x);
}

void Embedding::embed(std::int64_t num_rows, float* x) {
    kernels::Device& device = context_.device;
    const std::int64_t width = config_.embedding_width();
    const bool projected = static_cast<bool>(weights_.project_in.data);
    float* embedded = projected ? context_.sum.floats(num_rows * width) : x;
    device.embed(weights_.embedding, table_rows_, width, embedded);
    context_.sums.all_reduce(embedded, num_rows * width);
    if (scale_ != 1.0F) device.scale(embedded, scale_, num_rows * width);
    if (projected) {
        device.matmul(weights_.project_in, context_.rounded(embedded, width, num_rows), kernels::padded_inputs(width),
                      num_rows, x);
    }
    if (!config_.learned_positions) return;
    float* learned = context_.sum.floats(num_rows * config_.hidden_size);
    device.embed(weights_.positions, position_rows_, config_.hidden_size, learned);
    device.add(x, learned, num_rows * config_.hidden_size);
}

// (norm(Wx / sqrt(hidden)) + sqrt(size) * the tables' rows) / sqrt(2), then one layer after another.
const float* Embedding::of_layers(std::span<const ForwardRow> rows, const float* x) {
    if (config_.layer_embedding_size == 0) return nullptr;
    kernels::Device& device = context_.device;
    const std::int64_t num_rows = std::ssize(rows), size = config_.layer_embedding_size;
    const std::int64_t width = config_.layer_embeddings_width(), count = num_rows * width;
    table_rows_.clear();
    for (const ForwardRow& row : rows) table_rows_.push_back(table_row(row));
    float* const embedded = context_.layer_embeddings.floats(count);
    device.embed(weights_.layer_embedding, table_rows_, width, embedded);
    context_.sums.all_reduce(embedded, count);
    device.scale(embedded, scale_of(config_, root_of(size), context_.act), count);

    const kernels::Matrix& projection = weights_.layer_projection;
    float* const projected = context_.projected.floats(count);
    device.layer_matmul(projection, context_.rounded(x, config_.hidden_size, num_rows), projection.num_inputs, num_rows,
                        projected);
    device.scale(projected, 1.0F / root_of(config_.hidden_size), count);
    apply_norm(device, weights_.layer_projection_norm, projected, num_rows * config_.num_layers, size,
               kernels::DType::f32, reinterpret_cast<std::byte*>(projected), size);
    device.add(projected, embedded, count);
    device.scale(projected, 1.0F / root_of(2), count);
    by_layer_.clear();
    for (std::int64_t layer = 0; layer < config_.num_layers; ++layer) {
        for (std::int64_t row = 0; row < num_rows; ++row)
            by_layer_.push_back(static_cast<std::int32_t>(row * config_.num_layers + layer));
    }
    device.gather(projected, by_layer_, size, embedded);
    return embedded;
}

}  // namespace longhaul::engine
