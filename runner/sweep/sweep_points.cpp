// Expands a sweep into its points, names and orders them; declarations in sweep.hpp.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"
#include "runner/run/run_folder.hpp"
#include "runner/sweep/sweep.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

/// A value as part of a file name. If characters had to be changed, a hash keeps the name distinct. '~' occurs only
/// before such a hash, and '=' only between a key and its value.
std::string name_part(std::string_view text) {
    constexpr std::size_t max_bytes = 40;
    std::string name(text.substr(0, max_bytes));
    for (char& c : name) {
        if (!is_name_letter(c) && c != ',') c = '_';
    }
    return name == text ? name : name + "~" + engine::hex(engine::hash_of(text));
}

std::string key_part(const Assignment& assignment) {
    return assignment.key + "=" + name_part(last_part(assignment.key, assignment.value));
}

std::string joined(const std::vector<std::string>& parts) {
    std::string text;
    for (const std::string& part : parts) text += (text.empty() ? "" : ",") + part;
    constexpr std::size_t max_bytes = 180;  // file systems allow 255 bytes, and temporaries append a suffix
    if (text.size() <= max_bytes) return text;
    return text.substr(0, max_bytes - 17) + "~" + engine::hex(engine::hash_of(text));
}

/// Keys that plain decoding ignores. `verify` decides the text if it is not `coupled`, but without drafts it has no
/// effect.
bool is_draft_key(const Key& key) {
    return key.kind == Key::Kind::draft || key.info.key == "verify";
}

bool is_draft_key(const std::string& key) {
    return is_draft_key(*find_key(key));
}

/// One combination of a variant and a value of each grid.
struct Combination {
    const SweepVariant* variant = nullptr;  ///< null: none
    std::vector<Assignment> grid_values;
};

class PointMaker {
  public:
    explicit PointMaker(const Sweep& sweep) : sweep_(sweep) {
        const Settings defaults;
        for (const Key& key : key_table()) {
            const auto values = key.get(defaults);
            plain_values_[key.info.key] = values.empty() ? "" : values.front();
        }
        for (const Assignment& assignment : sweep.plain) plain_values_[assignment.key] = assignment.value;
    }

    /// The point as written in the sweep file.
    [[nodiscard]] SweepPoint as_written(const Combination& combination) const {
        return make(combination, assignments_of(combination), [&](bool with_seed) {
            std::vector<std::string> parts;
            if (combination.variant != nullptr) parts.push_back(combination.variant->name);
            for (const Assignment& value : combination.grid_values) {
                if (with_seed || value.key != "seed") parts.push_back(key_part(value));
            }
            return joined(parts);
        });
    }

    /// The same job by plain decoding (draft = ar).
    [[nodiscard]] SweepPoint plain_decoding(const Combination& combination) const {
        std::vector<Assignment> assignments;
        for (const Assignment& assignment : assignments_of(combination)) {
            if (!is_draft_key(assignment.key)) assignments.push_back(assignment);
        }
        assignments.push_back({"draft", "ar", assignments.front().origin});
        return make(combination, assignments, [&](bool with_seed) {
            std::vector<std::string> parts{"draft=ar"};
            if (combination.variant != nullptr) {
                for (const Assignment& value : combination.variant->keys) {
                    const Key& key = *find_key(value.key);
                    const bool same = value.value == plain_values_.at(value.key) && !key.info.repeatable;
                    if (!same && !is_draft_key(key)) parts.push_back(key_part(value));
                }
            }
            for (const Assignment& value : combination.grid_values) {
                if (!is_draft_key(value.key) && (with_seed || value.key != "seed")) parts.push_back(key_part(value));
            }
            return joined(parts);
        });
    }

  private:
    [[nodiscard]] std::vector<Assignment> assignments_of(const Combination& combination) const {
        std::vector<Assignment> own = combination.grid_values;
        if (combination.variant != nullptr)
            own.insert(own.begin(), combination.variant->keys.begin(), combination.variant->keys.end());
        std::set<std::string> own_keys;
        for (const Assignment& assignment : own) own_keys.insert(assignment.key);
        std::vector<Assignment> all;
        for (const Assignment& assignment : sweep_.plain) {
            if (!own_keys.contains(assignment.key)) all.push_back(assignment);
        }
        all.insert(all.end(), own.begin(), own.end());
        return all;
    }

    template <typename NameOf>
    [[nodiscard]] SweepPoint make(const Combination& combination, const std::vector<Assignment>& assignments,
                                  const NameOf& name_of) const {
        SweepPoint point{.name = name_of(true),
                         .variant = combination.variant == nullptr ? "" : combination.variant->name,
                         .settings = {},
                         .name_without_seed = name_of(false)};
        try {
            point.settings = parse_settings(assignments, {}, {});
        } catch (const UsageError& error) {
            throw UsageError(std::string(error.what()) + " (point " + point.name + ")");
        }
        point.settings.baseline = false;  // `baseline` becomes a point of its own
        point.settings.output = sweep_.output / point.name;
        return point;
    }

    const Sweep& sweep_;
    std::map<std::string, std::string> plain_values_;
};

