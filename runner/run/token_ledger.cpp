#include "runner/run/token_ledger.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {
namespace {

constexpr std::string_view prefix = "tokens-";
constexpr std::string_view suffix = ".bin";

struct LedgerName {
    std::int64_t replica = 0, epoch = 0, samples = 0;
};

std::string file_name(const LedgerName& name) {
    return std::string(prefix) + std::to_string(name.replica) + "-" + std::to_string(name.epoch) + "-" +
           std::to_string(name.samples) + std::string(suffix);
}

std::optional<LedgerName> parse_name(std::string_view text) {
    if (!text.starts_with(prefix) || !text.ends_with(suffix)) return std::nullopt;
    text = text.substr(prefix.size(), text.size() - prefix.size() - suffix.size());
    std::array<std::int64_t, 3> numbers{};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
        const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), numbers[i]);
        if (error != std::errc() || numbers[i] < 0) return std::nullopt;
        text.remove_prefix(end - text.data());
        if (i + 1 < numbers.size() && !text.starts_with('-')) return std::nullopt;
        if (i + 1 < numbers.size()) text.remove_prefix(1);
    }
    if (!text.empty()) return std::nullopt;
    return LedgerName{numbers[0], numbers[1], numbers[2]};
}

template <typename Visit>
void for_each_ledger(const std::filesystem::path& folder, Visit visit) {
    std::error_code error;
    for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end;
         entry.increment(error)) {
        if (const auto name = parse_name(entry->path().filename().string())) visit(entry->path(), *name);
    }
}

}  // namespace

TokenLedger::TokenLedger(const std::filesystem::path& folder, std::int64_t replica, std::int64_t epoch,
                         std::int64_t samples) {
    std::map<std::int64_t, std::vector<std::filesystem::path>, std::greater<>> newest_first;
    for_each_ledger(folder, [&](const std::filesystem::path& path, const LedgerName& name) {
        if (name.epoch < epoch && name.samples == samples) newest_first[name.epoch].push_back(path);
    });
    for (const auto& [of, paths] : newest_first) {
        for (const std::filesystem::path& path : paths) {
            std::ifstream file(path, std::ios::binary);
            std::int32_t value = 0;
            for (std::int64_t item = 0; file.read(reinterpret_cast<char*>(&value), sizeof value); ++item) {
                const std::size_t at = item;
                if (at >= earlier_.size()) earlier_.resize(at + 1);
                if (earlier_[at] == 0) earlier_[at] = value;
            }
        }
    }
    file_ = ::open((folder / file_name({replica, epoch, samples})).c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0666);
}

TokenLedger::~TokenLedger() {
    if (file_ >= 0) ::close(file_);
}

void TokenLedger::reached(std::int64_t item_number, std::int64_t num_tokens) noexcept {
    if (file_ < 0) return;
    const auto value = static_cast<std::int32_t>(std::min<std::int64_t>(num_tokens, INT32_MAX));
    [[maybe_unused]] const ssize_t written =
        ::pwrite(file_, &value, sizeof value, item_number * static_cast<off_t>(sizeof value));
}

std::int64_t TokenLedger::known(std::int64_t item_number) const {
    const std::size_t at = item_number;
    return at < earlier_.size() ? earlier_[at] : 0;
}

void TokenLedger::remove_all(const std::filesystem::path& folder) {
    std::vector<std::filesystem::path> found;
    for_each_ledger(folder, [&](const std::filesystem::path& path, const LedgerName&) { found.push_back(path); });
    std::error_code ignored;
    for (const std::filesystem::path& path : found) std::filesystem::remove(path, ignored);
}

}  // namespace longhaul::runner
