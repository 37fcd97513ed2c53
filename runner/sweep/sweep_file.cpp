// Parses and formats sweep files; the declarations and the format are in sweep.hpp.
#include "runner/sweep/sweep.hpp"

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/job/value_text.hpp"
#include "runner/job/vocabulary.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void refuse(const std::string& origin, const std::string& field, const std::string& expected,
                         const std::string& got, const std::string& fix = "") {
    throw UsageError(InputError::format(origin, field, expected, got, fix));
}

/// Removes and returns the first piece of `text`, up to a character for which `ends` is true; that character is
/// dropped. A quote starts a quoted text at the start of a value (at the beginning and after '='); nothing ends inside
/// it.
template <typename Ends>
std::string_view take_piece(std::string_view& text, const std::string& origin, const std::string& field,
                            const Ends& ends) {
    bool inside = false, at_value = true;
    std::size_t i = 0;
    for (; i < text.size() && (inside || !ends(text[i])); ++i) {
        const char c = text[i];
        if (inside && c == '\\') {
            ++i;
        } else if (c == '"' && (inside || at_value)) {
            inside = !inside;
        }
        if (!is_blank(c)) at_value = c == '=';
    }
    if (inside) refuse(origin, field, "a closing quote", shown(text), R"(a quotation mark inside a text is \")");
    i = std::min(i, text.size());
    const std::string_view piece = text.substr(0, i);
    text.remove_prefix(std::min(text.size(), i + 1));
    return piece;
}

// --- reading

/// Keys that a launch has only once, for all its points.
const std::set<std::string>& whole_keys() {
    static const std::set<std::string> keys{"output", "baseline", "threads", "lease-seconds"};
    return keys;
}

/// Points run one after another on all ranks, so the items of a point cannot be divided into shards.
void check_is_whole(const Assignment& assignment) {
    if (assignment.key != "shard" || assignment.value == "off") return;
    refuse(assignment.origin, assignment.key, "off in a sweep", shown(assignment.value),
           "run the points as jobs of their own to divide their items");
}

void check_may_differ(const Assignment& assignment) {
    check_is_whole(assignment);
    if (!whole_keys().contains(assignment.key)) return;
    refuse(assignment.origin, assignment.key, "a key that points may differ in", shown(assignment.key),
           "it belongs to the sweep as a whole: write it on a line of its own");
}

SweepGrid read_grid(const std::string& key, const Assignment& line, const fs::path& folder) {
    check_may_differ({key, line.value, line.origin});
    SweepGrid grid{.key = key, .values = {}};
    std::set<std::string> seen;
    const auto is_bar = [](char c) { return c == '|'; };
    std::string_view rest = line.value;
    for (bool more = true; more;) {
        const std::size_t before = rest.size();
        const std::string_view piece = take_piece(rest, line.origin, "grid " + key, is_bar);
        more = piece.size() < before;  // it was followed by a bar
        const std::string value(trimmed(piece));
        if (value.empty() && (more || !grid.values.empty())) {
            refuse(line.origin, "grid " + key, "a value on both sides of every |", shown(line.value));
        }
        grid.values.push_back(resolve_assignments({{key, value, line.origin}}, folder).front());
        if (seen.insert(last_part(key, grid.values.back().value)).second) continue;
        refuse(line.origin, "grid " + key, "every value once", shown(value) + " again",
               is_path(key) ? "the last part of a path names the point; give them names on variant lines" : "");
    }
    return grid;
}

void check_variant_name(const std::string& name, const std::string& origin) {
    constexpr std::size_t most = 40;
    if (name.size() > most || !std::all_of(name.begin(), name.end(), is_name_letter) || name.front() == '.' ||
        name.front() == '-') {
        refuse(origin, "variant", "a name of at most 40 letters, digits and - _ . +", shown(name), "it names a folder");
    }
    // Names of other files in a sweep's folder.
    if (name == "launches" || name.starts_with("sweep.")) refuse(origin, "variant", "another name", shown(name));
}

SweepVariant read_variant(const std::string& name, const Assignment& line, const fs::path& folder) {
    check_variant_name(name, line.origin);
    const std::string field = "variant " + name;
    std::vector<Assignment> keys;
    std::string_view rest = trimmed(line.value);
    while (!rest.empty()) {
        const std::string_view piece = take_piece(rest, line.origin, field, is_blank);
        rest = trimmed(rest);
        const std::size_t equals = piece.find('=');
        if (equals == 0 || equals == std::string_view::npos) {
            refuse(line.origin, field, "key=value pairs with blanks between them", shown(piece),
                   "a value with blanks stands in double quotes");
        }
        keys.push_back({std::string(piece.substr(0, equals)), std::string(piece.substr(equals + 1)), line.origin});
        check_may_differ(keys.back());
    }
    return {.name = name, .keys = resolve_assignments(keys, folder)};
}

bool has_key(const std::vector<Assignment>& assignments, const std::string& key) {
    return std::any_of(assignments.begin(), assignments.end(), [&](const Assignment& a) { return a.key == key; });
}

[[noreturn]] void refuse_count(const std::string& origin) {
    refuse(origin, "", "at most " + std::to_string(max_sweep_points) + " points", "more",
           "variants times the values of each grid: leave some out, or make several sweeps");
}

void check_count(const Sweep& sweep, const std::string& file) {
    std::int64_t points = std::max<std::int64_t>(1, sweep.variants.size());
    for (const SweepGrid& grid : sweep.grids) {
        points *= grid.values.size();
        // refuse here: the product of many grids could overflow 64 bits
        if (points > max_sweep_points) refuse_count(file);
    }
}

