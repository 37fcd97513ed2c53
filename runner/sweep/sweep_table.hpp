// The table of a sweep: one line per point, and means over seeds, as sweep.csv and sweep.json for programs and sweep.md
// for people. Columns of time (decode tokens/s, speedup, seconds) are measurements. So are those of drafting (block
// efficiency, acceptance), because trees may depend on measured costs and on which sequences decode together.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "runner/sweep/sweep.hpp"

namespace longhaul::runner {

/// State of a point.
enum class PointState {
    waiting,     ///< never started
    unfinished,  ///< started, not all items are done
    failed,      ///< in this launch it could not start or had too many failed items
    done,
};

class SweepTable {
  public:
    SweepTable(const Sweep& sweep, std::vector<SweepPoint> points);

    [[nodiscard]] const std::vector<SweepPoint>& points() const { return points_; }
    [[nodiscard]] PointState state(std::size_t point) const { return rows_[point].state; }
    /// Number of points in a state.
    [[nodiscard]] std::int64_t count(PointState state) const;
    [[nodiscard]] std::int64_t size() const { return points_.size(); }
    /// Number of points with failed items.
    [[nodiscard]] std::int64_t count_with_failed_items() const;
    /// Done points whose results differ from those of plain decoding although they must be identical byte for byte.
    [[nodiscard]] std::vector<std::size_t> other_texts() const;

    /// Reads the point's folder again; the numbers come from its summary.json.
    void look(std::size_t point, bool done);
    void set_failed(std::size_t point, const std::string& why);

    [[nodiscard]] std::string to_csv() const;
    [[nodiscard]] std::string to_markdown() const;
    [[nodiscard]] nlohmann::ordered_json to_json() const;

    /// Writes the three files if their content has changed. Throws StorageError.
    void write() const;

  private:
    enum Metric : std::size_t {
        tokens,
        acc,
        acc_norm,
        mc2,
        perplexity,
        bits_per_byte,
        token_accuracy,
        block_efficiency,
        mbsu,
        acceptance,
        tokens_per_second,
        speedup,
        seconds
    };
    static constexpr std::size_t num_metrics = seconds + 1;
    using Numbers = std::array<std::optional<double>, num_metrics>;

    struct Row {
        PointState state = PointState::waiting;
        std::string why;  ///< why the point failed
        std::int64_t items = 0, failed = 0;
        Numbers numbers{};         ///< without the speedup
        std::string results_hash;  ///< XXH3-64 of results.jsonl
    };
    /// The metrics shown as columns. Metrics that not every job has are shown only if some point has them.
    [[nodiscard]] std::vector<std::size_t> columns() const;

    /// Means over points that differ only in their seed.
    struct Mean {
        std::string name;
        std::size_t example = 0;  ///< one of the points
        std::int64_t seeds = 0;
        Numbers mean{}, standard_error{};
        std::optional<bool> same_text{};
    };

    [[nodiscard]] Numbers numbers_of(std::size_t point) const;
    [[nodiscard]] std::optional<bool> same_text(std::size_t point) const;
    [[nodiscard]] std::vector<Mean> means() const;
    [[nodiscard]] bool has_variants() const { return num_variants_ > 0; }
    [[nodiscard]] bool has_seeds() const;

    std::filesystem::path folder_;
    std::vector<std::string> keys_;
    std::size_t num_variants_ = 0;
    std::vector<SweepPoint> points_;
    std::vector<std::vector<std::string>> key_values_;  ///< [point, key]
    std::vector<Row> rows_;
};

}  // namespace longhaul::runner
