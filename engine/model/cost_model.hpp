// What a pass of a model costs on this machine, measured in a moment on a few of its layers: the choice of tree sizes
// needs that before anything was decoded.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model.hpp"

namespace longhaul::engine {

class CostModel {
  public:
    /// What one layer and the head take for so many rows at `base_context` positions.
    struct Point {
        std::int64_t rows = 0;
        double layer = 0;        ///< seconds
        double layer_token = 0;  ///< seconds a further position of context
        double head = 0;         ///< seconds
    };
    static constexpr std::int64_t base_context = 512;

    /// `points` by ascending rows, at least one.
    CostModel(std::int64_t num_layers, std::vector<Point> points);

    /// Times single layers of `model`, until every point was seen and `budget_seconds` are over (three rounds at most).
    /// Collective over the model's group, whose ranks each learn their own times. The head's time follows from that of
    /// the layers' products and its size.
    static CostModel measure(Model& model, double budget_seconds = 0.4);

    /// Seconds of Model::forward over `rows` rows of one sequence that see `context` positions, all with logits.
    /// Between the points along straight lines, behind the last at its price a row.
    [[nodiscard]] double pass_seconds(std::int64_t rows, std::int64_t context) const;

    [[nodiscard]] const std::vector<Point>& points() const { return points_; }

  private:
    std::int64_t num_layers_;
    std::vector<Point> points_;
};

}  // namespace longhaul::engine
