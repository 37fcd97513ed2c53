#include "engine/kv/kept_states.hpp"

#include <algorithm>
#include <utility>

namespace longhaul::engine {

namespace {

bool begins_with(std::span<const std::int32_t> text, const KeptState& state) {
    const std::vector<std::int32_t>& tokens = state.tokens;
    return tokens.size() <= text.size() && std::equal(tokens.begin(), tokens.end(), text.begin());
}

}  // namespace

std::vector<const KeptState*> KeptStates::behind(std::span<const std::int32_t> tokens, bool has_long_rope) const {
    std::vector<const KeptState*> found;
    for (const KeptState& state : states_) {
        if (state.has_long_rope == has_long_rope && begins_with(tokens, state)) found.push_back(&state);
    }
    std::sort(found.begin(), found.end(), [](const KeptState* a, const KeptState* b) {
        return a->tokens.size() > b->tokens.size();  // beginnings of one text: no two are as long
    });
    return found;
}

void KeptStates::use(const KeptState& state) {
    states_[static_cast<std::size_t>(&state - states_.data())].last_use = ++uses_;
}

void KeptStates::keep(std::span<const std::int32_t> tokens, bool has_long_rope, const std::byte* state) {
    const std::vector<const KeptState*> there = behind(tokens, has_long_rope);
    if (!there.empty() && there.front()->tokens.size() == tokens.size()) return use(*there.front());
    const auto num_bytes = static_cast<std::size_t>(num_bytes_);
    kernels::Buffer copy = std::ssize(states_) < max_states_ ? kernels::Buffer(device_, num_bytes) : evict();
    device_.copy_within(copy.data(), state, num_bytes);
    states_.push_back({{tokens.begin(), tokens.end()}, has_long_rope, std::move(copy), ++uses_});
}

bool KeptStates::is_continued(const KeptState& state) const {
    return std::any_of(states_.begin(), states_.end(), [&](const KeptState& other) {
        return other.tokens.size() > state.tokens.size() && other.has_long_rope == state.has_long_rope &&
               begins_with(other.tokens, state);
    });
}

kernels::Buffer KeptStates::evict() {
    auto oldest = states_.end();
    for (auto state = states_.begin(); state != states_.end(); ++state) {
        if (oldest != states_.end() && state->last_use > oldest->last_use) continue;
        if (!is_continued(*state)) oldest = state;
    }
    kernels::Buffer memory = std::move(oldest->state);
    states_.erase(oldest);
    return memory;
}

}  // namespace longhaul::engine
