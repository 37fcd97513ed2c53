// Plans of a layer's MLP, or of its router, its experts and the shared expert.
#include <cmath>
#include <utility>

#include "engine/model/weight_plan_builder.hpp"

namespace longhaul::engine {
namespace {

/// Width of an MLP, whole and on this rank.
struct MlpWidth {
    std::int64_t whole, local;
};

class MlpPlanner {
  public:
    MlpPlanner(PlanBuilder& plans, const PlannedLayer& layer)
        : plans_(plans),
          config_(plans.config),
          split_(plans.split),
          names_(plans.names),
          layer_(layer),
          experts_(layer.kind.experts) {}

    void add_dense() {
        const MlpWidth width{config_.mlp_width(layer_.kind), split_.mlp_width(layer_.kind)};
        add_mlp(names_.up, names_.down, width);
        if (!layer_.kind.mlp_bias) return;
        plans_.vector(layer_.name + "gate_up_bias", layer_.weights.gate_up_bias,
                      gate_up(layer_.mlp_from, names_.up, ".bias", 1, width));
        plans_.vector(layer_.name + "down_bias", layer_.weights.down_bias,
                      {whole(layer_.mlp_from + names_.down + ".bias", config_.hidden_size)});
    }

    void add_shared_expert() {
        add_mlp(names_.shared_up, names_.shared_down, {config_.shared_intermediate_size, split_.shared_intermediate});
    }

    /// The router is small and decides which experts a row has, so it is not quantized.
    void add_router() {
        std::vector<TensorPart> rows{rows_of(layer_.mlp_from + names_.router + ".weight", experts_.count,
                                             config_.hidden_size, 0, experts_.count)};
        if (experts_.shared_gate)
            rows.push_back(rows_of(layer_.mlp_from + names_.shared_gate + ".weight", 1, config_.hidden_size, 0, 1));
        plans_.column_parallel(layer_.name + "router", layer_.weights.router, kernels::act_type(plans_.types.layers),
                               std::move(rows));
        if (experts_.corrected) add_score_correction();
        if (experts_.bias) vector("router_bias", layer_.weights.router_bias, names_.router + ".bias", experts_.count);
    }

    void add_experts() {
        layer_.weights.experts.resize(static_cast<std::size_t>(experts_.count));
        if (experts_.latent_size > 0) add_latents();
        const std::size_t first = plans_.plans().size();
        if (experts_.bias) add_expert_biases();
        for (std::int64_t number = 0; number < experts_.count; ++number) add_expert(number);
        for (std::size_t i = first; i < plans_.plans().size(); ++i) plans_.plans()[i].of_experts = experts_;
        plans_.plans().back().completes = &layer_.weights;  // the last of them
    }

    /// ExpertConfig::own_norms.
    void add_norms() {
        LayerWeights& w = layer_.weights;
        w.router_norm.eps = static_cast<float>(config_.norm_eps);
        vector("router_norm", w.router_norm.gain, names_.router_norm, config_.hidden_size).scale =
            static_cast<float>(1.0 / std::sqrt(static_cast<double>(config_.hidden_size)));
        vector("expert_scales", w.expert_scales, names_.expert_scales, experts_.count);
        norm("expert_norm", w.expert_norm, names_.expert_norm);
        norm("expert_out_norm", w.expert_out_norm, names_.expert_out_norm);
        norm("shared_out_norm", w.shared_out_norm, names_.shared_out_norm);
    }

  private:
    void add_score_correction() {
        TensorPart part = whole(layer_.mlp_from + names_.score_correction, experts_.count);
        if (names_.has_one_group_of_corrections) part.stack = {.count = 1};
        plans_.vector(layer_.name + "score_correction", layer_.weights.score_correction, {std::move(part)});
    }

    void add_mlp(const std::vector<std::string>& up, const std::string& down, MlpWidth width) {
        plans_
            .column_parallel(layer_.name + "gate_up", layer_.weights.gate_up, plans_.types.layers,
                             gate_up(layer_.mlp_from, up, ".weight", config_.hidden_size, width))
            .gated = layer_.kind.gated && !layer_.kind.mlp_bias;
        plans_.row_parallel(layer_.name + "down", layer_.weights.down, layer_.mlp_from + down + ".weight", width.whole,
                            width.local);
    }

    void add_latents() {
        const std::int64_t hidden = config_.hidden_size, latent = experts_.latent_size;
        plans_.replicated(layer_.name + "expert_latent_down", layer_.weights.expert_latent_down, plans_.types.layers,
                          layer_.mlp_from + names_.expert_latent_down, latent, hidden);
        plans_.replicated(layer_.name + "expert_latent_up", layer_.weights.expert_latent_up, plans_.types.layers,
                          layer_.mlp_from + names_.expert_latent_up, hidden, latent);
    }

