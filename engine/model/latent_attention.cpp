#include "engine/model/latent_attention.hpp"

#include <algorithm>
#include <bit>

namespace longhaul::engine {
namespace {

using kernels::MatmulCall;

std::int64_t capacity_for(std::int64_t rows) {
    return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(rows)));
}

/// Where the projections of up to `rows` rows are in one piece of memory, in floats.
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

std::int64_t LatentAttention::bytes(const LatentConfig& latent, const Split& split, std::int64_t num_rows) {
    constexpr std::int64_t f32 = 4;
    const std::int64_t capacity = capacity_for(num_rows), heads = split.num_heads;
    const std::int64_t parts = std::max(Places(latent, heads, capacity).end, 2 * capacity * heads * latent.value_dim);
    const std::int64_t rounded = heads * std::max(latent.query_dim(), latent.value_dim);
    const std::int64_t units =
        2 * capacity * ((heads + 2) * 2 * (latent.kv_rank + latent.rope_dim) / latent.rope_dim + heads);
    return f32 * (parts + num_rows * rounded + units);
}

// Queries and keys are interleaved in units, so that rotated dimensions are the first of each half.
const LatentAttention::Units& LatentAttention::units_for(std::int64_t capacity) {
    const auto at = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(capacity))) - 1;
    if (units_.size() <= at) units_.resize(at + 1);
    Units& units = units_[at];
    if (units.of_values) return units;
    std::vector<std::int32_t> of_queries, of_values;
    const Places places(latent_, num_heads_, capacity);
    const std::int64_t half = latent_.kv_rank / 2;
    const auto add = [&](std::int64_t first, std::int64_t count) {
        for (std::int64_t from = first; from < first + count; from += unit())
            of_queries.push_back(static_cast<std::int32_t>(from / unit()));
    };
    const auto add_rotated = [&](std::int64_t latent, std::int64_t rope) {
        add(rope, unit());
        add(latent, half);
        add(rope + unit(), unit());
        add(latent + half, half);
    };
    for (std::int64_t row = 0; row < capacity; ++row) {
        for (std::int64_t head = 0; head < num_heads_; ++head) {
            add_rotated(places.from_latent + (head * capacity + row) * latent_.kv_rank,
                        (row * num_heads_ + head) * latent_.query_dim() + latent_.nope_dim);
            of_values.push_back(static_cast<std::int32_t>(head * capacity + row));
        }
        const std::int64_t latent = places.latent_of_row + row * latent_.kv_rank;
        const std::int64_t rope = places.key_rope + row * latent_.rope_dim;
        add_rotated(latent, rope);
        add(latent, latent_.kv_rank);
        add(rope, latent_.rope_dim);
    }
    const auto upload = [&](const std::vector<std::int32_t>& numbers) {
        kernels::Buffer buffer(context_.device, numbers.size() * sizeof(std::int32_t));
        context_.device.upload(buffer.data(), numbers.data(), buffer.num_bytes());
        return buffer;
    };
    units.of_queries = upload(of_queries);
    units.of_values = upload(of_values);
    return units;
}

const float* LatentAttention::project(const LatentWeights& w, const std::byte* input, std::int64_t num_rows) {
    kernels::Device& device = context_.device;
    const std::int64_t capacity = capacity_for(num_rows);
    const Places places(latent_, num_heads_, capacity);
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
                         num_rows, parts + places.from_latent + head * capacity * latent_.kv_rank});
    device.matmuls(calls, width);

    float* const qkv = context_.projected.floats(num_rows * (num_heads_ + 2) * head_dim_);
    const std::int64_t units = num_rows * (num_heads_ + 2) * head_dim_ / unit();
    device.gather_listed(parts, units_for(capacity).of_queries.as<std::int32_t>(), units, unit(), qkv);
    return qkv;
}

const std::byte* LatentAttention::values(const LatentWeights& w, const std::byte* attended, std::int64_t num_rows,
                                         std::int64_t width) {
    kernels::Device& device = context_.device;
    const auto element = static_cast<std::int64_t>(kernels::bytes_of(context_.act));
    const std::int64_t of_heads = num_heads_ * latent_.value_dim, capacity = capacity_for(num_rows);
    float* const sums = context_.latent_parts.floats(2 * capacity * of_heads);
    std::vector<MatmulCall> calls;
    for (std::int64_t head = 0; head < num_heads_; ++head)
        calls.push_back({&w.value_up[static_cast<std::size_t>(head)], attended + head * head_dim_ * element, num_rows,
                         sums + head * capacity * latent_.value_dim});
    device.matmuls(calls, num_heads_ * head_dim_);
    float* const by_row = sums + capacity * of_heads;
    device.gather_listed(sums, units_for(capacity).of_values.as<std::int32_t>(), num_rows * num_heads_,
                         latent_.value_dim, by_row);
    std::byte* const rounded = context_.latent_inputs.bytes(static_cast<std::size_t>(num_rows * width * element));
    device.round_rows(by_row, num_rows, of_heads, context_.act, rounded, width);
    return rounded;
}

}  // namespace longhaul::engine
