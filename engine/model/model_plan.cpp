#include "engine/model/model_plan.hpp"

#include <xxhash.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "engine/model/latent_attention.hpp"
#include "engine/model/linear_attention.hpp"
#include "engine/model/stored_matrix.hpp"
#include "engine/model/tensor_names.hpp"
#include "kernels/numerics.hpp"

namespace longhaul::engine {
namespace {

using kernels::DType;

}  // namespace

WeightTypes weight_types(Precision precision) {
    switch (precision) {
        case Precision::bf16:
            return {DType::bf16, DType::bf16};
        case Precision::fp32:
            return {DType::f32, DType::f32};
        case Precision::int8:
            return {DType::int8, DType::int8};
        case Precision::int4:
            return {DType::int4, DType::int8};
    }
    throw std::logic_error("no such precision");
}

std::vector<kernels::KvLayout> kv_layouts_of(const ModelConfig& config, const Split& split, DType dtype) {
    constexpr std::int64_t max_int8_dims = 512;
    if (dtype == DType::int8 && config.widest_head() > max_int8_dims) {
        throw UsageError("kv-precision: expected bf16 or fp32 for heads of " + std::to_string(config.widest_head()) +
                         " dimensions, got int8, which goes up to " + std::to_string(max_int8_dims));
    }
    std::vector<kernels::KvLayout> layouts;
    for (const ModelConfig::LayerGroup& group : config.layer_groups())
        layouts.push_back({.dtype = dtype,
                           .num_layers = 0,
                           .group = std::ssize(layouts),
                           .window = group.window,
                           .num_kv_heads = group.linear ? 0 : split.kv_heads(group.heads),
                           .head_dim = group.heads.dim,
                           .delta = group.linear ? split.delta : kernels::DeltaShape{}});
    for (const LayerPlace& place : config.places_of_layers()) layouts[place.group].num_layers = place.index + 1;
    return layouts;
}

std::vector<std::string> tensor_faults(const std::vector<WeightPlan>& plans, const NumberedTensors& numbered,
                                       const SafetensorsFolder& tensors) {
    std::vector<std::string> faults;
    const std::string& prefix = numbered.prefix;
    for (const auto& [name, view] : tensors.tensors()) {
        if (!name.starts_with(prefix)) continue;
        std::int64_t number = -1;
        std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
        if (number < numbered.count) continue;
        const std::string prefix_of_item = prefix + std::to_string(number) + ".";
        if (!numbered.mtp_marker.empty() && tensors.contains(prefix_of_item + numbered.mtp_marker)) continue;
        faults.push_back(InputError::format(
            view.file, name,
            numbered.what + "s 0 to " + std::to_string(numbered.count - 1) + ", as " + numbered.key + " says",
            numbered.what + " " + std::to_string(number), ""));
    }
    std::set<std::string> of_tensors;  // several parts may be of one tensor
    std::set<const TensorView*> with_groups{nullptr};
    for (const WeightPlan& plan : plans) {
        for (const TensorPart& part : plan.parts) {
            try {
                if (plan.matrix != nullptr) {
                    const MatrixView view = require_matrix(tensors, part.tensor, part.rows, part.columns, part.stack);
                    if (view.form == StoredForm::grouped && with_groups.insert(view.groups.group_of_column).second)
                        check_groups(view.groups);
                } else {
                    static_cast<void>(tensors.require(part.tensor, part.vector_shape()));
                }
            } catch (const InputError& error) {
                if (of_tensors.insert(error.what()).second) faults.emplace_back(error.what());
            }
        }
    }
    return faults;
}

namespace {

/// Why a tensor below the experts of a layer has no place there; "" if it has.
struct Misfit {
    std::string expected, got, fix;
};
Misfit misfit_of(const std::string& part, const ExpertConfig& experts) {
    std::int64_t number = -1;
    std::from_chars(part.data(), part.data() + part.size(), number);
    if (experts.stacked && number >= 0) return {"one tensor for all experts", "one for each", ""};
    if (!experts.stacked && number < 0)
        return {"a tensor for each expert, numbered from 0", "one for all", "save the model in its published form"};
    if (number >= experts.count)
        return {"experts 0 to " + std::to_string(experts.count - 1) + ", as config.json says",
                "expert " + std::to_string(number), ""};
    return {};
}

bool is_zero(const TensorView& tensor) {
    if (!is_float(tensor.dtype) || tensor.shape.size() != 1) return false;
    for (std::int64_t i = 0; i < tensor.shape.front(); ++i) {
        if (element_of(tensor, i) != 0.0F) return false;
    }
    return true;
}

/// Whether config.json says that attention (not a latent one, which has no such choices) does not have this tensor.
/// Some GPTQ folders have zeros as biases.
bool contradicts_config(const std::string& part, const TensorView& tensor, const TensorNames& names,
                        const LayerConfig& kind) {
    for (const std::string* matrix : {&names.query, &names.key, &names.value}) {
        if (part == *matrix + ".bias") return !kind.qkv_bias && !is_zero(tensor);
    }
    return !kind.head_norm && !kind.whole_norm &&
           (part == names.query_norm + ".weight" || part == names.key_norm + ".weight");
}

/// What else the layers of a mixture of experts have in the files, without which they would run and produce nonsense.
void add_expert_faults(const ModelConfig& config, const SafetensorsFolder& tensors, std::vector<std::string>& faults) {
    const TensorNames& names = tensor_names(config);
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const LayerConfig& kind = config.layer(at);
        if (kind.experts.count == 0) continue;
        const std::string layer = names.layers + std::to_string(at) + ".";
        const std::string experts = layer + names.experts;
        for (auto it = tensors.tensors().lower_bound(layer); it != tensors.tensors().end(); ++it) {
            const auto& [name, view] = *it;
            if (!name.starts_with(layer)) break;
            const bool reads_shared =
                config.shared_intermediate_size > 0 &&
                (name.starts_with(layer + names.shared_down.substr(0, names.shared_down.rfind('.') + 1)) ||
                 (kind.experts.shared_gate && name.starts_with(layer + names.shared_gate + ".")));
            if (name.starts_with(layer + names.any_shared) && !reads_shared)
                faults.push_back(InputError::format(view.file, name, "routed experts alone", "a shared expert",
                                                    "not in this version"));
            if (!config.has_latent_attention() && contradicts_config(name.substr(layer.size()), view, names, kind))
                faults.push_back(
                    InputError::format(view.file, name, "none of that name, as config.json says", "one", ""));
            if (kind.experts.stacked && tensors.contains(name + "_blocks"))
                faults.push_back(
                    InputError::format(view.file, name, "either floats or " + name + "_blocks", "both", ""));
            if (!name.starts_with(experts)) continue;
            const Misfit misfit = misfit_of(name.substr(experts.size()), kind.experts);
            if (!misfit.expected.empty())
                faults.push_back(InputError::format(view.file, name, misfit.expected, misfit.got, misfit.fix));
        }
    }
}

}  // namespace

