// The sampling keys of the vocabulary.
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

}  // namespace

Section sampling_section() {
    return {"Sampling",
            {temperature_key(),
             integer("top-k", Kind::identity, &Settings::top_k, 0, any, "keep the k most probable tokens; 0 = off"),
             number("top-p", Kind::identity, &Settings::top_p, 0, 1, true,
                    "keep the most probable tokens up to this total probability; 1 = off"),
             number("min-p", Kind::identity, &Settings::min_p, 0, 1, false,
                    "keep tokens with at least this fraction of the highest probability; 0 = off"),
             number("eta", Kind::identity, &Settings::eta, 0, 1, false, "epsilon of eta-sampling; 0 = off"),
             number("repetition-penalty", Kind::identity, &Settings::repetition_penalty, 0, 1000, true,
                    "penalises each token of the penalty window by this factor, once; 1 = off"),
             integer("penalty-window", Kind::identity, &Settings::penalty_window, 1, max_tokens,
                     "tokens before the next one that are penalised")}};
}

}  // namespace longhaul::runner
