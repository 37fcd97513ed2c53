#include "engine/grammar/json_pieces.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "engine/grammar/regex_grammar.hpp"
#include "engine/json.hpp"
#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {
namespace {

using Piece = GrammarBuilder::Piece;

constexpr std::int64_t max_digits = 16;       // of a number without bounds, before and behind the point
constexpr std::int64_t max_indentation = 64;  // blanks
constexpr std::size_t max_shared = 64;        // characters of a key that begins as a named one does

const CharacterRanges zero{{'0', '0'}}, digit{{'0', '9'}}, digit_but_zero{{'1', '9'}};
const CharacterRanges hex_digit{{'0', '9'}, {'A', 'F'}, {'a', 'f'}};

/// Characters that stand for themselves in a string.
CharacterRanges plain_but(CharacterRanges others) {
    const CharacterRanges special{{0, 0x1F}, {'"', '"'}, {'\\', '\\'}};
    others.insert(others.end(), special.begin(), special.end());
    return complement(std::move(others));
}

/// A piece that has been built already.
Piece at(std::int32_t place) {
    return [=](std::int32_t) { return place; };
}

/// A character of a string, as any writer of JSON may spell it.
Piece string_character(GrammarBuilder& builder) {
    const Piece hex = builder.character(hex_digit);
    const Piece d = builder.character({{'D', 'D'}, {'d', 'd'}});
    const Piece below_surrogates =
        builder.either({GrammarBuilder::sequence(
                            {builder.character({{'0', '9'}, {'A', 'C'}, {'E', 'F'}, {'a', 'c'}, {'e', 'f'}}), hex}),
                        GrammarBuilder::sequence({d, builder.character({{'0', '7'}})})});
    const auto unicode = [&](std::vector<Piece> four) {
        four.insert(four.begin(), builder.text("\\u"));
        return GrammarBuilder::sequence(std::move(four));
    };
    const Piece pair =
        GrammarBuilder::sequence({unicode({d, builder.character({{'8', '9'}, {'A', 'B'}, {'a', 'b'}}), hex, hex}),
                                  unicode({d, builder.character({{'C', 'F'}, {'c', 'f'}}), hex, hex})});
    const CharacterRanges named{{'"', '"'}, {'\\', '\\'}, {'/', '/'}, {'b', 'b'},
                                {'f', 'f'}, {'n', 'n'},   {'r', 'r'}, {'t', 't'}};
    return builder.either({builder.character(plain_but({})),
                           GrammarBuilder::sequence({builder.text("\\"), builder.character(named)}),
                           unicode({below_surrogates, hex, hex}), pair});
}

std::int64_t power_of_ten(std::size_t exponent) {
    std::int64_t power = 1;
    for (std::size_t i = 0; i < exponent; ++i) power *= 10;
    return power;
}

}  // namespace

JsonPieces::JsonPieces(GrammarBuilder& builder)
    : builder_(builder), blank_rule_(builder.new_rule()), character_rule_(builder.new_rule()) {
    const Piece lines = GrammarBuilder::sequence(
        {builder_.repeated(builder_.text("\n"), 1, 2),
         builder_.repeated(builder_.character({{' ', ' '}, {'\t', '\t'}}), 0, max_indentation)});
    builder_.define(blank_rule_, builder_.either({builder_.text(" "), lines}));
    builder_.define(character_rule_, string_character(builder_));
}

std::int32_t JsonPieces::value_rule() {
    if (value_rule_ >= 0) return value_rule_;
    value_rule_ = builder_.new_rule();  // before its pieces, which call it
    builder_.define(value_rule_,
                    builder_.either({object({}, value()), array({}, value(), 0, -1), string(0, -1), *number({}),
                                     builder_.text("true"), builder_.text("false"), builder_.text("null")}));
    return value_rule_;
}

Piece JsonPieces::quoted(const Piece& inside) {
    return GrammarBuilder::sequence({builder_.text("\""), inside, builder_.text("\"")});
}

