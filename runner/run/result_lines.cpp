#include "runner/run/result_lines.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>

#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

void put_accuracy(Ordered& json, const ChoiceScores& choices) {
    if (choices.right.empty()) return;
    const auto is_right = [&](std::int64_t choice) {
        return std::find(choices.right.begin(), choices.right.end(), choice) != choices.right.end() ? 1 : 0;
    };
    json["acc"] = is_right(choices.chosen);
    json["acc_norm"] = is_right(choices.chosen_norm);
    if (choices.mc2) json["mc2"] = *choices.mc2;
}

/// What greedy decoding would give of a given text. `acc`: only if the text is scored to its end.
void put_greedy(Ordered& json, const ResultRecord& record, const ResultFormat& format) {
    if (!record.loss.greedy_tokens) return;
    json["greedy_tokens"] = *record.loss.greedy_tokens;
    const bool whole = record.finish_reason == "stop" || record.finish_reason == "length";
    if (format.continuations && whole) json["acc"] = *record.loss.is_greedy() ? 1 : 0;
}

void put_choices(Ordered& json, const ChoiceScores& choices) {
    if (!choices.group.empty()) json["group"] = choices.group;
    json["choice"] = choices.chosen;
    json["choice_norm"] = choices.chosen_norm;
    json["choice_logprobs"] = choices.logprobs;
    // Where several may be right always an array: readers of columns expect one type.
    const bool several = choices.may_have_several_right || choices.right.size() > 1;
    if (!choices.right.empty()) json["right"] = several ? Ordered(choices.right) : Ordered(choices.right.front());
    put_accuracy(json, choices);
}

/// nullopt if the line has none.
std::optional<ChoiceScores> choices_of(const Json& json) {
    if (!json.contains("choice_logprobs")) return std::nullopt;
    ChoiceScores choices{.logprobs = json["choice_logprobs"].get<std::vector<double>>(),
                         .chosen = json.at("choice"),
                         .chosen_norm = json.at("choice_norm")};
    choices.group = json.value("group", "");
    const Json right = json.value("right", Json::array());
    choices.may_have_several_right = right.is_array() && !right.empty();
    choices.right = right.is_array() ? right.get<std::vector<std::int64_t>>() : std::vector{right.get<std::int64_t>()};
    if (json.contains("mc2")) choices.mc2 = json["mc2"].get<double>();
    return choices;
}

/// The fields in their fixed order.
void put_fields(Ordered& json, const ResultRecord& record, const ResultFormat& format) {
    json["id"] = record.id;
    if (format.sample) json["sample"] = record.key.sample;
    json["text"] = record.text;
    if (record.has_reasoning) json["answer"] = record.answer ? Ordered(*record.answer) : Ordered();
    json["num_tokens"] = record.num_tokens;
    json["finish_reason"] = record.finish_reason;
    if (!record.error.empty()) json["error"] = record.error;
    if (format.token_ids) json["token_ids"] = record.token_ids;
    if (record.choices) put_choices(json, *record.choices);
    if (record.loss.buckets.empty()) return;
    json["nll"] = record.loss.nll();
    Ordered buckets = Ordered::array();
    for (std::size_t b = 0; b < record.loss.buckets.size(); ++b) {
        const auto& [count, nll] = record.loss.buckets[b];
        if (count > 0) buckets.push_back({std::int64_t{1} << b, count, nll});
    }
    json["loss_by_position"] = std::move(buckets);
    put_greedy(json, record, format);
}

/// A last member of a line whose value is copied as text and not parsed, because it may be a thousand times larger than
/// the rest.
struct LastMember {
    std::string_view key, begin, end;
    std::string_view alphabet;  ///< of the value; "": not checked
};
constexpr LastMember logprobs_member{",\"logprobs\":", "[[[", "]]]", "[],.-+e0123456789"};
constexpr LastMember resume_member{",\"resume\":", "\"", "\"", ""};
constexpr LastMember statistics_member{",\"statistics\":", "{", "}", ""};

void append_last(std::string& line, const LastMember& member, std::string_view value) {
    if (value.empty()) return;
    line.pop_back();
    line.append(member.key).append(value).append("}");
}

