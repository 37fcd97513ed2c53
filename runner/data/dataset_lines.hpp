// Items that stand in lines of one file, found again through an index of 32 bytes each.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/json.hpp"
#include "runner/data/dataset_source.hpp"

namespace longhaul::runner {

enum class LineFormat {
    json,      ///< an object a line; its "id", or the line's number; blank lines are no items
    plain,     ///< the line itself; blank lines are no items
    parallel,  ///< the line itself; every line is an item, so that line i of another file belongs to it
    sgm,       ///< the <seg> elements of NIST's SGM; id DOCID:SEGID
};

class LineSource {
  public:
    /// Indexes the file; 0 = all items, else the first `limit`. `shown`: the file's name in labels. Throws InputError:
    /// unreadable, no item at all.
    LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit, std::string shown);
    LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit)
        : LineSource(path, format, limit, path.string()) {}

    [[nodiscard]] LineFormat format() const { return format_; }
    [[nodiscard]] std::int64_t size() const { return lines_.size(); }
    /// Items of the whole file, whatever the limit; parallel and sgm only.
    [[nodiscard]] std::int64_t num_in_file() const { return num_in_file_; }
    [[nodiscard]] std::int64_t num_bytes(std::int64_t index) const { return line(index).num_bytes; }
    [[nodiscard]] std::string id(std::int64_t index) const;     ///< reads the line at most
    [[nodiscard]] std::string label(std::int64_t index) const;  ///< "p.jsonl:3", "x-src.de.sgm:DOCID:SEGID"

    /// The item's text, UTF-8 without NUL; sgm: entities resolved, white space as one blank. Not for json. Throws
    /// InputError, also where an earlier item has the same id.
    [[nodiscard]] std::string text(std::int64_t index) const;
    /// The item's object; json only. Throws InputError for no JSON object, an id that is none or that an earlier
    /// line has.
    [[nodiscard]] engine::Json object(std::int64_t index) const;

    void add_to(ContentHash& hash) const { hash.add(file_); }
    /// Whether these bytes are anywhere in the file, whatever the limit. Reads all of it. Throws InputError.
    [[nodiscard]] bool mentions(std::string_view bytes) const;

  private:
    /// What is kept of a line. 32 bytes: a data set of ten million prompts costs 320 MB of index a rank, no more.
    struct Line {
        std::uint64_t offset = 0;
        std::uint64_t id_hash = 0;
        std::uint32_t num_bytes = 0;       ///< without the line end; the greatest value stands for "too long"
        std::uint32_t number = 0;          ///< in the file, from 1
        std::uint32_t same_id_number = 0;  ///< number of an earlier line with the same id, 0 = none
        std::uint32_t document = 0;        ///< sgm: index of its document
    };
    static_assert(sizeof(Line) == 32);

    [[nodiscard]] const Line& line(std::int64_t index) const { return lines_.at(index); }
    [[nodiscard]] std::string bytes_of(const Line& line) const;
    [[nodiscard]] std::string id_of(const Line& line, std::string_view bytes) const;
    [[nodiscard]] std::string whole_line(std::int64_t index) const;
    void refuse_same_id(std::int64_t index) const;
    void scan_lines(std::int64_t limit);
    void scan_segments(std::int64_t limit);
    [[nodiscard]] std::int64_t find(char byte, std::int64_t from);
    [[nodiscard]] std::string_view bytes_between(std::int64_t begin, std::int64_t end, std::string& room) const;
    void add(Line line, std::int64_t end, std::int64_t limit);
    void find_same_ids();

    std::string shown_;
    InputFile file_;
    LineFormat format_;
    std::vector<Line> lines_;
    std::vector<std::string> documents_;  ///< sgm: docid
    std::int64_t num_in_file_ = 0;
    std::string block_;  ///< of the scan
    std::int64_t block_begin_ = 0;
};

}  // namespace longhaul::runner
