// n-gram counts: for each context of 0..n-1 tokens, the tokens that followed it and how often. A hash map from context
// to successors, so insert and lookup cost the same at 100 tokens and at 100,000 (algorithms.md section 5, "n-gram
// table"). Used by the n-gram drafter.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

namespace longhaul::engine {

struct Successor {
    std::int32_t token = 0;
    std::int32_t count = 0;
    std::int32_t last_seen = 0;  ///< position of the newest occurrence
};

/// The tokens that followed one context, most frequent first; ties: most recently seen first. At most `top` are kept: a
/// new one replaces the last.
struct Successors {
    std::vector<Successor> list;
    std::int32_t total = 0;  ///< all occurrences, including those of replaced successors
};

class NgramTable {
  public:
    /// Counts n-grams of up to `order` tokens and keeps `top` successors per context.
    NgramTable(std::int64_t order, std::int64_t top);

    /// Counts the n-grams of every length up to the order that end at `history.back()`.
    void insert(std::span<const std::int32_t> history);

    /// Successors of `context`; nullptr if it was never seen.
    [[nodiscard]] const Successors* find(std::span<const std::int32_t> context) const;

    [[nodiscard]] std::int64_t order() const { return order_; }
    [[nodiscard]] std::size_t num_contexts() const { return contexts_.size(); }

    /// Rows [order tokens, left-padded with -1; count; last seen] of the n-grams whose newest occurrence ends in
    /// history[from..]: the changes since the table held history[..from].
    [[nodiscard]] std::vector<std::int32_t> changed_rows(std::span<const std::int32_t> history, std::size_t from) const;

    /// Sets the counts from such rows, in order. False if a row is invalid; the table is then unusable.
    bool set_rows(std::span<const std::int32_t> rows);

  private:
    [[nodiscard]] static std::uint64_t key_of(std::span<const std::int32_t> context);
    void count_one(std::span<const std::int32_t> context, std::int32_t token, std::int32_t position);
    void place(Successors& successors, Successor entry) const;

    std::int64_t order_;
    std::size_t top_;
    std::unordered_map<std::uint64_t, Successors> contexts_;
};

}  // namespace longhaul::engine
