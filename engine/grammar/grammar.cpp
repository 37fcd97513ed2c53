#include "engine/grammar/grammar.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <string>
#include <utility>

namespace longhaul::engine {
namespace {

using Kind = GrammarNode::Kind;

constexpr CharacterRange surrogates{0xD800, 0xDFFF};
constexpr char32_t last_character = 0x10FFFF;

std::string utf8_of(char32_t c) {
    const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((c >> shift) & 0x3F)); };
    if (c < 0x80) return {static_cast<char>(c)};
    if (c < 0x800) return {static_cast<char>(0xC0 | (c >> 6)), tail(0)};
    if (c < 0x10000) return {static_cast<char>(0xE0 | (c >> 12)), tail(6), tail(0)};
    return {static_cast<char>(0xF0 | (c >> 18)), tail(12), tail(6), tail(0)};
}

/// Splits a range until each part is a product of ranges of bytes: where the number of bytes changes, and where the
/// bytes behind a common beginning do not go through all their values.
void add_byte_ranges(CharacterRange range, std::vector<GrammarBuilder::ByteRanges>& to) {
    const auto split_behind = [&](char32_t last) {
        add_byte_ranges({range.first, last}, to);
        add_byte_ranges({last + 1, range.last}, to);
    };
    for (const char32_t last : {0x7F, 0x7FF, 0xFFFF}) {
        if (range.first <= last && range.last > last) return split_behind(last);
    }
    if (range.first >= 0x80) {
        for (const int bits : {6, 12, 18}) {
            const char32_t rest = (char32_t{1} << bits) - 1;
            if ((range.first & ~rest) == (range.last & ~rest)) continue;
            if ((range.first & rest) != 0) return split_behind(range.first | rest);
            if ((range.last & rest) != rest) return split_behind((range.last & ~rest) - 1);
        }
    }
    to.push_back({utf8_of(range.first), utf8_of(range.last)});
}

}  // namespace

CharacterRanges normalized(CharacterRanges ranges) {
    std::sort(ranges.begin(), ranges.end(), [](auto a, auto b) { return a.first < b.first; });
    CharacterRanges merged;
    for (const CharacterRange range : ranges) {
        if (!merged.empty() && range.first <= merged.back().last + 1)
            merged.back().last = std::max(merged.back().last, range.last);
        else
            merged.push_back(range);
    }
    CharacterRanges whole;
    for (const CharacterRange range : merged) {
        if (range.first < surrogates.first)
            whole.push_back({range.first, std::min<char32_t>(range.last, surrogates.first - 1)});
        if (range.last > surrogates.last)
            whole.push_back({std::max<char32_t>(range.first, surrogates.last + 1), range.last});
    }
    return whole;
}

CharacterRanges complement(CharacterRanges ranges) {
    CharacterRanges others;
    char32_t from = 0;
    for (const CharacterRange range : normalized(std::move(ranges))) {
        if (range.first > from) others.push_back({from, range.first - 1});
        from = range.last + 1;
    }
    if (from <= last_character) others.push_back({from, last_character});
    return normalized(std::move(others));
}

std::int32_t GrammarBuilder::add(GrammarNode node) {
    if (nodes_.size() >= max_nodes) throw TooLarge();
    nodes_.push_back(node);
    return static_cast<std::int32_t>(nodes_.size() - 1);
}

GrammarBuilder::Piece GrammarBuilder::text(std::string_view bytes) {
    return [this, whole = std::string(bytes)](std::int32_t next) {
        for (auto byte = whole.rbegin(); byte != whole.rend(); ++byte) {
            const auto value = static_cast<std::uint8_t>(*byte);
            next = add({.kind = Kind::bytes, .low = value, .high = value, .next = next});
        }
        return next;
    };
}

/// As a tree of their common beginnings: what is between two bytes stays small for any number of characters.
GrammarBuilder::Piece GrammarBuilder::character(const CharacterRanges& ranges) {
    std::vector<ByteRanges> parts;
    for (const CharacterRange range : normalized(ranges)) add_byte_ranges(range, parts);
    return [this, parts = std::move(parts)](std::int32_t next) { return add_bytes(parts, 0, next); };
}