Piece JsonPieces::string(std::int64_t min_count, std::int64_t max_count) {
    return quoted(builder_.repeated(builder_.call(character_rule_), min_count, max_count));
}

Piece JsonPieces::key_of(const std::string& name) {
    return GrammarBuilder::sequence(
        {builder_.text(json_text(Json(name)) + ":"), builder_.optional(builder_.text(" "))});
}

/// What follows the first `shared` characters of a key, and its closing quote, if the key begins with them as those of
/// `names` do, of which only the rests are given. No escapes, which could spell a name in another way.
Piece JsonPieces::other_key(const std::set<std::string>& names, std::size_t shared) {
    std::map<char32_t, std::set<std::string>> rests;
    for (const std::string& name : names) {
        if (!name.empty()) rests[unicode::first_char(name)].insert(name.substr(unicode::char_bytes(name.front())));
    }
    CharacterRanges firsts;
    std::vector<Piece> ways;
    for (const auto& [first, rest] : rests) {
        firsts.push_back({first, first});
        const bool is_plain = first >= 0x20 && first != '"' && first != '\\';
        if (is_plain && shared < max_shared)
            ways.push_back(
                GrammarBuilder::sequence({builder_.character({{first, first}}), other_key(rest, shared + 1)}));
    }
    ways.push_back(
        GrammarBuilder::sequence({builder_.character(plain_but(firsts)),
                                  builder_.repeated(builder_.character(plain_but({})), 0), builder_.text("\"")}));
    if (!names.contains("")) ways.push_back(builder_.text("\""));
    return builder_.either(std::move(ways));
}

Piece JsonPieces::object(const std::vector<Member>& members, const std::optional<Piece>& others) {
    std::vector<Piece> pieces;
    std::set<std::string> names;
    for (const Member& member : members) {
        pieces.push_back(GrammarBuilder::sequence({key_of(member.name), member.value}));
        names.insert(member.name);
    }
    std::optional<Piece> other;
    if (others) {
        const std::int32_t rule = builder_.new_rule();
        builder_.define(rule, GrammarBuilder::sequence({builder_.text("\""), other_key(names, 0), builder_.text(":"),
                                                        builder_.optional(builder_.text(" ")), *others}));
        other = builder_.call(rule);
    }
    std::vector<bool> required(members.size());
    std::transform(members.begin(), members.end(), required.begin(),
                   [](const Member& member) { return member.required; });
    // From the last member to the first. `some`: a member from here on, and those behind it; `behind`: what follows the
    // member before.
    const Piece all = [=, builder = &builder_, comma = comma()](std::int32_t next) {
        std::optional<std::int32_t> some;
        std::int32_t behind = next;
        if (other) {
            behind = builder->repeated(GrammarBuilder::sequence({comma, *other}), 0)(next);
            some = (*other)(behind);
        }
        bool may_end = true;
        for (std::size_t i = pieces.size(); i-- > 0;) {
            const std::int32_t member = pieces[i](behind);
            some = required[i] || !some ? member : builder->either({at(member), at(*some)})(next);
            may_end = may_end && !required[i];
            behind = comma(*some);
            if (may_end) behind = builder->either({at(behind), at(next)})(next);
        }
        if (!some) return next;
        return may_end ? builder->either({at(*some), at(next)})(next) : *some;
    };
    return GrammarBuilder::sequence({builder_.text("{"), blank(), all, blank(), builder_.text("}")});
}

