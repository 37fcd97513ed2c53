// Cache of packed weights on disk, used by model_loading.cpp: the weights of a rank as they are in memory after
// packing. The file is written once and mapped by every process that needs the same weights, so that a second start
// does not pack again and the ranks of a node share one copy. A missing, stale or damaged file costs time, never
// correctness.
//
// File format: page-aligned blocks of bytes; then a header (JSON: key, newest change of the model's files, blocks, XXH3
// of each chunk of the data, notes); then 32 bytes: XXH3 of the header, its length, length of the data, magic number.
// The file appears atomically (locked temporary file, fsync, rename). Everything is verified before use, including all
// data: one pass over memory, which takes as long as decoding one token.
//
// Decoding from the file is as fast as from anonymous huge pages if the file system also maps huge pages (ext4 of Linux
// 6.18: measured equal). With 4 KB pages (tmpfs) a token of a 1.1b model took 95 ms, with huge pages 68 to 80 ms.
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
#include "engine/hash.hpp"

namespace longhaul::engine {

/// Identifies what a file was made from and for.
struct PackedKey {
    std::string text;  ///< must match exactly
    /// Newest change of the model's files, ns since 1970; must match exactly.
    std::int64_t model_changed = 0;
};

/// A file that cannot be used or written. `what()` gives the reason, in a line that begins with the file name.
class PackedFileError : public Error {
  public:
    using Error::Error;
};

/// A packed file, mapped read-only.
class PackedFile {
  public:
    /// Opens and verifies a file, using `threads` threads. Returns nullptr if there is none. Throws PackedFileError if
    /// it cannot be used, and InputError if its header is not valid JSON.
    static std::unique_ptr<PackedFile> open(const std::filesystem::path& path, const PackedKey& key, int threads);
    PackedFile(const PackedFile&) = delete;
    PackedFile& operator=(const PackedFile&) = delete;
    ~PackedFile();

    /// Returns a block, page-aligned, valid while this object lives. Throws PackedFileError if there is no block of
    /// this name or it has another length.
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

/// A file being written, named PATH.tmp, which this process has locked.
class PackedFileWriter {
  public:
    PackedFileWriter(std::filesystem::path path, int locked_fd);
    PackedFileWriter(const PackedFileWriter&) = delete;
    PackedFileWriter& operator=(const PackedFileWriter&) = delete;
    /// Removes the temporary file unless it was committed.
    ~PackedFileWriter();

    /// Both throw PackedFileError if the storage is full or failing.
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
    Hash sum_;  ///< running checksum of the current chunk
};

/// Opens the file at `path`. If there is none that matches, one process fills it with `write` while others wait for it.
/// The reason for replacing an old file is added to `notices`. Throws PackedFileError if no file can be used or
/// written; the caller then works without it. Exceptions of `write` propagate.
std::unique_ptr<PackedFile> open_or_write(const std::filesystem::path& path, const PackedKey& key, int threads,
                                          const std::function<std::vector<std::string>(PackedFileWriter&)>& write,
                                          std::vector<std::string>& notices);

}  // namespace longhaul::engine
