// n-gram counts: for each context of 0..n-1 tokens, the tokens that followed it and how often. A hash map from context
// to successors, so insert and lookup cost the same at 100 tokens and at 100,000 (ALGORITHMS.md section 5, "n-gram
// table"). Used by the n-gram drafter. Nearly all of its time is spent waiting for memory, so the map is
// open-addressed, most contexts need no allocation, and slots are prefetched.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace longhaul::engine {

struct Successor {
    std::int32_t token = 0;
    std::int32_t count = 0;
    std::int32_t last_seen = 0;  ///< position of the newest occurrence
};

/// The tokens that followed one context, most frequent first; ties: most recently seen first. At most `top` are kept: a
/// new one replaces the last.
class Successors {
  public:
    [[nodiscard]] std::span<const Successor> list() const {
        return {several_.empty() ? &only_ : several_.data(), num_};
    }
    [[nodiscard]] const Successor* find(std::int32_t token) const;
    /// Puts an entry in its place, instead of the token's previous one.
    void place(const Successor& entry, std::size_t top);

    std::int32_t total = 0;  ///< all occurrences, including those of replaced successors

  private:
    std::uint32_t num_ = 0;
    Successor only_;                  ///< most contexts have one
    std::vector<Successor> several_;  ///< all of them, once there are two
};

/// A context as the table's key. A collision of two contexts only makes a bad draft, which verification rejects.
using ContextKey = std::uint64_t;
[[nodiscard]] ContextKey key_of(std::span<const std::int32_t> context);

class NgramTable {
  public:
    static constexpr std::size_t max_order = 16;

    /// Counts n-grams of up to `order` <= max_order tokens and keeps `top` successors per context.
    NgramTable(std::int64_t order, std::int64_t top);

    /// Counts the n-grams of every length up to the order that end at `history.back()`.
    void insert(std::span<const std::int32_t> history);

    /// Successors of a context; nullptr if it was never seen.
    [[nodiscard]] const Successors* find(ContextKey key) const;
    [[nodiscard]] const Successors* find(std::span<const std::int32_t> context) const { return find(key_of(context)); }
    /// Called some time before find(key) or insert().
    void prefetch(ContextKey key) const;

    [[nodiscard]] std::int64_t order() const { return order_; }
    [[nodiscard]] std::size_t num_contexts() const { return entries_.size(); }

    /// Rows [order tokens, left-padded with -1; count; last seen] of the n-grams whose newest occurrence ends in
    /// history[from..]: the changes since the table held history[..from].
    [[nodiscard]] std::vector<std::int32_t> changed_rows(std::span<const std::int32_t> history, std::size_t from) const;

    /// Sets the counts from such rows, in order. False if a row is invalid; the table is then unusable.
    bool set_rows(std::span<const std::int32_t> rows);

  private:
    struct Slot {
        ContextKey key = 0;
        std::int64_t entry = -1;  ///< index in entries_; -1: empty
    };
    [[nodiscard]] std::size_t slot_of(ContextKey key) const;
    Successors& entry_of(ContextKey key);
    void grow();

    std::int64_t order_;
    std::size_t top_;
    std::vector<Slot> slots_;  ///< a power of two, at most half of them in use
    std::vector<Successors> entries_;
};

}  // namespace longhaul::engine
