// States of linear attention behind the beginnings of texts, kept for other texts that begin alike (prefix caching). A
// sequence has but the state of its last position, so what others may continue from is copied when it passes there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/device.hpp"

namespace longhaul::engine {

/// A beginning of a text, and the state behind it.
struct KeptState {
    std::vector<std::int32_t> tokens{};
    bool has_long_rope = false;  ///< Sequence::has_long_rope
    kernels::Buffer state{};
    std::int64_t last_use = 0;
};

class KeptStates {
  public:
    /// Keeps at most `max_states` of `num_bytes` each, which it allocates when it needs them.
    KeptStates(kernels::Device& device, std::int64_t num_bytes, std::int64_t max_states)
        : device_(device), num_bytes_(num_bytes), max_states_(max_states) {}

    [[nodiscard]] bool can_keep() const { return max_states_ > 0; }
    /// Those of beginnings of `tokens`, the longest first. Valid until the next call of `keep`.
    [[nodiscard]] std::vector<const KeptState*> behind(std::span<const std::int32_t> tokens, bool has_long_rope) const;
    /// Tells that this state was of use.
    void use(const KeptState& state);
    /// Keeps a copy of `state`. If there are too many, one goes that no other one continues: the one that was not used
    /// for longest.
    void keep(std::span<const std::int32_t> tokens, bool has_long_rope, const std::byte* state);

  private:
    [[nodiscard]] bool is_continued(const KeptState& state) const;
    /// Takes the memory of the state that goes.
    kernels::Buffer evict();

    kernels::Device& device_;
    std::int64_t num_bytes_, max_states_;
    std::vector<KeptState> states_;
    std::int64_t uses_ = 0;
};

}  // namespace longhaul::engine
