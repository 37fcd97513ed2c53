// Packed weights on disk: what a rank holds in memory after packing, written once and mapped by whoever wants the same,
// so that a second start reads nothing twice and the ranks of a node share one copy. A cache: a file that is missing,
// foreign or damaged costs time, never more.
//
// File: blocks of bytes, each on a page; then a header (JSON: key, newest change of the model's files, blocks, XXH3 of
// each chunk of the data, notes); then 32 bytes: XXH3 of the header, its length, length of the data, magic number. It
// appears whole (temporary with a lock, fsync, rename). Nothing in it is believed before it was checked, all data
// included: that is one pass over memory, as long as one token takes.
//
// Decoding from it is as fast as from anonymous huge pages where the file system maps huge pages, too (ext4 of Linux
// 6.18: measured alike); with 4 KB pages (tmpfs) a token of a 1.1b model took 95 ms where huge pages took 68 to 80.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/error.hpp"

namespace longhaul::engine {

/// What a file was made from and for.
struct PackedKey {
    std::string text;  ///< must be equal, letter by letter
    std::int64_t model_changed =
        0;  ///< newest change of the model's files, ns since 1970; a file made before it is stale
};

/// A file that cannot be used, or not be written; `what()` says why, in a line that begins with its name.
class PackedFileError : public Error {
  public:
    using Error::Error;
};

/// A file as it lies mapped, read only.
class PackedFile {
  public:
    /// nullptr: there is none. Throws PackedFileError where it cannot be used. `threads` check it.
    static std::unique_ptr<PackedFile> open(const std::filesystem::path& path, const PackedKey& key, int threads);
    PackedFile(const PackedFile&) = delete;
    PackedFile& operator=(const PackedFile&) = delete;
    ~PackedFile();

    /// On a page; valid while the file object lives. Throws PackedFileError where no block is called so or has another
    /// length.
    [[nodiscard]] std::span<const std::byte> block(const std::string& name, std::size_t num_bytes) const;
    [[nodiscard]] const std::vector<std::string>& notes() const { return notes_; }

  private:
    explicit PackedFile(std::string name) : name_(std::move(name)) {}
    void map(int fd);
    void read_header(const PackedKey& key);
    void check_data(int threads) const;
    [[noreturn]] void refuse(std::string_view why) const;

    std::string name_;
    std::byte* data_ = nullptr;
    std::int64_t file_bytes_ = 0, data_bytes_ = 0;
    std::map<std::string, std::span<const std::byte>> blocks_;
    std::vector<std::uint64_t> sums_;
    std::vector<std::string> notes_;
};

/// A file under construction, under the name PATH.tmp, which this process has locked.
class PackedFileWriter {
  public:
    PackedFileWriter(std::filesystem::path path, int locked_fd);
    PackedFileWriter(const PackedFileWriter&) = delete;
    PackedFileWriter& operator=(const PackedFileWriter&) = delete;
    /// Discards what was not committed.
    ~PackedFileWriter();

    /// Throw PackedFileError: the storage is full or failing.
    void add(const std::string& name, std::span<const std::byte> bytes);
    void commit(const PackedKey& key, const std::vector<std::string>& notes);

  private:
    struct Entry {
        std::string name;
        std::int64_t offset, num_bytes;
    };
    void write(const void* bytes, std::size_t num_bytes);
    void pad();

    std::filesystem::path path_, temporary_;
    int fd_;
    bool committed_ = false;
    std::int64_t offset_ = 0;
    std::vector<Entry> entries_;
    std::vector<std::uint64_t> sums_;
    struct Sum;
    std::unique_ptr<Sum> sum_;  ///< of the chunk under way
};

/// The file at `path`, which `write` fills where there is none that fits. One process writes, others wait for it. The
/// reason why an old file is written anew goes to `notices`. Throws PackedFileError where no file can be had: the
/// caller does without. What `write` throws goes through.
std::unique_ptr<PackedFile> open_or_write(const std::filesystem::path& path, const PackedKey& key, int threads,
                                          const std::function<std::vector<std::string>(PackedFileWriter&)>& write,
                                          std::vector<std::string>& notices);

}  // namespace longhaul::engine
