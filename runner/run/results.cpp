#include "runner/run/results.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <tuple>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/result_files.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

/// The fields in their fixed order.
void put_fields(Ordered& json, const ResultRecord& record, const ResultFormat& format) {
    json["id"] = record.id;
    if (format.sample) json["sample"] = record.key.sample;
    json["text"] = record.text;
    json["num_tokens"] = record.num_tokens;
    json["finish_reason"] = record.finish_reason;
    if (!record.error.empty()) json["error"] = record.error;
    if (format.token_ids) json["token_ids"] = record.token_ids;
    if (record.loss.buckets.empty()) return;
    json["nll"] = record.loss.nll();
    Ordered buckets = Ordered::array();
    for (std::size_t b = 0; b < record.loss.buckets.size(); ++b) {
        const auto& [count, nll] = record.loss.buckets[b];
        if (count > 0) buckets.push_back({std::int64_t{1} << b, count, nll});
    }
    json["loss_by_position"] = std::move(buckets);
}

constexpr std::string_view logprobs_key = ",\"logprobs\":";

/// The JSON line with `logprobs` last. They may be a thousand times larger than the rest, so they are copied as text
/// and not parsed.
std::string line_of(const Ordered& json, const std::string& logprobs) {
    std::string line = engine::json_text(json);
    if (logprobs.empty()) return line;
    line.pop_back();
    return line.append(logprobs_key).append(logprobs).append("}");
}

/// Splits the logprobs, the last member, from a line. Returns false if that member is something else. A string value
/// cannot contain the key, because its quotes would be escaped.
bool split_logprobs(std::string_view line, std::string& rest, std::string& logprobs) {
    const std::size_t at = line.rfind(logprobs_key);
    rest = line.substr(0, at);
    if (at == std::string_view::npos) return true;
    const std::string_view value = line.substr(at + logprobs_key.size());
    if (!value.starts_with("[[[") || !value.ends_with("]]]}")) return false;
    if (value.find_first_not_of("[],.-+e0123456789") != value.size() - 1) return false;
    logprobs = value.substr(0, value.size() - 1);
    rest += '}';
    return true;
}

engine::LossByPosition loss_of(const Json& json) {
    engine::LossByPosition loss;
    for (const Json& bucket : json.value("loss_by_position", Json::array())) {
        const auto first = bucket.at(0).get<std::int64_t>();
        const auto place = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(first)));
        if (first <= 0) continue;
        if (loss.buckets.size() < place) loss.buckets.resize(place);
        loss.buckets[place - 1] = {bucket.at(1).get<std::int64_t>(), bucket.at(2).get<double>()};
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

/// The opposite of engine::read_logprobs; false if there are not as many entries as a row gives.
bool append_row(std::span<const engine::TokenLogprob> entries, std::int64_t num_best, std::vector<std::int32_t>& rows) {
    const auto bits = [](const engine::TokenLogprob& entry) { return std::bit_cast<std::int32_t>(entry.value); };
    if (std::ssize(entries) != num_best && std::ssize(entries) != num_best + 1) return false;
    rows.push_back(bits(entries.front()));
    // With as many entries as best tokens, the chosen token is one of them; its place among them is not shown.
    const auto best = entries.last(static_cast<std::size_t>(num_best));
    for (const engine::TokenLogprob& entry : best) rows.push_back(entry.token);
    for (const engine::TokenLogprob& entry : best) rows.push_back(bits(entry));
    return true;
}

/// Sorts lines into input order and keeps the newest launch's line of each item. `place_of` returns the LinePlace of an
/// element.
template <typename Element, typename PlaceOf>
void keep_newest(std::vector<Element>& lines, PlaceOf place_of) {
    std::sort(lines.begin(), lines.end(), [&](const Element& one, const Element& other) {
        const LinePlace &a = place_of(one), &b = place_of(other);
        return std::tie(a.key, a.file, a.offset) < std::tie(b.key, b.file, b.offset);
    });
    const auto same = [&](const Element& a, const Element& b) { return place_of(a).key == place_of(b).key; };
    // std::unique keeps the first of equal elements; in reverse order that is the last.
    const auto rest = std::unique(lines.rbegin(), lines.rend(), same);
    lines.erase(lines.begin(), rest.base());
}

std::int32_t clamped(std::int64_t number) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(number, 0, INT32_MAX));
}

}  // namespace

std::string checkpoint_key(const std::string& id, std::int64_t sample) {
    return id + "#" + std::to_string(sample);
}

ResultFormat result_format(const Settings& settings) {
    return {.sample = settings.samples > 1, .token_ids = settings.token_ids};
}