    void add_expert(std::int64_t number) {
        const bool stacked = experts_.stacked();
        const std::int64_t inputs = config_.expert_hidden_size(experts_);
        const std::string name = layer_.name + "experts." + std::to_string(number) + ".";
        const std::string from = layer_.mlp_from + names_.experts + (stacked ? "" : std::to_string(number) + ".");
        const StackPlace place{stacked ? experts_.count : 0, number, experts_.stack == ExpertStack::rows};
        Expert& expert = layer_.weights.experts[static_cast<std::size_t>(number)];
        plans_.column_parallel(name + "gate_up", expert.gate_up, plans_.types.layers,
                               stacked ? stacked_gate_up(from + names_.stacked_up, inputs, place)
                                       : gate_up(from, names_.expert_up, ".weight", inputs, expert_width_));
        plans_
            .row_parallel(name + "down", expert.down, from + names_.expert_down + (stacked ? "" : ".weight"),
                          expert_width_.whole, expert_width_.local, inputs)
            .parts.front()
            .stack = place;
    }

    /// Of all experts, which are in stacks: those of an expert's two matmuls, one expert after another.
    void add_expert_biases() {
        const std::string from = layer_.mlp_from + names_.experts;
        std::vector<TensorPart> up, down;
        for (std::int64_t number = 0; number < experts_.count; ++number) {
            const StackPlace place{experts_.count, number};
            for (TensorPart& part : stacked_gate_up(from + names_.stacked_up + "_bias", 1, place))
                up.push_back(std::move(part));
            down.push_back(whole(from + names_.expert_down + "_bias", config_.hidden_size));
            down.back().stack = place;
        }
        plans_.vector(layer_.name + "experts_up_bias", layer_.weights.experts_up_bias, std::move(up));
        plans_.vector(layer_.name + "experts_down_bias", layer_.weights.experts_down_bias, std::move(down));
    }

    /// Gate rows, then up rows, of a stack's matrix.
    [[nodiscard]] std::vector<TensorPart> stacked_gate_up(const std::string& tensor, std::int64_t columns,
                                                          StackPlace place) const {
        const MlpWidth width = expert_width_;
        const bool alternate = experts_.stack == ExpertStack::alternating;
        std::vector<TensorPart> parts;
        for (const std::int64_t first : {0, 1}) {
            const std::int64_t mine = split_.rank * width.local;
            TensorPart& part =
                parts.emplace_back(rows_of(tensor, 2 * width.whole, columns,
                                           alternate ? 2 * mine + first : first * width.whole + mine, width.local));
            part.row_step = alternate ? 2 : 1;
            part.end_row = alternate ? 0 : (first + 1) * width.whole;
            part.stack = place;
        }
        return parts;
    }

    [[nodiscard]] std::vector<TensorPart> gate_up(const std::string& from, const std::vector<std::string>& tensors,
                                                  const char* suffix, std::int64_t columns, MlpWidth width) const {
        std::vector<TensorPart> parts;
        const std::int64_t first = split_.rank * width.local;
        for (const std::string& tensor : tensors) {
            if (!config_.files.fused_gate_up) {
                parts.push_back(rows_of(from + tensor + suffix, width.whole, columns, first, width.local));
                continue;
            }
            for (const std::int64_t before : {std::int64_t{0}, width.whole}) {
                parts.push_back(rows_of(from + tensor + suffix, 2 * width.whole, columns, before + first, width.local));
                parts.back().end_row = before + width.whole;
            }
        }
        return parts;
    }

    WeightPlan& vector(const char* name, kernels::Buffer& to, const std::string& tensor, std::int64_t size) {
        return plans_.vector(layer_.name + name, to, {whole(layer_.mlp_from + tensor, size)});
    }
    void norm(const char* name, Norm& to, const std::string& tensor) {
        plans_.norm(layer_.name + name, to, layer_.mlp_from + tensor, layer_.kind.norm);
    }

    PlanBuilder& plans_;
    const ModelConfig& config_;
    const Split& split_;
    const TensorNames& names_;
    const PlannedLayer& layer_;
    const ExpertConfig& experts_;
    const MlpWidth expert_width_{config_.expert_intermediate_size, split_.expert_intermediate};
};

}  // namespace

void plan_mlp(PlanBuilder& plans, const PlannedLayer& layer) {
    if (!layer.kind.has_mlp) return;
    MlpPlanner mlp(plans, layer);
    if (layer.kind.experts.count == 0) return mlp.add_dense();
    mlp.add_router();
    mlp.add_experts();
    if (plans.config.shared_intermediate_size > 0) mlp.add_shared_expert();
    if (layer.kind.experts.own_norms) mlp.add_norms();
}

}  // namespace longhaul::engine
