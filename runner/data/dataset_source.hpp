// Text sources of the data sets: files, hashing, text checks, and the books of pg19. Used by the other files of
// runner/data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "engine/hash.hpp"

namespace longhaul::runner {

/// A file opened for reading at any offset, from any thread.
class InputFile {
  public:
    /// Throws InputError if the file is absent, unreadable or not a regular file.
    explicit InputFile(std::filesystem::path path);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }  ///< at the time it was opened
    /// Up to `count` bytes from `offset`; fewer at the end of the file. Throws InputError.
    [[nodiscard]] std::string read(std::int64_t offset, std::int64_t count) const;
    void add_to(engine::Hash& hash) const;  ///< the whole file, block by block; throws InputError

  private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    std::int64_t num_bytes_ = 0;
};

/// Turns CRLF into LF, so that the prompt does not depend on a file's line ends.
void drop_carriage_returns(std::string& text);

/// Throws InputError unless `text` is UTF-8 without NUL. `first_byte` is the offset of `text` in the file that `where`
/// names.
void check_text(std::string_view text, const std::string& where, std::size_t first_byte = 0);

/// The beginning of one item's text, or why it cannot be read.
struct ItemText {
    std::string text;   ///< UTF-8 without NUL or BOM; LF line ends
    bool whole = true;  ///< the text ends here
    std::string error;  ///< one line that names the place; "" if there is none
};

/// Books numbered from 0 in the order of the input. Const members are thread-safe.
class BookSource {
  public:
    virtual ~BookSource() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int64_t text_bytes(std::int64_t index) const = 0;  ///< approximate
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    /// For messages: "books/x.txt", "p.jsonl:3".
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;
    /// At least the first `max_bytes` of the text, less a few bytes at the cut, or all of it. Never throws for a bad
    /// item.
    [[nodiscard]] virtual ItemText read(std::int64_t index, std::int64_t max_bytes) const = 0;
    virtual void add_to(engine::Hash& hash) const = 0;  ///< throws InputError
};

/// Opens the .txt files of a folder, one text file, or the JSONL lines {"id"?, "text"} of a .jsonl or .json file.
/// Throws InputError.
std::unique_ptr<BookSource> open_books(const std::filesystem::path& path, std::int64_t limit);

}  // namespace longhaul::runner
