#include "engine/checkpoint/durable_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "engine/descriptor.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace detail {
namespace {
std::atomic<FileCalls*> replacement{nullptr};
}

int FileCalls::open(const char* path, int flags, mode_t mode) {
    return ::open(path, flags, mode);
}
ssize_t FileCalls::write(int fd, const void* bytes, std::size_t num_bytes) {
    return ::write(fd, bytes, num_bytes);
}
int FileCalls::fsync(int fd) {
    return ::fsync(fd);
}
int FileCalls::close(int fd) {
    return ::close(fd);
}
int FileCalls::rename(const char* from, const char* to) {
    return std::rename(from, to);
}
int FileCalls::unlink(const char* path) {
    return ::unlink(path);
}

FileCalls& file_calls() {
    static FileCalls system;
    FileCalls* calls = replacement.load();
    return calls != nullptr ? *calls : system;
}

FileCalls* replace_file_calls(FileCalls* calls) {
    return replacement.exchange(calls);
}

std::string temporary_name(const std::string& name) {
    return name + ".tmp";
}

bool remove_file(const std::string& path) noexcept {
    return file_calls().unlink(path.c_str()) == 0 || errno == ENOENT;
}

}  // namespace detail

namespace {

using detail::file_calls;

[[noreturn]] void fail(const std::string& path, const char* doing, int cause) {
    const bool full = cause == ENOSPC || cause == EDQUOT || cause == EFBIG;
    throw StorageError(path + ": " + doing + ": " + std::generic_category().message(cause) +
                       (full ? "; free some space and run again, nothing durable was lost"
                             : "; check the storage and run again, nothing durable was lost"));
}

/// An open file descriptor. Closing can fail (NFS reports a full disk here), so close() reports errors; the destructor
/// ignores them.
class CheckedFile {
  public:
    CheckedFile(const std::string& path, int flags) : path_(path) {
        do {
            fd_ = file_calls().open(path.c_str(), flags | O_CLOEXEC, 0666);
        } while (fd_ < 0 && errno == EINTR);
        if (fd_ < 0) fail(path_, "cannot open", errno);
    }
    CheckedFile(const CheckedFile&) = delete;
    CheckedFile& operator=(const CheckedFile&) = delete;
    ~CheckedFile() {
        if (fd_ >= 0) file_calls().close(fd_);
    }

    [[nodiscard]] int get() const { return fd_; }

    void write_all(const std::byte* bytes, std::size_t num_bytes) {
        constexpr std::size_t largest_write = std::size_t{16} << 20;
        while (num_bytes > 0) {
            const ssize_t written = file_calls().write(fd_, bytes, std::min(num_bytes, largest_write));
            if (written < 0 && errno == EINTR) continue;
            if (written <= 0) fail(path_, "cannot write", written < 0 ? errno : ENOSPC);
            bytes += written;
            num_bytes -= static_cast<std::size_t>(written);
        }
    }

    /// Call only once: after a failed fsync the kernel may have dropped the dirty pages, and a second call would report
    /// success.
    void sync() {
        if (file_calls().fsync(fd_) != 0) fail(path_, "cannot fsync", errno);
    }

    void close() {
        // Linux frees the descriptor even if close fails.
        const int result = file_calls().close(std::exchange(fd_, -1));
        if (result != 0 && errno != EINTR) fail(path_, "cannot close", errno);
    }

  private:
    std::string path_;
    int fd_ = -1;
};

void sync_folder(const std::filesystem::path& folder) {
    CheckedFile opened(folder.string(), O_RDONLY | O_DIRECTORY);
    if (file_calls().fsync(opened.get()) != 0 && !has_no_folder_sync(errno))
        fail(folder.string(), "cannot fsync", errno);
}

bool exists(const std::string& path) {
    struct stat status {};
    return ::lstat(path.c_str(), &status) == 0;
}

}  // namespace

void write_durable(const std::filesystem::path& folder, const std::string& name, const void* bytes,
                   std::size_t num_bytes) {
    const std::string target = (folder / name).string();
    const std::string temporary = (folder / detail::temporary_name(name)).string();
    if (exists(target)) throw std::logic_error(target + ": exists already; checkpoint files are never replaced");
    // Remove the temporary file of a killed process. With O_EXCL below no foreign file is followed or reused.
    detail::remove_file(temporary);
    try {
        CheckedFile file(temporary, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW);
        file.write_all(static_cast<const std::byte*>(bytes), num_bytes);
        file.sync();
        file.close();
        if (file_calls().rename(temporary.c_str(), target.c_str()) != 0)
            fail(target, "cannot rename into place", errno);
    } catch (...) {
        detail::remove_file(temporary);
        throw;
    }
    try {
        sync_folder(folder);
    } catch (...) {
        // It is unknown whether the name would survive a power failure: remove it, so that the round is void for all.
        detail::remove_file(target);
        throw;
    }
}

}  // namespace longhaul::engine
