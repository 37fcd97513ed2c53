// The vocabulary of sampling, and of what ends a text.
#include <algorithm>
#include <limits>

#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary_parts.hpp"

namespace longhaul::runner {
namespace {

Key temperature_key() {
    return {.info = {.key = "temperature",
                     .value_name = "NUMBER",
                     .help = "sampling temperature; 0 = greedy, 1 = the model's distribution"},
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    s.temperature = parse_number(value, 0, 1e6);
                    // Below 1e-6, logits / temperature overflows fp32; such a value is meant as greedy.
                    if (s.temperature > 0 && s.temperature < 1e-6)
                        throw BadValue{"0 (greedy) or a number from 1e-06 to 1e+06", ""};
                },
            .get = [](const Settings& s) { return Strings{format_number(s.temperature)}; }};
}

std::int32_t parse_token_id(const std::string& value) {
    return static_cast<std::int32_t>(parse_integer(value, 0, std::numeric_limits<std::int32_t>::max()));
}

constexpr std::size_t max_breakers = 64;
constexpr std::size_t max_breaker_bytes = 40;

void add_breaker(Settings& settings, const std::string& value) {
    std::vector<std::string>& breakers =
        settings.dry_breakers ? *settings.dry_breakers : settings.dry_breakers.emplace();
    if (value == "none") {
        breakers.clear();
        return;
    }
    std::string text = parse_text(value);
    if (text.empty() || text.size() > max_breaker_bytes)
        throw BadValue{"none, or a text of 1 to " + std::to_string(max_breaker_bytes) + " bytes", ""};
    if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
    if (breakers.size() == max_breakers)
        throw BadValue{"at most " + std::to_string(max_breakers) + " sequence breakers", ""};
    breakers.push_back(std::move(text));
}

Key dry_breakers_key() {
    return {
        .info =
            {.key = "dry-breakers",
             .value_name = "TEXT|none",
             .help =
                 R"(DRY: sequence breaker, a text across which no repetition is counted, such as \n for the end of )"
                 "a line; those that are given replace the default; none = no breakers",
             .repeatable = true},
        .later = true,
        .set = [](Settings& s, const std::string& value, const auto&) { add_breaker(s, value); },
        .get =
            [](const Settings& s) {
                const std::vector<std::string>& breakers = s.dry_breakers.value_or(default_dry_breakers);
                Strings values;
                for (const std::string& text : breakers) values.push_back(quote_text(text));
                return values.empty() ? Strings{"none"} : values;
            }};
}

void add_bias(Settings& settings, const std::string& value) {
    constexpr std::size_t max_biases = 1024;
    constexpr double greatest = 100;
    const std::size_t equals = value.find('=');
    if (equals == std::string::npos) throw BadValue{"ID=BIAS, such as 1234=-100", ""};
    const std::int32_t token = parse_token_id(value.substr(0, equals));
    const auto bias = static_cast<float>(parse_number(value.substr(equals + 1), -greatest, greatest));
    std::vector<engine::TokenBias>& biases = settings.logit_bias;
    if (std::any_of(biases.begin(), biases.end(), [&](const auto& other) { return other.token == token; }))
        throw BadValue{"each token once", ""};
    if (biases.size() == max_biases) throw BadValue{"at most " + std::to_string(max_biases) + " tokens", ""};
    biases.push_back({token, bias});
}

Key logit_bias_key() {
    return {.info = {.key = "logit-bias",
                     .value_name = "ID=BIAS",
                     .help = "number from -100 to 100 that is added to the logit of a token before all else, as in "
                             "OpenAI's API: -100 never chooses it in practice; empty = none",
                     .repeatable = true,
                     .may_be_empty = true},
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    if (value.empty()) return s.logit_bias.clear();
                    add_bias(s, value);
                },
            .get =
                [](const Settings& s) {
                    Strings values;
                    for (const auto& [token, bias] : s.logit_bias)
                        values.push_back(std::to_string(token) + "=" + format_number(bias));
                    return values;
                }};
}

}  // namespace

