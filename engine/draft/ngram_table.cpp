#include "engine/draft/ngram_table.hpp"

#include <algorithm>
#include <array>

namespace longhaul::engine {
namespace {

bool ranks_before(const Successor& a, const Successor& b) {
    return a.count != b.count ? a.count > b.count : a.last_seen > b.last_seen;
}

constexpr std::size_t first_slots = 1024;

}  // namespace

ContextKey key_of(std::span<const std::int32_t> context) {
    ContextKey key = 0x9e3779b97f4a7c15ULL + context.size();
    for (const std::int32_t token : context) {
        key = (key ^ static_cast<std::uint32_t>(token)) * 0xff51afd7ed558ccdULL;
        key ^= key >> 32;
    }
    return key;
}

const Successor* Successors::find(std::int32_t token) const {
    const auto found = std::find_if(list().begin(), list().end(), [&](const Successor& s) { return s.token == token; });
    return found == list().end() ? nullptr : &*found;
}

void Successors::place(const Successor& entry, std::size_t top) {
    if (top == 0) return;
    if (num_ == 0 || (num_ == 1 && (top == 1 || only_.token == entry.token))) {
        only_ = entry;
        num_ = 1;
        return;
    }
    if (several_.empty()) several_.push_back(only_);
    const auto old =
        std::find_if(several_.begin(), several_.end(), [&](const Successor& s) { return s.token == entry.token; });
    if (old != several_.end()) {
        several_.erase(old);
    } else if (several_.size() >= top) {
        several_.pop_back();
    }
    several_.insert(std::upper_bound(several_.begin(), several_.end(), entry, ranks_before), entry);
    num_ = static_cast<std::uint32_t>(several_.size());
}

NgramTable::NgramTable(std::int64_t order, std::int64_t top)
    : order_(order), top_(static_cast<std::size_t>(top)), slots_(first_slots) {}

/// The slot of a context, or the empty one where it would be.
std::size_t NgramTable::slot_of(ContextKey key) const {
    const std::size_t mask = slots_.size() - 1;
    std::size_t slot = key & mask;
    while (slots_[slot].entry >= 0 && slots_[slot].key != key) slot = (slot + 1) & mask;
    return slot;
}

void NgramTable::grow() {
    std::vector<Slot> old(2 * slots_.size());
    old.swap(slots_);
    for (const Slot& slot : old) {
        if (slot.entry >= 0) slots_[slot_of(slot.key)] = slot;
    }
}

Successors& NgramTable::entry_of(ContextKey key) {
    Slot& slot = slots_[slot_of(key)];
    if (slot.entry >= 0) return entries_[static_cast<std::size_t>(slot.entry)];
    slot = {key, static_cast<std::int64_t>(entries_.size())};
    Successors& added = entries_.emplace_back();
    if (2 * entries_.size() > slots_.size()) grow();
    return added;
}

const Successors* NgramTable::find(ContextKey key) const {
    const Slot& slot = slots_[slot_of(key)];
    return slot.entry < 0 ? nullptr : &entries_[static_cast<std::size_t>(slot.entry)];
}

void NgramTable::prefetch(ContextKey key) const {
    __builtin_prefetch(&slots_[key & (slots_.size() - 1)]);
}

void NgramTable::insert(std::span<const std::int32_t> history) {
    const std::span<const std::int32_t> before = history.first(history.size() - 1);
    const std::int32_t token = history.back();
    const auto position = static_cast<std::int32_t>(before.size());
    const std::size_t lengths = std::min(static_cast<std::size_t>(order_), before.size() + 1);
    std::array<ContextKey, max_order> keys;
    for (std::size_t length = 0; length < lengths; ++length) prefetch(keys[length] = key_of(before.last(length)));
    for (std::size_t length = 0; length < lengths; ++length) {
        Successors& successors = entry_of(keys[length]);
        ++successors.total;
        const Successor* const old = successors.find(token);
        successors.place({token, old == nullptr ? 1 : old->count + 1, position}, top_);
    }
}

std::vector<std::int32_t> NgramTable::changed_rows(std::span<const std::int32_t> history, std::size_t from) const {
    std::vector<std::int32_t> rows;
    for (std::size_t end = from; end < history.size(); ++end) {
        const std::span<const std::int32_t> before = history.first(end);
        for (std::size_t length = 0; length < static_cast<std::size_t>(order_) && length <= end; ++length) {
            const Successors* successors = find(before.last(length));
            if (successors == nullptr) continue;
            for (const Successor& s : successors->list()) {
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
        Successors& successors = entry_of(key_of(context));
        const Successor* const old = successors.find(ngram.back());
        successors.total += count - (old == nullptr ? 0 : old->count);
        successors.place({ngram.back(), count, rows[width - 1]}, top_);
    }
    return true;
}

}  // namespace longhaul::engine
