// Files that are complete or absent: temporary, fsync, rename, fsync of the folder; and the system calls behind them,
// which tests replace to fill the disk, fail an fsync or die at any of them. Private to this room and its tests.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <string>

namespace longhaul::engine::detail {

/// What leaves a trace on disk. The default does the system call; results and errno as there.
struct FileCalls {
    FileCalls() = default;
    FileCalls(const FileCalls&) = delete;
    FileCalls& operator=(const FileCalls&) = delete;
    virtual ~FileCalls() = default;

    virtual int open(const char* path, int flags, mode_t mode);
    virtual ssize_t write(int fd, const void* bytes, std::size_t num_bytes);
    virtual int fsync(int fd);
    virtual int close(int fd);
    virtual int rename(const char* from, const char* to);
    virtual int unlink(const char* path);
};

/// The calls in use, for all threads.
FileCalls& file_calls();
/// For tests: nullptr puts the system's own back. Returns what was in use (nullptr: the system's own).
FileCalls* replace_file_calls(FileCalls* calls);

/// Name under which a file is built. The epoch stands in every name, so two launches never build the same one.
std::string temporary_name(const std::string& name);

/// Removes `path`; false where it stays for another reason than not being there.
bool remove_file(const std::string& path) noexcept;

}  // namespace longhaul::engine::detail
