// Reads job files, and the lines of sweep files: see read_job_file in settings.hpp.
#include <algorithm>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

constexpr std::int64_t max_bytes = 1 << 20;  // job files are written by hand

/// Whether the line belongs to a sweep file: its key has two words, a key of a job has one.
bool is_sweep_line(std::string_view line) {
    return line.starts_with("grid ") || line.starts_with("grid\t") || line.starts_with("variant ") ||
           line.starts_with("variant\t");
}

/// Whether a value may start at `i`. Lines of a sweep have several values: "grid KEY = v1 | v2", "variant NAME = k=v".
bool value_begins(std::string_view line, std::size_t i, bool several) {
    while (i > 0 && is_blank(line[i - 1])) --i;
    if (i == 0) return false;
    const char before = line[i - 1];
    return several ? before == '=' || before == '|' : before == '=' && i - 1 == line.find('=');
}

/// The line without its comment. A quote counts only at the start of a value: in `stop = don't # say` there is none.
std::string_view without_comment(std::string_view line) {
    const bool several = is_sweep_line(trimmed(line));
    bool inside = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (inside && line[i] == '\\') {
            ++i;
        } else if (line[i] == '"' && (inside || value_begins(line, i, several))) {
            inside = !inside;
        } else if (line[i] == '#' && !inside && (i == 0 || is_blank(line[i - 1]))) {
            return line.substr(0, i);
        }
    }
    return line;
}

/// Reports values that would mean something else than they look like. `written`: what the line has after the =.
void check_quotes(const Assignment& line, std::string_view written, const FaultSink& fault) {
    if (line.value.empty() && !written.empty())
        fault(line.key, InputError::format(line.origin, line.key, "a value", "a comment, which begins with #",
                                           "a value with # stands in double quotes: " + line.key + " = " +
                                               engine::printable(quote_text(written))));
    if (line.value.size() > 1 && line.value.starts_with('\'') && line.value.ends_with('\''))
        fault(line.key, InputError::format(line.origin, line.key, "double quotes or none",
                                           engine::printable(line.value), "single quotes would be part of the value"));
}

std::string read_text(const std::filesystem::path& path) {
    std::error_code ignored;
    const bool is_run_folder = std::filesystem::is_regular_file(path / "identity.json", ignored);
    if (const auto own = path / "job.cfg"; is_run_folder && std::filesystem::is_regular_file(own, ignored))
        throw UsageError(
            InputError::format(path.string(), "", "a job file", "a run folder", "its job file is " + own.string()));
    try {
        return engine::read_file(path, max_bytes);
    } catch (const InputError& error) {
        throw UsageError(error.what());  // an unreadable job file is an error of the command line
    }
}

}  // namespace

std::vector<Assignment> read_job_file(const std::filesystem::path& path, const FaultSink& fault) {
    const std::string text = read_text(path);
    std::string_view rest = text;
    if (rest.starts_with("\xEF\xBB\xBF")) rest.remove_prefix(3);
    std::vector<Assignment> assignments;
    for (std::int64_t line_number = 1; !rest.empty(); ++line_number) {
        std::string_view line = rest.substr(0, rest.find('\n'));
        rest.remove_prefix(std::min(rest.size(), line.size() + 1));
        if (line.ends_with('\r')) line.remove_suffix(1);
        const std::string origin = path.string() + ":" + std::to_string(line_number);
        if (!is_text(line)) {
            fault("", InputError::format(origin, "", "UTF-8 text", in_quotes(line), ""));
            continue;
        }
        const std::string_view whole = line;
        line = trimmed(without_comment(line));
        if (line.empty()) continue;
        const std::size_t equals = line.find('=');
        if (equals == std::string_view::npos || trimmed(line.substr(0, equals)).empty()) {
            fault("", InputError::format(origin, "", "'key = value'", in_quotes(line), "a comment begins with #"));
            continue;
        }
        assignments.push_back({.key = std::string(trimmed(line.substr(0, equals))),
                               .value = std::string(trimmed(line.substr(equals + 1))),
                               .origin = origin});
        check_quotes(assignments.back(), trimmed(whole.substr(whole.find('=') + 1)), fault);
    }
    return assignments;
}

Settings load_settings(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line) {
    return parse_settings(read_job_file(job_file), command_line, job_file);
}

}  // namespace longhaul::runner
