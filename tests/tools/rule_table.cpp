// rule-table: draft methods and verification rules on distributions of yours, without a model. Reads one JSON object
// on standard input
//     {"draft": "rsd-s", "draft-tree": "3x2", "verify": "recursive", "p": {"": [..], "0": [..], "0,1": [..]},
//      "q": {..}, "emit": 2, "draws": 100000, "seed": 1}
// where p and q map a context (ids joined by commas) to the probabilities of the next token, and p may be a list of
// such tables, one a draft model. Makes `draws` independent texts of `emit` tokens by speculative steps and prints
//     {"counts": {"0,1": 123, …}, "target_calls": N, "accepted": M}
// A pair of method and rule that is not lossless is refused with exit code 2.
#include <charconv>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "tests/engine/table_decoding.hpp"

using namespace longhaul;
using engine::testing::Table;
using engine::testing::TableDecoder;
using engine::testing::TableJob;
using engine::testing::Tokens;

namespace {

Tokens read_context(const std::string& text) {
    Tokens context;
    const char* at = text.data();
    const char* end = at + text.size();
    while (at != end) {
        std::int32_t token = 0;
        const auto [next, error] = std::from_chars(at, end, token);
        const bool more = error == std::errc() && next != end && *next == ',' && next + 1 != end;
        if (error != std::errc() || (next != end && !more))
            throw UsageError("rule-table: expected a context of ids joined by commas, got '" + text + "'");
        context.push_back(token);
        at = more ? next + 1 : next;
    }
    return context;
}

Table read_table(const nlohmann::json& json) {
    std::map<Tokens, std::vector<double>> rows;
    for (const auto& [context, row] : json.items()) rows[read_context(context)] = row.get<std::vector<double>>();
    return Table(rows);
}

TableJob read_job(const nlohmann::json& json) {
    TableJob job;
    job.draft.method = json.at("draft").get<std::string>();
    job.draft.tree = json.value("draft-tree", "");
    job.draft.verify = json.value("verify", "coupled");
    job.draft.ngram_order = json.value("ngram-order", job.draft.ngram_order);
    job.draft.ngram_top = json.value("ngram-top", job.draft.ngram_top);
    if (json.contains("p")) {
        if (json["p"].is_array()) {
            for (const auto& table : json["p"]) job.p.push_back(read_table(table));
        } else if (engine::find_draft_method(job.draft.method).least_models > 0) {
            job.p.push_back(read_table(json["p"]));
        }
    }
    job.q = read_table(json.at("q"));
    job.emit = json.at("emit").get<std::int64_t>();
    if (job.emit < 1 || job.emit > 1000) throw UsageError("rule-table: emit: expected 1 to 1000");
    return job;
}

std::string join(const Tokens& tokens) {
    std::string text;
    for (const std::int32_t token : tokens) text += (text.empty() ? "" : ",") + std::to_string(token);
    return text;
}

void run(const nlohmann::json& json) {
    TableDecoder decoder(read_job(json));
    const auto draws = json.at("draws").get<std::int64_t>();
    const auto seed = json.value("seed", std::uint64_t{1});
    std::map<Tokens, std::int64_t> counts;
    for (std::int64_t draw = 0; draw < draws; ++draw)
        ++counts[decoder.text(engine::noise_key(seed, "draw-" + std::to_string(draw), 0))];
    nlohmann::ordered_json answer{{"counts", nlohmann::ordered_json::object()}};
    for (const auto& [text, count] : counts) answer["counts"][join(text)] = count;
    answer["target_calls"] = decoder.target_calls;
    answer["accepted"] = decoder.accepted;
    std::printf("%s\n", answer.dump().c_str());
}

}  // namespace

int main() {
    try {
        run(nlohmann::json::parse(std::cin));
        return 0;
    } catch (const UsageError& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 2;
    } catch (const nlohmann::json::exception& error) {
        std::fprintf(stderr, "error: rule-table: standard input: %s\n", error.what());
        return 2;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "error: %s\n", error.what());
        return 1;
    }
}
