// Which positions of a restored item a text can go on behind.
#include "engine/checkpoint/restored_item.hpp"

#include <algorithm>

namespace longhaul::engine {

// The windows before a position lie in the range that ends at or behind it, and in those before. A range stores all of
// its positions, or those from KvGroup::margin before the windows of its end on.
std::int64_t RestoredItem::usable_positions(std::int64_t wanted, const CheckpointIdentity& identity) const {
    wanted = std::min(wanted, kv_tokens);
    if (identity.states.num_layers > 0) {
        const auto behind = std::upper_bound(states_at.begin(), states_at.end(), wanted);
        wanted = behind == states_at.begin() ? 0 : *(behind - 1);
    }
    std::int64_t usable = 0;
    for (const std::int64_t end : kv_ends) {
        const auto is_stored = [&](const KvGroup& group) {
            return group.window == 0 || wanted >= end - KvGroup::margin || group.first_stored(usable, end) == usable;
        };
        const std::vector<KvGroup> groups = identity.kv_groups();
        if (end <= wanted || std::all_of(groups.begin(), groups.end(), is_stored)) usable = std::min(end, wanted);
        if (end >= wanted) break;
    }
    return usable;
}

}  // namespace longhaul::engine
