#include "engine/grammar/grammar_matcher.hpp"

#include <algorithm>
#include <utility>

#include "engine/hash.hpp"

namespace longhaul::engine {
namespace {

using Kind = GrammarNode::Kind;

constexpr std::size_t max_visited = 2048;    // frames between two bytes
constexpr std::int32_t bottom = -1;          // below the first frame
constexpr std::int32_t accepting_mark = -1;  // among a state's places: the text may end

}  // namespace

std::size_t GrammarMatcher::FrameHash::operator()(const Frame& frame) const {
    return hash_of(&frame, sizeof frame);
}

std::size_t GrammarMatcher::PlacesHash::operator()(const std::vector<std::int32_t>& places) const {
    return hash_of(places.data(), places.size() * sizeof(std::int32_t));
}

GrammarMatcher::GrammarMatcher(Grammar grammar) : grammar_(std::move(grammar)) {
    clear();
}

void GrammarMatcher::clear() {
    frames_.clear();
    frame_numbers_.clear();
    states_.clear();
    numbers_.clear();
    num_places_ = 0;
    seen_.clear();
    open_ = {frame(grammar_.start(), bottom)};
    start_ = close();
}

void GrammarMatcher::forget_all_but(std::span<State* const> kept) {
    const std::vector<Frame> frames = std::move(frames_);
    std::vector<std::pair<std::vector<std::int32_t>, bool>> states;
    std::vector<bool> needed(frames.size(), false);
    for (const State* state : kept) {
        auto& [places, accepts] = states.emplace_back();
        if (*state < 0) continue;
        accepts = states_[static_cast<std::size_t>(*state)].accepts;
        places = *states_[static_cast<std::size_t>(*state)].places;
        if (accepts) places.pop_back();  // the mark
        for (const std::int32_t number : places) needed[static_cast<std::size_t>(number)] = true;
    }
    for (std::size_t i = frames.size(); i-- > 0;) {  // a frame comes after the one below it
        if (needed[i] && frames[i].below != bottom) needed[static_cast<std::size_t>(frames[i].below)] = true;
    }
    clear();
    std::vector<std::int32_t> renumbered(frames.size(), bottom);
    for (std::size_t i = 0; i < frames.size(); ++i) {
        if (!needed[i]) continue;
        const std::int32_t below = frames[i].below;
        renumbered[i] = frame(frames[i].place, below == bottom ? bottom : renumbered[static_cast<std::size_t>(below)]);
    }
    for (std::size_t i = 0; i < kept.size(); ++i) {
        if (*kept[i] < 0) continue;
        auto& [places, accepts] = states[i];
        for (std::int32_t& number : places) number = renumbered[static_cast<std::size_t>(number)];
        *kept[i] = state_of(std::move(places), accepts);
    }
}

std::int32_t GrammarMatcher::frame(std::int32_t place, std::int32_t below) {
    const auto [found, fresh] = frame_numbers_.try_emplace({place, below}, static_cast<std::int32_t>(frames_.size()));
    if (fresh) {
        frames_.push_back({place, below});
        seen_.push_back(0);
    }
    return found->second;
}

GrammarMatcher::State GrammarMatcher::close() {
    ++call_;
    std::vector<std::int32_t> places;
    bool accepts = false;
    std::size_t num_visited = 0;
    const auto open = [&](std::int32_t place, std::int32_t below) { open_.push_back(frame(place, below)); };
    while (!open_.empty()) {
        const std::int32_t number = open_.back();
        open_.pop_back();
        if (std::exchange(seen_[static_cast<std::size_t>(number)], call_) == call_) continue;
        if (++num_visited > max_visited) {  // of a set that does not depend on the order
            open_.clear();
            return ambiguous;
        }
        const auto [place, below] = frames_[static_cast<std::size_t>(number)];
        const GrammarNode& node = grammar_.node(place);
        switch (node.kind) {
            case Kind::bytes:
                places.push_back(number);
                break;
            case Kind::either:
                open(node.other, below);
                open(node.next, below);
                break;
            case Kind::call: {
                const bool is_last = grammar_.node(node.next).kind == Kind::end;  // then it returns further below
                open(node.other, is_last ? below : frame(node.next, below));
                break;
            }
            case Kind::end:
                if (below == bottom)
                    accepts = true;
                else
                    open_.push_back(below);
        }
    }
    return state_of(std::move(places), accepts);
}

GrammarMatcher::State GrammarMatcher::state_of(std::vector<std::int32_t> places, bool accepts) {
    if (places.empty() && !accepts) return dead;
    std::sort(places.begin(), places.end());
    if (accepts) places.push_back(accepting_mark);
    const auto [found, fresh] = numbers_.try_emplace(std::move(places), static_cast<State>(states_.size()));
    if (fresh) {
        num_places_ += found->first.size();
        states_.push_back({.places = &found->first, .accepts = accepts, .transitions = {}});
        states_.back().transitions.fill(unknown);
    }
    return found->second;
}

GrammarMatcher::State GrammarMatcher::find_next(State state, std::uint8_t byte) {
    for (const std::int32_t number : *states_[static_cast<std::size_t>(state)].places) {
        if (number == accepting_mark) continue;
        const auto [place, below] = frames_[static_cast<std::size_t>(number)];
        const GrammarNode& node = grammar_.node(place);
        if (node.low <= byte && byte <= node.high) open_.push_back(frame(node.next, below));
    }
    const State behind = close();
    states_[static_cast<std::size_t>(state)].transitions[byte] = behind;
    return behind;
}

}  // namespace longhaul::engine
