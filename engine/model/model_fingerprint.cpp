// Each put_ function names all fields of a struct in a structured binding, so that a new field does not compile until
// it is put here, too. Names, defaults and the numbers of enumerators are in the hash: they stay as they are.
#include "engine/model/model_fingerprint.hpp"

#include <cstdint>
#include <string_view>
#include <type_traits>
#include <vector>

#include "engine/hash.hpp"

namespace longhaul::engine {
namespace {

/// Adds to a hash, by name, the fields that differ from their default: a field that comes later changes no fingerprint
/// of the models that do without it.
class Fields {
  public:
    explicit Fields(Hash& hash) : hash_(hash) {}

    /// What the fields that follow belong to.
    void begin(std::string_view owner, std::int64_t index = 0) {
        owner_ = owner;
        index_ = index;
    }
    template <typename T>
    void put(std::string_view name, const T& value, const T& usual) {
        if (value == usual) return;
        add(owner_);
        add(index_);
        add(name);
        add(value);
    }

  private:
    void add(double value) { hash_.add(&value, sizeof(value)); }
    void add(std::string_view text) {
        add(text.size());
        hash_.add(text);
    }
    template <typename T>
    requires std::is_integral_v<T> || std::is_enum_v<T>
    void add(T value) {
        const auto number = static_cast<std::int64_t>(value);
        hash_.add(&number, sizeof(number));
    }
    template <typename T>
    void add(const std::vector<T>& values) {
        add(values.size());
        for (const T& value : values) add(value);
    }

