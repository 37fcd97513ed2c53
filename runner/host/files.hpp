// File operations of a run folder: atomic replacement (temporary, fsync, rename, fsync of the folder) and append-only
// line files. Storage errors become StorageError, whose exit code means "nothing is lost, run again".
#pragma once

#include <cstdint>
#include <filesystem>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

namespace longhaul::runner {

/// Error line for an errno: "FILE: expected to WHAT, got No space left on device".
[[nodiscard]] std::string storage_line(const std::filesystem::path& path, std::string_view what, int error);

enum class Durable : bool { no, yes };

/// Replaces the content of a file; the new content is written in pieces. Readers see the old content until `commit`;
/// without `commit` the file stays unchanged.
class FileReplacement {
  public:
    /// `tag` makes the name of the temporary unique among launches. Throws StorageError.
    FileReplacement(std::filesystem::path path, std::string_view tag);
    ~FileReplacement();
    FileReplacement(const FileReplacement&) = delete;
    FileReplacement& operator=(const FileReplacement&) = delete;

    /// Throws StorageError.
    void append(std::string_view text);
    /// Moves the new content into place atomically. `Durable::no` skips the fsyncs, for files that are rewritten within
    /// seconds. Call it once, as the last call. Throws StorageError.
    void commit(Durable durable);

  private:
    void flush();

    std::filesystem::path path_, temporary_;
    int fd_ = -1;
    std::string buffer_;
};

/// Replaces the content of `path` by `text` atomically, see FileReplacement. Throws StorageError.
void replace_file(const std::filesystem::path& path, std::string_view text, Durable durable, std::string_view tag);

/// Creates `path` with its content atomically; returns false if it exists already. No other process may use the same
/// `tag`. Throws StorageError.
[[nodiscard]] bool create_once(const std::filesystem::path& path, std::string_view text, std::string_view tag);

/// Removes a file that may be absent, durably. Throws StorageError.
void remove_durably(const std::filesystem::path& path);

/// The content of the file; "" if it is absent or cannot be read.
[[nodiscard]] std::string read_if_there(const std::filesystem::path& path);

/// Names of all that is in a folder, in no order; none if the folder is absent. Throws StorageError if it cannot be
/// read, so that a failing file system does not look like an empty folder.
[[nodiscard]] std::vector<std::string> names_in(const std::filesystem::path& folder);

/// Flushes standard output. Throws StorageError if something printed was not written, so that output lost to a full
/// disk does not look like success.
void flush_output();

/// Creates the folder and its parents durably. Throws UsageError if something else is in the way or permission is
/// denied, StorageError if the storage fails.
void make_folder(const std::filesystem::path& path);

/// The path itself if it exists, else its nearest existing parent folder.
[[nodiscard]] std::filesystem::path nearest_existing(std::filesystem::path path);

/// fsync of a folder, so that new names in it survive a power failure. Throws StorageError.
void sync_folder(const std::filesystem::path& path);

/// fsync of a file written by another process. Throws StorageError.
void sync_file(const std::filesystem::path& path);

/// An append-only file of lines. After a failed write or fsync, everything not known to be durable is cut off, so that
/// no later launch reads it. Append and sync may be called from two different threads.
class LineFile {
  public:
    /// The file is created when the first line is appended; it must not exist before.
    explicit LineFile(std::filesystem::path path) : path_(std::move(path)) {}
    ~LineFile();
    LineFile(const LineFile&) = delete;
    LineFile& operator=(const LineFile&) = delete;

    /// Throws StorageError; no part of the line stays in the file then.
    void append(std::string_view line);
    /// Makes all lines appended before the call durable. Throws StorageError; after a failure every later call throws,
    /// too.
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
