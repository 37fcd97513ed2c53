#include "engine/replica/item_statistics.hpp"

#include <type_traits>

#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

// One list of names for writing and reading.
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
    visit("accepted_ngram_path", s.accepted_ngram_path);
    visit("accepted_resampled", s.accepted_resampled);
    visit("draft_model_calls", s.draft_model_calls);
    visit("accepted_draft_model", s.accepted_draft_model);
    visit("decode_tokens", s.decode_tokens);
    visit("checkpoint_rounds", s.checkpoint_rounds);
    visit("resumes", s.resumes);
    visit("recomputed_tokens", s.recomputed_tokens);
    visit("recomputed_rows", s.recomputed_rows);
    visit("cached_tokens", s.cached_tokens);
    visit("branched_trees", s.branched_trees);
    visit("checkpoint_stall_seconds", s.checkpoint_stall_seconds);
}

nlohmann::json length_to_json(const std::vector<LengthRow>& rows) {
    nlohmann::json json = nlohmann::json::array();
    for (const LengthRow& row : rows)
        json.push_back({row.tokens, row.seconds, row.target_calls, row.draft_calls, row.accepted, row.accepted_ngram,
                        row.accepted_ngram_path, row.accepted_draft_model});
    return json;
}

std::vector<LengthRow> length_from_json(const nlohmann::json& json) {
    std::vector<LengthRow> rows;
    try {
        for (const auto& row : json)
            rows.push_back({.tokens = row.at(0).get<std::int64_t>(),
                            .seconds = row.at(1).get<double>(),
                            .target_calls = row.at(2).get<std::int64_t>(),
                            .draft_calls = row.at(3).get<std::int64_t>(),
                            .accepted = row.at(4).get<std::int64_t>(),
                            .accepted_ngram = row.at(5).get<std::int64_t>(),
                            .accepted_ngram_path = row.size() > 6 ? row.at(6).get<std::int64_t>() : 0,
                            .accepted_draft_model = row.size() > 7 ? row.at(7).get<std::int64_t>() : 0});
    } catch (const nlohmann::json::exception&) {
        rows.clear();
    }
    return rows;
}

nlohmann::json loss_to_json(const LossByPosition& loss) {
    nlohmann::json buckets = nlohmann::json::array();
    for (const LossByPosition::Bucket& bucket : loss.buckets) buckets.push_back({bucket.count, bucket.nll});
    nlohmann::json json{{"covered_tokens", loss.covered_tokens}, {"buckets", buckets}};
    if (loss.greedy_tokens) json["greedy_tokens"] = *loss.greedy_tokens;
    return json;
}

LossByPosition loss_from_json(const nlohmann::json& json) {
    try {
        LossByPosition loss;
        for (const auto& bucket : json.at("buckets")) {
            loss.buckets.push_back({bucket.at(0).get<std::int64_t>(), bucket.at(1).get<double>()});
        }
        loss.covered_tokens = json.at("covered_tokens").get<std::int64_t>();
        const auto greedy = json.find("greedy_tokens");
        if (greedy != json.end()) {
            loss.greedy_tokens = greedy->get<std::int64_t>();
        } else if (!loss.buckets.empty()) {
            loss.greedy_tokens.reset();
        }
        return loss.buckets.size() < 63 ? loss : LossByPosition();
    } catch (const nlohmann::json::exception&) {
        return {};
    }
}

}  // namespace

void ItemStatistics::count_length(std::int64_t num_output) {
    constexpr std::int64_t tokens_per_row = 1024;
    if (num_output / tokens_per_row <= (by_length.empty() ? 0 : by_length.back().tokens / tokens_per_row)) return;
    by_length.push_back({.tokens = num_output,
                         .seconds = seconds - prefill_seconds,
                         .target_calls = target_calls,
                         .draft_calls = draft_calls,
                         .accepted = accepted,
                         .accepted_ngram = accepted_ngram,
                         .accepted_ngram_path = accepted_ngram_path,
                         .accepted_draft_model = accepted_draft_model});
}

std::string statistics_to_json(const ItemStatistics& statistics) {
    nlohmann::json json;
    for_each_counter(statistics, [&](const char* name, const auto& value) { json[name] = value; });
    if (!statistics.by_length.empty()) json["by_length"] = length_to_json(statistics.by_length);
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
    if (json.contains("by_length")) statistics.by_length = length_from_json(json["by_length"]);
    if (json.contains("loss")) statistics.loss = loss_from_json(json["loss"]);
    return statistics;
}

}  // namespace longhaul::engine
