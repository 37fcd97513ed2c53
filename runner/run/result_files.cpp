#include "runner/run/result_files.hpp"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <utility>

#include "engine/error.hpp"
#include "runner/host/files.hpp"

namespace longhaul::runner {

namespace fs = std::filesystem;

std::vector<LaunchFile> launch_files(const fs::path& folder, std::string_view prefix) {
    std::vector<LaunchFile> files;
    for (std::string& name : names_in(folder)) {
        LaunchFile file;
        file.name = std::move(name);
        std::string_view rest = file.name;
        if (!rest.starts_with(prefix) || !rest.ends_with(".jsonl")) continue;
        rest.remove_prefix(prefix.size());
        rest.remove_suffix(6);
        const std::size_t dash = rest.find('-');
        if (dash == std::string_view::npos) continue;
        const char* const end = rest.data() + rest.size();
        const auto replica = std::from_chars(rest.data(), rest.data() + dash, file.replica);
        const auto epoch = std::from_chars(rest.data() + dash + 1, end, file.epoch);
        if (replica.ptr == rest.data() + dash && epoch.ptr == end && epoch.ec == std::errc()) files.push_back(file);
    }
    std::sort(files.begin(), files.end(), [](const LaunchFile& a, const LaunchFile& b) {
        return std::pair(a.epoch, a.replica) < std::pair(b.epoch, b.replica);
    });
    return files;
}

void each_line(const fs::path& path, std::int64_t limit, const LineVisitor& visit) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw InputError(path.string(), "", "a file that can be read", "an error");
    std::string line;
    std::int64_t offset = 0;
    while (std::getline(in, line) && !in.eof()) {  // at eof the last line has no newline: its writer died
        const std::int64_t next = offset + line.size() + 1;
        if (next > limit) break;
        visit(line, offset);
        offset = next;
    }
}

std::int64_t accepted_bytes(const LaunchFile& file, const LeaseRecord& newest) {
    if (file.epoch == newest.epoch) return no_limit;
    const auto at = newest.accepted.find(file.name);
    return at == newest.accepted.end() || file.epoch > newest.epoch ? 0 : at->second;
}

static std::int64_t bytes_of_complete_lines(const fs::path& path) {
    std::int64_t bytes = 0;
    each_line(path, no_limit, [&](std::string_view line, std::int64_t offset) { bytes = offset + line.size() + 1; });
    return bytes;
}

std::map<std::string, std::int64_t> accept_results(const fs::path& run, const LeaseRecord* newest) {
    std::map<std::string, std::int64_t> accepted;
    for (const LaunchFile& file : launch_files(run / "results", "")) {
        const fs::path path = run / "results" / file.name;
        const std::int64_t limit = newest == nullptr ? no_limit : accepted_bytes(file, *newest);
        const std::int64_t bytes = limit == no_limit ? bytes_of_complete_lines(path) : limit;
        if (bytes == 0) continue;
        // After a crash, lines may be only in the page cache. Make them durable before they are accepted.
        if (limit == no_limit) sync_file(path);
        accepted[file.name] = bytes;
    }
    return accepted;
}

void must_have_accepted(const fs::path& run, const LeaseRecord& newest) {
    for (const auto& [name, bytes] : newest.accepted) {
        const fs::path path = run / "results" / name;
        std::error_code error;
        if (fs::exists(path, error)) continue;
        throw InputError(path.string(), "", std::to_string(bytes) + " bytes of results",
                         error ? error.message() : "no such file", lost_results);
    }
}

}  // namespace longhaul::runner
