// Where the texts of a data set come from, before they are prompts: files of books, lines of files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

struct XXH3_state_s;  // of xxhash.h

namespace longhaul::runner {

/// A file open for reading at any offset, from any thread.
class InputFile {
  public:
    /// Throws InputError: absent, unreadable, no regular file.
    explicit InputFile(std::filesystem::path path);
    ~InputFile();
    InputFile(const InputFile&) = delete;
    InputFile& operator=(const InputFile&) = delete;

    [[nodiscard]] std::int64_t num_bytes() const { return num_bytes_; }  ///< when it was opened
    /// Bytes from `offset`, fewer where the file ends. Throws InputError.
    [[nodiscard]] std::string read(std::int64_t offset, std::int64_t count) const;

  private:
    std::filesystem::path path_;
    int descriptor_ = -1;
    std::int64_t num_bytes_ = 0;
};

/// XXH3-64 of bytes that come in pieces.
class ContentHash {
  public:
    ContentHash();
    ~ContentHash();
    ContentHash(const ContentHash&) = delete;
    ContentHash& operator=(const ContentHash&) = delete;

    void add(std::string_view bytes);
    void add(const InputFile& file);  ///< the whole file, in blocks; throws InputError
    [[nodiscard]] std::uint64_t value() const;

  private:
    XXH3_state_s* state_;
};
std::uint64_t hash_of(std::string_view bytes);

/// Windows line ends become plain ones, as every text-mode reader does: a model should not see a file's history.
void drop_carriage_returns(std::string& text);

/// Throws InputError unless `text` is UTF-8 without NUL; `first_byte` is the place of its start in what `where` names.
void check_text(std::string_view text, const std::string& where, std::size_t first_byte = 0);

/// The beginning of one item's text, or why there is none.
struct ItemText {
    std::string text;   ///< UTF-8 without NUL; BOM left out, CRLF as LF
    bool whole = true;  ///< nothing follows
    std::string error;  ///< one line, names the place
};

/// Books, numbered from 0 in the order of the input. Const calls are thread-safe.
class BookSource {
  public:
    virtual ~BookSource() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int64_t text_bytes(std::int64_t index) const = 0;  ///< about
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    /// For messages: "books/x.txt", "p.jsonl:3".
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;
    /// At least the first `max_bytes` of the text but for a few at the cut, or all of it. Never throws for a bad item.
    [[nodiscard]] virtual ItemText read(std::int64_t index, std::int64_t max_bytes) const = 0;
    virtual void add_to(ContentHash& hash) const = 0;  ///< Throws InputError.
};

/// The .txt files of a folder, one file, or the JSONL lines {"id"?, "text"} of a .jsonl or .json. Throws InputError.
std::unique_ptr<BookSource> open_books(const std::filesystem::path& path, std::int64_t limit);

}  // namespace longhaul::runner
