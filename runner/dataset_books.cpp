#include <algorithm>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/dataset_source.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

struct Book {
    std::filesystem::path path;
    std::int64_t num_bytes = 0;  ///< when the folder was listed
};

/// Windows line ends become plain ones, as every text-mode reader does: a model should not see a file's history.
void drop_carriage_returns(std::string& text) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < text.size(); ++i) {
        if (text[i] == '\r' && i + 1 < text.size() && text[i + 1] == '\n') continue;
        text[kept++] = text[i];
    }
    text.resize(kept);
}

class BookSource : public ItemSource {
  public:
    explicit BookSource(std::vector<Book> books, std::int64_t limit) : books_(std::move(books)) {
        const auto all = static_cast<std::int64_t>(books_.size());
        size_ = limit > 0 ? std::min(limit, all) : all;
    }

    std::int64_t size() const override { return size_; }
    std::int64_t text_bytes(std::int64_t index) const override { return book(index).num_bytes; }
    std::string id(std::int64_t index) const override {
        return engine::printable(book(index).path.stem().string(), 255);
    }
    std::string label(std::int64_t index) const override { return book(index).path.string(); }

    ItemText read(std::int64_t index, std::int64_t max_bytes) const override {
        ItemText item;
        try {
            const InputFile file(book(index).path);
            item.text = file.read(0, max_bytes);
            item.whole = static_cast<std::int64_t>(item.text.size()) >= file.num_bytes();
        } catch (const InputError& error) {
            item.error = error.what();
            return item;
        }
        if (!item.whole) trim_cut(item.text);
        const std::size_t bom = item.text.starts_with("\xEF\xBB\xBF") ? 3 : 0;
        item.text.erase(0, bom);
        if (const std::size_t bad = first_bad_byte(item.text); bad != std::string::npos) {
            const std::string got = engine::printable(std::string_view(item.text).substr(bad, 1));
            item.error = InputError::format(label(index), "@" + std::to_string(bad + bom), "UTF-8 text",
                                            item.text[bad] == '\0' ? "a NUL byte" : "byte " + got, "");
            item.text.clear();
        }
        drop_carriage_returns(item.text);
        return item;
    }

    std::uint64_t fingerprint() const override {
        ContentHash hash;
        for (const Book& book : books_) {
            try {
                const InputFile file(book.path);
                hash.add(book.path.filename().string() + '\n' + std::to_string(file.num_bytes()) + '\n');
                hash.add(file);
            } catch (const InputError&) {  // one book that cannot be read is one item that fails
                hash.add(book.path.filename().string() + "\nunreadable\n");
            }
        }
        return hash.value();
    }

  private:
    const Book& book(std::int64_t index) const { return books_.at(static_cast<std::size_t>(index)); }

    /// Takes away what may be the first half of a character or of a CRLF.
    static void trim_cut(std::string& text) {
        text.resize(whole_characters(text, text.empty() ? 0 : text.size() - 1).size());
        if (text.ends_with('\r')) text.pop_back();
    }

    std::vector<Book> books_;  ///< all, also beyond the limit: they are the data's identity
    std::int64_t size_ = 0;
};

std::vector<Book> list_books(const std::filesystem::path& folder) {
    std::vector<Book> books;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        std::error_code unreadable;  // such a book becomes an item that fails
        if (!name.ends_with(".txt") || name.starts_with('.') || it->is_directory(unreadable)) continue;
        const auto bytes = it->file_size(unreadable);
        books.push_back({it->path(), unreadable ? 0 : static_cast<std::int64_t>(bytes)});
    }
    if (error) throw InputError(folder.string(), "", "a readable folder", error.message());
    std::sort(books.begin(), books.end(),
              [](const Book& a, const Book& b) { return a.path.native() < b.path.native(); });
    return books;
}

}  // namespace

std::unique_ptr<ItemSource> open_books(const std::filesystem::path& path, std::int64_t limit) {
    std::error_code error;
    std::vector<Book> books;
    if (std::filesystem::is_directory(path, error)) {
        books = list_books(path);
        if (books.empty()) throw InputError(path.string(), "", "a folder with books NAME.txt", "none");
    } else {
        const InputFile file(path);
        if (file.num_bytes() == 0) throw InputError(path.string(), "", "a text", "an empty file");
        books.push_back({path, file.num_bytes()});
    }
    return std::make_unique<BookSource>(std::move(books), limit);
}

}  // namespace longhaul::runner
