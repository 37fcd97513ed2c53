#include "engine/model/model_fingerprint.hpp"

#include <xxhash.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <string_view>
#include <vector>

#include "engine/bytes.hpp"

namespace longhaul::engine {
namespace {

/// What distinguishes the layers of the other families.
void put_layers(const ModelConfig& config, ByteWriter& writer) {
    writer.put(config.model_type);
    for (const std::int64_t group : config.groups_of_layers()) writer.put(group);
    for (const ModelConfig::LayerGroup& group : config.layer_groups()) {
        writer.put(group.window);
        writer.put(group.rope.rotary_dims);
        for (const double value : {group.rope.theta, group.rope.factor}) writer.put(value);
        for (const auto* factors : {&group.rope.short_factors, &group.rope.long_factors}) {
            for (const double value : *factors) writer.put(value);
        }
    }
    for (const double value : {config.layers.front().query_norm_scale, config.embedding_scale}) writer.put(value);
    if (config.ropes().size() <= config.layer_groups().size() && config.model_type != "smollm3") return;
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const RopeConfig& rope = config.layer(at).rope;
        writer.put(static_cast<std::int64_t>(rope.scaling));
        for (const double value : {rope.theta, rope.factor}) writer.put(value);
    }
}

/// What also distinguishes those of families that came later.
void put_blocks(const ModelConfig& config, ByteWriter& writer) {
    const LayerConfig& layer = config.layers.front();
    for (const bool value : {layer.qkv_bias, layer.output_bias, layer.head_norm, layer.rope.truncate})
        writer.put(value);
    if (config.rope().query_growth != 0.0) writer.put(config.rope().query_growth);
    const bool is_granite = config.model_type.starts_with("granite");
    if (is_granite)
        for (const double value : {layer.rope.score_scale, layer.block_scale, config.logits_scale}) writer.put(value);
    if (config.model_type.starts_with("cohere")) writer.put(config.logits_scale);
    const std::string_view may_have_biases[] = {"smollm3", "seed_oss", "arcee"};
    if (is_granite || std::find(std::begin(may_have_biases), std::end(may_have_biases), config.model_type) !=
                          std::end(may_have_biases))
        writer.put(layer.mlp_bias);
}

/// Families whose fingerprints are from before put_blocks, and stay valid.
bool is_early(const std::string& model_type) {
    const std::string_view early[] = {
        "llama",       "qwen2",   "qwen3",         "qwen3_moe",   "qwen3_5_text", "qwen3_5",          "qwen3_next",
        "mistral",     "mixtral", "gemma3_text",   "gemma3",      "gemma4_text",  "gemma4",           "phi3",
        "deepseek_v2", "kimi_k2", "glm4_moe_lite", "qwen3_5_moe", "deepseek_v3",  "qwen3_5_moe_text", "opt"};
    return std::find(std::begin(early), std::end(early), model_type) != std::end(early);
}

void put_gemma4(const ModelConfig& config, ByteWriter& writer) {
    put_blocks(config, writer);
    for (const ModelConfig::LayerGroup& group : config.layer_groups()) {
        for (const std::int64_t value : {group.heads.dim, group.heads.num_kv_heads}) writer.put(value);
    }
    writer.put(config.layers.back().keys_are_values);
    writer.put(config.logit_cap);
    const std::int64_t of_e2b[] = {config.layer_embedding_size, config.num_kv_layers(),
                                   config.mlp_width(config.layers.back())};
    if (config.layer_embedding_size > 0 || config.num_kv_layers() < config.num_layers)
        for (const std::int64_t value : of_e2b) writer.put(value);
}

}  // namespace

std::uint64_t model_fingerprint(const ModelConfig& config, std::uint64_t weights) {
    ByteWriter writer;
    const RopeConfig rope = config.rope();
    for (const std::int64_t value :
         {config.vocab_size, config.hidden_size, config.intermediate_size, config.num_layers, config.num_heads,
          config.num_kv_heads, config.head_dim, static_cast<std::int64_t>(config.tied_embeddings),
          static_cast<std::int64_t>(rope.scaling), rope.original_max_positions, config.max_positions}) {
        writer.put(value);
    }
    std::vector<std::int32_t> eos_ids = config.eos_ids;  // they determine where a text ends
    std::sort(eos_ids.begin(), eos_ids.end());
    writer.put(eos_ids);
    for (const double value :
         {config.norm_eps, rope.theta, rope.factor, rope.low_freq_factor, rope.high_freq_factor, rope.beta_fast,
          rope.beta_slow, rope.attention_factor, rope.mscale, rope.mscale_all_dim}) {
        writer.put(value);
    }
    // Nothing more is added for Llama and Qwen2, so that fingerprints from before other families stay valid.
    if (config.model_type == "opt") {
        writer.put(config.model_type);
        const LayerConfig& layer = config.layers.front();
        for (const bool value : {layer.output_bias, layer.norm_place == NormPlace::after}) writer.put(value);
        writer.put(config.embedding_width());
    }
    const bool same_rope = rope.scaling != RopeScaling::longrope && rope.rotary_dims == 0;
    const bool plain_llama = config.model_type == "llama" || config.model_type == "qwen2";
    for (const LayerConfig& layer : config.layers) {
        const ExpertConfig& experts = layer.experts;
        if (experts.count == 0) continue;
        for (const std::int64_t value : {&layer - config.layers.data(), experts.count, experts.per_token,
                                         std::int64_t{experts.normalized}, config.expert_intermediate_size})
            writer.put(value);
        if (experts.num_groups > 1)
            for (const std::int64_t value : {experts.num_groups, experts.best_groups}) writer.put(value);
        if (experts.score == RouterScore::softmax && !config.has_latent_attention() && !experts.shared_gate) continue;
        writer.put(config.shared_intermediate_size);
        writer.put(experts.scale);
    }
    if (config.model_type != "opt" &&
        (!plain_llama || !same_rope || config.layer_groups().front().window > 0 || config.layer_groups().size() > 1))
        put_layers(config, writer);
    if (config.has_latent_attention()) {
        const LatentConfig& latent = config.latent;
        for (const std::int64_t value : {latent.query_rank, latent.kv_rank, latent.nope_dim, latent.rope_dim,
                                         latent.value_dim, std::int64_t{latent.interleaved}})
            writer.put(value);
    }
    if (config.has_linear_attention()) {
        const LinearAttentionConfig& linear = config.linear;
        for (const std::int64_t value :
             {linear.num_key_heads, linear.num_value_heads, linear.key_dim, linear.value_dim, linear.taps})
            writer.put(value);
        if (linear.rule == kernels::StateRule::sum) writer.put(linear.filter_bias);
        if (linear.num_groups > 1) writer.put(linear.num_groups);
    }
    if (!is_early(config.model_type)) put_blocks(config, writer);
    for (const LayerConfig& layer : config.layers) {
        if (layer.block >= 0)
            for (const std::int64_t value : {layer.block, layer.experts.latent_size}) writer.put(value);
    }
    if (config.model_type.starts_with("gemma4")) put_gemma4(config, writer);
    writer.put(weights);
    return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

}  // namespace longhaul::engine
