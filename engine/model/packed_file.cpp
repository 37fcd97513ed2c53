#include "engine/model/packed_file.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>

#include "engine/descriptor.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t page_bytes = 4096;
constexpr std::int64_t chunk_bytes = std::int64_t{4} << 20;
constexpr std::int64_t huge_page_bytes = std::int64_t{2} << 20;
constexpr std::int64_t max_header_bytes = std::int64_t{64} << 20;
constexpr std::uint64_t magic = 0x31304b434150484cULL;  // "LHPACK01"
constexpr std::string_view temporary_suffix = ".tmp";
constexpr std::chrono::minutes longest_wait{15};

struct Trailer {
    std::uint64_t header_sum, header_bytes, data_bytes, magic;
};

[[noreturn]] void fail(const std::filesystem::path& path, const char* doing) {
    throw PackedFileError(path.string() + ": cannot " + doing + ": " + std::strerror(errno));
}

std::int64_t chunks_of(std::int64_t data_bytes) {
    return (data_bytes + chunk_bytes - 1) / chunk_bytes;
}

std::int64_t as_integer(const Json& value) {
    if (!value.is_number_unsigned() || value.get<std::uint64_t>() > static_cast<std::uint64_t>(INT64_MAX)) return -1;
    return value.get<std::int64_t>();
}

}  // namespace

// --- reading ---------------------------------------------------------------------------------------------------------

void PackedFile::refuse(std::string_view why) const {
    throw PackedFileError(name_ + ": " + std::string(why));
}

std::unique_ptr<PackedFile> PackedFile::open(const std::filesystem::path& path, const PackedKey& key, int threads) {
    const Descriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    if (fd.get() < 0) {
        if (errno == ENOENT) return nullptr;
        fail(path, "open");
    }
    std::unique_ptr<PackedFile> file(new PackedFile(path.string()));
    file->map(fd.get());
    file->read_header(key);
    file->check_data(threads);
    return file;
}

PackedFile::~PackedFile() {
    if (data_ != nullptr) ::munmap(data_, static_cast<std::size_t>(file_bytes_));
}

