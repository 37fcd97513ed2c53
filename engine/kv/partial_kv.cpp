#include "engine/kv/partial_kv.hpp"

#include <algorithm>

namespace longhaul::engine {

std::int64_t PartialCache::positions_of(std::int64_t committed) const {
    if (mode == PartialMode::full) return committed;
    if (max_positions > 0) return std::min(committed, max_positions);
    // The longer the text, the more a pass of the target costs, and the more positions a good draft may read.
    constexpr std::int64_t least = 512, share = 16;
    return std::min(committed, std::max(least, committed / share));
}

PartialKv PartialKv::select(const KvSequence& kv, const PartialCache& cache) {
    constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;
    const std::int64_t committed = kv.committed();
    const std::int64_t num_pages = PagePool::pages_for(committed);
    const std::int64_t wanted = std::max<std::int64_t>(PagePool::pages_for(cache.positions_of(committed)), 2);
    const auto pages = kv.pages().first(num_pages);
    if (wanted >= num_pages) return {{pages.begin(), pages.end()}, committed};
    PartialKv selected{{pages.front()}, committed - (num_pages - wanted) * page_tokens};
    selected.pages.insert(selected.pages.end(), pages.end() - (wanted - 1), pages.end());
    return selected;
}

}  // namespace longhaul::engine
