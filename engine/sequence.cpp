#include "engine/sequence.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

// One list of names for both directions.
template <typename Statistics, typename Visit>
void for_each_counter(Statistics& s, Visit visit) {
    visit("seconds", s.seconds);
    visit("prefill_seconds", s.prefill_seconds);
    visit("steps", s.steps);
    visit("target_calls", s.target_calls);
    visit("draft_calls", s.draft_calls);
    visit("drafted", s.drafted);
    visit("accepted", s.accepted);
    visit("accepted_ngram", s.accepted_ngram);
    visit("decode_tokens", s.decode_tokens);
    visit("checkpoint_rounds", s.checkpoint_rounds);
    visit("resumes", s.resumes);
    visit("recomputed_tokens", s.recomputed_tokens);
    visit("recomputed_rows", s.recomputed_rows);
    visit("branched_trees", s.branched_trees);
    visit("checkpoint_stall_seconds", s.checkpoint_stall_seconds);
}

nlohmann::json loss_to_json(const LossByPosition& loss) {
    nlohmann::json buckets = nlohmann::json::array();
    for (const LossByPosition::Bucket& bucket : loss.buckets) buckets.push_back({bucket.count, bucket.nll});
    return {{"covered_tokens", loss.covered_tokens}, {"buckets", buckets}};
}

LossByPosition loss_from_json(const nlohmann::json& json) {
    try {
        LossByPosition loss;
        for (const auto& bucket : json.at("buckets")) {
            loss.buckets.push_back({bucket.at(0).get<std::int64_t>(), bucket.at(1).get<double>()});
        }
        loss.covered_tokens = json.at("covered_tokens").get<std::int64_t>();
        return loss.buckets.size() < 63 ? loss : LossByPosition();
    } catch (const nlohmann::json::exception&) {
        return {};
    }
}

}  // namespace

std::string statistics_to_json(const ItemStatistics& statistics) {
    nlohmann::json json;
    for_each_counter(statistics, [&](const char* name, const auto& value) { json[name] = value; });
    if (statistics.loss.covered_tokens > 0) json["loss"] = loss_to_json(statistics.loss);
    return json_text(json);
}

ItemStatistics statistics_from_json(const std::string& text) {
    ItemStatistics statistics;
    const nlohmann::json json = try_parse_json(text);
    if (!json.is_object()) return statistics;
    for_each_counter(statistics, [&](const char* name, auto& value) {
        if (json.contains(name) && json[name].is_number()) value = json[name].get<std::decay_t<decltype(value)>>();
    });
    if (json.contains("loss")) statistics.loss = loss_from_json(json["loss"]);
    return statistics;
}

StopText::StopText(const Tokenizer& tokenizer, const std::vector<std::string>& stops,
                   std::span<const std::int32_t> prompt)
    : detokenizer_(tokenizer), stops_(stops) {
    if (prompt.empty()) return;
    const std::string before = tokenizer.decode(prompt.last(1), true);
    if (before.ends_with("\xEF\xBF\xBD")) return;  // the prompt ends inside a character
    text_ = detokenizer_.push(prompt.back());
    before_ = before.size();
}

bool StopText::cut_at_stop(const std::string& text, std::size_t from) {
    std::size_t first = std::string::npos;
    for (const std::string& stop : stops_) {
        const std::size_t begin = std::max(before_, from < stop.size() ? 0 : from - stop.size() + 1);
        first = std::min(first, text.find(stop, begin));
    }
    if (first == std::string::npos) return false;
    text_ = text.substr(0, first);
    stopped_ = true;
    return true;
}

bool StopText::push(std::int32_t token) {
    const std::size_t from = text_.size();
    text_ += detokenizer_.push(token);
    if (cut_at_stop(text_, from)) return true;
    const std::string held = Detokenizer(detokenizer_).finish();
    // An unfinished character ends in U+FFFD now and will be another one.
    return !held.empty() && held.find("\xEF\xBF\xBD") == std::string::npos && cut_at_stop(text_ + held, from);
}

std::string StopText::take() {
    if (!stopped_) text_ += detokenizer_.finish();
    return text_.size() > before_ ? text_.substr(before_) : std::string();
}

std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> output) {
    if (prompt.empty()) return tokenizer.decode(output, true);
    std::vector<std::int32_t> both(1, prompt.back());
    const std::string before = tokenizer.decode(both, true);
    both.insert(both.end(), output.begin(), output.end());
    std::string text = tokenizer.decode(both, true);
    if (!text.starts_with(before)) return tokenizer.decode(output, true);  // the prompt ends inside a character
    return text.substr(before.size());
}

}  // namespace longhaul::engine
