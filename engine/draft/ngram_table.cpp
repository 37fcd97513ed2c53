#include "engine/draft/ngram_table.hpp"

#include <algorithm>

namespace longhaul::engine {
namespace {

bool ranks_before(const Successor& a, const Successor& b) {
    return a.count != b.count ? a.count > b.count : a.last_seen > b.last_seen;
}

}  // namespace

NgramTable::NgramTable(std::int64_t order, std::int64_t top) : order_(order), top_(static_cast<std::size_t>(top)) {}

// A hash collision of two contexts only makes a bad draft, which verification rejects.
std::uint64_t NgramTable::key_of(std::span<const std::int32_t> context) {
    std::uint64_t key = 0x9e3779b97f4a7c15ULL + context.size();
    for (const std::int32_t token : context) {
        key = (key ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdULL;
        key ^= key >> 32;
    }
    return key;
}

void NgramTable::place(Successors& successors, Successor entry) const {
    if (top_ == 0) return;
    auto& list = successors.list;
    const auto old = std::find_if(list.begin(), list.end(), [&](const Successor& s) { return s.token == entry.token; });
    if (old != list.end()) {
        list.erase(old);
    } else if (list.size() >= top_) {
        list.pop_back();
    }
    list.insert(std::upper_bound(list.begin(), list.end(), entry, ranks_before), entry);
}

void NgramTable::count_one(std::span<const std::int32_t> context, std::int32_t token, std::int32_t position) {
    Successors& successors = contexts_[key_of(context)];
    ++successors.total;
    const auto old = std::find_if(successors.list.begin(), successors.list.end(),
                                  [&](const Successor& s) { return s.token == token; });
    place(successors, {token, old == successors.list.end() ? 1 : old->count + 1, position});
}

void NgramTable::insert(std::span<const std::int32_t> history) {
    const std::span<const std::int32_t> before = history.first(history.size() - 1);
    const auto position = static_cast<std::int32_t>(before.size());
    for (std::size_t length = 0; length < static_cast<std::size_t>(order_) && length <= before.size(); ++length) {
        count_one(before.last(length), history.back(), position);
    }
}

const Successors* NgramTable::find(std::span<const std::int32_t> context) const {
    const auto found = contexts_.find(key_of(context));
    return found == contexts_.end() ? nullptr : &found->second;
}

std::vector<std::int32_t> NgramTable::changed_rows(std::span<const std::int32_t> history, std::size_t from) const {
    std::vector<std::int32_t> rows;
    for (std::size_t end = from; end < history.size(); ++end) {
        const std::span<const std::int32_t> before = history.first(end);
        for (std::size_t length = 0; length < static_cast<std::size_t>(order_) && length <= end; ++length) {
            const Successors* successors = find(before.last(length));
            if (successors == nullptr) continue;
            for (const Successor& s : successors->list) {
                if (s.token != history[end] || s.last_seen != static_cast<std::int32_t>(end)) continue;
                rows.insert(rows.end(), static_cast<std::size_t>(order_) - length - 1, -1);
                rows.insert(rows.end(), before.end() - static_cast<std::ptrdiff_t>(length), before.end());
                rows.insert(rows.end(), {s.token, s.count, s.last_seen});
                break;
            }
        }
    }
    return rows;
}

bool NgramTable::set_rows(std::span<const std::int32_t> rows) {
    const std::size_t width = static_cast<std::size_t>(order_) + 2;
    if (rows.size() % width != 0) return false;
    for (; !rows.empty(); rows = rows.subspan(width)) {
        const std::span<const std::int32_t> ngram = rows.first(order_);
        const std::int32_t count = rows[width - 2];
        const auto first = std::find_if(ngram.begin(), ngram.end(), [](std::int32_t t) { return t >= 0; });
        if (first == ngram.end() || std::any_of(first, ngram.end(), [](std::int32_t t) { return t < 0; }) || count < 1)
            return false;
        const std::span<const std::int32_t> context(first, ngram.end() - 1);
        Successors& successors = contexts_[key_of(context)];
        const auto old = std::find_if(successors.list.begin(), successors.list.end(),
                                      [&](const Successor& s) { return s.token == ngram.back(); });
        successors.total += count - (old == successors.list.end() ? 0 : old->count);
        place(successors, {ngram.back(), count, rows[width - 1]});
    }
    return true;
}

}  // namespace longhaul::engine
