// The books of task pg19: see BookSource in dataset_source.hpp.
#include <algorithm>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_lines.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

struct Book {
    std::filesystem::path path;
    std::int64_t num_bytes = 0;  ///< at the time the folder was listed
};

class FileBooks : public BookSource {
  public:
    explicit FileBooks(std::vector<Book> books, std::int64_t limit) : books_(std::move(books)) {
        const std::int64_t all = books_.size();
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
        try {
            check_text(item.text, label(index), bom);
        } catch (const InputError& error) {
            item.error = error.what();
            item.text.clear();
        }
        drop_carriage_returns(item.text);
        return item;
    }

    void add_to(engine::Hash& hash) const override {
        for (const Book& book : books_) {
            try {
                const InputFile file(book.path);
                hash.add(book.path.filename().string() + '\n' + std::to_string(file.num_bytes()) + '\n');
                file.add_to(hash);
            } catch (const InputError&) {  // an unreadable book is one item that fails
                hash.add(book.path.filename().string() + "\nunreadable\n");
            }
        }
    }

  private:
    const Book& book(std::int64_t index) const { return books_.at(index); }

    /// Removes what may be an incomplete character or the first half of a CRLF at the cut.
    static void trim_cut(std::string& text) {
        text.resize(whole_characters(text, text.empty() ? 0 : text.size() - 1).size());
        if (text.ends_with('\r')) text.pop_back();
    }

    std::vector<Book> books_;  ///< all books, also beyond the limit: the fingerprint covers them
    std::int64_t size_ = 0;
};

/// Books as lines {"id"?, "text"} of one file.
class LineBooks : public BookSource {
  public:
    LineBooks(const std::filesystem::path& path, std::int64_t limit) : lines_(path, LineFormat::json, limit) {}

    std::int64_t size() const override { return lines_.size(); }
    std::int64_t text_bytes(std::int64_t index) const override { return lines_.num_bytes(index); }
    std::string id(std::int64_t index) const override { return lines_.id(index); }
    std::string label(std::int64_t index) const override { return lines_.label(index); }
    void add_to(engine::Hash& hash) const override { lines_.add_to(hash); }

    ItemText read(std::int64_t index, std::int64_t max_bytes) const override {
        ItemText item;
        try {
            item.text = text_member(lines_.object(index), "text", lines_.label(index));
        } catch (const InputError& error) {
            item.error = error.what();
        }
        const auto size = item.text.size();
        item.text.resize(whole_characters(item.text, max_bytes).size());
        item.whole = item.text.size() == size;
        return item;
    }

  private:
    LineSource lines_;
};

std::vector<Book> list_books(const std::filesystem::path& folder) {
    std::vector<Book> books;
    std::error_code error;
    for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
        const std::string name = it->path().filename().string();
        std::error_code unreadable;  // an unreadable book becomes an item that fails
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

std::unique_ptr<BookSource> open_books(const std::filesystem::path& path, std::int64_t limit) {
    std::error_code error;
    const std::string extension = path.extension().string();
    std::vector<Book> books;
    if (std::filesystem::is_directory(path, error)) {
        books = list_books(path);
        if (books.empty()) throw InputError(path.string(), "", "a folder with books NAME.txt", "none");
    } else if (extension == ".jsonl" || extension == ".json") {
        return std::make_unique<LineBooks>(path, limit);
    } else {
        const InputFile file(path);
        if (file.num_bytes() == 0) throw InputError(path.string(), "", "a text", "an empty file");
        books.push_back({path, file.num_bytes()});
    }
    return std::make_unique<FileBooks>(std::move(books), limit);
}

}  // namespace longhaul::runner
