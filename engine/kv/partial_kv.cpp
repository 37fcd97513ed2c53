#include "engine/kv/partial_kv.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;

std::int64_t whole_pages(std::int64_t positions) {
    return positions / page_tokens * page_tokens;
}

/// How a selection by rank divides its positions.
struct Shares {
    explicit Shares(std::int64_t positions)
        : interval(positions >= 1024  ? 256
                   : positions >= 512 ? 128
                                      : page_tokens),
          // The recent positions begin at a page, up to one page earlier, and grow until the next selection.
          gathered(whole_pages(positions) - recent - interval - page_tokens) {}

    /// Minimum of the most recent positions that are read without being ranked.
    static constexpr std::int64_t recent = page_tokens;
    /// Tokens from one selection to the next: one costs about two passes of the target (two Zen 4 cores, demo model at
    /// 28K tokens).
    std::int64_t interval;
    std::int64_t gathered;
};

/// The least for which all parts have a page.
constexpr std::int64_t min_ranked_positions = 4 * page_tokens;

}  // namespace

std::int64_t PartialCache::positions_of(std::int64_t committed) const {
    if (mode == PartialMode::full) return committed;
    // auto: the longer the text, the more a pass of the target costs, and the more positions a good draft may read.
    const std::int64_t least = ranks() ? 1024 : 512, share = 16;
    std::int64_t wanted = max_positions > 0 ? max_positions : std::max(least, committed / share);
    if (ranks()) wanted = std::max(wanted, min_ranked_positions);
    return std::min(committed, wanted);
}

std::optional<RankedSelection> PartialCache::selection(std::int64_t committed, std::int64_t prompt_tokens) const {
    if (!ranks() || positions_of(committed) == committed) return {};
    const Shares growing(positions_of(committed));
    const bool once = mode == PartialMode::fixed_start;
    // The least text that is longer than its selection, or the prompt without its last token, which is not stored yet.
    const std::int64_t shortest = max_positions > 0 ? std::max(max_positions, min_ranked_positions) : 1024;
    RankedSelection made;
    made.ranked_at =
        once ? std::max(shortest, prompt_tokens - 2) : (committed - 1) / growing.interval * growing.interval;
    const Shares shares(positions_of(std::max(made.ranked_at, shortest)));
    made.gathered = shares.gathered;
    made.ranked_before = whole_pages(made.ranked_at - shares.recent);
    made.recent_from = once ? std::max(made.ranked_before, whole_pages(committed - shares.recent - shares.interval))
                            : made.ranked_before;
    return made;
}

std::int64_t PartialCache::max_gathered(std::int64_t num_tokens) const {
    if (!ranks() || positions_of(num_tokens) == num_tokens) return 0;
    return Shares(positions_of(num_tokens)).gathered;
}

PartialKv PartialKv::select(const KvSequence& kv, const PartialCache& cache) {
    const std::int64_t committed = kv.committed();
    const std::int64_t num_pages = PagePool::pages_for(committed);
    const std::int64_t wanted = std::max<std::int64_t>(PagePool::pages_for(cache.positions_of(committed)), 2);
    const auto pages = kv.pages().first(num_pages);
    if (wanted >= num_pages) return {{pages.begin(), pages.end()}, committed};
    PartialKv selected{{pages.front()}, committed - (num_pages - wanted) * page_tokens};
    selected.pages.insert(selected.pages.end(), pages.end() - (wanted - 1), pages.end());
    return selected;
}

PartialKv PartialKv::join(const KvSequence& kv, std::span<std::byte* const> gathered, std::int64_t recent_from,
                          std::int64_t end) {
    const auto recent =
        kv.pages().first(PagePool::pages_for(end)).subspan(static_cast<std::size_t>(recent_from / page_tokens));
    PartialKv joined{{gathered.begin(), gathered.end()}, std::ssize(gathered) * page_tokens + end - recent_from};
    joined.pages.insert(joined.pages.end(), recent.begin(), recent.end());
    return joined;
}

}  // namespace longhaul::engine