Piece JsonPieces::array(const std::vector<Piece>& first, const std::optional<Piece>& rest, std::int64_t min_count,
                        std::int64_t max_count) {
    Piece item;
    if (rest) {
        const std::int32_t rule = builder_.new_rule();
        builder_.define(rule, *rest);
        item = builder_.call(rule);
    }
    // From the last item to the first. One that is not needed may be missing, and then all behind it are.
    const Piece all = [=, builder = &builder_, comma = comma()](std::int32_t next) {
        const std::int64_t num_first = std::ssize(first);
        std::int64_t count = max_count;
        std::int32_t place = next;
        if (max_count < 0) {
            count = std::max<std::int64_t>({num_first, min_count, 1});
            place = builder->repeated(GrammarBuilder::sequence({comma, item}), 0)(next);
        }
        for (std::int64_t i = count; i-- > 0;) {
            place = i < num_first ? first[static_cast<std::size_t>(i)](place) : item(place);
            if (i > 0) place = comma(place);
            if (i >= min_count) place = builder->either({at(place), at(next)})(next);
        }
        return place;
    };
    return GrammarBuilder::sequence({builder_.text("["), blank(), all, blank(), builder_.text("]")});
}

Piece JsonPieces::digits(std::int64_t count) {
    return builder_.repeated(builder_.character(digit), count, count);
}

/// Numbers of as many digits as both have.
Piece JsonPieces::digits_between(std::string_view low, std::string_view high) {
    const auto count = static_cast<std::int64_t>(low.size());
    if (low.find_first_not_of('0') == std::string_view::npos && high.find_first_not_of('9') == std::string_view::npos)
        return digits(count);
    const char32_t first = static_cast<unsigned char>(low.front()), last = static_cast<unsigned char>(high.front());
    const std::string nines(low.size() - 1, '9'), zeros(low.size() - 1, '0');
    const auto behind = [&](char32_t one, std::string_view from, std::string_view to) {
        return GrammarBuilder::sequence({builder_.character({{one, one}}), digits_between(from, to)});
    };
    if (first == last) return behind(first, low.substr(1), high.substr(1));
    std::vector<Piece> ways{behind(first, low.substr(1), nines)};
    if (last - first > 1)
        ways.push_back(GrammarBuilder::sequence({builder_.character({{first + 1, last - 1}}), digits(count - 1)}));
    ways.push_back(behind(last, zeros, high.substr(1)));
    return builder_.either(std::move(ways));
}

/// Integers from `low`, which is not negative.
std::optional<Piece> JsonPieces::magnitude(std::int64_t low, std::optional<std::int64_t> high) {
    if (high && *high < low) return {};
    const std::size_t shortest = std::to_string(low).size();
    std::size_t longest = shortest;
    if (high) longest = std::to_string(*high).size();
    std::vector<Piece> ways;
    for (std::size_t length = shortest; length <= longest; ++length) {
        const std::int64_t from = std::max(low, length == 1 ? 0 : power_of_ten(length - 1));
        const std::int64_t to =
            std::min(high.value_or(std::numeric_limits<std::int64_t>::max()), power_of_ten(length) - 1);
        ways.push_back(digits_between(std::to_string(from), std::to_string(to)));
    }
    if (const auto more = static_cast<std::int64_t>(shortest); !high && more < max_digits)
        ways.push_back(GrammarBuilder::sequence(
            {builder_.character(digit_but_zero), builder_.repeated(builder_.character(digit), more, max_digits - 1)}));
    return builder_.either(std::move(ways));
}

std::optional<Piece> JsonPieces::integer(const NumberRange& range) {
    std::optional<std::int64_t> low = range.low, high = range.high;
    if (low && range.low_open) ++*low;
    if (high && range.high_open) --*high;
    std::vector<Piece> ways;
    if (!high || *high >= 0) {
        if (const auto piece = magnitude(std::max<std::int64_t>(low.value_or(0), 0), high)) ways.push_back(*piece);
    }
    if (!low || *low < 0) {
        const auto max_magnitude = low ? std::optional(-*low) : std::nullopt;
        if (const auto piece = magnitude(std::max<std::int64_t>(-high.value_or(-1), 1), max_magnitude))
            ways.push_back(GrammarBuilder::sequence({builder_.text("-"), *piece}));
    }
    if (ways.empty()) return {};
    return builder_.either(std::move(ways));
}

