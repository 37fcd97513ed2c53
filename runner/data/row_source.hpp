// Rows of a data set as JSON objects: lines of a .jsonl file (dataset_lines.hpp), or rows of Parquet and Arrow tables
// (table_rows.hpp). Used by dataset_records.cpp.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/hash.hpp"
#include "engine/json.hpp"
#include "runner/data/dataset_source.hpp"

namespace longhaul::runner {

/// Rows numbered from 0 in the order of the input. Const members are thread-safe.
class RowSource {
  public:
    virtual ~RowSource() = default;
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int64_t num_bytes(std::int64_t index) const = 0;  ///< approximate
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;          ///< reads at most the row
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;       ///< "p.jsonl:3"
    /// Throws InputError if the row cannot be read, or its id is invalid or already used by an earlier row.
    [[nodiscard]] virtual engine::Json object(std::int64_t index) const = 0;
    /// The row with its numbers as texts, in the spelling of the data: {"a": 1.50} is {"a": "1.50"}. Null for rows
    /// whose numbers have no spelling.
    [[nodiscard]] virtual engine::Json spelled(std::int64_t /*index*/) const { return {}; }
    /// The text of a member of the row, by its path, as it stands in the data; "" if rows are not text.
    [[nodiscard]] virtual std::string text_of(std::int64_t /*index*/, std::span<const std::string> /*path*/) const {
        return "";
    }
    /// The same for `member` of a column, which may be a path: of "a.b" the member "a.b" or else "b" within "a".
    [[nodiscard]] std::string column_text(std::int64_t index, std::string column, const std::string& member) const {
        std::vector<std::string> outer;
        while (true) {
            std::vector<std::string> path = outer;
            path.insert(path.end(), {column, member});
            std::string text = text_of(index, path);
            const std::size_t dot = column.find('.');
            if (!text.empty() || dot == std::string::npos) return text;
            outer.push_back(column.substr(0, dot));
            column.erase(0, dot + 1);
        }
    }
    /// Hashes all bytes that the rows are made from. Throws InputError.
    virtual void add_to(engine::Hash& hash) const = 0;
    /// Whether any row may have the member `name`, regardless of the limit. May read everything. Throws InputError.
    [[nodiscard]] virtual bool has_member(const std::string& name) const = 0;
};

}  // namespace longhaul::runner
