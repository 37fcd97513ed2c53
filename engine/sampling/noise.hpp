// Counter-based random numbers (ALGORITHMS.md section 2), used by drafters and verifiers. Every draw is a pure function
// of its coordinates: Philox4x32-10 of (key of the item; absolute position, purpose and lane, node, token / 4).
#pragma once

#include <cstdint>
#include <string_view>

#include "kernels/noise.hpp"

namespace longhaul::engine {

/// Purpose of a draw. Shared noise (`target`) is used only by coupled verification; the sampling rules use the others.
enum class Purpose : std::uint32_t { target = 0, draft = 1, accept = 2, residual = 3 };

/// Key of one item's random numbers: XXH3-64 of (job seed, item id, sample).
std::uint64_t noise_key(std::uint64_t seed, std::string_view item_id, std::int64_t sample);

/// 32 random bits for token `v` at `position` under `purpose`, `lane` (< 2^24) and `node`.
std::uint32_t noise_bits(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t lane,
                         std::uint32_t node, std::uint32_t v);

/// Noise for all tokens of one row, i.e. one position (and lane, node) of one item. Drafters receive noise in this form
/// and do not depend on the verification rule.
class NoiseRow {
  public:
    NoiseRow(std::uint64_t key, std::int64_t position, Purpose purpose = Purpose::target, std::uint32_t lane = 0,
             std::uint32_t node = 0)
        : key_(key), position_(position), purpose_(purpose), lane_(lane), node_(node) {}

    /// All noise is zero: the most probable token wins.
    static NoiseRow silence(std::int64_t position) {
        NoiseRow row(0, position);
        row.silent_ = true;
        return row;
    }

    [[nodiscard]] float gumbel(std::int32_t token_id) const;
    /// Upper bound of gumbel(token_id) that needs no logarithm, only the magnitude of the random bits: rules out most
    /// tokens cheaply.
    [[nodiscard]] double gumbel_bound(std::int32_t token_id) const;
    /// e to that bound, a power of two.
    [[nodiscard]] double exp_gumbel_bound(std::int32_t token_id) const;
    // Coordinates of the row, as passed to devices (kernels::NoisePlace).
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
    mutable std::uint32_t cached_block_ = ~std::uint32_t{0};  // block of four tokens: neighbours share one Philox call
    mutable kernels::NoiseWords cached_{};
};

/// Noise of one sequence, as a drafter receives it; independent of the verification rule.
struct Noise {
    enum class Kind : std::uint8_t {
        shared,  ///< the target's noise, one row per position: a draft is then likely to equal the target's draw
                 ///< (coupled)
        own,     ///< separate noise per lane and parent, distinct from the target's (the sampling rules)
        silent,  ///< none: greedy decoding, the target takes the most probable token
    };
    std::uint64_t key = 0;
    Kind kind = Kind::shared;

    /// Noise that `lane` uses to draw the children of `parent` (a node of the tree) at absolute `position`. Lanes other
    /// than 0 always have their own noise; with shared noise they would draw the same tokens as lane 0.
    [[nodiscard]] NoiseRow row(std::int64_t position, std::uint32_t lane, std::int32_t parent) const {
        if (lane == 0 && kind == Kind::shared) return {key, position};
        if (lane == 0 && kind == Kind::silent) return NoiseRow::silence(position);
        return {key, position, Purpose::draft, lane, static_cast<std::uint32_t>(parent)};
    }
    /// Whether drafts must carry the probabilities they were drawn with.
    [[nodiscard]] bool is_own() const { return kind == Kind::own; }
};

/// Uniform in [0, 1) with 53 bits: the `index`-th draw of `purpose` at `position`.
double uniform(std::uint64_t key, std::int64_t position, Purpose purpose, std::uint32_t index);

}  // namespace longhaul::engine
