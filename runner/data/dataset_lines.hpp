// Reads items that are lines (or SGM segments) of one file, through an index of 32 bytes per line. Used by
// dataset_records.cpp and dataset_books.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/data/row_source.hpp"

namespace longhaul::runner {

enum class LineFormat {
    json,      ///< one object per line; id is its member "id" (or as given) or the line number; skips blank lines
    plain,     ///< the line itself; skips blank lines
    parallel,  ///< the line itself; every line is an item, so that line i of another file belongs to it
    sgm,       ///< the <seg> elements of NIST's SGM; id DOCID:SEGID
};

class LineSource : public RowSource {
  public:
    /// Indexes the first `limit` items of the file; 0 = all. `shown` is the file's name in labels; `id_key` the member
    /// of a json line that is its id. Throws InputError if the file is unreadable, has no item, or is to be json and
    /// cannot be JSONL (json_lines_check.hpp).
    LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit, std::string shown,
               std::string id_key = "id");
    LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit)
        : LineSource(path, format, limit, path.string()) {}

    [[nodiscard]] LineFormat format() const { return format_; }
    [[nodiscard]] std::int64_t size() const override { return lines_.size(); }
    /// Items in the whole file, regardless of the limit; parallel and sgm only.
    [[nodiscard]] std::int64_t num_in_file() const { return num_in_file_; }
    [[nodiscard]] std::int64_t num_bytes(std::int64_t index) const override { return line(index).num_bytes; }
    [[nodiscard]] std::string id(std::int64_t index) const override;
    [[nodiscard]] std::string label(std::int64_t index) const override;  ///< "p.jsonl:3", "x-src.de.sgm:DOCID:SEGID"

    /// Text of the item, UTF-8 without NUL. For sgm, entities are resolved and each run of white space is one blank.
    /// Not for json. Throws InputError, also if an earlier item has the same id.
    [[nodiscard]] std::string text(std::int64_t index) const;
    /// JSON object of the item; json only. Throws InputError if the line is not a JSON object, or its id is invalid or
    /// already used by an earlier line.
    [[nodiscard]] engine::Json object(std::int64_t index) const override;
    [[nodiscard]] engine::Json spelled(std::int64_t index) const override;
    [[nodiscard]] std::string text_of(std::int64_t index, std::span<const std::string> path) const override;

    void add_to(engine::Hash& hash) const override { file_.add_to(hash); }
    /// Whether the file contains "name" in quotes. Reads the whole file.
    [[nodiscard]] bool has_member(const std::string& name) const override;

  private:
    /// Index entry of a line. At 32 bytes, ten million prompts take 320 MB of index per rank.
    struct Line {
        std::uint64_t offset = 0;
        std::uint64_t id_hash = 0;
        std::uint32_t num_bytes = 0;       ///< without the line end; the largest value means "too long"
        std::uint32_t number = 0;          ///< line number in the file, from 1; sgm: number of the segment
        std::uint32_t same_id_number = 0;  ///< number of an earlier line with the same id; 0 = none
        std::uint32_t document = 0;        ///< sgm: index into documents_
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
    [[nodiscard]] std::string_view bytes_between(std::int64_t begin, std::int64_t end, std::string& buffer) const;
    void add(Line line, std::int64_t end, std::int64_t limit);
    void find_same_ids();

    std::string shown_, id_key_;
    InputFile file_;
    LineFormat format_;
    std::vector<Line> lines_;
    std::vector<std::string> documents_;  ///< sgm: docid of each document
    std::int64_t num_in_file_ = 0;
    std::string block_;  ///< current block of the file, while indexing
    std::int64_t block_begin_ = 0;
};

}  // namespace longhaul::runner