/// Bytes from `at` on of any of the parts, which are in ascending order and equal before.
std::int32_t GrammarBuilder::add_bytes(std::span<const ByteRanges> parts, std::size_t at, std::int32_t next) {
    if (at == parts.front().low.size()) return next;
    std::int32_t place = -1;
    while (!parts.empty()) {
        const char low = parts.back().low[at], high = parts.back().high[at];
        std::size_t others = parts.size() - 1;  // those that begin otherwise
        while (others > 0 && parts[others - 1].low[at] == low && parts[others - 1].high[at] == high) --others;
        const std::int32_t first = add({.kind = Kind::bytes,
                                        .low = static_cast<std::uint8_t>(low),
                                        .high = static_cast<std::uint8_t>(high),
                                        .next = add_bytes(parts.subspan(others), at + 1, next)});
        place = place < 0 ? first : add({.kind = Kind::either, .next = first, .other = place});
        parts = parts.first(others);
    }
    return place;
}

/// As a tree of their common beginnings, so that at most one node can be reached by each beginning.
GrammarBuilder::Piece GrammarBuilder::one_of(const std::vector<std::string>& texts) {
    struct Branch {
        std::map<std::uint8_t, std::size_t> children{};  ///< by byte
        bool is_text = false;
    };
    std::vector<Branch> branches(1);
    for (const std::string& text : texts) {
        std::size_t at = 0;
        for (const char byte : text) {
            const auto [child, fresh] =
                branches[at].children.try_emplace(static_cast<std::uint8_t>(byte), branches.size());
            at = child->second;
            if (fresh) branches.emplace_back();
        }
        branches[at].is_text = true;
    }
    return [this, branches = std::move(branches)](std::int32_t next) {
        std::vector<std::int32_t> places(branches.size(), -1);
        for (std::size_t i = branches.size(); i-- > 0;) {  // children have greater numbers
            std::int32_t place = branches[i].is_text ? next : -1;
            for (const auto& [byte, child] : branches[i].children) {
                const std::int32_t first = add({.kind = Kind::bytes, .low = byte, .high = byte, .next = places[child]});
                place = place < 0 ? first : add({.kind = Kind::either, .next = first, .other = place});
            }
            places[i] = place;
        }
        return places.front();
    };
}

GrammarBuilder::Piece GrammarBuilder::sequence(std::vector<Piece> pieces) {
    return [all = std::move(pieces)](std::int32_t next) {
        for (auto piece = all.rbegin(); piece != all.rend(); ++piece) next = (*piece)(next);
        return next;
    };
}

GrammarBuilder::Piece GrammarBuilder::either(std::vector<Piece> pieces) {
    return [this, all = std::move(pieces)](std::int32_t next) {
        std::int32_t place = all.back()(next);
        for (auto piece = all.rbegin() + 1; piece != all.rend(); ++piece)
            place = add({.kind = Kind::either, .next = (*piece)(next), .other = place});
        return place;
    };
}

GrammarBuilder::Piece GrammarBuilder::optional(Piece piece) {
    return repeated(std::move(piece), 0, 1);
}

GrammarBuilder::Piece GrammarBuilder::repeated(Piece piece, std::int64_t min_count, std::int64_t max_count) {
    return [this, piece = std::move(piece), min_count, max_count](std::int32_t next) {
        std::int32_t place = next;
        if (max_count < 0) {
            place = add({.kind = Kind::either, .next = -1, .other = next});
            const std::int32_t again = piece(place);
            nodes_[static_cast<std::size_t>(place)].next = again;
        }
        for (std::int64_t i = min_count; i < max_count; ++i)
            place = add({.kind = Kind::either, .next = piece(place), .other = next});
        for (std::int64_t i = 0; i < min_count; ++i) {
            const std::int32_t before = std::exchange(place, piece(place));
            if (place == before) break;  // it is empty
        }
        return place;
    };
}

std::int32_t GrammarBuilder::new_rule() {
    rules_.push_back(-1);
    return static_cast<std::int32_t>(rules_.size() - 1);
}

void GrammarBuilder::define(std::int32_t rule, const Piece& piece) {
    const std::int32_t first = piece(add({.kind = Kind::end}));
    rules_[static_cast<std::size_t>(rule)] = first;
}

/// Until `finish`, a call has the rule's number in place of its node.
GrammarBuilder::Piece GrammarBuilder::call(std::int32_t rule) {
    return [=, this](std::int32_t next) { return add({.kind = Kind::call, .next = next, .other = rule}); };
}