std::vector<std::string> tensor_faults(const ModelConfig& config, const SafetensorsFolder& tensors) {
    Weights weights;
    std::vector<std::string> faults;
    add_expert_faults(config, tensors, faults);
    for (std::string& fault : tensor_faults(plan_weights(config, Split(config, 0, 1), {}, weights),
                                            {tensor_names(config).layers, "layer", "num_hidden_layers",
                                             config.num_layers, tensor_names(config).mtp_marker},
                                            tensors))
        faults.push_back(std::move(fault));
    return faults;
}

std::int64_t packed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                 const kernels::Device& device) {
    Weights weights;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_weights(config, split, weight_types(precision), weights)) {
        bytes += static_cast<std::int64_t>(plan.packed_bytes(device));
    }
    return bytes;
}

std::int64_t streamed_weight_bytes(const ModelConfig& config, const Split& split, Precision precision,
                                   const kernels::Device& device) {
    Weights weights;
    std::int64_t bytes = 0;
    for (const WeightPlan& plan : plan_weights(config, split, weight_types(precision), weights)) {
        const bool is_table = plan.matrix == &weights.positions || plan.matrix == &weights.layer_embedding ||
                              (plan.matrix == &weights.embedding && !config.tied_embeddings);
        if (is_table) continue;
        const double share = plan.of_experts.count > 0 ? read_share(plan.of_experts, 1) : 1.0;
        bytes += std::llround(share * static_cast<double>(plan.packed_bytes(device)));
    }
    return bytes;
}

namespace {

struct NumParameters {
    std::int64_t all = 0, active = 0;
};

NumParameters count_parameters(const ModelConfig& config) {
    Weights weights;
    NumParameters count;
    std::set<std::string_view> counted;  // several parts may be of one tensor
    const std::vector<WeightPlan> plans = plan_weights(config, Split(config, 0, 1), {}, weights);
    ExpertConfig experts;  // all layers that have any have as many
    std::int64_t in_experts = 0;
    for (const WeightPlan& plan : plans) {
        if (plan.of_experts.count > 0) experts = plan.of_experts;
        for (const TensorPart& part : plan.parts) {
            if (!counted.insert(part.tensor).second) continue;
            const std::int64_t size = std::max<std::int64_t>(part.stack.count, 1) * part.rows * part.columns;
            count.all += size;
            if (plan.of_experts.count > 0) in_experts += size;
        }
    }
    count.active = count.all;
    if (experts.count > 0) count.active -= in_experts / experts.count * (experts.count - experts.per_token);
    return count;
}

}  // namespace