std::string format_result(const ResultRecord& record, const ResultFormat& format) {
    Ordered json;
    put_fields(json, record, format);
    return line_of(json, record.logprobs);
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
    for (const char *at = text.data(), *end = at + text.size(); at != end;) {
        const char sign = *at++;
        if (sign == '[' && ++depth == 3) {
            engine::TokenLogprob& entry = entries.emplace_back();
            at = std::from_chars(at, end, entry.token).ptr;
            if (at == end || *at++ != ',') return {};
            at = std::from_chars(at, end, entry.value).ptr;
        } else if (sign == ']' && --depth == 1) {
            if (!append_row(entries, num_best, rows)) return {};
            entries.clear();
        } else if (std::string_view("[],").find(sign) == std::string_view::npos) {
            return {};
        }
    }
    return rows;
}

std::string format_journal(const ResultRecord& record, const ResultFormat& format) {
    Ordered json;
    json["index"] = record.key.index;
    put_fields(json, record, {.sample = true, .token_ids = format.token_ids || !record.statistics.empty()});
    json["max_tokens"] = record.max_tokens;
    if (record.own_max_tokens) json["own_max_tokens"] = true;
    if (record.prompt_tokens > 0) json["prompt_tokens"] = record.prompt_tokens;
    if (!record.statistics.empty()) json["statistics"] = engine::try_parse_json(record.statistics);
    return line_of(json, record.logprobs);
}

std::optional<ResultRecord> parse_journal(std::string_view line) {
    ResultRecord record;
    std::string rest;
    if (!split_logprobs(line, rest, record.logprobs)) return std::nullopt;
    const Json json = engine::try_parse_json(rest);
    if (!json.is_object()) return std::nullopt;
    try {
        record.key = {json.at("index"), json.at("sample")};
        record.id = json.at("id");
        record.text = json.at("text");
        record.num_tokens = json.at("num_tokens");
        record.finish_reason = json.at("finish_reason");
        record.error = json.value("error", "");
        record.token_ids = json.value("token_ids", std::vector<std::int32_t>());
        record.loss = loss_of(json);
        record.max_tokens = json.value("max_tokens", std::int64_t{0});
        record.own_max_tokens = json.value("own_max_tokens", false);
        record.prompt_tokens = json.value("prompt_tokens", std::int64_t{0});
        if (json.contains("statistics")) record.statistics = engine::json_text(json["statistics"]);
        return record;
    } catch (const Json::exception&) {
        return std::nullopt;
    }
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
                              const std::optional<DraftCost>& drafts) {
    const engine::ItemStatistics& s = item.statistics;
    Ordered json;
    json["index"] = record.key.index;
    json["id"] = record.id;
    json["sample"] = record.key.sample;
    json["replica"] = replica;
    json["num_tokens"] = record.num_tokens;
    json["prompt_tokens"] = item.prompt_tokens;
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
    }
    return engine::json_text(json);
}

std::uint32_t LineReader::add(fs::path path) {
    paths_.push_back(std::move(path));
    return static_cast<std::uint32_t>(paths_.size() - 1);
}

std::string LineReader::read(const LinePlace& place) {
    constexpr std::size_t max_open = 64;  // replicas × launches may exceed the limit on open files
    std::unique_ptr<InputFile>& file = open_[place.file];
    if (file == nullptr) {
        if (open_.size() > max_open) {
            open_.clear();
            return read(place);
        }
        file = std::make_unique<InputFile>(paths_[place.file]);
    }
    return file->read(place.offset, place.num_bytes);
}

ResultIndex ResultIndex::read(std::span<const fs::path> runs) {
    ResultIndex index;
    for (const fs::path& run : runs) index.add(run);
    keep_newest(index.entries_, [](const Entry& entry) -> const LinePlace& { return entry.place; });
    return index;
}

std::string failure_of(const ResultRecord& record) {
    return engine::printable(record.id) + ": " + record.error;
}

void ResultIndex::add(const fs::path& run) {
    const std::optional<LeaseView> newest = newest_lease(run);
    if (!newest) return;
    for (const LaunchFile& file : launch_files(run / "results", "")) {
        const std::int64_t limit = accepted_bytes(file, newest->record);
        if (limit == 0) continue;
        const std::uint32_t number = lines_.add(run / "results" / file.name);
        each_line(lines_.path(number), limit, [&](std::string_view line, std::int64_t offset) {
            const std::optional<ResultRecord> record = parse_journal(line);
            if (!record || line.size() > UINT32_MAX) return;  // damaged: the item is computed again
            Entry& entry = entries_.emplace_back();
            entry.place = {record->key, offset, static_cast<std::uint32_t>(line.size()), number};
            entry.num_tokens = clamped(record->num_tokens);
            entry.max_tokens = clamped(record->max_tokens);
            entry.own_max_tokens = record->own_max_tokens;
            entry.failed = record->finish_reason == "error";
            entry.at_length = record->finish_reason == "length";
            entry.can_go_on =
                entry.at_length && !record->statistics.empty() && std::ssize(record->token_ids) == record->num_tokens;
        });
    }
}