/// Variants in file order, and for each the product of the grids; the last grid varies fastest.
std::vector<Combination> combinations_of(const Sweep& sweep) {
    std::vector<Combination> all;
    for (std::size_t v = 0; v < std::max<std::size_t>(1, sweep.variants.size()); ++v) {
        std::vector<Combination> some(1);
        if (!sweep.variants.empty()) some.front().variant = &sweep.variants[v];
        for (const SweepGrid& grid : sweep.grids) {
            std::vector<Combination> longer;
            for (const Combination& combination : some) {
                for (const Assignment& value : grid.values) {
                    longer.push_back(combination);
                    longer.back().grid_values.push_back(value);
                }
            }
            some = std::move(longer);
        }
        all.insert(all.end(), some.begin(), some.end());
    }
    return all;
}

std::string texts_of(const Settings& settings, const std::function<bool(const Key&)>& counts) {
    std::string text;
    for (const Key& key : key_table()) {
        if (!counts(key)) continue;
        for (const std::string& value : key.get(settings)) text += key.info.key + "=" + value + "\n";
    }
    return text;
}

/// The same text for points that differ only in draft keys.
std::string job_without_drafts(const Settings& settings) {
    return texts_of(settings, [](const Key& key) { return !is_draft_key(key) && key.info.key != "output"; });
}

/// Groups points by `group_of`; groups, and the points within a group, keep their order of first occurrence.
void group_by(std::vector<SweepPoint>& points, const std::function<std::string(const SweepPoint&)>& group_of) {
    std::map<std::string, std::size_t> rank;
    std::vector<std::pair<std::size_t, SweepPoint>> ranked;
    for (SweepPoint& point : points) {
        const std::size_t group = rank.try_emplace(group_of(point), rank.size()).first->second;
        ranked.emplace_back(group, std::move(point));
    }
    std::stable_sort(ranked.begin(), ranked.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = 0; i < points.size(); ++i) points[i] = std::move(ranked[i].second);
}

void check_names(const std::vector<SweepPoint>& points, const Sweep& sweep) {
    std::set<std::string> names;
    for (const SweepPoint& point : points) {
        if (names.insert(point.name).second) continue;
        throw UsageError(sweep.output.string() + ": expected points of different names, got two of '" + point.name +
                         "'; name them with variant lines");
    }
}

void find_baselines(std::vector<SweepPoint>& points) {
    std::map<std::string, std::size_t> plain;
    for (std::size_t i = 0; i < points.size(); ++i) {
        if (!points[i].settings.draft->drafts()) plain[job_without_drafts(points[i].settings)] = i;
    }
    for (SweepPoint& point : points) {
        const auto at = plain.find(job_without_drafts(point.settings));
        if (at != plain.end()) point.baseline = at->second;
    }
}

}  // namespace

bool is_name_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           std::string_view("-_.+").find(c) != std::string_view::npos;
}

bool is_path(const std::string& key) {
    const Key* entry = find_key(key);
    return entry != nullptr && entry->info.value_name.find("PATH") != std::string::npos;
}

std::string last_part(const std::string& key, const std::string& value) {
    if (!is_path(key)) return value;
    const fs::path path = value.starts_with('"') ? parse_text(value) : value;
    return path.has_filename() ? path.filename().string() : path.parent_path().filename().string();
}

std::vector<SweepPoint> points_of(const Sweep& sweep) {
    const PointMaker maker(sweep);
    std::vector<SweepPoint> points;
    std::set<std::string> plainly;  // jobs that have a plain-decoding point already
    for (const Combination& combination : combinations_of(sweep)) {
        SweepPoint point = maker.as_written(combination);
        const bool is_plain = !point.settings.draft->drafts();
        if (is_plain || sweep.baseline) {
            SweepPoint plain = maker.plain_decoding(combination);
            if (!is_plain) plain.variant = "";
            if (plainly.insert(job_without_drafts(plain.settings)).second) points.push_back(std::move(plain));
        }
        if (!is_plain) points.push_back(std::move(point));
    }
    group_by(points, [](const SweepPoint& point) { return data_needs(point.settings); });
    group_by(points, [](const SweepPoint& point) { return model_needs(point.settings); });
    check_names(points, sweep);
    find_baselines(points);
    return points;
}

std::vector<std::string> sweep_keys(const Sweep& sweep) {
    std::vector<std::string> keys;
    const auto add = [&](const std::string& key) {
        if (std::find(keys.begin(), keys.end(), key) == keys.end()) keys.push_back(key);
    };
    for (const SweepVariant& variant : sweep.variants) {
        for (const Assignment& key : variant.keys) add(key.key);
    }
    for (const SweepGrid& grid : sweep.grids) add(grid.key);
    return keys;
}

std::string shown_value(const SweepPoint& point, const std::string& key) {
    if (!point.settings.draft->drafts() && key != "draft" && is_draft_key(key)) return "";
    std::string text;
    for (const std::string& value : find_key(key)->get(point.settings))
        text += (text.empty() ? "" : ", ") + last_part(key, value);
    return text;
}

std::string model_needs(const Settings& settings) {
    static const std::set<std::string> keys{"model",   "adapter",    "precision",       "kv-precision",  "device",
                                            "kernels", "all-reduce", "tensor-parallel", "packed-weights"};
    return texts_of(settings, [](const Key& key) { return keys.contains(key.info.key); });
}

std::string data_needs(const Settings& settings) {
    // Keys that shape an item decide its result. Paths do not, but other paths may have other content.
    return texts_of(settings, [](const Key& key) {
        if (is_draft_key(key) || key.info.key == "output") return false;
        static const std::set<std::string> others{"chat-template", "split", "few-shot-split"};
        return key.kind != Key::Kind::execution || is_path(key.info.key) || others.contains(key.info.key);
    });
}

}  // namespace longhaul::runner
