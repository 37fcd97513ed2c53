// write_durable, which writes files that are either complete or absent, and the system calls behind it. Tests replace
// the calls to simulate a full disk, a failed fsync or a crash at any of them. Private to this folder and its tests.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <filesystem>
#include <string>

namespace longhaul::engine {

/// Writes `bytes` to `folder`/`name`: temporary file, fsync, rename, fsync of the folder. Never replaces a file: throws
/// std::logic_error if `name` exists. Throws StorageError; then nothing is visible under `name`.
void write_durable(const std::filesystem::path& folder, const std::string& name, const void* bytes,
                   std::size_t num_bytes);

namespace detail {

/// The calls that change the disk. The default implementation makes the system call; results and errno are the same.
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
/// For tests: replaces the calls; nullptr restores the system calls. Returns the previous replacement (nullptr: none).
FileCalls* replace_file_calls(FileCalls* calls);

/// Temporary name under which a file is written. Every name contains the epoch, so two launches never share one.
std::string temporary_name(const std::string& name);

/// Removes `path`. True if it was removed or did not exist.
bool remove_file(const std::string& path) noexcept;

}  // namespace detail
}  // namespace longhaul::engine