std::int64_t num_parameters(const ModelConfig& config) {
    return count_parameters(config).all;
}

std::int64_t num_active_parameters(const ModelConfig& config) {
    return count_parameters(config).active;
}

std::int64_t widest_matrix(const ModelConfig& config, const Split& split) {
    const LatentConfig& latent = config.latent;
    const std::int64_t projected =
        config.has_latent_attention() ? std::max(latent.query_rank, split.num_heads * latent.query_dim()) : 0;
    const kernels::DeltaShape& delta = split.delta;
    const std::int64_t linear = delta.num_key_heads * (delta.channels() + delta.values_width());
    std::int64_t widest = std::max({projected, linear, split.padded_hidden, config.layer_embeddings_width()});
    for (const LayerConfig& layer : config.layers) {
        if (!config.has_latent_attention()) widest = std::max(widest, split.qkv_width(config.heads(layer)));
        widest = std::max(widest, split.up_width(layer));
    }
    return widest;
}

std::int64_t pass_bytes(const ModelConfig& config, const Split& split, Precision precision, std::int64_t rows,
                        std::int64_t logit_rows) {
    constexpr std::int64_t f32 = 4;
    const auto act = static_cast<std::int64_t>(kernels::bytes_of(kernels::act_type(weight_types(precision).layers)));
    const std::int64_t width = std::max(split.padded_hidden, kernels::padded_inputs(config.embedding_width()));
    std::int64_t queries = 0, qkv = 0, experts_of_row = 0, shared_rows = 0, router_outputs = 0;
    std::int64_t widest_mlp = std::max(split.shared_intermediate, kernels::padded_inputs(config.layer_embedding_size));
    bool has_biases = false, has_whole_norm = false;
    for (const LayerConfig& layer : config.layers) {
        queries = std::max(queries, split.query_width(config.heads(layer)));
        qkv = std::max(qkv, split.qkv_width(config.heads(layer)));
        has_biases = has_biases || layer.experts.bias;
        has_whole_norm = has_whole_norm || layer.whole_norm;
        experts_of_row = std::max(experts_of_row, layer.experts.per_token);
        shared_rows = std::max(shared_rows, layer.experts.num_terms() - layer.experts.per_token);
        router_outputs = std::max(router_outputs, layer.experts.num_logits());
        if (layer.experts.count == 0) widest_mlp = std::max(widest_mlp, split.mlp_width(layer));
    }
    // Each expert of a row has a copy of it, the sums of its two matmuls, the input of the second, and its biases.
    const std::int64_t of_biases = has_biases ? f32 * std::max(2 * split.expert_intermediate, config.hidden_size) : 0;
    const std::int64_t of_experts =
        f32 * router_outputs + f32 * shared_rows * config.hidden_size +
        experts_of_row * (act * split.padded_hidden + (2 * f32 + act) * split.expert_intermediate +
                          f32 * config.hidden_size + of_biases);
    const std::int64_t bytes_per_row =
        2 * f32 * config.hidden_size + act * width + f32 * std::max({widest_matrix(config, split), qkv, width}) +
        f32 * queries + act * std::max(queries, widest_mlp) + of_experts + f32 * config.layer_embeddings_width() +
        (has_whole_norm ? f32 * (config.num_heads + config.num_kv_heads) : 0);
    const std::int64_t of_gates = std::max(f32 * queries, LinearAttention::row_bytes(split.delta));
    const std::int64_t of_latents =
        config.has_latent_attention() ? LatentAttention::bytes(config.latent, split, rows) : 0;
    return rows * (bytes_per_row + (config.has_linear_attention() ? of_gates : 0)) + of_latents +
           logit_rows * f32 * split.vocab;
}

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
    for (const double value : {config.layers.front().query_scale, config.embedding_scale}) writer.put(value);
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
    const bool is_granite = config.model_type == "granite";
    if (is_granite)
        for (const double value : {layer.rope.query_scale, layer.block_scale, config.logits_scale}) writer.put(value);
    if (is_granite || config.model_type == "smollm3" || config.model_type == "seed_oss") writer.put(layer.mlp_bias);
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
    }
    const std::string_view later[] = {"mistral3", "gpt_oss", "glm4_moe", "ministral3", "smollm3",    "seed_oss",
                                      "granite",  "glm4",    "olmo2",    "olmo3",      "minimax_m2", "qwen2_moe"};
    if (std::find(std::begin(later), std::end(later), config.model_type) != std::end(later)) put_blocks(config, writer);
    if (config.model_type.starts_with("gemma4")) put_gemma4(config, writer);
    writer.put(weights);
    return XXH3_64bits(writer.bytes().data(), writer.bytes().size());
}

}  // namespace longhaul::engine
