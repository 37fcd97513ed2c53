#include "runner/host/resources.hpp"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

#include "runner/host/resource_limits.hpp"

namespace longhaul::runner {
namespace {

/// The number after `name` in a file of lines "name number …".
std::optional<std::int64_t> number_after(const char* file, const std::string& name) {
    std::ifstream in(file);
    std::string word;
    std::int64_t number = 0;
    while (in >> word) {
        if (word == name && in >> number) return number;
        in.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
    }
    return std::nullopt;
}

int affinity_processors() {
    // The call fails with EINVAL if the machine has more processors than the set can hold: try larger sets.
    for (int processors = 1024; processors <= (1 << 16); processors *= 2) {
        cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(processors));
        if (set == nullptr) break;
        const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(processors));
        const bool known = ::sched_getaffinity(0, bytes, set) == 0;
        const int count = known ? CPU_COUNT_S(bytes, set) : 0;
        CPU_FREE(set);
        if (known) return std::max(count, 1);
    }
    return 1;
}

}  // namespace

int usable_processors() {
    const int processors = affinity_processors();
    return std::max(1, std::min(processors, allowed_processors().value_or(processors)));
}

std::int64_t available_memory_bytes(int ranks) {
    const std::int64_t free = number_after("/proc/meminfo", "MemAvailable:").value_or(0) * 1024;
    return std::min(free, allowed_memory_bytes(ranks).value_or(free));
}

}  // namespace longhaul::runner