std::vector<bool> GrammarBuilder::reaching_end(bool by_bytes) const {
    std::vector<bool> reaching(nodes_.size(), false);
    const auto reaches = [&](std::int32_t place) { return reaching[static_cast<std::size_t>(place)]; };
    const auto other_of = [&](const GrammarNode& node) {
        return node.kind == Kind::call ? rules_[static_cast<std::size_t>(node.other)] : node.other;
    };
    const auto leads_there = [&](const GrammarNode& node) {
        switch (node.kind) {
            case Kind::bytes:
                return by_bytes && reaches(node.next);
            case Kind::either:
                return reaches(node.next) || reaches(node.other);
            case Kind::call:
                return reaches(other_of(node)) && reaches(node.next);
            case Kind::end:
                return true;
        }
        return false;
    };
    // Backwards from the ends. The nodes that lead to a node are a list: its newest, and for each the one before.
    struct Leading {
        std::int32_t node, before;
    };
    std::vector<std::int32_t> newest(nodes_.size(), -1), open;
    std::vector<Leading> leading;
    leading.reserve(2 * nodes_.size());
    for (std::size_t i = 0; i < nodes_.size(); ++i) {
        const auto number = static_cast<std::int32_t>(i);
        if (nodes_[i].kind == Kind::end) open.push_back(number);
        for (const std::int32_t place : {nodes_[i].next, other_of(nodes_[i])}) {
            if (place < 0) continue;
            std::int32_t& last = newest[static_cast<std::size_t>(place)];
            leading.push_back({number, std::exchange(last, static_cast<std::int32_t>(leading.size()))});
        }
    }
    while (!open.empty()) {
        const auto place = static_cast<std::size_t>(open.back());
        open.pop_back();
        if (reaching[place] || !leads_there(nodes_[place])) continue;
        reaching[place] = true;
        for (std::int32_t i = newest[place]; i >= 0; i = leading[static_cast<std::size_t>(i)].before)
            open.push_back(leading[static_cast<std::size_t>(i)].node);
    }
    return reaching;
}

std::optional<std::int32_t> GrammarBuilder::left_recursive_rule() const {
    enum class Mark : std::uint8_t { none, open, done };
    std::vector<Mark> marks(nodes_.size(), Mark::none);
    const std::vector<bool> may_be_empty = reaching_end(false);
    for (const std::int32_t rule : rules_) {
        std::vector<std::int32_t> open{rule};
        while (!open.empty()) {  // depth first: a node that is met again while it is open reaches itself
            const std::int32_t place = open.back();
            Mark& mark = marks[static_cast<std::size_t>(place)];
            const GrammarNode& node = nodes_[static_cast<std::size_t>(place)];
            if (mark != Mark::none) {
                mark = Mark::done;
                open.pop_back();
                continue;
            }
            mark = Mark::open;
            std::array<std::int32_t, 2> below{-1, -1};
            if (node.kind == Kind::either) below = {node.next, node.other};
            if (node.kind == Kind::call) {
                const auto called = static_cast<std::size_t>(rules_[static_cast<std::size_t>(node.other)]);
                if (marks[called] == Mark::open) return node.other;
                below = {static_cast<std::int32_t>(called), may_be_empty[called] ? node.next : -1};
            }
            for (const std::int32_t other : below) {
                if (other >= 0 && marks[static_cast<std::size_t>(other)] == Mark::none) open.push_back(other);
            }
        }
    }
    return {};
}

Grammar GrammarBuilder::finish(const Piece& piece) {
    const std::int32_t start = piece(add({.kind = Kind::end}));
    const std::vector<bool> ends = reaching_end(true);
    if (!ends[static_cast<std::size_t>(start)]) throw Endless();
    for (GrammarNode& node : nodes_) {
        if (node.kind == Kind::either && !ends[static_cast<std::size_t>(node.next)]) node.next = node.other;
        if (node.kind == Kind::either && !ends[static_cast<std::size_t>(node.other)]) node.other = node.next;
        if (node.kind == Kind::call) node.other = rules_[static_cast<std::size_t>(node.other)];
    }
    return {std::move(nodes_), start};
}

}  // namespace longhaul::engine
