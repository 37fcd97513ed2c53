#include "runner/run/slurm.hpp"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <thread>

#include "engine/descriptor.hpp"
#include "engine/json.hpp"
#include "runner/host/files.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

using Clock = std::chrono::steady_clock;

/// limit of a program's output; squeue's lines of a job are a few hundred bytes each
constexpr std::size_t max_bytes = 1 << 20;

bool is_job_id(std::string_view text) {
    const auto letter = [](char c) { return (c >= '0' && c <= '9') || c == '_'; };
    return !text.empty() && text.size() <= 32 && text.front() != '_' && std::all_of(text.begin(), text.end(), letter);
}

bool is_cluster(std::string_view text) {
    const auto letter = [](char c) {
        return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' || c == '_' ||
               c == '.';
    };
    return text.size() <= 64 && std::all_of(text.begin(), text.end(), letter);
}

int milliseconds_until(Clock::time_point end) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - Clock::now()).count();
    return static_cast<int>(std::clamp<std::int64_t>(left, 0, 1'000'000));
}

/// Starts a program from PATH in its own process group, with standard output to `to`; input and errors go to /dev/null.
/// -1: failed.
pid_t start(const std::vector<std::string>& arguments, int to) {
    std::vector<char*> argv;
    for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
    argv.push_back(nullptr);
    posix_spawn_file_actions_t files;
    posix_spawnattr_t attributes;
    posix_spawn_file_actions_init(&files);
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_addopen(&files, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    posix_spawn_file_actions_adddup2(&files, to, STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&files, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
    pid_t child = -1;
    const int failed = ::posix_spawnp(&child, argv.front(), &files, &attributes, argv.data(), environ);
    posix_spawn_file_actions_destroy(&files);
    posix_spawnattr_destroy(&attributes);
    return failed == 0 ? child : -1;
}

/// Reads `from` until its end; false if the time or max_bytes is exceeded first.
bool read_all(int from, Clock::time_point end, std::string& text) {
    std::array<char, 4096> block{};
    for (;;) {
        pollfd ready{.fd = from, .events = POLLIN, .revents = 0};
        if (::poll(&ready, 1, milliseconds_until(end)) <= 0) return false;
        const ssize_t count = ::read(from, block.data(), block.size());
        if (count <= 0) return count == 0;
        text.append(block.data(), count);
        if (text.size() > max_bytes) return false;
    }
}

/// Whether the child exited by itself, in time, with code 0. Afterwards its process group is killed and reaped.
bool reap(pid_t child, bool in_time, Clock::time_point end) {
    int status = 0;
    pid_t gone = 0;
    while (in_time && (gone = ::waitpid(child, &status, WNOHANG)) == 0 && Clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(2));
    ::kill(-child, SIGKILL);
    if (gone == 0) ::waitpid(child, &status, 0);
    return gone == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/// Standard output of a program; nullopt if it cannot be run, fails, takes too long or prints too much.
std::optional<std::string> output_of(const std::vector<std::string>& arguments, double seconds) {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) return std::nullopt;
    const engine::Descriptor from(ends[0]);
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
    const pid_t child = start(arguments, ends[1]);
    ::close(ends[1]);
    if (child < 0) return std::nullopt;
    std::string text;
    const bool whole = read_all(from.get(), end, text);
    return reap(child, whole, end) ? std::optional(text) : std::nullopt;
}

/// Maps "n/a", "N/A", "None" and similar words to "".
std::string said(std::string_view text) {
    for (const std::string_view nothing : {"None", "(null)", "N/A", "n/a", "INVALID", "NOT_SET", "UNLIMITED"}) {
        if (text == nothing) return "";
    }
    return std::string(text);
}

std::string lower(std::string_view word) {
    std::string text(word);
    std::transform(text.begin(), text.end(), text.begin(),
                   [](unsigned char c) { return c == '_' ? ' ' : static_cast<char>(std::tolower(c)); });
    return text;
}

}  // namespace

SlurmRecord slurm_record_from_environment() {
    constexpr std::array<std::pair<const char*, const char*>, 5> names{{{"job_id", "SLURM_JOB_ID"},
                                                                        {"array_job_id", "SLURM_ARRAY_JOB_ID"},
                                                                        {"array_task_id", "SLURM_ARRAY_TASK_ID"},
                                                                        {"restart_count", "SLURM_RESTART_COUNT"},
                                                                        {"cluster", "SLURM_CLUSTER_NAME"}}};
    SlurmRecord record;
    for (const auto& [name, variable] : names) {
        const char* value = std::getenv(variable);
        if (value == nullptr || *value == '\0') continue;
        if (std::string_view(name) == "cluster" ? is_cluster(value) : is_job_id(value)) record[name] = value;
    }
    return record.contains("job_id") ? record : SlurmRecord();
}

std::optional<SlurmJob> job_of(const SlurmRecord& record) {
    const auto word = [&](const char* name) {
        const auto at = record.find(name);
        return at == record.end() ? std::string() : at->second;
    };
    std::string id = word("job_id");
    if (record.contains("array_job_id") && record.contains("array_task_id"))
        id = word("array_job_id") + "_" + word("array_task_id");
    if (!is_job_id(id) || !is_cluster(word("cluster"))) return std::nullopt;
    return SlurmJob{.id = id, .cluster = ""};  // a launch queries its own cluster
}

std::optional<SlurmJob> submitted_job(const std::filesystem::path& output) {
    const std::string text = read_if_there(output / batch_folder / "job-id");
    const std::string_view line = trimmed(std::string_view(text).substr(0, text.find_first_of("\r\n")));
    const std::size_t separator = std::min(line.find(';'), line.size());
    const std::string_view id = line.substr(0, separator);
    const std::string_view cluster = separator < line.size() ? line.substr(separator + 1) : "";
    if (!is_job_id(id) || !is_cluster(cluster)) return std::nullopt;
    return SlurmJob{.id = std::string(id), .cluster = std::string(cluster)};
}

std::vector<QueueEntry> ask_squeue(const SlurmJob& job, double seconds) {
    // squeue truncates each field to its width, so give large ones; fields end with a bar.
    std::vector<std::string> arguments{"squeue", "--noheader", "--jobs=" + job.id,
                                       "--Format=JobArrayID:80|,State:30|,TimeLeft:30|,RestartCnt:12|,Reason:200|"};
    if (!job.cluster.empty()) arguments.push_back("--clusters=" + job.cluster);
    const std::optional<std::string> text = output_of(arguments, seconds);
    return text ? parse_squeue(*text) : std::vector<QueueEntry>();
}

std::vector<QueueEntry> parse_squeue(std::string_view text) {
    std::vector<QueueEntry> entries;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        text.remove_prefix(std::min(end + 1, text.size()));
        std::vector<std::string_view> fields;
        for (std::size_t bar = 0; (bar = line.find('|')) != std::string_view::npos; line.remove_prefix(bar + 1))
            fields.push_back(trimmed(line.substr(0, bar)));
        if (fields.size() < 5 || fields[0].empty() || fields[1].empty()) continue;
        if (fields[0].front() < '0' || fields[0].front() > '9') continue;  // "CLUSTER: name", or an error message
        QueueEntry entry{.job = engine::printable(fields[0], 80),
                         .state = engine::printable(fields[1], 40),
                         .reason = said(engine::printable(fields[4], 200)),
                         .time_left = said(engine::printable(fields[2], 40))};
        std::from_chars(fields[3].data(), fields[3].data() + fields[3].size(), entry.restarts);
        entries.push_back(std::move(entry));
    }
    return entries;
}

std::string describe(const QueueEntry& entry) {
    const SlurmWord* state = find_state(entry.state);
    std::string text = state == nullptr ? entry.state : lower(state->name);
    const bool runs = state != nullptr && state->name == "RUNNING";
    if (runs && !entry.time_left.empty()) text += ", " + entry.time_left + " left";
    if (entry.restarts > 0) text += ", attempt " + std::to_string(entry.restarts + 1);
    if (!runs && !entry.reason.empty()) {
        // "ReqNodeNotAvail, UnavailableNodes:n1": the meaning of the first word if it is known, then the original text.
        const SlurmWord* reason = find_reason(entry.reason.substr(0, entry.reason.find_first_of(", :")));
        text += ": " + (reason == nullptr ? "" : std::string(reason->meaning) + " ") +
                (reason == nullptr ? entry.reason : "(" + entry.reason + ")");
    } else if (!runs && state != nullptr) {
        text += ": " + std::string(state->meaning);
    }
    return text;
}

}  // namespace longhaul::runner