/// Cuts a member off the end of a line. Returns false if that member is something else. A string value cannot contain
/// the key, because its quotes would be escaped.
bool cut_last(std::string& line, const LastMember& member, std::string& value) {
    const std::size_t at = line.rfind(member.key);
    if (at == std::string::npos) return true;
    const std::string_view rest = std::string_view(line).substr(at + member.key.size());
    if (!rest.ends_with("}")) return false;
    value = rest.substr(0, rest.size() - 1);
    if (!value.starts_with(member.begin) || !value.ends_with(member.end)) return false;
    if (!member.alphabet.empty() && value.find_first_not_of(member.alphabet) != std::string::npos) return false;
    line.resize(at);
    line += '}';
    return true;
}

/// The value of the field `resume`: the tokens, each behind a blank.
std::string resume_value(const ResultRecord& record) {
    std::string tokens;
    for (const std::int32_t token : record.token_ids) tokens.append(" ").append(std::to_string(token));
    return "\"" + tokens + "\"";
}

constexpr std::string_view checksum_key = ",\"checksum\":\"", checksum_end = "\"}";
constexpr std::size_t checksum_digits = 16;

engine::LossByPosition loss_of(const Json& json) {
    engine::LossByPosition loss;
    for (const Json& bucket : json.value("loss_by_position", Json::array())) {
        const auto first = bucket.at(0).get<std::int64_t>();
        const auto place = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(first)));
        if (first <= 0) continue;
        if (loss.buckets.size() < place) loss.buckets.resize(place);
        loss.buckets[place - 1] = {bucket.at(1).get<std::int64_t>(), bucket.at(2).get<double>()};
    }
    if (json.contains("greedy_tokens")) {
        loss.greedy_tokens = json["greedy_tokens"].get<std::int64_t>();
    } else {
        loss.greedy_tokens.reset();
    }
    return loss;
}

void append_number(std::string& text, float value) {
    std::array<char, 32> digits{};
    const auto [end, error] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
    const std::string_view number(digits.data(), end - digits.data());
    text.append(number);
    if (number.find_first_of(".e") == std::string_view::npos) text.append(".0");  // so that every parser reads a float
}

/// Reads "id,logprob" and moves `at` behind it.
bool read_entry(const char*& at, const char* end, engine::TokenLogprob& entry) {
    const auto [comma, bad_token] = std::from_chars(at, end, entry.token);
    if (bad_token != std::errc() || comma == end || *comma != ',') return false;
    const auto [behind, bad_value] = std::from_chars(comma + 1, end, entry.value);
    at = behind;
    return bad_value == std::errc();
}

/// The opposite of engine::read_logprobs; false if there are not as many entries as a row gives.
bool append_row(std::span<const engine::TokenLogprob> entries, std::int64_t num_best, std::vector<std::int32_t>& rows) {
    const auto bits = [](const engine::TokenLogprob& entry) { return std::bit_cast<std::int32_t>(entry.value); };
    const std::int64_t count = std::ssize(entries);
    if (count == 0 || num_best == 0 || (count != num_best && count != num_best + 1)) return false;
    rows.push_back(bits(entries.front()));
    // With as many entries as best tokens, the chosen token is one of them; its place among them is not shown.
    const auto best = entries.last(static_cast<std::size_t>(num_best));
    for (const engine::TokenLogprob& entry : best) rows.push_back(entry.token);
    for (const engine::TokenLogprob& entry : best) rows.push_back(bits(entry));
    return true;
}

}  // namespace

std::string checkpoint_key(const std::string& id, std::int64_t sample) {
    return id + "#" + std::to_string(sample);
}

std::string failure_of(const ResultRecord& record) {
    return engine::printable(record.id) + ": " + record.error;
}

ResultFormat result_format(const Settings& settings) {
    return {.sample = settings.samples > 1,
            .token_ids = settings.token_ids,
            .continuations = wants_continuation(settings) && settings.task != "pg19"};
}

std::string format_result(const ResultRecord& record, const ResultFormat& format) {
    Ordered json;
    put_fields(json, record, format);
    std::string line = engine::json_text(json);
    append_last(line, logprobs_member, record.logprobs);
    return line;
}

