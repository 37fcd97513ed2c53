// States of linear attention behind the beginnings of texts, kept for other texts that begin alike (prefix caching). A
// sequence has but the state of its last position, so what others may continue from is copied when it passes there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/kv/kv_cache.hpp"

namespace longhaul::engine {

/// A beginning of a text, and the state behind it.
struct KeptState {
    std::vector<std::int32_t> tokens{};
    bool has_long_rope = false;  ///< Sequence::has_long_rope
    std::byte* page = nullptr;
    std::int64_t last_use = 0;
};

class KeptStates {
  public:
    /// Keeps at most `max_states`, in pages of `pool`, which holds so many; nullptr with `max_states` = 0.
    KeptStates(PagePool* pool, std::int64_t max_states) : pool_(pool), max_states_(max_states) {}
    ~KeptStates();
    KeptStates(const KeptStates&) = delete;
    KeptStates& operator=(const KeptStates&) = delete;

    [[nodiscard]] bool can_keep() const { return max_states_ > 0; }
    /// The longest beginning of `tokens` whose state is kept; nullptr: none. Valid until the next call of `keep`.
    [[nodiscard]] const KeptState* longest(std::span<const std::int32_t> tokens, bool has_long_rope) const;
    /// Tells that this state was of use.
    void use(const KeptState& state);
    /// Keeps a copy of the state in `page`. If there are too many, one goes that no other one continues: the one that
    /// was not used for longest.
    void keep(std::span<const std::int32_t> tokens, bool has_long_rope, const std::byte* page);

  private:
    /// Takes the page of the state that goes.
    std::byte* evict();

    PagePool* pool_;
    std::int64_t max_states_;
    std::vector<KeptState> states_;
    std::int64_t uses_ = 0;
};

}  // namespace longhaul::engine
