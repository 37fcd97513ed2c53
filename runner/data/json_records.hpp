// Records of JSON objects: lines of a .jsonl file, or rows of a table. Base of the tasks' records (dataset_records.cpp,
// prompt_records.cpp).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/json.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/data/row_source.hpp"

namespace longhaul::runner {

/// The members that a task reads from its objects, besides the id.
struct JsonFields {
    std::vector<std::string> names;
    std::vector<std::vector<std::string>> needed;  ///< at least one of each group
    /// What fields are called in published data; read where all of them are absent, unless `column` names any.
    std::vector<std::pair<std::string, std::string>> other_names = {};
    std::string type = "";  ///< of every field, for messages; "": as type_of says
};

/// The name of `field` in the data: as `column` says, else its own.
std::string column_of(const Settings& settings, const std::string& field);

/// The value at "a.b" within nested objects, or at "a.0" within an array; null if there is none. A member "a.b" itself
/// comes first.
engine::Json value_at(const engine::Json& json, const std::string& column);

/// "'id', 'text'": the members of an object, as far as a message should list them.
std::string member_names(const engine::Json& object);

/// A member that is a text and not empty. Throws InputError.
std::string needed_text(const engine::Json& object, const std::string& key, const std::string& where);

class JsonRecords : public RecordSource {
  public:
    /// `names`: RecordSource::field_names. Throws InputError, and UsageError for a `column` of other fields.
    JsonRecords(const Settings& settings, std::vector<std::string> names, const JsonFields& fields);

    const std::vector<std::string>& field_names() const override { return names_; }
    std::int64_t size() const override { return rows_->size(); }
    std::int64_t num_bytes(std::int64_t index) const override { return rows_->num_bytes(index); }
    std::string id(std::int64_t index) const override { return rows_->id(index); }
    std::string label(std::int64_t index) const override { return rows_->label(index); }
    void add_to(engine::Hash& hash, bool /*references*/) const override { rows_->add_to(hash); }
    Record read(std::int64_t index) const override;

  protected:
    [[nodiscard]] const RowSource& rows() const { return *rows_; }
    /// Throws InputError if none of the first rows has the field: its name is wrong, rather than the rows. `place`:
    /// where it was named.
    void check_known(const Settings& settings, const std::string& field, const std::string& place) const;

  private:
    /// `object`: its members have the names of JsonFields, too.
    [[nodiscard]] virtual Record record_of(const engine::Json& object, const std::string& where) const = 0;
    /// Makes texts of the numbers in row `index` that become part of prompts.
    virtual void spell_numbers(engine::Json& /*fields*/, std::int64_t /*index*/) const {}

    [[nodiscard]] std::string source_of(const std::string& field) const;
    [[nodiscard]] std::string text_of_column(const std::string& column, std::int64_t index) const;
    void spell_schema(engine::Json& fields, std::int64_t index) const;
    void check_needed(const engine::Json& fields, const engine::Json& object, const std::string& where) const;

    std::unique_ptr<RowSource> rows_;
    std::vector<std::string> names_;
    std::vector<std::vector<std::string>> needed_;  ///< JsonFields::needed
    std::string type_;                              ///< JsonFields::type
    bool is_table_;
    std::vector<std::pair<std::string, std::string>> renamed_;  ///< field and its name in the data
    std::vector<std::pair<std::string, std::string>> others_;   ///< JsonFields::other_names
};

}  // namespace longhaul::runner