std::string logprobs_text(std::span<const std::int32_t> tokens, std::span<const std::int32_t> rows) {
    if (rows.empty()) return {};
    const std::size_t words = rows.size() / tokens.size();
    std::string text = "[";
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        text.append(i == 0 ? "[" : ",[");
        for (const engine::TokenLogprob& entry : engine::read_logprobs(rows.subspan(i * words, words), tokens[i])) {
            text.append(text.back() == ']' ? ",[" : "[").append(std::to_string(entry.token)).append(",");
            append_number(text, entry.value);
            text.push_back(']');
        }
        text.push_back(']');
    }
    return text.append("]");
}

std::vector<std::int32_t> logprobs_rows(std::string_view text, std::int64_t num_best) {
    std::vector<std::int32_t> rows;
    std::vector<engine::TokenLogprob> entries;  // of one token
    int depth = 0;
    const char *at = text.data(), *const end = at + text.size();
    while (at != end) {
        const char sign = *at++;
        if (sign == '[' && ++depth == 3) {
            if (!read_entry(at, end, entries.emplace_back())) return {};
        } else if (sign == ']' && --depth == 1) {
            if (!append_row(entries, num_best, rows)) return {};
            entries.clear();
        }
    }
    return depth == 0 ? rows : std::vector<std::int32_t>();
}

std::string format_journal(const ResultRecord& record, const ResultFormat& format) {
    Ordered json;
    json["index"] = record.key.index;
    put_fields(json, record, {.sample = true, .token_ids = format.token_ids});
    json["max_tokens"] = record.max_tokens;
    if (record.own_max_tokens) json["own_max_tokens"] = true;
    if (record.prompt_tokens > 0) json["prompt_tokens"] = record.prompt_tokens;
    std::string line = engine::json_text(json);
    append_last(line, statistics_member, record.statistics);
    if (!record.statistics.empty()) append_last(line, resume_member, resume_value(record));
    append_last(line, logprobs_member, record.logprobs);
    append_checksum(line);
    return line;
}

void append_checksum(std::string& line) {
    line.pop_back();
    const std::string checksum = engine::hex(engine::hash_of(line));
    line.append(checksum_key).append(checksum).append(checksum_end);
}

Checksum cut_checksum(std::string& line) {
    constexpr std::size_t size = checksum_key.size() + checksum_digits + checksum_end.size();
    const std::size_t at = line.size() - std::min(size, line.size());
    const std::string_view member = std::string_view(line).substr(at);
    if (!member.starts_with(checksum_key) || !member.ends_with(checksum_end)) return Checksum::none;
    const bool right = engine::hex(engine::hash_of(std::string_view(line).substr(0, at))) ==
                       member.substr(checksum_key.size(), checksum_digits);
    line.resize(at);
    line += '}';
    return right ? Checksum::right : Checksum::wrong;
}

std::optional<ResultRecord> parse_journal(std::string_view line) {
    ResultRecord record;
    std::string rest(line);
    const Checksum checksum = cut_checksum(rest);
    if (checksum == Checksum::wrong) return std::nullopt;
    if (!cut_last(rest, logprobs_member, record.logprobs)) return std::nullopt;
    if (!cut_last(rest, resume_member, record.resume)) return std::nullopt;
    if (!cut_last(rest, statistics_member, record.statistics)) return std::nullopt;
    if (checksum == Checksum::none) record.resume.clear();  // nothing continues from what may be damaged
    const Json json = engine::try_parse_json(rest);
    if (!json.is_object()) return std::nullopt;
    try {
        record.key = {json.at("index"), json.at("sample")};
        record.id = json.at("id");
        record.text = json.at("text");
        record.has_reasoning = json.contains("answer");
        if (record.has_reasoning && !json["answer"].is_null()) record.answer = json["answer"].get<std::string>();
        record.num_tokens = json.at("num_tokens");
        record.finish_reason = json.at("finish_reason");
        record.error = json.value("error", "");
        record.token_ids = json.value("token_ids", std::vector<std::int32_t>());
        record.loss = loss_of(json);
        record.choices = choices_of(json);
        record.max_tokens = json.value("max_tokens", std::int64_t{0});
        record.own_max_tokens = json.value("own_max_tokens", false);
        record.prompt_tokens = json.value("prompt_tokens", std::int64_t{0});
        return record;
    } catch (const Json::exception&) {
        return std::nullopt;
    }
}

