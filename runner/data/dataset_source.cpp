#include "runner/data/dataset_source.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {

InputFile::InputFile(std::filesystem::path path) : path_(std::move(path)) {
    // O_NONBLOCK: opening a pipe without a writer must not block before it is refused below.
    descriptor_ = ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat status {};
    if (descriptor_ < 0 || ::fstat(descriptor_, &status) != 0) {
        const std::string reason = std::strerror(errno);
        if (descriptor_ >= 0) ::close(descriptor_);
        throw InputError(path_.string(), "", "a readable file", reason);
    }
    if (!S_ISREG(status.st_mode)) {
        ::close(descriptor_);
        throw InputError(path_.string(), "", "a file",
                         S_ISDIR(status.st_mode) ? "a folder" : "a device, pipe or socket");
    }
    num_bytes_ = status.st_size;
}

InputFile::~InputFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

std::string InputFile::read(std::int64_t offset, std::int64_t count) const {
    count = std::clamp<std::int64_t>(num_bytes_ - offset, 0, count);
    std::string bytes(count, '\0');
    std::size_t done = 0;
    while (done < bytes.size()) {
        const ssize_t got =
            ::pread(descriptor_, bytes.data() + done, bytes.size() - done, offset + static_cast<off_t>(done));
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw InputError(path_.string(), "", "readable bytes", std::strerror(errno));
        if (got == 0) break;  // the file shrank
        done += got;
    }
    bytes.resize(done);
    return bytes;
}

void InputFile::add_to(engine::Hash& hash) const {
    constexpr std::int64_t block = 1 << 20;
    for (std::int64_t at = 0; at < num_bytes_; at += block) hash.add(read(at, block));
}

void drop_carriage_returns(std::string& text) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
        text[kept++] = text[i];
    }
    text.resize(kept);
}

void check_text(std::string_view text, const std::string& where, std::size_t first_byte) {
    const std::size_t bad = first_bad_byte(text);
    if (bad == std::string_view::npos) return;
    throw InputError(where, "@" + std::to_string(bad + first_byte), "UTF-8 text",
                     text[bad] == '\0' ? "a NUL byte" : "byte " + engine::printable(text.substr(bad, 1)));
}

}  // namespace longhaul::runner