void PackedFile::map(int fd) {
    struct stat info {};
    if (::fstat(fd, &info) != 0) fail(name_, "stat");
    if (!S_ISREG(info.st_mode)) refuse("not a file");
    if (info.st_size < static_cast<std::int64_t>(sizeof(Trailer))) refuse("cut short");
    // Maps the file at a huge-page boundary, because some file systems support huge pages: reserve a larger range, then
    // map the file over it.
    const auto wanted = static_cast<std::size_t>(info.st_size);
    const std::size_t reserved_bytes = wanted + static_cast<std::size_t>(huge_page_bytes);
    void* const reserved =
        ::mmap(nullptr, reserved_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (reserved == MAP_FAILED) fail(name_, "map");
    const auto begin = reinterpret_cast<std::uintptr_t>(reserved);
    const std::uintptr_t aligned = (begin + huge_page_bytes - 1) / huge_page_bytes * huge_page_bytes;
    const std::uintptr_t end = (aligned + wanted + page_bytes - 1) / page_bytes * page_bytes;
    void* const data = ::mmap(reinterpret_cast<void*>(aligned), wanted, PROT_READ, MAP_SHARED | MAP_FIXED, fd, 0);
    if (data == MAP_FAILED) {
        ::munmap(reserved, reserved_bytes);
        fail(name_, "map");
    }
    if (aligned > begin) ::munmap(reserved, aligned - begin);
    if (begin + reserved_bytes > end) ::munmap(reinterpret_cast<void*>(end), begin + reserved_bytes - end);
    ::madvise(data, wanted, MADV_HUGEPAGE);  // a hint: the mapping also works without it
    data_ = static_cast<std::byte*>(data);
    file_bytes_ = info.st_size;
}

void PackedFile::read_header(const PackedKey& key) {
    Trailer trailer{};
    const std::int64_t before = file_bytes_ - static_cast<std::int64_t>(sizeof trailer);
    std::memcpy(&trailer, data_ + before, sizeof trailer);
    if (trailer.magic != magic) refuse("not packed weights of this version, or cut short");
    const auto header_bytes = static_cast<std::int64_t>(trailer.header_bytes);
    data_bytes_ = static_cast<std::int64_t>(trailer.data_bytes);
    if (header_bytes < 0 || header_bytes > std::min(before, max_header_bytes) || data_bytes_ != before - header_bytes)
        refuse("cut short or damaged");
    const std::byte* header = data_ + data_bytes_;
    if (hash_of(header, trailer.header_bytes) != trailer.header_sum) refuse("its header is damaged");
    const std::string_view text(reinterpret_cast<const char*>(header), trailer.header_bytes);
    const Json json = parse_json(text, name_, 4);  // the checksum matched: our own bytes, unless forged
    if (!json.is_object() || !json.contains("key") || !json.contains("model_changed") || !json.contains("blocks") ||
        !json.contains("sums") || !json.contains("notes"))
        refuse("a field of its header is missing");
    if (json["key"] != key.text) refuse("made for another model, kind of processor or version");
    // Any other time counts as changed, not only a later one: moved or copied files keep their old times.
    if (as_integer(json["model_changed"]) != key.model_changed)
        refuse("the model's files have changed since it was written");
    std::int64_t end = 0;
    for (const Json& entry : json["blocks"]) {
        if (!entry.is_array() || entry.size() != 3 || !entry[0].is_string()) refuse("a block is not valid");
        const std::int64_t offset = as_integer(entry[1]), num_bytes = as_integer(entry[2]);
        if (offset < end || offset % page_bytes != 0 || offset > data_bytes_ || num_bytes < 0 ||
            num_bytes > data_bytes_ - offset)
            refuse("a block lies outside the file");
        end = offset + num_bytes;
        blocks_[entry[0].get<std::string>()] = {data_ + offset, static_cast<std::size_t>(num_bytes)};
    }
    for (const Json& sum : json["sums"]) {
        if (!sum.is_number_unsigned()) refuse("a checksum is not valid");
        sums_.push_back(sum.get<std::uint64_t>());
    }
    for (const Json& note : json["notes"]) {
        if (!note.is_string()) refuse("a note is not valid");
        notes_.push_back(note.get<std::string>());
    }
    if (static_cast<std::int64_t>(sums_.size()) != chunks_of(data_bytes_)) refuse("checksums are missing");
}

void PackedFile::check_data(int threads) const {
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> good{true};
    const auto work = [&] {
        for (std::int64_t i = next++; i < chunks_of(data_bytes_) && good; i = next++) {
            std::byte* const chunk = data_ + i * chunk_bytes;
            const auto size = static_cast<std::size_t>(std::min(chunk_bytes, data_bytes_ - i * chunk_bytes));
            // Maps and reads the chunk in one call instead of one page fault per page; a hint, from Linux 5.14 on.
            ::madvise(chunk, size, MADV_POPULATE_READ);
            if (hash_of(chunk, size) != sums_[i]) good = false;
        }
    };
    std::vector<std::jthread> others;
    try {
        for (int t = 1; t < threads; ++t) others.emplace_back(work);
    } catch (const std::system_error&) {  // no more threads available: the existing ones do the work
    }
    work();
    others.clear();  // joins
    if (!good) refuse("its data is damaged");
}

std::span<const std::byte> PackedFile::block(const std::string& name, std::size_t num_bytes) const {
    const auto found = blocks_.find(name);
    if (found == blocks_.end() || found->second.size() != num_bytes) refuse("has no block " + name + " that fits");
    return found->second;
}

// --- writing ---------------------------------------------------------------------------------------------------------

namespace {

/// Whether `path` still names the open file.
bool same_file(int fd, const std::filesystem::path& path) {
    struct stat mine {
    }, there{};
    return ::fstat(fd, &mine) == 0 && ::lstat(path.c_str(), &there) == 0 && mine.st_ino == there.st_ino &&
           mine.st_dev == there.st_dev;
}

}  // namespace

PackedFileWriter::PackedFileWriter(std::filesystem::path path, int locked_fd)
    : path_(std::move(path)), temporary_(path_.string() + std::string(temporary_suffix)), fd_(locked_fd) {}

PackedFileWriter::~PackedFileWriter() {
    if (!committed_ && same_file(fd_, temporary_)) ::unlink(temporary_.c_str());
    ::close(fd_);  // also releases the lock
}

void PackedFileWriter::write(const void* bytes, std::size_t num_bytes) {
    const auto* from = static_cast<const std::byte*>(bytes);
    while (num_bytes > 0) {
        const std::size_t chunk_space = static_cast<std::size_t>(chunk_bytes - offset_ % chunk_bytes);
        const ssize_t written = ::write(fd_, from, std::min(num_bytes, chunk_space));
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) fail(path_, "write");
        sum_.add(from, static_cast<std::size_t>(written));
        from += written;
        num_bytes -= static_cast<std::size_t>(written);
        offset_ += written;
        if (offset_ % chunk_bytes != 0) continue;
        sums_.push_back(sum_.value());
        sum_.reset();
    }
}

void PackedFileWriter::pad() {
    static constexpr std::byte zeros[page_bytes] = {};
    write(zeros, static_cast<std::size_t>((page_bytes - offset_ % page_bytes) % page_bytes));
}

