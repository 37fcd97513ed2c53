// Partial KV cache: the part of a sequence's keys and values that a draft pass reads instead of all of them
// (ALGORITHMS.md section 6b). Which part follows from the text alone, so a resumed run reads the same.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/kv/kv_cache.hpp"

namespace longhaul::engine {

/// How the positions are selected: the values of the job key `partial-cache-mode`.
struct PartialMode {
    enum Value : std::uint8_t {
        window,      ///< the first page and the most recent ones
        full,        ///< all positions
        dynamic,     ///< ranked by their attention scores, again and again as the text grows
        fixed_start  ///< `static`: ranked once, behind the prompt
    };
    static constexpr std::array<std::string_view, 4> names{"window", "full", "dynamic", "static"};
};

/// The fewest positions of a selection by rank: a page for each of its parts.
constexpr std::int64_t min_ranked_positions = 4 * kernels::KvLayout::page_tokens;

/// Parts of a selection by rank: `gathered` slots with copies of ranked positions (for each layer and KV head its own),
/// then all positions from `recent_from` on in the sequence's own pages.
struct RankedSelection {
    static constexpr std::int64_t first_positions = 16;  ///< the first positions are always among the gathered ones

    std::int64_t ranked_at = 0;  ///< position of the token whose queries rank the positions before `ranked_before`
    std::int64_t ranked_before = 0;
    std::int64_t gathered = 0;     ///< a multiple of the page size
    std::int64_t recent_from = 0;  ///< a multiple of the page size
};

/// Size of a text whose first part is a prompt.
struct TextSize {
    std::int64_t tokens = 0;
    std::int64_t prompt_tokens = 0;
};

/// The settings `partial-cache-mode` and `partial-cache`.
struct PartialCache {
    PartialMode::Value mode = PartialMode::window;
    std::int64_t max_positions = 0;  ///< 0: auto, a fixed function of the text's size
    bool of_prompt = false;          ///< auto: the prompt's length (TokenSwift, section 4.1), at least 1,024

    /// Positions read of text.tokens stored ones, before rounding to whole pages.
    [[nodiscard]] std::int64_t positions_of(const TextSize& text) const;
    [[nodiscard]] bool ranks() const { return mode == PartialMode::dynamic || mode == PartialMode::fixed_start; }
    /// The selection by rank for text.tokens stored positions; nullopt: the text is short, everything is read.
    [[nodiscard]] std::optional<RankedSelection> selection(const TextSize& text) const;
    /// Maximum of RankedSelection::gathered for texts of up to this size; 0: nothing is gathered.
    [[nodiscard]] std::int64_t max_gathered(const TextSize& text) const;
};

/// Pages of a selection, in the order of their positions. All but the last are full.
struct PartialKv {
    std::vector<std::byte*> pages;
    std::int64_t num_slots = 0;  ///< slots in use

    /// All positions. The pages stay those of `kv`.
    static PartialKv whole(const KvSequence& kv);
    /// `window` or `full`. The pages stay those of `kv`.
    static PartialKv select(const KvSequence& kv, const PartialCache& cache, std::int64_t prompt_tokens);
    /// The first `end` positions of `kv`: gathered ones in `gathered`, then those from `recent_from` on.
    static PartialKv join(const KvSequence& kv, std::span<std::byte* const> gathered, std::int64_t recent_from,
                          std::int64_t end);
};

}  // namespace longhaul::engine
