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

}  // namespace longhaul::engine
