#include "engine/model/tensor_faults.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/model/safetensors.hpp"
#include "engine/model/split.hpp"
#include "engine/model/stored_matrix.hpp"
#include "engine/model/tensor_names.hpp"
#include "engine/model/weight_plan.hpp"
#include "engine/model/weights.hpp"

namespace longhaul::engine {

std::vector<std::string> tensor_faults(const std::vector<WeightPlan>& plans, const NumberedTensors& numbered,
                                       const SafetensorsFolder& tensors) {
    std::vector<std::string> faults;
    const std::string& prefix = numbered.prefix;
    for (const auto& [name, view] : tensors.tensors()) {
        if (prefix.empty() || !name.starts_with(prefix)) continue;
        std::int64_t number = -1;
        std::from_chars(name.data() + prefix.size(), name.data() + name.size(), number);
        if (number < numbered.count) continue;
        const std::string prefix_of_item = prefix + std::to_string(number) + ".";
        if (!numbered.marker.empty() && tensors.contains(prefix_of_item + numbered.marker)) continue;
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
    if (experts.stacked() && number >= 0) return {"one tensor for all experts", "one for each", ""};
    if (!experts.stacked() && number < 0)
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
    if (part == names.output + ".bias") return !kind.output_bias && !is_zero(tensor);
    return !kind.head_norm && !kind.whole_norm &&
           (part.starts_with(names.query_norm + ".") || part.starts_with(names.key_norm + "."));
}

/// The same of an MLP.
bool contradicts_config_of_mlp(const std::string& part, const TensorView& tensor, const TensorNames& names,
                               const LayerConfig& kind) {
    if (kind.experts.count > 0 || kind.mlp_bias) return false;
    const auto is_bias = [&](const std::string& matrix) { return part == matrix + ".bias"; };
    const bool of_mlp = is_bias(names.down) || std::any_of(names.up.begin(), names.up.end(), is_bias);
    return of_mlp && !is_zero(tensor);
}

std::string unexpected(const std::pair<const std::string, TensorView>& tensor) {
    return InputError::format(tensor.second.file, tensor.first, "none of that name, as config.json says", "one", "");
}

/// Biases of Mamba-2 that config.json says are not there.
void add_mamba_faults(const ModelConfig& config, const SafetensorsFolder& tensors, std::vector<std::string>& faults) {
    if (config.linear.rule != kernels::StateRule::sum) return;
    const TensorNames& names = tensor_names(config);
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        if (!config.layer(at).linear) continue;
        const std::string layer = names.attention_prefix(config.layer(at), at) + names.linear;
        for (const char* bias : {"conv1d.bias", "in_proj.bias", "out_proj.bias"}) {
            const auto found = tensors.tensors().find(layer + bias);
            const bool is_read = config.linear.filter_bias && bias == std::string_view("conv1d.bias");
            if (found != tensors.tensors().end() && !is_read) faults.push_back(unexpected(*found));
        }
    }
}

/// Biases where config.json and the family say that there are none, in files that count attention and MLPs.
void add_block_faults(const ModelConfig& config, const SafetensorsFolder& tensors, std::vector<std::string>& faults) {
    const TensorNames& names = tensor_names(config);
    for (const auto& tensor : tensors.tensors()) {
        const auto& [name, view] = tensor;
        const bool is_read = config.linear.filter_bias && name.ends_with(names.linear + "conv1d.bias");
        const bool is_bias = name.starts_with(names.layers) && name.ends_with(".bias") && !is_read;
        if (is_bias && !is_zero(view)) faults.push_back(unexpected(tensor));
    }
}

/// Biases and norms of layers' heads that config.json says are not there: the layers would run and produce nonsense.
void add_denied_tensors(const ModelConfig& config, const SafetensorsFolder& tensors, std::vector<std::string>& faults) {
    const TensorNames& names = tensor_names(config);
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const LayerConfig& kind = config.layer(at);
        const std::string layer = names.attention_prefix(kind, at);
        for (auto it = tensors.tensors().lower_bound(layer); it != tensors.tensors().end(); ++it) {
            const auto& [name, view] = *it;
            if (!name.starts_with(layer)) break;
            const std::string part = name.substr(layer.size());
            const bool has_heads = !kind.linear && !config.has_latent_attention();
            if ((has_heads && contradicts_config(part, view, names, kind)) ||
                contradicts_config_of_mlp(part, view, names, kind))
                faults.push_back(unexpected(*it));
        }
    }
}

/// What else the layers of a mixture of experts have in the files, without which they would run and produce nonsense.
void add_expert_faults(const ModelConfig& config, const SafetensorsFolder& tensors, std::vector<std::string>& faults) {
    const TensorNames& names = tensor_names(config);
    for (std::int64_t at = 0; at < config.num_layers; ++at) {
        const LayerConfig& kind = config.layer(at);
        if (!kind.has_mlp) continue;
        const std::string layer = names.mlp_prefix(kind, at);
        const std::string experts = layer + names.experts;
        if (kind.experts.count == 0) {
            const auto found = tensors.tensors().lower_bound(experts);
            if (found != tensors.tensors().end() && found->first.starts_with(experts))
                faults.push_back(unexpected(*found));
            continue;
        }
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
            if (kind.experts.stacked() && tensors.contains(name + "_blocks"))
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
    if (config.layers.front().block < 0) {
        add_denied_tensors(config, tensors, faults);
        add_mamba_faults(config, tensors, faults);
    } else {
        add_block_faults(config, tensors, faults);
    }
    const TensorNames& names = tensor_names(config);
    const std::string other_layer = names.has_numbered_mtp() ? names.mtp.fusion + ".weight" : names.unread_layer;
    for (std::string& fault :
         tensor_faults(plan_weights(config, Split(config, 0, 1), {}, weights),
                       {names.layers, "layer", "num_hidden_layers", config.num_blocks(), other_layer}, tensors))
        faults.push_back(std::move(fault));
    return faults;
}

}  // namespace longhaul::engine
