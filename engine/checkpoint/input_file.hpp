// Files that others may have put into a checkpoint folder. Private to this folder and its tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace longhaul::engine::detail {

/// A regular file opened for reading. Reads exactly the requested bytes or throws InputError that names the file.
class InputFile {
  public:
    explicit InputFile(const std::string& path);
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;
    ~InputFile();

    [[nodiscard]] std::uint64_t num_bytes() const { return num_bytes_; }
    void read_at(std::uint64_t offset, std::byte* to, std::size_t num_bytes) const;

  private:
    std::string path_;
    int fd_ = -1;
    std::uint64_t num_bytes_ = 0;
};

}  // namespace longhaul::engine::detail