void add_grid(Sweep& sweep, SweepGrid grid) {
    const std::string& origin = grid.values.front().origin;
    for (const SweepGrid& other : sweep.grids) {
        if (other.key != grid.key) continue;
        refuse(origin, "grid " + grid.key, "one grid a key", "this key again",
               "it is at " + other.values.front().origin + " already");
    }
    sweep.grids.push_back(std::move(grid));
}

void add_variant(Sweep& sweep, SweepVariant variant, const std::string& origin) {
    for (const SweepVariant& other : sweep.variants) {
        if (other.name == variant.name) refuse(origin, "variant", "every name once", shown(variant.name) + " again");
    }
    if (sweep.variants.size() == max_sweep_points) refuse_count(origin);
    sweep.variants.push_back(std::move(variant));
}

/// A grid's key may not be set anywhere else. (Between plain lines and variants, variants win.)
void check_places(const Sweep& sweep) {
    for (const SweepGrid& grid : sweep.grids) {
        const Assignment& first = grid.values.front();
        const auto refuse_twice = [&](const std::vector<Assignment>& others) {
            for (const Assignment& other : others) {
                if (other.key != grid.key) continue;
                refuse(other.origin, grid.key, "no value besides its grid's", shown(other.value),
                       "the grid is at " + first.origin);
            }
        };
        refuse_twice(sweep.plain);
        for (const SweepVariant& variant : sweep.variants) refuse_twice(variant.keys);
    }
}

void check_command_line(const Sweep& sweep, const std::vector<Assignment>& command_line) {
    for (const Assignment& given : command_line) {
        const auto refuse_given = [&](const std::string& line, const std::string& origin) {
            refuse(given.origin, given.key, "a key of a plain line", shown(given.value),
                   line + " at " + origin + " sets it: change it there");
        };
        for (const SweepGrid& grid : sweep.grids) {
            if (grid.key == given.key) refuse_given("grid " + grid.key, grid.values.front().origin);
        }
        for (const SweepVariant& variant : sweep.variants) {
            for (const Assignment& key : variant.keys) {
                if (key.key == given.key) refuse_given("variant " + variant.name, key.origin);
            }
        }
    }
}

void set_whole(Sweep& sweep, const std::string& file) {
    std::vector<Assignment> whole;
    for (const Assignment& assignment : sweep.plain) {
        if (whole_keys().contains(assignment.key)) whole.push_back(assignment);
    }
    if (!has_key(whole, "output")) refuse(file, "output", "a value", "nothing", "this key has no default");
    const Settings settings = parse_settings(whole, {}, {}, {});
    sweep.output = settings.output;
    sweep.baseline = settings.baseline;
    sweep.threads = settings.threads;
    sweep.lease_seconds = settings.lease_seconds;
}

}  // namespace

Sweep parse_sweep(const std::vector<Assignment>& lines, const std::vector<Assignment>& command_line,
                  const fs::path& file) {
    const fs::path folder = file.parent_path();
    Sweep sweep;
    std::vector<Assignment> plain;
    for (const Assignment& line : lines) {
        const std::size_t blank = std::min(line.key.find_first_of(" \t"), line.key.size());
        const std::string form = line.key.substr(0, blank);
        const std::string name(trimmed(std::string_view(line.key).substr(blank)));
        if (form != "grid" && form != "variant") {
            plain.push_back(line);
        } else if (name.empty()) {
            refuse(line.origin, "", form == "grid" ? "'grid KEY = v1 | v2'" : "'variant NAME = key=value key=value'",
                   shown(line.key + " = " + line.value));
        } else if (form == "grid") {
            add_grid(sweep, read_grid(name, line, folder));
        } else {
            add_variant(sweep, read_variant(name, line, folder), line.origin);
        }
    }
    sweep.plain = resolve_assignments(plain, folder);
    check_command_line(sweep, command_line);
    std::erase_if(sweep.plain, [&](const Assignment& line) { return has_key(command_line, line.key); });
    const auto given = resolve_assignments(command_line, fs::current_path());
    sweep.plain.insert(sweep.plain.end(), given.begin(), given.end());
    for (const Assignment& line : sweep.plain) check_is_whole(line);
    check_places(sweep);
    set_whole(sweep, file.string());
    if (sweep.grids.empty() && sweep.variants.empty()) {
        refuse(file.string(), "", "a 'grid KEY = v1 | v2' or a 'variant NAME = key=value' line", "none",
               "`longhaul run` runs a single job");
    }
    check_count(sweep, file.string());
    return sweep;
}

Sweep read_sweep(const fs::path& file, const std::vector<Assignment>& command_line) {
    return parse_sweep(read_job_file(file), command_line, fs::absolute(file));
}

std::string format_sweep(const Sweep& sweep) {
    const auto quoted = [](const std::string& value) {
        const bool plain = value.starts_with('"') || value.find_first_of("| \t\"") == std::string::npos;
        return plain ? value : quote_text(value);
    };
    std::string text;
    for (const Assignment& line : sweep.plain) text += line.key + " = " + line.value + "\n";
    for (const SweepVariant& variant : sweep.variants) {
        text += "variant " + variant.name + " =";
        for (const Assignment& key : variant.keys) text += " " + key.key + "=" + quoted(key.value);
        text += "\n";
    }
    for (const SweepGrid& grid : sweep.grids) {
        text += "grid " + grid.key + " =";
        for (const Assignment& value : grid.values)
            text += (&value == &grid.values.front() ? " " : " | ") + quoted(value.value);
        text += "\n";
    }
    return text;
}

}  // namespace longhaul::runner
