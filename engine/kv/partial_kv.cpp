#include "engine/kv/partial_kv.hpp"

#include <algorithm>

namespace longhaul::engine {

using kernels::KvLayout;

namespace {

std::int64_t whole_pages(std::int64_t positions) {
    return positions / KvLayout::page_tokens * KvLayout::page_tokens;
}

/// How a selection by rank divides its positions.
struct Shares {
    Shares(std::int64_t positions, PartialMode::Value mode)
        : interval(positions >= 1024  ? 256
                   : positions >= 512 ? 128
                                      : KvLayout::page_tokens),
          gathered(whole_pages(positions) - recent - interval) {
        // The recent positions begin at a page, up to one page earlier; where all selections are made at the end of a
        // page, no earlier.
        if (mode == PartialMode::fixed_start) gathered -= KvLayout::page_tokens;
    }

    /// Minimum of the most recent positions that are read without being ranked.
    static constexpr std::int64_t recent = KvLayout::page_tokens;
    /// Tokens from one selection to the next: one costs about two passes of the target (two Zen 4 cores, demo model at
    /// 28K tokens).
    std::int64_t interval;
    std::int64_t gathered;
};

constexpr std::int64_t min_auto_ranked = 1024;

}  // namespace

std::int64_t PartialCache::positions_of(const TextSize& text) const {
    if (mode == PartialMode::full) return text.tokens;
    // auto: the longer the text, the more a pass of the target costs, and the more positions a good draft may read.
    constexpr std::int64_t share = 16;
    const std::int64_t least = ranks() || of_prompt ? min_auto_ranked : 512;
    std::int64_t wanted = max_positions;
    if (wanted == 0) wanted = std::max(least, of_prompt ? text.prompt_tokens : text.tokens / share);
    if (ranks()) wanted = std::max(wanted, min_ranked_positions);
    return std::min(text.tokens, wanted);
}

std::optional<RankedSelection> PartialCache::selection(const TextSize& text) const {
    if (!ranks() || positions_of(text) == text.tokens) return {};
    const std::int64_t prompt = text.prompt_tokens;
    const bool once = mode == PartialMode::fixed_start;
    RankedSelection made;
    if (once) {
        // The prompt without its last token, which is not stored yet, unless the selection is longer.
        std::int64_t longest = std::max(max_positions, min_ranked_positions);
        if (max_positions == 0) longest = of_prompt ? std::max(min_auto_ranked, prompt) : min_auto_ranked;
        made.ranked_at = std::max(longest, prompt - 2);
    } else {
        const std::int64_t interval = Shares(positions_of(text), mode).interval;
        made.ranked_at = (text.tokens - 1) / interval * interval;
    }
    const Shares shares(positions_of({made.ranked_at + 1, prompt}), mode);
    made.gathered = shares.gathered;
    made.ranked_before = whole_pages(made.ranked_at - Shares::recent);
    made.recent_from = once ? std::max(made.ranked_before, whole_pages(text.tokens - Shares::recent - shares.interval))
                            : made.ranked_before;
    return made;
}

std::int64_t PartialCache::max_gathered(const TextSize& text) const {
    if (!ranks() || positions_of(text) == text.tokens) return 0;
    return Shares(positions_of(text), mode).gathered;
}

PartialKv PartialKv::whole(const KvSequence& kv) {
    const auto pages = kv.pages().first(PagePool::pages_for(kv.committed()));
    return {{pages.begin(), pages.end()}, kv.committed()};
}

PartialKv PartialKv::select(const KvSequence& kv, const PartialCache& cache, std::int64_t prompt_tokens) {
    const std::int64_t committed = kv.committed();
    const std::int64_t num_pages = PagePool::pages_for(committed);
    const std::int64_t wanted =
        std::max<std::int64_t>(PagePool::pages_for(cache.positions_of({committed, prompt_tokens})), 2);
    const auto pages = kv.pages().first(num_pages);
    if (wanted >= num_pages) return whole(kv);
    PartialKv selected{{pages.front()}, committed - (num_pages - wanted) * KvLayout::page_tokens};
    selected.pages.insert(selected.pages.end(), pages.end() - (wanted - 1), pages.end());
    return selected;
}

PartialKv PartialKv::join(const KvSequence& kv, std::span<std::byte* const> gathered, std::int64_t recent_from,
                          std::int64_t end) {
    const auto recent = kv.pages()
                            .first(PagePool::pages_for(end))
                            .subspan(static_cast<std::size_t>(recent_from / KvLayout::page_tokens));
    PartialKv joined{{gathered.begin(), gathered.end()},
                     std::ssize(gathered) * KvLayout::page_tokens + end - recent_from};
    joined.pages.insert(joined.pages.end(), recent.begin(), recent.end());
    return joined;
}

}  // namespace longhaul::engine
