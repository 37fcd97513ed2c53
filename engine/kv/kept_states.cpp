#include "engine/kv/kept_states.hpp"

#include <algorithm>
#include <new>

namespace longhaul::engine {

namespace {

bool begins_with(std::span<const std::int32_t> text, std::span<const std::int32_t> beginning) {
    return beginning.size() <= text.size() && std::equal(beginning.begin(), beginning.end(), text.begin());
}

}  // namespace

KeptStates::~KeptStates() {
    for (const KeptState& state : states_) pool_->give_back(state.page);
}

const KeptState* KeptStates::longest(std::span<const std::int32_t> tokens, bool has_long_rope) const {
    const KeptState* best = nullptr;
    for (const KeptState& state : states_) {
        if (state.has_long_rope != has_long_rope || !begins_with(tokens, state.tokens)) continue;
        if (best == nullptr || state.tokens.size() > best->tokens.size()) best = &state;
    }
    return best;
}

void KeptStates::use(const KeptState& state) {
    states_[static_cast<std::size_t>(&state - states_.data())].last_use = ++uses_;
}

void KeptStates::keep(std::span<const std::int32_t> tokens, bool has_long_rope, const std::byte* page) {
    const KeptState* const there = longest(tokens, has_long_rope);
    if (there != nullptr && there->tokens.size() == tokens.size()) return use(*there);
    std::byte* const copy = std::ssize(states_) < max_states_ ? pool_->take() : evict();
    if (copy == nullptr) throw std::bad_alloc();
    pool_->device().copy_within(copy, page, kv_page_bytes(pool_->device(), pool_->layout()));
    states_.push_back({{tokens.begin(), tokens.end()}, has_long_rope, copy, ++uses_});
}

std::byte* KeptStates::evict() {
    const auto is_continued = [&](const KeptState& state) {
        return std::any_of(states_.begin(), states_.end(), [&](const KeptState& other) {
            return other.tokens.size() > state.tokens.size() && begins_with(other.tokens, state.tokens);
        });
    };
    auto oldest = states_.end();
    for (auto state = states_.begin(); state != states_.end(); ++state) {
        if (oldest != states_.end() && state->last_use > oldest->last_use) continue;
        if (!is_continued(*state)) oldest = state;
    }
    std::byte* const page = oldest->page;
    states_.erase(oldest);
    return page;
}

}  // namespace longhaul::engine
