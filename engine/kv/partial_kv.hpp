// PartialKv: the part of a sequence's keys and values that a draft pass reads instead of all of them (algorithms.md
// section 6b). It follows from the number of committed positions alone, so a resumed run reads the same.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

#include "engine/kv/kv_cache.hpp"

namespace longhaul::engine {

/// How the positions are selected: the values of the job key `partial-cache-mode`.
struct PartialMode {
    enum Value : std::uint8_t { window, full };
    static constexpr std::array<std::string_view, 2> names{"window", "full"};
};

/// The settings `partial-cache-mode` and `partial-cache`.
struct PartialCache {
    PartialMode::Value mode = PartialMode::window;
    std::int64_t max_positions = 0;  ///< 0: auto, a fixed function of the text's length

    /// Positions read of `committed` ones, before rounding to whole pages.
    [[nodiscard]] std::int64_t positions_of(std::int64_t committed) const;
};

/// Pages of a selection, in the order of their positions. All but the last are full.
struct PartialKv {
    std::vector<std::byte*> pages;
    std::int64_t num_slots = 0;  ///< slots in use

    /// `window`: the first page (attention sinks) and the most recent ones, up to `cache.positions_of` positions. The
    /// pages stay those of `kv`.
    static PartialKv select(const KvSequence& kv, const PartialCache& cache);
};

}  // namespace longhaul::engine
