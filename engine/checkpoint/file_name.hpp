// Names of the files in a checkpoint folder (store.hpp lists them).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "engine/checkpoint/commit.hpp"

namespace longhaul::engine {

std::string commit_name(std::int64_t replica, std::int64_t epoch, std::int64_t round);
std::string kv_file_name(std::int64_t replica, std::int64_t epoch, std::int64_t round, int rank,
                         KvFile::Of of = KvFile::Of::target);

namespace detail {

/// The parts of a checkpoint file name; rank < 0: a commit.
struct FileName {
    std::int64_t replica = 0, epoch = 0, round = 0;
    std::int64_t rank = -1;
    KvFile::Of of = KvFile::Of::target;
    bool temporary = false;
};
/// nullopt if `name` is not a name that we write. Only canonical decimal numbers are accepted, so no path separators.
std::optional<FileName> parse_file_name(std::string_view name);

}  // namespace detail

}  // namespace longhaul::engine
