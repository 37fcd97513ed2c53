// Cost of a forward pass on this machine by number of rows, measured quickly on a few layers of the model. The tree
// chooser (engine/draft/tree_chooser.hpp) needs it to choose tree sizes before anything has been decoded.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model.hpp"

namespace longhaul::engine {

class CostModel {
  public:
    /// Time of one layer and of the head for `rows` rows at `base_context` positions.
    struct Point {
        std::int64_t rows = 0;
        double layer = 0;        ///< seconds, without the per-pass work before the layers
        double layer_token = 0;  ///< seconds per further position of context
        double head = 0;         ///< seconds, with the per-pass work before the layers
    };
    static constexpr std::int64_t base_context = 512;
    static constexpr std::int64_t max_rows = 64;  ///< of the passes that `measure` times

    /// `points` sorted by ascending rows; at least one.
    CostModel(std::int64_t num_layers, std::vector<Point> points);

    /// Times single layers of each kind, their attention and the head of `model` for 1 to 64 rows: each row count once,
    /// and up to five times as far as `budget_seconds` allows. (For a model of 8 billion parameters on two processors
    /// one round takes longer than that.) Where timing the head for many rows would take too long, its time is derived
    /// from that of the layers' matmuls. Collective over the model's group; each rank gets its own times. Call it at
    /// each start and do not store the result: other load on the machine, clock rates and thread counts change the
    /// times, and no key of a file could capture that.
    static CostModel measure(Model& model, double budget_seconds = 0.4);

    /// Seconds of Model::forward over `rows` rows of one sequence that see `context` positions, all with logits.
    /// Interpolated linearly between the points; beyond the last point at its cost per row.
    [[nodiscard]] double pass_seconds(std::int64_t rows, std::int64_t context) const;

    /// Part of pass_seconds: the head for `rows` rows with logits, and the per-pass work before the layers.
    [[nodiscard]] double head_seconds(std::int64_t rows) const;

    [[nodiscard]] const std::vector<Point>& points() const { return points_; }

  private:
    template <typename Cost>
    [[nodiscard]] double between_points(std::int64_t rows, const Cost& cost) const;

    std::int64_t num_layers_;
    std::vector<Point> points_;
};

}  // namespace longhaul::engine
