#include "runner/run/earlier_results.hpp"

#include <algorithm>
#include <map>

#include "engine/bytes.hpp"
#include "engine/error.hpp"
#include "runner/run/lease.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/run/run_status.hpp"
#include "runner/run/shard_folder.hpp"

namespace longhaul::runner {
namespace {

/// The longest prompt of the items that have a text and are not done under `settings`.
class LongestPrompt {
  public:
    /// Prompts of more than `limit` tokens do not count: they did not fit before, so that the number is damaged or the
    /// item has a limit of its own.
    explicit LongestPrompt(std::int64_t limit) : limit_(limit) {}

    void add(const RunFolder& folder, const Settings& settings) {
        const ResultIndex results = ResultIndex::read(folder.root);
        std::map<std::string, Checkpointed> unfinished = items_in_checkpoints(folder);
        for (const ResultIndex::Entry& entry : results.entries()) {
            const bool done = ResultIndex::is_done(entry, settings);
            if (done ? unfinished.empty() : !entry.at_length) continue;
            const std::string id = results.load(entry).id;
            if (done) {
                unfinished.erase(checkpoint_key(id, entry.place.key.sample));
            } else {
                add(entry.prompt_tokens, id);
            }
        }
        for (const auto& [key, state] : unfinished) add(state.prompt_tokens, key.substr(0, key.rfind('#')));
    }
    [[nodiscard]] std::int64_t tokens() const { return tokens_; }
    [[nodiscard]] const std::string& id() const { return id_; }

  private:
    void add(std::int64_t tokens, const std::string& id) {
        if (tokens <= tokens_ || tokens > limit_) return;
        tokens_ = tokens;
        id_ = id;
    }

    std::int64_t limit_, tokens_ = 0;
    std::string id_;
};

}  // namespace

void check_texts_fit(const Settings& settings, std::int64_t context) {
    const RunFolder folder = run_folder_of(settings);
    const std::optional<std::int64_t> before = recorded_max_tokens(folder);
    if (has_given_texts(settings) || !before || *before >= settings.max_tokens) return;
    LongestPrompt longest(context - *before);
    if (settings.shard.is_part()) {
        for (const RunFolder& shard : begun_shards_of(settings.output)) longest.add(shard, settings);
    } else {
        longest.add(folder, settings);
    }
    const std::int64_t most = context - longest.tokens();
    if (longest.tokens() == 0 || settings.max_tokens <= most) return;
    throw UsageError(folder.root.string() + ": max-tokens: expected at most " + std::to_string(most) +
                     " (the model's context of " + std::to_string(context) + " less the prompt of item " +
                     engine::printable(longest.id()) + "), got " + std::to_string(settings.max_tokens) +
                     "; with more, this run's text of it would become an error");
}

std::optional<std::int64_t> only_failures_until(const RunFolder& folder) {
    const std::optional<LeaseView> newest = newest_lease(folder.root);  // before the results: no other launch adds any
    if (!newest || newest->state == LeaseState::live || !names_in(folder.checkpoints()).empty()) return std::nullopt;
    const ResultIndex results = ResultIndex::read(folder.root);
    const auto has_text = [&](const ResultIndex::Entry& entry) {
        return !entry.failed || results.find_resumable(entry.place.key) != nullptr;
    };
    const bool any = std::any_of(results.entries().begin(), results.entries().end(), has_text);
    return any || !results.damage().empty() ? std::nullopt : std::optional(newest->record.epoch);
}

std::optional<std::int64_t> check_own_folder(const RunFolder& folder, const Settings& settings,
                                             const Fingerprints& fingerprints) {
    try {
        check_identity(folder, settings, fingerprints);
        return std::nullopt;
    } catch (const UsageError&) {
        const std::optional<std::int64_t> epoch = only_failures_until(folder);
        if (!epoch) throw;
        return epoch;
    }
}

void EarlierResults::add(const ResultIndex& index, const ResultIndex::Entry& entry) {
    places_.push_back(entry.place);
    if (names_.size() <= entry.place.file) names_.resize(entry.place.file + 1);
    std::string& name = names_[entry.place.file];
    if (name.empty()) name = index.path(entry.place).filename();
}

void EarlierResults::share(const World& world) {
    std::sort(places_.begin(), places_.end(), [](const LinePlace& a, const LinePlace& b) { return a.key < b.key; });
    engine::FieldWriter writer;
    std::string names;
    for (const std::string& name : names_) names += name + "\n";
    writer(names);
    writer(places_);
    std::string bytes(reinterpret_cast<const char*>(writer.bytes().data()), writer.bytes().size());
    world.broadcast(bytes);
    engine::FieldReader reader(std::as_bytes(std::span(bytes)));
    reader(names);
    reader(places_);
    for (std::size_t begin = 0; begin < names.size(); begin = names.find('\n', begin) + 1)
        lines_.add(run_ / "results" / names.substr(begin, names.find('\n', begin) - begin));
}

std::optional<ResultRecord> EarlierResults::find(const ItemKey& key) {
    const auto at = std::lower_bound(places_.begin(), places_.end(), key,
                                     [](const LinePlace& place, const ItemKey& wanted) { return place.key < wanted; });
    if (at == places_.end() || at->key != key) return std::nullopt;
    try {
        return parse_journal(lines_.read(*at));
    } catch (const InputError&) {
        return std::nullopt;  // the file is shorter now: the item starts from its prompt
    }
}

}  // namespace longhaul::runner
