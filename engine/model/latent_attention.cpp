#include "engine/model/latent_attention.hpp"

namespace longhaul::engine {
namespace {

using kernels::MatmulCall;

/// Where the projections of `rows` rows are in one piece of memory, in floats.
struct Places {
    Places(const LatentConfig& latent, std::int64_t heads, std::int64_t rows)
        : from_latent(rows * heads * latent.query_dim()),
          latent_of_row(from_latent + rows * heads * latent.kv_rank),
          key_rope(latent_of_row + rows * latent.kv_rank),
          end(key_rope + rows * latent.rope_dim) {}

    std::int64_t queries = 0;    ///< [rows, heads, query_dim]
    std::int64_t from_latent;    ///< [heads, rows, kv_rank]: queries of latents
    std::int64_t latent_of_row;  ///< [rows, kv_rank]
    std::int64_t key_rope;       ///< [rows, rope_dim]
    std::int64_t end;
};

}  // namespace

std::int64_t LatentAttention::row_bytes(const LatentConfig& latent, const Split& split) {
    constexpr std::int64_t f32 = 4;
    const std::int64_t rounded = split.num_heads * std::max(latent.query_dim(), 2 * latent.value_dim);
    return f32 * (Places(latent, split.num_heads, 1).end + latent.query_rank + rounded);
}

// Queries and keys are interleaved in units, so that rotated dimensions are the first of each half.
void LatentAttention::find_units(std::int64_t num_rows) {
    if (num_rows == num_rows_) return;
    num_rows_ = num_rows;
    of_queries_.clear();
    of_values_.clear();
    const Places places(latent_, num_heads_, num_rows);
    const std::int64_t half = latent_.kv_rank / 2;
    const auto add = [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t at = first; at < first + count; at += unit())
            of_queries_.push_back(static_cast<std::int32_t>(at / unit()));
    };
    const auto add_rotated = [&](std::int64_t latent, std::int64_t rope) {
        add(rope, unit());
        add(latent, half);
        add(rope + unit(), unit());
        add(latent + half, half);
    };
    for (std::int64_t row = 0; row < num_rows; ++row) {
        for (std::int64_t head = 0; head < num_heads_; ++head) {
            add_rotated(places.from_latent + (head * num_rows + row) * latent_.kv_rank,
                        (row * num_heads_ + head) * latent_.query_dim() + latent_.nope_dim);
            of_values_.push_back(static_cast<std::int32_t>(head * num_rows + row));
        }
        const std::int64_t latent = places.latent_of_row + row * latent_.kv_rank;
        const std::int64_t rope = places.key_rope + row * latent_.rope_dim;
        add_rotated(latent, rope);
        add(latent, latent_.kv_rank);
        add(rope, latent_.rope_dim);
    }
}

const float* LatentAttention::project(const LatentWeights& w, const std::byte* input, std::int64_t num_rows) {
    kernels::Device& device = context_.device;
    find_units(num_rows);
    const Places places(latent_, num_heads_, num_rows);
    const auto element = static_cast<std::int64_t>(kernels::bytes_of(context_.act));
    float* const parts = context_.latent_parts.floats(places.end);
    float* const latent = parts + places.latent_of_row;
    device.layer_matmul(w.kv_down, input, w.kv_down.num_inputs, num_rows, latent);
    apply_norm(device, w.kv_norm, latent, num_rows, latent_.kv_rank, kernels::DType::f32,
               reinterpret_cast<std::byte*>(latent), latent_.kv_rank);
    device.layer_matmul(w.key_rope, input, w.key_rope.num_inputs, num_rows, parts + places.key_rope);

    const std::byte* query_input = input;
    if (w.query_down.data) {
        float* const down = context_.projected.floats(num_rows * latent_.query_rank);
        device.layer_matmul(w.query_down, input, w.query_down.num_inputs, num_rows, down);
        query_input = context_.normalised(w.query_norm, down, latent_.query_rank, num_rows);
    }
    device.layer_matmul(w.query_up, query_input, w.query_up.num_inputs, num_rows, parts);
    const std::int64_t width = num_heads_ * latent_.query_dim();
    std::byte* const rounded = context_.latent_inputs.bytes(static_cast<std::size_t>(num_rows * width * element));
    device.round_rows(parts, num_rows, width, context_.act, rounded, width);
    std::vector<MatmulCall> calls;
    for (std::int64_t head = 0; head < num_heads_; ++head)
        calls.push_back({&w.key_up[static_cast<std::size_t>(head)], rounded + head * latent_.query_dim() * element,
                         num_rows, parts + places.from_latent + head * num_rows * latent_.kv_rank});
    device.matmuls(calls, width);

    float* const qkv = context_.projected.floats(num_rows * (num_heads_ + 2) * head_dim_);
    device.gather(parts, of_queries_, unit(), qkv);
    return qkv;
}

const std::byte* LatentAttention::values(const LatentWeights& w, const std::byte* attended, std::int64_t num_rows,
                                         std::int64_t width) {
    kernels::Device& device = context_.device;
    const auto element = static_cast<std::int64_t>(kernels::bytes_of(context_.act));
    const std::int64_t of_heads = num_heads_ * latent_.value_dim;
    float* const sums = context_.latent_parts.floats(2 * num_rows * of_heads);
    std::vector<MatmulCall> calls;
    for (std::int64_t head = 0; head < num_heads_; ++head)
        calls.push_back({&w.value_up[static_cast<std::size_t>(head)], attended + head * head_dim_ * element, num_rows,
                         sums + head * num_rows * latent_.value_dim});
    device.matmuls(calls, num_heads_ * head_dim_);
    float* const by_row = sums + num_rows * of_heads;
    device.gather(sums, of_values_, latent_.value_dim, by_row);
    std::byte* const rounded = context_.latent_inputs.bytes(static_cast<std::size_t>(num_rows * width * element));
    device.round_rows(by_row, num_rows, of_heads, context_.act, rounded, width);
    return rounded;
}

}  // namespace longhaul::engine
