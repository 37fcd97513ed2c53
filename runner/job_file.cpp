#include <algorithm>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/settings.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

constexpr std::int64_t most_bytes = 1 << 20;  // a job file is written by hand

bool is_blank(char c) {
    return c == ' ' || c == '\t';
}

std::string_view trimmed(std::string_view text) {
    while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
    while (!text.empty() && is_blank(text.back())) text.remove_suffix(1);
    return text;
}

/// The line without its comment. Quotes count only where a value starts with one: `stop = don't # say` has none.
std::string_view without_comment(std::string_view line) {
    const std::size_t equals = line.find('=');
    std::size_t first = equals == std::string_view::npos ? line.size() : equals + 1;
    while (first < line.size() && is_blank(line[first])) ++first;
    const bool quoted_value = first < line.size() && line[first] == '"';
    bool inside = false;
    for (std::size_t i = 0; i < line.size(); ++i) {
        if (inside && line[i] == '\\') {
            ++i;
        } else if (line[i] == '"' && quoted_value && i >= first) {
            inside = !inside;
        } else if (line[i] == '#' && !inside && (i == 0 || is_blank(line[i - 1]))) {
            return line.substr(0, i);
        }
    }
    return line;
}

std::string shown(std::string_view text) {
    return "'" + engine::printable(text) + "'";
}

std::string read_text(const std::filesystem::path& path) {
    try {
        return engine::read_file(path, most_bytes);
    } catch (const InputError& error) {
        throw UsageError(error.what());  // a job file that cannot be read is a wrong command line
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
            fault("", InputError::format(origin, "", "UTF-8 text", shown(line), ""));
            continue;
        }
        line = trimmed(without_comment(line));
        if (line.empty()) continue;
        const std::size_t equals = line.find('=');
        if (equals == std::string_view::npos || trimmed(line.substr(0, equals)).empty()) {
            fault("", InputError::format(origin, "", "'key = value'", shown(line), "a comment begins with #"));
            continue;
        }
        assignments.push_back({.key = std::string(trimmed(line.substr(0, equals))),
                               .value = std::string(trimmed(line.substr(equals + 1))),
                               .origin = origin});
    }
    return assignments;
}

Settings load_settings(const std::filesystem::path& job_file, const std::vector<Assignment>& command_line) {
    const auto folder = std::filesystem::absolute(job_file).parent_path();
    return parse_settings(read_job_file(job_file), command_line, folder);
}

}  // namespace longhaul::runner