/// Numbers from `low`, which is not negative, without exponents.
std::optional<Piece> JsonPieces::real_magnitude(std::int64_t low, bool low_open, std::optional<std::int64_t> high,
                                                bool high_open) {
    // So few that a double tells all of them from the bounds.
    const std::size_t longest = std::to_string(std::max(low, high.value_or(0))).size();
    const std::int64_t max_fraction = std::max<std::int64_t>(max_digits - 1 - static_cast<std::int64_t>(longest), 1);
    const Piece zeros = builder_.optional(
        GrammarBuilder::sequence({builder_.text("."), builder_.repeated(builder_.character(zero), 1, max_fraction)}));
    const Piece fraction = builder_.optional(
        GrammarBuilder::sequence({builder_.text("."), builder_.repeated(builder_.character(digit), 1, max_fraction)}));
    const Piece not_zero =
        GrammarBuilder::sequence({builder_.text("."), builder_.repeated(builder_.character(digit), 0, max_fraction - 1),
                                  builder_.character(digit_but_zero)});
    const auto with = [&](const Piece& integer, const Piece& behind) {
        return GrammarBuilder::sequence({integer, behind});
    };
    const bool is_one = high && *high == low;
    std::vector<Piece> ways;
    if (!low_open && !(is_one && high_open) && (!high || *high >= low))
        ways.push_back(with(*magnitude(low, low), zeros));
    if (!high || *high > low) ways.push_back(with(*magnitude(low, low), not_zero));
    const auto below_high = high ? std::optional(*high - 1) : std::nullopt;
    if (const auto between = magnitude(low + 1, below_high)) ways.push_back(with(*between, fraction));
    if (high && *high > low && !high_open) ways.push_back(with(*magnitude(*high, *high), zeros));
    if (ways.empty()) return {};
    return builder_.either(std::move(ways));
}

std::optional<Piece> JsonPieces::number(const NumberRange& range) {
    if (range.is_whole()) {
        const Piece minus = builder_.optional(builder_.text("-"));
        const Piece exponent =
            GrammarBuilder::sequence({builder_.character({{'E', 'E'}, {'e', 'e'}}),
                                      builder_.optional(builder_.character({{'+', '+'}, {'-', '-'}})),
                                      builder_.repeated(builder_.character(digit), 1, 2)});
        return GrammarBuilder::sequence({minus, *real_magnitude(0, false, {}, false), builder_.optional(exponent)});
    }
    const auto& [low, high, low_open, high_open] = range;
    std::vector<Piece> ways;
    if (!high || *high >= 0) {
        const bool from_zero = !low || *low < 0;
        if (const auto piece = real_magnitude(from_zero ? 0 : *low, !from_zero && low_open, high, high_open))
            ways.push_back(*piece);
    }
    if (!low || *low < 0) {
        const bool from_zero = !high || *high >= 0;  // which has no sign
        const auto max_magnitude = low ? std::optional(-*low) : std::nullopt;
        if (const auto piece = real_magnitude(from_zero ? 0 : -*high, from_zero || high_open, max_magnitude, low_open))
            ways.push_back(GrammarBuilder::sequence({builder_.text("-"), *piece}));
    }
    if (ways.empty()) return {};
    return builder_.either(std::move(ways));
}

std::string JsonPieces::expression_of_format(std::string_view format) {
    const std::string year = "[1-9]\\d{3}", leap_hundreds = "([2468][048]|[13579][26])";
    const std::string leap_year = "([1-9]\\d(0[48]|[2468][048]|[13579][26])|" + leap_hundreds + "00)";
    std::string date = "(" + year + "-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|" +
                       "02-(0[1-9]|1\\d|2[0-8]))|" + leap_year + "-02-29)";
    std::string time = R"(([01]\d|2[0-3]):[0-5]\d:[0-5]\d(\.\d{1,9})?(Z|[+-]([01]\d|2[0-3]):[0-5]\d))";
    if (format == "date") return date;
    if (format == "time") return time;
    if (format == "date-time") return date + "T" + time;
    if (format == "uuid") return "[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}";
    return "";
}

}  // namespace longhaul::engine
