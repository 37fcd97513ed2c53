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
        double layer = 0;        ///< seconds, without what a pass does once
        double layer_token = 0;  ///< seconds a further position of context
        double head = 0;         ///< seconds, with what a pass does before its layers
    };
    static constexpr std::int64_t base_context = 512;

    /// `points` by ascending rows, at least one.
    CostModel(std::int64_t num_layers, std::vector<Point> points);

    /// Times single layers, their attention and the head of `model`: 1 to 64 rows, each once, and up to five times as
    /// far as `budget_seconds` go (a model of 8 billion parameters takes longer than that on two processors). The head
    /// of many rows follows from the layers' products where it would take too long. Collective over the model's group,
    /// whose ranks each learn their own times. To be called anew at each start: other neighbours, clocks and threads
    /// make other times, and no key of a file would know them.
    static CostModel measure(Model& model, double budget_seconds = 0.4);

    /// Seconds of Model::forward over `rows` rows of one sequence that see `context` positions, all with logits.
    /// Between the points along straight lines, behind the last at its price a row.
    [[nodiscard]] double pass_seconds(std::int64_t rows, std::int64_t context) const;

    /// Of these the head, for so many rows with logits, and what a pass does before its layers.
    [[nodiscard]] double head_seconds(std::int64_t rows) const;

    [[nodiscard]] const std::vector<Point>& points() const { return points_; }

  private:
    template <typename Cost>
    [[nodiscard]] double between_points(std::int64_t rows, const Cost& cost) const;

    std::int64_t num_layers_;
    std::vector<Point> points_;
};

}  // namespace longhaul::engine
