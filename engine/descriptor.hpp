// A file descriptor that closes itself (RAII). For files that are read or mapped. Files that must be durable use
// checkpoint/durable_file.hpp, which reports errors of close.
#pragma once

#include <unistd.h>

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

}  // namespace longhaul::engine
