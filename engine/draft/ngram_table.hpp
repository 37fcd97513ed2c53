// Counts of n-grams, as a trie of contexts: after the last 0..n-1 tokens, which tokens followed and how often.
// Insert and lookup cost the same at 100 tokens and at 100,000 (algorithms.md section 5, "n-gram table").
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

/// What followed one context. Most frequent first, ties: most recently seen first; at most `top` are kept, the last of
/// them gives way to a new one.
struct Successors {
    std::vector<Successor> list;
    std::int32_t total = 0;  ///< all occurrences, those that were pushed out included
};

class NgramTable {
  public:
    /// n-grams of `order` tokens and shorter; `top` successors a context.
    NgramTable(std::int64_t order, std::int64_t top);

    /// Counts the n-grams (of every length up to the order) that end at `history.back()`.
    void insert(std::span<const std::int32_t> history);

    /// Successors of the context that is the last `length` tokens of `history` + `path`; nullptr when it was never
    /// seen.
    [[nodiscard]] const Successors* find(std::span<const std::int32_t> context) const;

    [[nodiscard]] std::int64_t order() const { return order_; }
    [[nodiscard]] std::size_t num_contexts() const { return contexts_.size(); }

    /// Rows [order tokens, left-padded with -1; count; last seen] of the n-grams whose newest occurrence ends in
    /// history[from..]: what changed since.
    [[nodiscard]] std::vector<std::int32_t> changed_rows(std::span<const std::int32_t> history, std::size_t from) const;

    /// Sets the counts of such rows, in order. false (and an unusable table) when a row cannot be one.
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
