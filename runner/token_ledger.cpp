#include "runner/token_ledger.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <functional>
#include <map>
#include <string>
#include <string_view>

namespace longhaul::runner {
namespace {

constexpr std::string_view prefix = "tokens-";
constexpr std::string_view suffix = ".bin";

/// EPOCH of tokens-R-EPOCH.bin; -1 for any other name.
std::int64_t epoch_of(const std::string& name) {
    if (!name.starts_with(prefix) || !name.ends_with(suffix)) return -1;
    const std::size_t dash = name.rfind('-');
    std::int64_t epoch = -1;
    const char* end = name.data() + name.size() - suffix.size();
    const auto [stop, error] = std::from_chars(name.data() + dash + 1, end, epoch);
    return error == std::errc() && stop == end ? epoch : -1;
}

template <typename Visit>
void for_each_ledger(const std::filesystem::path& folder, Visit visit) {
    std::error_code ignored;
    for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
        const std::int64_t epoch = epoch_of(entry.path().filename());
        if (epoch >= 0) visit(entry.path(), epoch);
    }
}

}  // namespace

TokenLedger::TokenLedger(const std::filesystem::path& folder, std::int64_t replica, std::int64_t epoch) {
    std::map<std::int64_t, std::vector<std::filesystem::path>, std::greater<>> newest_first;
    for_each_ledger(folder, [&](const std::filesystem::path& path, std::int64_t of) {
        if (of < epoch) newest_first[of].push_back(path);
    });
    for (const auto& [of, paths] : newest_first) {
        for (const std::filesystem::path& path : paths) {
            const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
            if (file >= 0) earlier_.push_back(file);
        }
    }
    const std::string name =
        std::string(prefix) + std::to_string(replica) + "-" + std::to_string(epoch) + std::string(suffix);
    file_ = ::open((folder / name).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
}

TokenLedger::~TokenLedger() {
    for (const int file : earlier_) ::close(file);
    if (file_ >= 0) ::close(file_);
}

void TokenLedger::reached(std::int64_t item_number, std::int64_t num_tokens) noexcept {
    if (file_ < 0) return;
    const auto value = static_cast<std::int32_t>(std::min<std::int64_t>(num_tokens, INT32_MAX));
    [[maybe_unused]] const ssize_t written =
        ::pwrite(file_, &value, sizeof value, item_number * static_cast<off_t>(sizeof value));
}

std::int64_t TokenLedger::known(std::int64_t item_number) const {
    for (const int file : earlier_) {
        std::int32_t value = 0;
        const off_t at = item_number * static_cast<off_t>(sizeof value);
        if (::pread(file, &value, sizeof value, at) == sizeof value && value > 0) return value;
    }
    return 0;
}

void TokenLedger::remove_all(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> found;
    for_each_ledger(folder, [&](const std::filesystem::path& path, std::int64_t) { found.push_back(path); });
    std::error_code ignored;
    for (const std::filesystem::path& path : found) std::filesystem::remove(path, ignored);
}

}  // namespace longhaul::runner
