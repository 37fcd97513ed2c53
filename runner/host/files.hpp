// Files of a run folder: complete or absent (temporary, fsync, rename, fsync of the folder), and logs that only grow.
// Errors of the storage become StorageError, whose exit code says "nothing is lost, run again".
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>

namespace longhaul::runner {

/// A line for an errno: "FILE: expected to WHAT, got No space left on device".
[[nodiscard]] std::string storage_line(const std::filesystem::path& path, std::string_view what, int error);

enum class Durable : bool { no, yes };

/// A new content for a file, written piece by piece; readers see the old one until `commit`, and keep it without.
class FileReplacement {
  public:
    /// `tag` makes the temporary's name unique among launches. Throws StorageError.
    FileReplacement(std::filesystem::path path, std::string_view tag);
    ~FileReplacement();
    FileReplacement(const FileReplacement&) = delete;
    FileReplacement& operator=(const FileReplacement&) = delete;

    /// Throws StorageError.
    void append(std::string_view text);
    /// Puts the new content in place, in one step. `Durable::no` skips the fsyncs: for what is written again within
    /// seconds. Once, and last. Throws StorageError.
    void commit(Durable durable);

  private:
    void flush();

    std::filesystem::path path_, temporary_;
    int fd_ = -1;
    std::string buffer_;
};

/// Replaces `path` by `text` in one step, as FileReplacement does. Throws StorageError.
void replace_file(const std::filesystem::path& path, std::string_view text, Durable durable, std::string_view tag);

/// Creates `path` with its content in one step; false where it is there already. `tag` must be this process's alone.
/// Throws StorageError.
[[nodiscard]] bool create_once(const std::filesystem::path& path, std::string_view text, std::string_view tag);

/// The file's bytes; "" when it is absent or cannot be read.
[[nodiscard]] std::string read_if_there(const std::filesystem::path& path);

/// Creates the folder and its parents, durably. Throws UsageError when something else is in the way or it may not be
/// written, StorageError when the storage fails.
void make_folder(const std::filesystem::path& path);

/// The path itself where there is something, or the nearest folder above it that exists.
[[nodiscard]] std::filesystem::path nearest_existing(std::filesystem::path path);

/// fsync of a folder: its new names survive a power cut. Throws StorageError.
void sync_folder(const std::filesystem::path& path);

/// fsync of a file that another process wrote. Throws StorageError.
void sync_file(const std::filesystem::path& path);

/// A file of lines that only grows. A failed write or fsync takes back what is not known to be durable, so that no
/// later launch believes it. Append and sync may come from two threads.
class LineFile {
  public:
    /// The file is created with its first line; it must not exist then.
    explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    /// Throws StorageError; then nothing of the line stays.
    void append(std::string_view line);
    /// Makes all lines appended before the call durable. Throws StorageError; from then on every call does.
    void sync();

  private:
    void create();
    void take_back(std::int64_t to_bytes) noexcept;

    std::filesystem::path path_;
    int fd_ = -1;
    std::mutex mutex_;
    std::int64_t written_bytes_ = 0;
    std::int64_t durable_bytes_ = 0;
    std::string failed_;
};

}  // namespace longhaul::runner
