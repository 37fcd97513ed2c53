// The table of a sweep: a line a point, and over the seeds their means, as sweep.csv and sweep.json for programs and
// sweep.md for people. Columns of time (decode tokens/s, speedup, seconds) are measurements. So are those of drafting
// (block efficiency, acceptance): trees may follow measured costs, and the sequences that decode together.
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

/// Where a point stands.
enum class PointState {
    waiting,     ///< never started
    unfinished,  ///< started, not all items are done
    failed,      ///< in this launch it could not start, or had too many failed items
    done,
};

class SweepTable {
  public:
    SweepTable(const Sweep& sweep, std::vector<SweepPoint> points);

    [[nodiscard]] const std::vector<SweepPoint>& points() const { return points_; }
    [[nodiscard]] PointState state(std::size_t point) const { return rows_[point].state; }
    /// Points in a state.
    [[nodiscard]] std::int64_t count(PointState state) const;
    [[nodiscard]] std::int64_t size() const { return points_.size(); }
    /// Points of which some items failed.
    [[nodiscard]] std::int64_t count_with_failed_items() const;
    /// Done points whose results are not those of their plain decoding, byte for byte, though they must be.
    [[nodiscard]] std::vector<std::size_t> other_texts() const;

    /// Looks at the point's folder again; its numbers are those of its summary.json.
    void look(std::size_t point, bool done);
    void set_failed(std::size_t point, const std::string& why);

    [[nodiscard]] std::string to_csv() const;
    [[nodiscard]] std::string to_markdown() const;
    [[nodiscard]] nlohmann::ordered_json to_json() const;

    /// Writes the three where they are not there already. Throws StorageError.
    void write() const;

  private:
    enum Metric : std::size_t {
        tokens,
        perplexity,
        bits_per_byte,
        block_efficiency,
        mbsu,
        acceptance,
        tokens_per_second,
        speedup,
        seconds
    };
    static constexpr std::size_t num_metrics = 9;
    using Numbers = std::array<std::optional<double>, num_metrics>;

    struct Row {
        PointState state = PointState::waiting;
        std::string why;  ///< of a failed one
        std::int64_t items = 0, failed = 0;
        Numbers numbers{};         ///< but for the speedup
        std::string results_hash;  ///< XXH3-64 of results.jsonl
    };
    /// The metrics that have a column: those that not every job has only where there are some.
    [[nodiscard]] std::vector<std::size_t> columns() const;

    /// What points have in common that differ in their seed alone.
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
