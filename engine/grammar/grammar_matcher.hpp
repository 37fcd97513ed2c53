// Follows texts through a grammar, byte by byte. What may follow a text is a state; states and the steps between them
// are found once and then looked up, so that the tokens of a whole vocabulary can be tried in milliseconds.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

class GrammarMatcher {
  public:
    using State = std::int32_t;
    static constexpr State dead = -1;  ///< no text of the grammar begins so
    /// There are too many ways to read the text, as there are of (a|aa){0,9999}: what may follow it would take too long
    /// to find. Follows from grammar and text alone.
    static constexpr State ambiguous = -2;

    explicit GrammarMatcher(Grammar grammar);

    /// Before the first byte.
    [[nodiscard]] State start() const { return start_; }
    /// Behind one more byte.
    State next(State state, std::uint8_t byte) {
        if (state < 0) return state;
        const State known = states_[static_cast<std::size_t>(state)].transitions[byte];
        return known != unknown ? known : find_next(state, byte);
    }
    /// Whether the text belongs to the grammar as it is.
    [[nodiscard]] bool accepts(State state) const {
        return state >= 0 && states_[static_cast<std::size_t>(state)].accepts;
    }

    /// Whether nothing can follow the empty text.
    [[nodiscard]] bool is_complete() const {
        return start_ >= 0 && states_[static_cast<std::size_t>(start_)].places->front() < 0;
    }

    /// Memory that states take. `forget_all_but` frees that of all others than these, which get new numbers; others are
    /// then void, except `start`.
    [[nodiscard]] std::size_t num_bytes() const {
        constexpr std::size_t entry = 64;  // of a hash table
        return states_.size() * (sizeof(StateData) + 2 * entry) + num_places_ * sizeof(std::int32_t) +
               frames_.size() * (sizeof(Frame) + entry);
    }
    void forget_all_but(std::span<State* const> kept);

  private:
    static constexpr State unknown = -3;

    /// Where a rule that was called goes on: a node, and the frame below it. Equal frames are one.
    struct Frame {
        std::int32_t place;
        std::int32_t below;
        friend bool operator==(const Frame&, const Frame&) = default;
    };
    struct FrameHash {
        std::size_t operator()(const Frame& frame) const;
    };
    struct PlacesHash {
        std::size_t operator()(const std::vector<std::int32_t>& places) const;
    };
    struct StateData {
        const std::vector<std::int32_t>* places;  ///< frames whose nodes take bytes, ascending
        bool accepts;
        std::array<State, 256> transitions;  ///< [byte]
    };

    void clear();
    State find_next(State state, std::uint8_t byte);
    std::int32_t frame(std::int32_t place, std::int32_t below);
    /// The state of all that can be reached from `open_` without a byte.
    State close();
    State state_of(std::vector<std::int32_t> places, bool accepts);

    Grammar grammar_;
    std::vector<Frame> frames_;
    std::unordered_map<Frame, std::int32_t, FrameHash> frame_numbers_;
    std::vector<StateData> states_;
    std::unordered_map<std::vector<std::int32_t>, State, PlacesHash> numbers_;
    std::size_t num_places_ = 0;  ///< of all states
    State start_ = dead;

    // Scratch of close.
    std::vector<std::int32_t> open_;
    std::vector<std::uint32_t> seen_;  ///< [frame]: the last call that met it
    std::uint32_t call_ = 0;
};

}  // namespace longhaul::engine