std::vector<std::int32_t> resume_tokens(const ResultRecord& record) {
    std::vector<std::int32_t> tokens;
    if (record.resume.empty()) return tokens;
    const std::string_view written = std::string_view(record.resume).substr(1, record.resume.size() - 2);
    for (const char *at = written.data(), *end = at + written.size(); at != end;) {
        const auto [next, error] = std::from_chars(at + 1, end, tokens.emplace_back());  // after a blank
        if (error != std::errc()) return {};
        at = next;
    }
    return tokens;
}

double DraftCost::mbsu(const engine::ItemStatistics& statistics) const {
    if (statistics.target_calls == 0) return 0;
    const auto calls = static_cast<double>(statistics.target_calls);
    const double run = static_cast<double>(statistics.draft_calls) / calls;
    const double trees = std::min(run, 1.0);  // per target call
    double drafts = (levels > 0 ? static_cast<double>(levels) : run) * level;
    if (draft_model >= 0) drafts += static_cast<double>(statistics.draft_model_calls) / calls * (draft_model - level);
    return statistics.block_efficiency() / (drafts + trees * tree + 1);
}

std::string format_statistics(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t replica,
                              const std::optional<DraftCost>& drafts, const ResultFormat& format) {
    const engine::ItemStatistics& s = item.statistics;
    Ordered json;
    json["index"] = record.key.index;
    json["id"] = record.id;
    json["sample"] = record.key.sample;
    json["replica"] = replica;
    json["num_tokens"] = record.num_tokens;
    json["prompt_tokens"] = item.prompt_tokens;
    json["cached_tokens"] = s.cached_tokens;
    json["seconds"] = s.seconds;
    json["prefill_seconds"] = s.prefill_seconds;
    json["steps"] = s.steps;
    json["target_calls"] = s.target_calls;
    json["draft_calls"] = s.draft_calls;
    json["drafted"] = s.drafted;
    json["accepted"] = s.accepted;
    json["accepted_ngram"] = s.accepted_ngram;
    json["accepted_ngram_path"] = s.accepted_ngram_path;
    json["accepted_resampled"] = s.accepted_resampled;
    json["draft_model_calls"] = s.draft_model_calls;
    json["accepted_draft_model"] = s.accepted_draft_model;
    json["block_efficiency"] = s.block_efficiency();
    if (drafts) json["mbsu"] = drafts->mbsu(s);
    const double generating = s.seconds - s.prefill_seconds;
    json["tokens_per_second"] = generating > 0 ? static_cast<double>(record.num_tokens) / generating : 0.0;
    json["branched_trees"] = s.branched_trees;
    json["checkpoint_rounds"] = s.checkpoint_rounds;
    json["checkpoint_stall_seconds"] = s.checkpoint_stall_seconds;
    json["resumes"] = s.resumes;
    json["recomputed_tokens"] = s.recomputed_tokens;
    json["recomputed_rows"] = s.recomputed_rows;
    for (const engine::LengthRow& row : s.by_length) {
        if (row.tokens > record.num_tokens) break;  // a resume with fewer max-tokens
        json["by_length"].push_back(Ordered{{"tokens", row.tokens},
                                            {"seconds", row.seconds},
                                            {"target_calls", row.target_calls},
                                            {"draft_calls", row.draft_calls},
                                            {"accepted", row.accepted},
                                            {"accepted_ngram", row.accepted_ngram},
                                            {"accepted_ngram_path", row.accepted_ngram_path},
                                            {"accepted_draft_model", row.accepted_draft_model}});
    }
    if (!record.loss.buckets.empty()) {
        json["nll"] = record.loss.nll();
        json["scored_tokens"] = record.loss.num_tokens();
        json["scored_bytes"] = item.scored_bytes;
        put_greedy(json, record, format);
    }
    if (record.choices) {
        if (!record.choices->group.empty()) json["group"] = record.choices->group;
        put_accuracy(json, *record.choices);
    }
    return engine::json_text(json);
}

}  // namespace longhaul::runner
