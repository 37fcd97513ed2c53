#include "runner/run/earlier_results.hpp"

#include <algorithm>

#include "engine/bytes.hpp"
#include "engine/error.hpp"

namespace longhaul::runner {

void EarlierResults::add(const ResultIndex& index, const ResultIndex::Entry& entry) {
    places_.push_back(entry.place);
    if (names_.size() <= entry.place.file) names_.resize(entry.place.file + 1);
    std::string& name = names_[entry.place.file];
    if (name.empty()) name = index.path(entry.place).filename();
}

void EarlierResults::share(const World& world) {
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
