#include "runner/settings.hpp"

#include <map>
#include <set>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/values.hpp"
#include "runner/vocabulary.hpp"

namespace longhaul::runner {
namespace {

std::string shown(std::string_view text) {
    return text.empty() ? "nothing" : "'" + engine::printable(text) + "'";
}

[[noreturn]] void refuse(const std::string& origin, const std::string& field, const std::string& expected,
                         const std::string& got, const std::string& mend = "") {
    throw UsageError(InputError::format(origin, field, expected, got, mend));
}

std::vector<std::string> key_names() {
    std::vector<std::string> names;
    for (const Key& key : key_table()) names.push_back(key.info.key);
    return names;
}

const Key& known_key(const Assignment& assignment) {
    if (const Key* key = find_key(assignment.key)) return *key;
    if (assignment.key.starts_with("grid ") || assignment.key.starts_with("variant "))
        refuse(assignment.origin, "", "a job", "a line of a sweep", "`longhaul sweep` runs this file");
    const std::string near = nearest_word(assignment.key, key_names());
    refuse(assignment.origin, "unknown key " + shown(assignment.key), "a known key", shown(assignment.key),
           near.empty() ? "`longhaul run --help` lists them" : "did you mean '" + near + "'?");
}

/// What one place (the file, the command line) says: checked for unknown and repeated keys.
std::set<std::string> check_keys(const std::vector<Assignment>& assignments) {
    std::map<std::string, std::string> first_origin;
    std::set<std::string> given;
    for (const Assignment& assignment : assignments) {
        const Key& key = known_key(assignment);
        const auto [place, fresh] = first_origin.try_emplace(assignment.key, assignment.origin);
        if (!fresh && !key.info.repeatable) {
            const bool lines = place->second != assignment.origin;
            refuse(assignment.origin, assignment.key, "every key once", "this key again",
                   lines ? "it is at " + place->second + " already" : "");
        }
        given.insert(assignment.key);
    }
    return given;
}

void assign(Settings& settings, const Assignment& assignment, const std::filesystem::path& folder) {
    try {
        if (assignment.value.empty()) throw BadValue{"a value", ""};
        known_key(assignment).set(settings, assignment.value, folder);
    } catch (const BadValue& bad) {
        refuse(assignment.origin, assignment.key, bad.expected, shown(assignment.value), bad.mend);
    }
}

/// Where keys were given last, for messages about several of them.
class Origins {
  public:
    Origins(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line) {
        for (const auto* list : {&file, &command_line}) {
            for (const Assignment& assignment : *list) origin_[assignment.key] = assignment.origin;
        }
        // "JOB.cfg:12" without the line stands for the file as a whole.
        if (!file.empty()) whole_ = file.front().origin.substr(0, file.front().origin.rfind(':'));
    }
    [[nodiscard]] bool has(const std::string& key) const { return origin_.contains(key); }
    [[nodiscard]] std::string of(const std::string& key) const { return has(key) ? origin_.at(key) : whole_; }
    [[nodiscard]] const std::string& whole() const { return whole_; }

