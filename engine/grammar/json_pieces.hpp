// The parts of JSON as pieces of a grammar.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "engine/grammar/grammar.hpp"

namespace longhaul::engine {

/// Numbers from `low` to `high`. Open: without the bound itself.
struct NumberRange {
    std::optional<std::int64_t> low{}, high{};
    bool low_open = false, high_open = false;

    [[nodiscard]] bool is_whole() const { return !low && !high; }
};

class JsonPieces {
  public:
    using Piece = GrammarBuilder::Piece;

    explicit JsonPieces(GrammarBuilder& builder);

    /// Any value.
    [[nodiscard]] Piece value() { return builder_.call(value_rule()); }

    struct Member {
        std::string name;
        Piece value;
        bool required = false;
    };
    /// Members in this order, those that are not required may be missing; then, with `others`, more of other names.
    [[nodiscard]] Piece object(const std::vector<Member>& members, const std::optional<Piece>& others);
    /// `first` and then items of `rest`, from `min_count` to `max_count` in all; max_count < 0: without limit.
    [[nodiscard]] Piece array(const std::vector<Piece>& first, const std::optional<Piece>& rest, std::int64_t min_count,
                              std::int64_t max_count);
    /// A string of so many characters; max_count < 0: without limit.
    [[nodiscard]] Piece string(std::int64_t min_count, std::int64_t max_count);
    /// `inside` between quotes.
    [[nodiscard]] Piece quoted(const Piece& inside);

    /// Without bounds up to 16 digits before, and 16 behind the point. nullopt: there is no such number.
    [[nodiscard]] std::optional<Piece> integer(const NumberRange& range);
    [[nodiscard]] std::optional<Piece> number(const NumberRange& range);

    /// Regular expression of what a string of this format holds; "": any text.
    static std::string expression_of_format(std::string_view format);

  private:
    std::int32_t value_rule();
    [[nodiscard]] Piece blank() { return builder_.optional(builder_.call(blank_rule_)); }
    [[nodiscard]] Piece comma() { return GrammarBuilder::sequence({builder_.text(","), blank()}); }
    [[nodiscard]] Piece key_of(const std::string& name);
    [[nodiscard]] Piece other_key(const std::set<std::string>& names, std::size_t shared);
    [[nodiscard]] Piece digits(std::int64_t count);
    [[nodiscard]] Piece digits_between(std::string_view low, std::string_view high);
    [[nodiscard]] std::optional<Piece> magnitude(std::int64_t low, std::optional<std::int64_t> high);
    [[nodiscard]] std::optional<Piece> real_magnitude(std::int64_t low, bool low_open, std::optional<std::int64_t> high,
                                                      bool high_open);

    GrammarBuilder& builder_;
    std::int32_t blank_rule_, character_rule_, value_rule_ = -1;
};

}  // namespace longhaul::engine
