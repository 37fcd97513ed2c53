// A file descriptor that closes itself (RAII). For files that are read or mapped. Files that must be durable use
// checkpoint/durable_file.hpp, which reports errors of close.
#pragma once

#include <unistd.h>

#include <cerrno>
#include <utility>

namespace longhaul::engine {

class Descriptor {
  public:
    /// Takes ownership of `fd`; negative: holds none.
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(const Descriptor&) = delete;
    Descriptor& operator=(const Descriptor&) = delete;
    ~Descriptor() {
        if (fd_ >= 0) ::close(fd_);
    }
    [[nodiscard]] int get() const { return fd_; }
    [[nodiscard]] int release() { return std::exchange(fd_, -1); }
    explicit operator bool() const { return fd_ >= 0; }

  private:
    int fd_;
};

/// Whether `error` of an fsync of a folder says that the file system has none. That is no failure: nothing more can be
/// done there.
inline bool has_no_folder_sync(int error) {
    return error == EINVAL || error == ENOTSUP;
}

}  // namespace longhaul::engine
