#include "runner/host/files.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "engine/descriptor.hpp"
#include "engine/error.hpp"

namespace longhaul::runner {
namespace {

[[noreturn]] void fail(const std::filesystem::path& path, std::string_view what, int error) {
    throw StorageError(storage_line(path, what, error));
}

/// Returns 0, or the errno of the failed write.
int write_all(int fd, std::string_view text) {
    while (!text.empty()) {
        const ssize_t count = ::write(fd, text.data(), text.size());
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return count == 0 ? ENOSPC : errno;
        text.remove_prefix(count);
    }
    return 0;
}

}  // namespace

std::string storage_line(const std::filesystem::path& path, std::string_view what, int error) {
    std::string line = path.string() + ": expected to " + std::string(what) + ", got " + std::strerror(error);
    if (error == EFBIG) line += "; raise the limit on file sizes (ulimit -f) and run again, nothing is lost";
    if (error == ENOSPC || error == EDQUOT) line += "; free some space and run again, nothing is lost";
    return line;
}

FileReplacement::FileReplacement(std::filesystem::path path, std::string_view tag)
    : path_(std::move(path)), temporary_(path_.string() + "." + std::string(tag) + ".tmp") {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd_ < 0) fail(temporary_, "create it", errno);
}

FileReplacement::~FileReplacement() {
    if (fd_ < 0) return;
    ::close(fd_);
    ::unlink(temporary_.c_str());
}

void FileReplacement::flush() {
    if (const int error = write_all(fd_, buffer_); error != 0) fail(path_, "write it", error);
    buffer_.clear();
}

void FileReplacement::append(std::string_view text) {
    constexpr std::size_t max_buffered = 1 << 18;
    buffer_ += text;
    if (buffer_.size() >= max_buffered) flush();
}

void FileReplacement::commit(Durable durable) {
    flush();
    if (durable == Durable::yes && ::fsync(fd_) != 0) fail(path_, "write it", errno);
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "put it in place", errno);
    ::close(std::exchange(fd_, -1));
    if (durable == Durable::yes) sync_folder(path_.parent_path());
}

void replace_file(const std::filesystem::path& path, std::string_view text, Durable durable, std::string_view tag) {
    FileReplacement file(path, tag);
    file.append(text);
    file.commit(durable);
}

bool create_once(const std::filesystem::path& path, std::string_view text, std::string_view tag) {
    const std::filesystem::path temporary = path.string() + "." + std::string(tag) + ".new";
    replace_file(temporary, text, Durable::yes, "x");
    int result = ::link(temporary.c_str(), path.c_str());
    int error = result == 0 ? 0 : errno;
    struct stat status {};
    // Over NFS the reply may be lost although the link was made.
    if (result != 0 && ::stat(temporary.c_str(), &status) == 0 && status.st_nlink == 2) result = 0;
    if (result != 0 && (error == EPERM || error == ENOTSUP || error == ENOSYS)) {  // no hard links on this file system
        const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        error = fd < 0 ? errno : 0;
        if (fd >= 0) {
            ::close(fd);
            replace_file(path, text, Durable::yes, "own");
            result = 0;
        }
    }
    ::unlink(temporary.c_str());
    if (result != 0 && error != EEXIST) fail(path, "create it", error);
    if (result == 0) sync_folder(path.parent_path());
    return result == 0;
}

void remove_durably(const std::filesystem::path& path) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail(path, "remove it", errno);
    sync_folder(path.parent_path());
}

std::string read_if_there(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::vector<std::string> names_in(const std::filesystem::path& folder) {
    std::vector<std::string> names;
    std::error_code error;
    std::filesystem::directory_iterator entry(folder, error);
    for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error))
        names.push_back(entry->path().filename().string());
    if (error && error != std::errc::no_such_file_or_directory) fail(folder, "list the folder", error.value());
    return names;
}

void flush_output() {
    if (std::fflush(stdout) != 0) throw StorageError(storage_line("standard output", "write to it", errno));
    // A failed write before this flush left only the mark.
    if (std::ferror(stdout) != 0) throw StorageError("standard output: expected to write to it, got an error");
}

void make_folder(const std::filesystem::path& path) {
    std::error_code error;
    if (std::filesystem::is_directory(path, error)) return;
    if (path.has_parent_path() && path.parent_path() != path) make_folder(path.parent_path());
    if (::mkdir(path.c_str(), 0777) == 0) return sync_folder(path.parent_path());
    if (errno == EEXIST && std::filesystem::is_directory(path, error)) return;  // another launch created it first
    const int reason = errno;
    if (reason == ENOSPC || reason == EDQUOT || reason == EIO) fail(path, "create the folder", reason);
    throw UsageError(path.string() + ": output: expected a folder that can be written, got " + std::strerror(reason));
}

std::filesystem::path nearest_existing(std::filesystem::path path) {
    path = std::filesystem::absolute(path);
    std::error_code error;
    while (!std::filesystem::exists(path, error) && path.has_relative_path()) path = path.parent_path();
    return path;
}

void sync_folder(const std::filesystem::path& path) {
    const std::filesystem::path folder = path.empty() ? std::filesystem::path(".") : path;
    const engine::Descriptor descriptor(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (descriptor.get() < 0 || (::fsync(descriptor.get()) != 0 && !engine::has_no_folder_sync(errno)))
        fail(folder, "sync the folder", errno);
}

void sync_file(const std::filesystem::path& path) {
    const engine::Descriptor descriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (descriptor.get() < 0 || ::fsync(descriptor.get()) != 0) fail(path, "sync it", errno);
}

void LineFile::create() {
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666);
    if (fd_ < 0) fail(path_, "create it", errno);
    sync_folder(path_.parent_path());
}

LineFile::~LineFile() {
    if (fd_ >= 0) ::close(fd_);
}

void LineFile::take_back(std::int64_t to_bytes) noexcept {
    // Best effort: if it fails, readers still stop at the last complete line.
    if (::ftruncate(fd_, to_bytes) == 0) written_bytes_ = to_bytes;
}

void LineFile::append(std::string_view line) {
    const std::lock_guard lock(mutex_);
    if (!failed_.empty()) throw StorageError(failed_);
    if (fd_ < 0) create();
    std::string whole(line);
    whole += '\n';
    if (const int error = write_all(fd_, whole); error != 0) {
        failed_ = storage_line(path_, "append a line", error);
        take_back(written_bytes_);
        throw StorageError(failed_);
    }
    written_bytes_ += whole.size();
}

void LineFile::sync() {
    std::int64_t upto = 0;
    {
        const std::lock_guard lock(mutex_);
        if (written_bytes_ == durable_bytes_ && failed_.empty()) return;
        upto = written_bytes_;
    }
    const int error = ::fsync(fd_) == 0 ? 0 : errno;  // outside the lock, so that appends can continue
    const std::lock_guard lock(mutex_);
    if (error == 0) {
        durable_bytes_ = upto;
        return;
    }
    // The kernel may have dropped the dirty pages, so a second fsync could report success for lost data. Cut the file
    // back to what is durable, so that nobody reads the rest.
    if (failed_.empty()) failed_ = storage_line(path_, "sync it", error);
    take_back(durable_bytes_);
    throw StorageError(failed_);
}

}  // namespace longhaul::runner
