// A context-free grammar over bytes, as a graph: a text belongs to it if its bytes lead from the first node to the end.
// JSON schemas (json_schema.cpp), regular expressions (regex_grammar.cpp) and choices become grammars; GrammarMatcher
// follows texts through them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::engine {

struct GrammarNode {
    enum class Kind : std::uint8_t {
        bytes,   ///< takes one byte from `low` to `high`, then `next`
        either,  ///< `next` or `other`
        call,    ///< the rule that begins at `other`, then `next`
        end,     ///< of a rule, or of the text
    };
    Kind kind = Kind::end;
    std::uint8_t low = 0, high = 0;
    std::int32_t next = -1, other = -1;
};

/// Immutable. No rule calls itself before it has taken a byte, and each beginning that it allows can be ended.
class Grammar {
  public:
    Grammar(std::vector<GrammarNode> nodes, std::int32_t start) : nodes_(std::move(nodes)), start_(start) {}

    [[nodiscard]] const GrammarNode& node(std::int32_t place) const { return nodes_[static_cast<std::size_t>(place)]; }
    [[nodiscard]] std::int32_t start() const { return start_; }
    [[nodiscard]] std::int64_t num_nodes() const { return static_cast<std::int64_t>(nodes_.size()); }

  private:
    std::vector<GrammarNode> nodes_;
    std::int32_t start_;
};

/// Code points from `first` to `last`.
struct CharacterRange {
    char32_t first, last;
};
using CharacterRanges = std::vector<CharacterRange>;

/// The ranges in ascending order, without overlaps and surrogates.
CharacterRanges normalized(CharacterRanges ranges);
/// All other characters.
CharacterRanges complement(CharacterRanges ranges);

/// Builds a grammar from pieces. A piece is a part of a text whatever follows: given the node that does, it adds its
/// own nodes and returns the first. The builder must outlive its pieces.
class GrammarBuilder {
  public:
    using Piece = std::function<std::int32_t(std::int32_t next)>;

    /// The bytes of all characters of a range: byte i from low[i] to high[i].
    struct ByteRanges {
        std::string low, high;
    };

    /// Thrown where a grammar becomes larger than `max_nodes`, as a{1000}{1000} would.
    struct TooLarge {};
    static constexpr std::size_t max_nodes = 1 << 20;
    static constexpr std::int64_t max_repeats = 1 << 16;  ///< that readers of grammars accept

    [[nodiscard]] Piece text(std::string_view bytes);
    /// One character of these, as UTF-8; at least one.
    [[nodiscard]] Piece character(const CharacterRanges& ranges);
    /// One of these; at least one.
    [[nodiscard]] Piece one_of(const std::vector<std::string>& texts);
    [[nodiscard]] static Piece sequence(std::vector<Piece> pieces);
    /// At least one piece.
    [[nodiscard]] Piece either(std::vector<Piece> pieces);
    [[nodiscard]] Piece optional(Piece piece);
    /// `max_count` < 0: without limit.
    [[nodiscard]] Piece repeated(Piece piece, std::int64_t min_count, std::int64_t max_count = -1);

    /// A rule, which pieces may call before it is defined, itself included.
    [[nodiscard]] std::int32_t new_rule();
    void define(std::int32_t rule, const Piece& piece);
    [[nodiscard]] Piece call(std::int32_t rule);

    /// A rule that can call itself, directly or through others, before it has taken a byte; of several any.
    [[nodiscard]] std::optional<std::int32_t> left_recursive_rule() const;

    /// Thrown where no text ends, as none of a rule that always calls itself.
    struct Endless {};
    /// The grammar of the texts that `piece` is. All rules must be defined, none left-recursive. Ways that never end
    /// are left out.
    [[nodiscard]] Grammar finish(const Piece& piece);

  private:
    std::int32_t add(GrammarNode node);
    std::int32_t add_bytes(std::span<const ByteRanges> parts, std::size_t at, std::int32_t next);
    /// [node]: whether bytes, or no byte, lead from there to the end of its rule.
    [[nodiscard]] std::vector<bool> reaching_end(bool by_bytes) const;

    std::vector<GrammarNode> nodes_;
    std::vector<std::int32_t> rules_;  ///< node where it begins; -1 until it is defined
};

}  // namespace longhaul::engine
