#include "runner/host/process.hpp"

#include <unistd.h>

#include <array>
#include <atomic>
#include <charconv>
#include <ctime>
#include <filesystem>

#include "runner/host/files.hpp"

namespace longhaul::runner {
namespace {

std::string first_line(const std::filesystem::path& path) {
    const std::string text = read_if_there(path);
    return text.substr(0, text.find('\n'));
}

/// Field 22 of /proc/PID/stat: clock ticks from boot to the start of the process. "" if there is no such process.
std::string start_ticks_of(std::int64_t pid) {
    const std::string stat = read_if_there("/proc/" + std::to_string(pid) + "/stat");
    std::size_t at = stat.rfind(')');  // the name before it may contain blanks
    if (at == std::string::npos) return "";
    if (stat.compare(at, 3, ") Z") == 0) return "";  // a zombie does not run any more
    for (int field = 2; field < 22 && at != std::string::npos; ++field) at = stat.find(' ', at + 1);
    if (at == std::string::npos) return "";
    return stat.substr(at + 1, stat.find(' ', at + 1) - at - 1);
}

std::string link_target(const char* path) {
    std::array<char, 256> target{};
    const ssize_t count = ::readlink(path, target.data(), target.size());
    return count > 0 ? std::string(target.data(), static_cast<std::size_t>(count)) : "";
}

}  // namespace

ProcessId ProcessId::mine() {
    static const ProcessId process = [] {
        std::array<char, 256> host{};
        ::gethostname(host.data(), host.size() - 1);
        const std::int64_t pid = ::getpid();
        return ProcessId{host.data(), pid, start_ticks_of(pid), first_line("/proc/sys/kernel/random/boot_id"),
                         link_target("/proc/self/ns/pid")};
    }();
    return process;
}

std::string process_tag() {
    static std::atomic<int> count{0};
    return ProcessId::mine().host + "." + std::to_string(::getpid()) + "." + std::to_string(count++);
}

std::optional<bool> ProcessId::is_alive() const {
    const ProcessId here = mine();
    const bool same_machine = host == here.host && boot_id == here.boot_id && pid_namespace == here.pid_namespace;
    if (!same_machine || start_ticks.empty()) return std::nullopt;
    return start_ticks_of(pid) == start_ticks;
}

std::string utc_now() {
    const std::time_t now = std::time(nullptr);
    std::tm parts{};
    ::gmtime_r(&now, &parts);
    std::array<char, 32> text{};
    std::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text.data();
}

double seconds_since_start() {
    const std::string ticks = ProcessId::mine().start_ticks;
    std::int64_t started = 0;
    std::from_chars(ticks.data(), ticks.data() + ticks.size(), started);
    timespec now{};
    clock_gettime(CLOCK_BOOTTIME, &now);
    return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec) -
           static_cast<double>(started) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

}  // namespace longhaul::runner
