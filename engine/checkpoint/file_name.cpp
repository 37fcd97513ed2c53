#include "engine/checkpoint/file_name.hpp"

#include <charconv>
#include <system_error>

#include "engine/checkpoint/durable_file.hpp"

namespace longhaul::engine {
namespace detail {
namespace {

constexpr std::string_view draft_mark = "draft.", state_mark = "state.";

/// Removes a canonical number (no sign, no leading zero) from the front of `rest`. False if there is none.
bool take_number(std::string_view& rest, std::int64_t& value) {
    const char* end = rest.data() + rest.size();
    const auto [stop, error] = std::from_chars(rest.data(), end, value);
    const auto length = static_cast<std::size_t>(stop - rest.data());
    if (error != std::errc{} || rest.front() == '-' || (rest.front() == '0' && length > 1)) return false;
    rest.remove_prefix(length);
    return true;
}

bool take(std::string_view& rest, std::string_view expected) {
    if (!rest.starts_with(expected)) return false;
    rest.remove_prefix(expected.size());
    return true;
}

}  // namespace

std::optional<FileName> parse_file_name(std::string_view name) {
    FileName parts;
    std::string_view rest = name;
    if (rest.ends_with(temporary_name(""))) {
        parts.temporary = true;
        rest.remove_suffix(temporary_name("").size());
    }
    if (!take_number(rest, parts.replica) || !take(rest, "-") || !take_number(rest, parts.epoch) || !take(rest, "-") ||
        !take_number(rest, parts.round) || !take(rest, ".")) {
        return std::nullopt;
    }
    if (rest != "h5" && (!take_number(rest, parts.rank) || !take(rest, "."))) return std::nullopt;
    if (parts.rank >= 0 && take(rest, draft_mark)) {
        parts.of = KvFile::Of::drafter;
    } else if (parts.rank >= 0 && take(rest, state_mark)) {
        parts.of = KvFile::Of::states;
    }
    if (rest != "h5") return std::nullopt;
    return parts;
}

}  // namespace detail

std::string commit_name(std::int64_t replica, std::int64_t epoch, std::int64_t round) {
    return std::to_string(replica) + "-" + std::to_string(epoch) + "-" + std::to_string(round) + ".h5";
}

std::string kv_file_name(std::int64_t replica, std::int64_t epoch, std::int64_t round, int rank, KvFile::Of of) {
    const std::string_view mark = of == KvFile::Of::drafter  ? detail::draft_mark
                                  : of == KvFile::Of::states ? detail::state_mark
                                                             : "";
    return std::to_string(replica) + "-" + std::to_string(epoch) + "-" + std::to_string(round) + "." +
           std::to_string(rank) + "." + std::string(mark) + "h5";
}

}  // namespace longhaul::engine