  private:
    std::map<std::string, std::string> origin_;
    std::string whole_ = "command line";
};

void resolve(Settings& settings) {
    if (settings.kv_precision.empty()) settings.kv_precision = settings.precision == "fp32" ? "fp32" : "bf16";
    // The device kind decides the bits, so the resolved job names it.
    if (settings.device.empty() || settings.device == "auto") settings.device = "cpu";
}

void check_together(const Settings& settings, const Origins& origins) {
    // Plain decoding may be asked of any job file, to compare; it drafts nothing, whatever the draft keys say.
    if (!settings.draft_model.empty() && settings.draft != "ar") {
        refuse(origins.of("draft-model"), "draft-model", "no draft model with draft = " + settings.draft,
               shown(settings.draft_model.front().string()), "this draft method needs none");
    }
    for (const char* key : {"draft-temperature", "resample-threshold", "partial-cache", "partial-cache-mode"}) {
        const auto value = [&](const Settings& of) { return find_key(key)->get(of); };
        if (value(settings) == value(Settings())) continue;
        refuse(origins.of(key), key, "its default", shown(value(settings).empty() ? "" : value(settings).front()),
               "the draft methods it belongs to are not in this version");
    }
    if (settings.draft == "replay" && settings.replay_run.empty()) {
        refuse(origins.of("draft"), "replay-run", "the run folder to replay", "nothing", "");
    }
    const bool replays = settings.draft == "replay" || settings.draft == "ar";
    if (!replays && (!settings.replay_run.empty() || settings.replay_accept != Settings().replay_accept)) {
        const std::string key = settings.replay_run.empty() ? "replay-accept" : "replay-run";
        refuse(origins.of(key), key, "draft = replay", "draft = " + settings.draft, "");
    }
}

}  // namespace

Settings parse_settings(const std::vector<Assignment>& file, const std::vector<Assignment>& command_line,
                        const std::filesystem::path& job_folder, const std::vector<std::string>& required) {
    check_keys(file);
    const std::set<std::string> overridden = check_keys(command_line);
    Settings settings;
    for (const Assignment& assignment : file) {
        Settings ignored;  // a value that is overridden is checked all the same
        assign(overridden.contains(assignment.key) ? ignored : settings, assignment, job_folder);
    }
    for (const Assignment& assignment : command_line) assign(settings, assignment, std::filesystem::current_path());
    const Origins origins(file, command_line);
    for (const std::string& key : required) {
        if (!origins.has(key)) refuse(origins.whole(), key, "a value", "nothing", "this key has no default");
    }
    resolve(settings);
    check_together(settings, origins);
    return settings;
}

std::vector<Assignment> resolve_assignments(const std::vector<Assignment>& assignments,
                                            const std::filesystem::path& folder) {
    check_keys(assignments);
    std::vector<Assignment> resolved;
    for (const Assignment& assignment : assignments) {
        Settings alone;
        assign(alone, assignment, folder);
        const std::vector<std::string> values = known_key(assignment).get(alone);
        resolved.push_back({assignment.key, values.empty() ? assignment.value : values.back(), assignment.origin});
    }
    return resolved;
}

std::string format_settings(const Settings& settings) {
    std::string text, section;
    for (const Key& key : key_table()) {
        if (key.info.section != section) {
            section = key.info.section;
            text.append(text.empty() ? "# " : "\n# ").append(section).append("\n");
        }
        const std::vector<std::string> values = key.get(settings);
        if (values.empty()) text.append("# ").append(key.info.key).append(" =\n");
        for (const std::string& value : values) text.append(key.info.key).append(" = ").append(value).append("\n");
    }
    return text;
}

KeyKind kind_of(const std::string& key, const Settings& settings) {
    const Key* entry = find_key(key);
    if (entry == nullptr) return KeyKind::identity;  // what nobody knows is not free to change
    // Truncation keeps as many prompt tokens as leave room for the new ones: another max-tokens is another prompt.
    if (key == "max-tokens" && settings.overlong == "truncate-left") return KeyKind::identity;
    switch (entry->kind) {
        case Key::Kind::identity:
            return KeyKind::identity;
        case Key::Kind::extension:
            return KeyKind::extension;
        case Key::Kind::execution:
            return KeyKind::execution;
        case Key::Kind::draft:
            // Under coupled verification the drafter has no influence on the text.
            return settings.verify == "coupled" ? KeyKind::execution : KeyKind::identity;
    }
    return KeyKind::identity;
}

bool is_execution_key(const std::string& key, const Settings& settings) {
    return kind_of(key, settings) == KeyKind::execution;
}

std::vector<Assignment> identity_of(const Settings& settings, bool extensions) {
    std::vector<Assignment> identity;
    for (const Key& key : key_table()) {
        const KeyKind kind = kind_of(key.info.key, settings);
        if (kind == KeyKind::execution || (kind == KeyKind::extension && !extensions)) continue;
        for (const std::string& value : key.get(settings)) identity.push_back({key.info.key, value, "job"});
    }
    return identity;
}

}  // namespace longhaul::runner