const ResultIndex::Entry* ResultIndex::find(const ItemKey& key) const {
    const auto at =
        std::lower_bound(entries_.begin(), entries_.end(), key,
                         [](const Entry& entry, const ItemKey& wanted) { return entry.place.key < wanted; });
    return at == entries_.end() || at->place.key != key ? nullptr : &*at;
}

ResultRecord ResultIndex::load(const Entry& entry) const {
    std::optional<ResultRecord> record = parse_journal(lines_.read(entry.place));
    if (!record) {
        throw InputError(lines_.path(entry.place.file).string(), "@" + std::to_string(entry.place.offset), "a result",
                         "something else", "the file changed while it was read; run again");
    }
    return std::move(*record);
}

bool ResultIndex::is_done(const Entry& entry, const Settings& settings) {
    if (entry.failed)
        return !settings.retry_failed && (entry.own_max_tokens || entry.max_tokens == settings.max_tokens);
    // Lines of older versions have no max_tokens: use the number of tokens of the item.
    return !entry.at_length || entry.own_max_tokens ||
           std::max(entry.max_tokens, entry.num_tokens) >= settings.max_tokens;
}

void write_results(const fs::path& to, const std::string& tag, const ResultIndex& index, std::int64_t num_inputs,
                   const Settings& settings) {
    const ResultFormat format = result_format(settings);
    FileReplacement file(to / "results.jsonl", tag);
    for (std::int64_t input = 0; input < num_inputs; ++input) {
        if (!settings.shard.has(input)) continue;
        for (std::int64_t sample = 0; sample < settings.samples; ++sample) {
            const ResultIndex::Entry* entry = index.find({input, sample});
            if (entry == nullptr) throw std::logic_error("results are written before all are there");
            file.append(format_result(index.load(*entry), format) + "\n");
        }
    }
    file.commit(Durable::yes);
}

std::string hash_of_results(const fs::path& folder) {
    ContentHash hash;
    hash.add(InputFile(folder / "results.jsonl"));
    return hex(hash.value());
}

void write_statistics(const fs::path& to, const std::string& tag, std::span<const fs::path> runs,
                      const std::function<void(const Ordered&)>& each) {
    const auto parse = [](std::string_view line) -> std::optional<Ordered> {
        Ordered json = Ordered::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("index") || !json.contains("sample")) return std::nullopt;
        return json;
    };
    LineReader lines;
    std::vector<LinePlace> places;
    const auto add = [&](const fs::path& path) {
        const std::uint32_t number = lines.add(path);
        each_line(path, no_limit, [&](std::string_view line, std::int64_t offset) {
            const std::optional<Ordered> json = parse(line);
            if (json)
                places.push_back(
                    {{(*json)["index"], (*json)["sample"]}, offset, static_cast<std::uint32_t>(line.size()), number});
        });
    };
    for (const fs::path& run : runs) {
        for (const LaunchFile& file : launch_files(run / "log", "stats-")) add(run / "log" / file.name);
    }
    keep_newest(places, [](const LinePlace& place) -> const LinePlace& { return place; });
    FileReplacement file(to / "stats.jsonl", tag);
    for (const LinePlace& place : places) {
        std::optional<Ordered> json = parse(lines.read(place));
        if (!json) continue;  // changed since it was indexed
        json->erase("index");
        each(*json);
        file.append(engine::json_text(*json) + "\n");
    }
    file.commit(Durable::yes);
}

namespace {
std::string launch_name(std::int64_t replica, std::int64_t epoch) {
    return std::to_string(replica) + "-" + std::to_string(epoch) + ".jsonl";
}
}  // namespace

ResultWriter::ResultWriter(const fs::path& run, std::int64_t replica, std::int64_t epoch, ResultFormat format,
                           std::optional<DraftCost> drafts)
    : replica_(replica),
      format_(format),
      drafts_(drafts),
      results_(run / "results" / launch_name(replica, epoch)),
      statistics_(run / "log" / ("stats-" + launch_name(replica, epoch))) {}

void ResultWriter::append(const ResultRecord& record, const engine::FinishedItem& item, std::int64_t work_index) {
    // Statistics first: an item with a result is never computed again, and the summary's loss is computed from the
    // statistics.
    if (record.error.empty()) statistics_.append(format_statistics(record, item, replica_, drafts_));
    results_.append(format_journal(record, format_));
    const std::lock_guard lock(mutex_);
    pending_.push_back(work_index);
}

void ResultWriter::sync() {
    std::vector<std::int64_t> covered;
    {
        const std::lock_guard lock(mutex_);
        covered.swap(pending_);
    }
    if (covered.empty()) return;
    statistics_.sync();
    results_.sync();  // if it throws, the covered items never become durable
    const std::lock_guard lock(mutex_);
    durable_.insert(durable_.end(), covered.begin(), covered.end());
}

std::vector<std::int64_t> ResultWriter::take_durable() {
    const std::lock_guard lock(mutex_);
    return std::exchange(durable_, {});
}

}  // namespace longhaul::runner