void PackedFileWriter::add(const std::string& name, std::span<const std::byte> bytes) {
    pad();
    entries_.push_back({name, offset_, static_cast<std::int64_t>(bytes.size())});
    write(bytes.data(), bytes.size());
}

void PackedFileWriter::commit(const PackedKey& key, const std::vector<std::string>& notes) {
    const std::int64_t data_bytes = offset_;
    if (offset_ % chunk_bytes != 0) sums_.push_back(sum_.value());
    Json blocks = Json::array();
    for (const Entry& entry : entries_) blocks.push_back({entry.name, entry.offset, entry.num_bytes});
    const Json json{
        {"key", key.text}, {"model_changed", key.model_changed}, {"blocks", blocks}, {"sums", sums_}, {"notes", notes}};
    const std::string header = json_text(json);
    const Trailer trailer{hash_of(header), header.size(), static_cast<std::uint64_t>(data_bytes), magic};
    write(header.data(), header.size());
    write(&trailer, sizeof trailer);
    if (::fsync(fd_) != 0) fail(path_, "fsync");
    if (!same_file(fd_, temporary_)) {
        errno = ENOENT;
        fail(temporary_, "find again");
    }
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(path_, "rename into place");
    committed_ = true;
    const std::filesystem::path folder = path_.has_parent_path() ? path_.parent_path() : ".";
    const Descriptor folder_fd(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (folder_fd.get() >= 0)
        ::fsync(folder_fd.get());  // if this fails, the file may be lost in a power failure: acceptable for a cache
}

// --- one process writes, all read ------------------------------------------------------------------------------------

namespace {

/// Removes leftovers of killed writers: temporary files that no process has locked.
void remove_leftovers(const std::filesystem::path& path) {
    const std::string suffix = path.extension().string() + std::string(temporary_suffix);
    std::error_code failed;
    std::filesystem::directory_iterator entry(path.parent_path(), failed);
    for (; !failed && entry != std::filesystem::directory_iterator(); entry.increment(failed)) {
        const std::filesystem::path& file = entry->path();
        if (!file.string().ends_with(suffix)) continue;
        const Descriptor fd(::open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        const bool left = fd.get() >= 0 && ::flock(fd.get(), LOCK_EX | LOCK_NB) == 0;
        if (left && same_file(fd.get(), file)) ::unlink(file.c_str());  // otherwise another writer already owns it
    }
}

/// Creates and locks PATH.tmp. Returns -1 if another process has the lock, or had it until just now.
int try_lock(const std::filesystem::path& path) {
    const std::filesystem::path temporary = path.string() + std::string(temporary_suffix);
    Descriptor fd(::open(temporary.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666));
    if (fd.get() < 0) fail(temporary, "create");
    if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno == EWOULDBLOCK || errno == EINTR) return -1;
        fail(temporary, "lock");
    }
    if (!same_file(fd.get(), temporary)) return -1;  // meanwhile renamed or removed by its writer
    if (::ftruncate(fd.get(), 0) != 0) fail(temporary, "truncate");
    return fd.release();
}

}  // namespace

std::unique_ptr<PackedFile> open_or_write(const std::filesystem::path& path, const PackedKey& key, int threads,
                                          const std::function<std::vector<std::string>(PackedFileWriter&)>& write,
                                          std::vector<std::string>& notices) {
    std::string why;
    const auto open = [&]() -> std::unique_ptr<PackedFile> {
        try {
            return PackedFile::open(path, key, threads);
        } catch (const InputError& error) {  // the header is not JSON
            why = error.what();
        } catch (const PackedFileError& error) {
            why = error.what();
        }
        return nullptr;
    };
    if (auto file = open()) return file;
    std::error_code trouble;
    std::filesystem::create_directories(path.parent_path(), trouble);
    if (trouble)
        throw PackedFileError(path.parent_path().string() + ": cannot create the folder: " + trouble.message());
    remove_leftovers(path);
    const auto start = std::chrono::steady_clock::now();
    int fd = -1;
    while ((fd = try_lock(path)) < 0) {
        if (std::chrono::steady_clock::now() - start > longest_wait)
            throw PackedFileError(path.string() + ": another process has been writing it for too long");
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    PackedFileWriter writer(path, fd);
    why.clear();
    if (auto file = open()) return file;  // another process was faster; the writer removes its empty temporary file
    if (!why.empty()) notices.push_back(why + "; rewriting it");
    writer.commit(key, write(writer));
    if (auto file = open()) return file;
    throw PackedFileError(why.empty() ? path.string() + ": vanished" : why);
}

}  // namespace longhaul::engine
