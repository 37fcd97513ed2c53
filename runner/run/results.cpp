#include "runner/run/results.hpp"

#include <algorithm>
#include <iterator>
#include <tuple>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/result_files.hpp"
#include "runner/run/run_folder.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;

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

/// The damaged lines of one file.
class DamagedLines {
  public:
    void add(std::int64_t line_number) {
        if (count_++ == 0) first_ = line_number;
    }
    /// Adds one line that names the first, unless there are none.
    void report(const fs::path& path, const char* expected, const char* result, std::vector<std::string>& to) const {
        if (count_ == 0) return;
        const std::string others = count_ == 1 ? "" : ", as in " + std::to_string(count_ - 1) + " more";
        to.push_back(InputError::format(path.string(), "line " + std::to_string(first_), expected,
                                        "a damaged line" + others, result));
    }

  private:
    std::int64_t first_ = 0, count_ = 0;
};

std::int32_t clamped(std::int64_t number) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(number, 0, INT32_MAX));
}

}  // namespace

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
    const auto place_of = [](const Entry& entry) -> const LinePlace& { return entry.place; };
    std::vector<Entry> resumable;
    const auto can_resume = [](const Entry& entry) { return entry.can_resume; };
    std::copy_if(index.entries_.begin(), index.entries_.end(), std::back_inserter(resumable), can_resume);
    keep_newest(index.entries_, place_of);
    std::erase_if(resumable, [&](const Entry& entry) { return !index.find(entry.place.key)->failed; });
    keep_newest(resumable, place_of);
    resumable.shrink_to_fit();
    index.before_failures_ = std::move(resumable);
    return index;
}

void ResultIndex::add(const fs::path& run) {
    const std::optional<LeaseView> newest = newest_lease(run);
    if (!newest) return;
    for (const LaunchFile& file : launch_files(run / "results", "")) {
        const std::int64_t limit = accepted_bytes(file, newest->record);
        if (limit == 0) continue;
        const std::uint32_t number = lines_.add(run / "results" / file.name);
        DamagedLines damaged;
        std::int64_t line_number = 0;
        each_line(lines_.path(number), limit, [&](std::string_view line, std::int64_t offset) {
            ++line_number;
            const std::optional<ResultRecord> record = parse_journal(line);
            if (!record || line.size() > UINT32_MAX) return damaged.add(line_number);
            Entry& entry = entries_.emplace_back();
            entry.place = {record->key, offset, static_cast<std::uint32_t>(line.size()), number};
            entry.num_tokens = clamped(record->num_tokens);
            entry.max_tokens = clamped(record->max_tokens);
            entry.prompt_tokens = clamped(record->prompt_tokens);
            entry.own_max_tokens = record->own_max_tokens;
            entry.failed = record->finish_reason == "error";
            entry.lacks_answer = !entry.failed && record->has_reasoning && !record->answer;
            entry.at_length = record->finish_reason == "length";
            entry.can_resume = entry.at_length && !record->resume.empty();
        });
        damaged.report(lines_.path(number), "a result", "its item is computed again", damage_);
    }
}

static const ResultIndex::Entry* find_in(const std::vector<ResultIndex::Entry>& entries, const ItemKey& key) {
    const auto at = std::lower_bound(
        entries.begin(), entries.end(), key,
        [](const ResultIndex::Entry& entry, const ItemKey& wanted) { return entry.place.key < wanted; });
    return at == entries.end() || at->place.key != key ? nullptr : &*at;
}

const ResultIndex::Entry* ResultIndex::find(const ItemKey& key) const {
    return find_in(entries_, key);
}

const ResultIndex::Entry* ResultIndex::find_resumable(const ItemKey& key) const {
    const Entry* newest = find(key);
    return newest == nullptr || newest->can_resume ? newest : find_in(before_failures_, key);
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
    engine::Hash hash;
    InputFile(folder / "results.jsonl").add_to(hash);
    return engine::hex(hash.value());
}

/// Line for the items that did not fail and have none of `places`, which are in input order; nullopt if all have one.
static std::optional<std::string> without_statistics(const fs::path& file, const ResultIndex& results,
                                                     std::span<const LinePlace> places) {
    const auto lacks = [&](const ResultIndex::Entry& entry) {
        const auto before = [](const LinePlace& place, const ItemKey& key) { return place.key < key; };
        const auto at = std::lower_bound(places.begin(), places.end(), entry.place.key, before);
        return !entry.failed && (at == places.end() || at->key != entry.place.key);
    };
    const auto count = std::count_if(results.entries().begin(), results.entries().end(), lacks);
    if (count == 0) return std::nullopt;
    return InputError::format(file.string(), "", "a line of each item that did not fail",
                              "none of " + std::to_string(count),
                              "the summary's totals are without " + std::string(count == 1 ? "it" : "them"));
}

std::vector<std::string> write_statistics(const fs::path& to, const std::string& tag, std::span<const fs::path> runs,
                                          const ResultIndex& results, const std::function<void(const Ordered&)>& each) {
    const auto parse = [](std::string line) -> std::optional<Ordered> {
        if (cut_checksum(line) == Checksum::wrong) return std::nullopt;
        Ordered json = Ordered::parse(line, nullptr, false);
        if (!json.is_object() || !json.contains("index") || !json.contains("sample")) return std::nullopt;
        return json;
    };
    LineReader lines;
    std::vector<LinePlace> places;
    std::vector<std::string> damage;
    const auto add = [&](const fs::path& path) {
        const std::uint32_t number = lines.add(path);
        DamagedLines damaged;
        std::int64_t line_number = 0;
        each_line(path, no_limit, [&](std::string_view line, std::int64_t offset) {
            ++line_number;
            const std::optional<Ordered> json = parse(std::string(line));
            if (!json) return damaged.add(line_number);
            places.push_back(
                {{(*json)["index"], (*json)["sample"]}, offset, static_cast<std::uint32_t>(line.size()), number});
        });
        damaged.report(path, "statistics", "the summary's totals are without it", damage);
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
    if (auto line = without_statistics(to / "stats.jsonl", results, places)) damage.push_back(std::move(*line));
    return damage;
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
    if (record.error.empty()) {
        std::string line = format_statistics(record, item, replica_, drafts_, format_);
        append_checksum(line);
        statistics_.append(line);
    }
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