    Hash& hash_;
    std::string_view owner_;
    std::int64_t index_ = 0;
};

void put_rope(const RopeConfig& rope, std::int64_t layer, Fields& fields) {
    const auto& [scaling, theta, factor, low_freq, high_freq, original, beta_fast, beta_slow, attention_factor, mscale,
                 mscale_all, truncate, rotary_dims, query_growth, score_scale, interleaved, short_factors, long_factors,
                 head_dim] = rope;
    const RopeConfig usual;
    fields.begin("rope", layer);
    fields.put("scaling", scaling, usual.scaling);
    fields.put("theta", theta, usual.theta);
    fields.put("factor", factor, usual.factor);
    fields.put("low_freq_factor", low_freq, usual.low_freq_factor);
    fields.put("high_freq_factor", high_freq, usual.high_freq_factor);
    fields.put("original_max_positions", original, usual.original_max_positions);
    fields.put("beta_fast", beta_fast, usual.beta_fast);
    fields.put("beta_slow", beta_slow, usual.beta_slow);
    fields.put("attention_factor", attention_factor, usual.attention_factor);
    fields.put("mscale", mscale, usual.mscale);
    fields.put("mscale_all_dim", mscale_all, usual.mscale_all_dim);
    fields.put("truncate", truncate, usual.truncate);
    fields.put("rotary_dims", rotary_dims, usual.rotary_dims);
    fields.put("query_growth", query_growth, usual.query_growth);
    fields.put("score_scale", score_scale, usual.score_scale);
    fields.put("interleaved", interleaved, usual.interleaved);
    fields.put("short_factors", short_factors, usual.short_factors);
    fields.put("long_factors", long_factors, usual.long_factors);
    fields.put("head_dim", head_dim, usual.head_dim);
}

void put_experts(const ExpertConfig& experts, std::int64_t layer, Fields& fields) {
    const auto& [count, per_token, score, scale, normalized, num_groups, best_groups, corrected, bias, stack, own_norms,
                 shared_gate, latent_size] = experts;
    const ExpertConfig usual;
    fields.begin("experts", layer);
    fields.put("count", count, usual.count);
    fields.put("per_token", per_token, usual.per_token);
    fields.put("score", score, usual.score);
    fields.put("scale", scale, usual.scale);
    fields.put("normalized", normalized, usual.normalized);
    fields.put("num_groups", num_groups, usual.num_groups);
    fields.put("best_groups", best_groups, usual.best_groups);
    fields.put("corrected", corrected, usual.corrected);
    fields.put("bias", bias, usual.bias);
    fields.put("stack", stack, usual.stack);
    fields.put("own_norms", own_norms, usual.own_norms);
    fields.put("shared_gate", shared_gate, usual.shared_gate);
    fields.put("latent_size", latent_size, usual.latent_size);
}

void put_layer(const LayerConfig& layer, std::int64_t index, Fields& fields) {
    const auto& [norm, norm_place, activation, gated, qkv_bias, output_bias, mlp_bias, head_norm, whole_norm,
                 query_norm_scale, block_scale, value_norm, keys_are_values, output_scale, sinks, output_gate, linear,
                 window, head_dim, num_kv_heads, rope, experts, shares_kv, intermediate, has_mlp, parallel, block] =
        layer;
    const LayerConfig usual;
    fields.begin("layer", index);
    fields.put("norm", norm, usual.norm);
    fields.put("norm_place", norm_place, usual.norm_place);
    fields.put("activation", activation, usual.activation);
    fields.put("gated", gated, usual.gated);
    fields.put("qkv_bias", qkv_bias, usual.qkv_bias);
    fields.put("output_bias", output_bias, usual.output_bias);
    fields.put("mlp_bias", mlp_bias, usual.mlp_bias);
    fields.put("head_norm", head_norm, usual.head_norm);
    fields.put("whole_norm", whole_norm, usual.whole_norm);
    fields.put("query_norm_scale", query_norm_scale, usual.query_norm_scale);
    fields.put("block_scale", block_scale, usual.block_scale);
    fields.put("value_norm", value_norm, usual.value_norm);
    fields.put("keys_are_values", keys_are_values, usual.keys_are_values);
    fields.put("output_scale", output_scale, usual.output_scale);
    fields.put("sinks", sinks, usual.sinks);
    fields.put("output_gate", output_gate, usual.output_gate);
    fields.put("linear", linear, usual.linear);
    fields.put("attention_window", window, usual.attention_window);
    fields.put("head_dim", head_dim, usual.head_dim);
    fields.put("num_kv_heads", num_kv_heads, usual.num_kv_heads);
    fields.put("shares_kv", shares_kv, usual.shares_kv);
    fields.put("intermediate_size", intermediate, usual.intermediate_size);
    fields.put("has_mlp", has_mlp, usual.has_mlp);
    fields.put("parallel", parallel, usual.parallel);
    fields.put("block", block, usual.block);
    put_rope(rope, index, fields);
    put_experts(experts, index, fields);
}

void put_latent(const LatentConfig& latent, Fields& fields) {
    const auto& [query_rank, kv_rank, nope_dim, rope_dim, value_dim, interleaved] = latent;
    const LatentConfig usual;
    fields.begin("latent");
    fields.put("query_rank", query_rank, usual.query_rank);
    fields.put("kv_rank", kv_rank, usual.kv_rank);
    fields.put("nope_dim", nope_dim, usual.nope_dim);
    fields.put("rope_dim", rope_dim, usual.rope_dim);
    fields.put("value_dim", value_dim, usual.value_dim);
    fields.put("interleaved", interleaved, usual.interleaved);
}

void put_linear(const LinearAttentionConfig& linear, Fields& fields) {
    const auto& [rule, num_key_heads, num_value_heads, num_groups, key_dim, value_dim, taps, filter_bias, fused] =
        linear;
    const LinearAttentionConfig usual;
    fields.begin("linear");
    fields.put("rule", rule, usual.rule);
    fields.put("num_key_heads", num_key_heads, usual.num_key_heads);
    fields.put("num_value_heads", num_value_heads, usual.num_value_heads);
    fields.put("num_groups", num_groups, usual.num_groups);
    fields.put("key_dim", key_dim, usual.key_dim);
    fields.put("value_dim", value_dim, usual.value_dim);
    fields.put("taps", taps, usual.taps);
    fields.put("filter_bias", filter_bias, usual.filter_bias);
    fields.put("fused", fused, usual.fused);
}

void put_files(const TensorLayout& files, Fields& fields) {
    const auto& [norm_adds_one, qkv, fused_gate_up, by_columns] = files;
    const TensorLayout usual;
    fields.begin("files");
    fields.put("norm_adds_one", norm_adds_one, usual.norm_adds_one);
    fields.put("qkv", qkv, usual.qkv);
    fields.put("fused_gate_up", fused_gate_up, usual.fused_gate_up);
    fields.put("by_columns", by_columns, usual.by_columns);
}

/// Without `dtype`, which is shown, but decides nothing.
void put_model(const ModelConfig& config, Fields& fields) {
    const auto& [vocab, hidden, intermediate, expert_intermediate, shared_intermediate, layer_embedding, num_layers,
                 num_heads, num_kv_heads, head_dim, latent, linear, max_positions, embedding, norm_eps,
                 learned_positions, first_position_row, tied_embeddings, head_bias, embedding_scale,
                 rounds_embedding_scale, logits_scale, logit_cap, score_cap, layers, files, dtype, quantization,
                 eos_ids, model_type] = config;
    const ModelConfig usual;
    fields.begin("model");
    fields.put("vocab_size", vocab, usual.vocab_size);
    fields.put("hidden_size", hidden, usual.hidden_size);
    fields.put("intermediate_size", intermediate, usual.intermediate_size);
    fields.put("expert_intermediate_size", expert_intermediate, usual.expert_intermediate_size);
    fields.put("shared_intermediate_size", shared_intermediate, usual.shared_intermediate_size);
    fields.put("layer_embedding_size", layer_embedding, usual.layer_embedding_size);
    fields.put("num_layers", num_layers, usual.num_layers);
    fields.put("num_heads", num_heads, usual.num_heads);
    fields.put("num_kv_heads", num_kv_heads, usual.num_kv_heads);
    fields.put("head_dim", head_dim, usual.head_dim);
    fields.put("max_positions", max_positions, usual.max_positions);
    fields.put("embedding_size", embedding, usual.embedding_size);
    fields.put("norm_eps", norm_eps, usual.norm_eps);
    fields.put("learned_positions", learned_positions, usual.learned_positions);
    const std::int64_t usual_row = learned_positions ? 2 : 0;  // before GPT-2, only OPT had learned positions
    fields.put("first_position_row", first_position_row, usual_row);
    fields.put("tied_embeddings", tied_embeddings, usual.tied_embeddings);
    fields.put("head_bias", head_bias, usual.head_bias);
    fields.put("embedding_scale", embedding_scale, usual.embedding_scale);
    fields.put("rounds_embedding_scale", rounds_embedding_scale, usual.rounds_embedding_scale);
    fields.put("logits_scale", logits_scale, usual.logits_scale);
    fields.put("logit_cap", logit_cap, usual.logit_cap);
    fields.put("score_cap", score_cap, usual.score_cap);
    fields.put("quantization", quantization, usual.quantization);
    fields.put("eos_ids", eos_ids, usual.eos_ids);
    fields.put("model_type", model_type, usual.model_type);
    put_files(files, fields);
    put_latent(latent, fields);
    put_linear(linear, fields);
    for (std::int64_t at = 0; at < num_layers; ++at) put_layer(config.layer(at), at, fields);
}

}  // namespace

std::uint64_t model_fingerprint(const ModelConfig& config, std::uint64_t weights) {
    Hash hash;
    Fields fields(hash);
    put_model(config, fields);
    hash.add(&weights, sizeof(weights));
    return hash.value();
}

}  // namespace longhaul::engine