Key stop_key() {
    return {
        .info = {.key = "stop",
                 .value_name = "TEXT",
                 .help =
                     R"(a string that ends an item and is not part of it; \n \t \\ are escapes, quotes keep blanks; )"
                     "empty = none",
                 .repeatable = true,
                 .may_be_empty = true},
        .set =
            [](Settings& s, const std::string& value, const auto&) {
                if (value.empty()) {
                    s.stop.clear();
                    return;
                }
                std::string text = parse_text(value);
                if (text.empty()) throw BadValue{"a text of at least one character", ""};
                if (!is_text(text)) throw BadValue{"UTF-8 text", ""};
                s.stop.push_back(std::move(text));
            },
        .get =
            [](const Settings& s) {
                Strings values;
                for (const std::string& text : s.stop) values.push_back(quote_text(text));
                return values;
            }};
}

Key stop_token_ids_key() {
    return {.info = {.key = "stop-token-ids",
                     .value_name = "ID",
                     .help = "a token that ends an item and is no part of its text, beside the model's own, also with "
                             "ignore-eos; empty = none",
                     .repeatable = true,
                     .may_be_empty = true},
            .later = true,
            .set =
                [](Settings& s, const std::string& value, const auto&) {
                    if (value.empty()) return s.stop_token_ids.clear();
                    s.stop_token_ids.push_back(parse_token_id(value));
                },
            .get =
                [](const Settings& s) {
                    Strings values;
                    for (const std::int32_t token : s.stop_token_ids) values.push_back(std::to_string(token));
                    return values;
                }};
}

Section sampling_section() {
    return {
        "Sampling",
        {logit_bias_key(), temperature_key(),
         integer("top-k", Kind::identity, &Settings::top_k, 0, any, "keep the k most probable tokens; 0 = off"),
         number("top-p", Kind::identity, &Settings::top_p, 0, 1, true,
                "keep the most probable tokens up to this total probability; 1 = off"),
         number("min-p", Kind::identity, &Settings::min_p, 0, 1, false,
                "keep tokens with at least this fraction of the highest probability; 0 = off"),
         number("eta", Kind::identity, &Settings::eta, 0, 1, false, "epsilon of eta-sampling; 0 = off"),
         number("repetition-penalty", Kind::identity, &Settings::repetition_penalty, 0, 1000, true,
                "penalises each token of the penalty window by this factor, once; 1 = off"),
         integer("penalty-window", Kind::identity, &Settings::penalty_window, 1, max_tokens,
                 "tokens before the next one that are penalised"),
         later(
             number("presence-penalty", Kind::identity, &Settings::presence_penalty, -2, 2, false,
                    "subtracted from the logit of each token that the output has so far, as in OpenAI's API; 0 = off")),
         later(
             number("frequency-penalty", Kind::identity, &Settings::frequency_penalty, -2, 2, false,
                    "subtracted from the logit of each token as often as the output has it so far, as in OpenAI's API; "
                    "0 = off")),
         later(
             number("dry-multiplier", Kind::identity, &Settings::dry_multiplier, 0, 1000, false,
                    "DRY: penalty of a token that would continue a repetition of dry-allowed-length tokens, subtracted "
                    "from its logit behind the repetition penalty; a common value is 0.8; 0 = off")),
         later(number("dry-base", Kind::identity, &Settings::dry_base, 1, 1000, false,
                      "DRY: factor of the penalty for each further token of the repetition")),
         later(integer("dry-allowed-length", Kind::identity, &Settings::dry_allowed_length, 1, max_tokens,
                       "DRY: repetitions of fewer tokens are not penalised")),
         later(integer("dry-window", Kind::identity, &Settings::dry_window, 0, max_tokens,
                       "DRY: repetitions are looked for in this number of tokens before the next one; 0 = in the whole "
                       "text, prompt included")),
         dry_breakers_key()}};
}

}  // namespace longhaul::runner
