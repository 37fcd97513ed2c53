// Random numbers without state (algorithms.md section 2): every draw is a pure function of its place, Philox4x32-10 of
// (key of the item; absolute position, purpose and lane, node, token / 4).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/noise.hpp"

namespace longhaul::engine {

/// What a draw is for. Shared noise (`target`) is for coupled verification alone; the sampling rules have their own.
enum class Purpose : std::uint32_t { target = 0, draft = 1, accept = 2, residual = 3 };

/// Key of one item's random numbers: XXH3-64 of (job seed, item id, sample).
std::uint64_t noise_key(std::uint64_t seed, std::string_view item_id, std::int64_t sample);

/// 32 random bits for token `v` at `position` under `purpose`, `lane` (< 2^24) and `node`.
std::uint32_t noise_bits(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t lane,
                         std::uint32_t node, std::uint32_t v);

/// Noise of one row: a position (and lane) of one item. What a drafter is handed; it does not know who verifies.
class NoiseRow {
  public:
    NoiseRow(std::uint64_t key, std::int64_t position, Purpose purpose = Purpose::target, std::uint32_t lane = 0,
             std::uint32_t node = 0)
        : key_(key), position_(position), purpose_(purpose), lane_(lane), node_(node) {}

    /// A row of zeros: the most probable token wins.
    static NoiseRow silence(std::int64_t position) {
        NoiseRow row(0, position);
        row.silent_ = true;
        return row;
    }

    [[nodiscard]] float gumbel(std::int32_t token_id) const;
    /// No less than gumbel(token_id), by its bits' order of magnitude: tells hopeless tokens without a logarithm.
    [[nodiscard]] double gumbel_bound(std::int32_t token_id) const;
    // The row's place, as devices are told it (kernels::NoisePlace).
    [[nodiscard]] std::uint64_t key() const { return key_; }
    [[nodiscard]] std::int64_t position() const { return position_; }
    [[nodiscard]] std::uint32_t purpose() const;
    [[nodiscard]] std::uint32_t node() const { return node_; }
    [[nodiscard]] bool is_silent() const { return silent_; }

  private:
    [[nodiscard]] std::uint32_t bits(std::int32_t token_id) const;

    bool silent_ = false;
    std::uint64_t key_;
    std::int64_t position_;
    Purpose purpose_;
    std::uint32_t lane_;
    std::uint32_t node_;
    mutable std::uint32_t cached_block_ = ~std::uint32_t{0};  // of four tokens: neighbours share one Philox call
    mutable kernels::NoiseWords cached_{};
};

/// The random numbers of one sequence, as a drafter is handed them; it does not know who verifies.
struct Noise {
    enum class Kind : std::uint8_t {
        shared,  ///< the target's own, one row a position: a draft is then likely to be the target's draw (coupled)
        own,     ///< of each lane and parent its own, told apart from the target's (the sampling rules)
        silent,  ///< none: the target takes the most probable token whatever the noise
    };
    std::uint64_t key = 0;
    Kind kind = Kind::shared;

    /// What the children of `parent` (a node of the tree) at absolute `position` are drawn with by `lane`. Lanes beyond
    /// the first have noise of their own always: they would draw what the first one drew.
    [[nodiscard]] NoiseRow row(std::int64_t position, std::uint32_t lane, std::int32_t parent) const {
        if (lane == 0 && kind == Kind::shared) return {key, position};
        if (lane == 0 && kind == Kind::silent) return NoiseRow::silence(position);
        return {key, position, Purpose::draft, lane, static_cast<std::uint32_t>(parent)};
    }
    /// Whether the drafts must carry the probabilities they were drawn with.
    [[nodiscard]] bool is_own() const { return kind == Kind::own; }
};

/// Uniform in [0, 1), 53 bits: the `index`-th one of `purpose` at `position`.
double uniform(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t index);

}  // namespace longhaul::engine
