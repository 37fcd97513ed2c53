// Mixture of experts: which experts compute which rows of a pass, and with which weights their outputs are added.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/config.hpp"
#include "kernels/device.hpp"

namespace longhaul::engine {

/// The rows of a pass, copied once for each of their experts and sorted by expert, so that an expert's rows stand
/// together. What a row gets depends on its own logits alone, and is added in ascending order of experts: the result
/// has the same bits beside any other rows.
struct ExpertRouting {
    std::vector<std::int32_t> rows;          ///< of the pass, one per copy
    std::vector<std::int32_t> experts;       ///< one per copy
    std::vector<std::int64_t> first_copies;  ///< [experts + 1]: expert e has copies first_copies[e] to [e + 1] - 1
    /// [pass rows, ExpertConfig::num_terms]: copies to add up. With a gate, a row's last term is the row of the shared
    /// expert, behind all copies.
    std::vector<kernels::WeightedRow> terms;
};

/// Each row goes to the experts with its highest logits (ExpertConfig::corrected: scores plus `correction`), in the
/// best groups if there are several; of equal ones the lower wins, and NaN counts as -infinity. Weights are
/// experts.scale times the scores, which sum to 1 over the chosen ones if `experts.normalized`; NaN in a row that has
/// NaN or +infinity. Then they are multiplied by the experts' `scales`, if there are any. logits: [rows,
/// ExpertConfig::num_logits], correction and scales: [experts], host memory.
ExpertRouting route(std::span<const float> logits, const ExpertConfig& experts, std::span<const float> correction = {},
                    std::span<const float> scales = {});

}  // namespace longhaul::engine
