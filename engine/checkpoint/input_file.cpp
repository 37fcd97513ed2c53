#include "engine/checkpoint/input_file.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>

#include "engine/checkpoint/hdf5_reader.hpp"
#include "engine/error.hpp"

namespace longhaul::engine::detail {
namespace {

std::string cause(int number) {
    return std::generic_category().message(number);
}

}  // namespace

InputFile::InputFile(const std::string& path) : path_(path) {
    // Non-blocking, so that opening a named pipe does not hang.
    fd_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    const int error = errno;
    if (fd_ < 0) throw InputError(path, "", "a readable file", cause(error), hdf5::recompute_hint);
    struct stat status {};
    if (::fstat(fd_, &status) != 0 || !S_ISREG(status.st_mode)) {
        ::close(fd_);
        throw InputError(path, "", "a regular file", "something else", hdf5::recompute_hint);
    }
    num_bytes_ = static_cast<std::uint64_t>(status.st_size);
}

InputFile::~InputFile() {
    ::close(fd_);
}

void InputFile::read_at(std::uint64_t offset, std::byte* to, std::size_t num_bytes) const {
    while (num_bytes > 0) {
        const ssize_t got = ::pread(fd_, to, num_bytes, static_cast<off_t>(offset));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw InputError(path_, "", "a readable file", cause(errno), hdf5::recompute_hint);
        if (got == 0) {
            throw InputError(path_, "", std::to_string(num_bytes) + " bytes more", "the end of the file",
                             hdf5::recompute_hint);
        }
        to += got;
        offset += static_cast<std::uint64_t>(got);
        num_bytes -= static_cast<std::size_t>(got);
    }
}

}  // namespace longhaul::engine::detail
