// Rows of tables, read with Apache Arrow: see table_rows.hpp. Compiled only where the build found Arrow.
//
// The files are untrusted. Arrow checks their structure; here a memory pool with a limit bounds what sizes that a file
// merely claims can cost, and every batch is validated before a value of it is looked at.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <arrow/ipc/api.h>
#include <parquet/arrow/reader.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/host/message_text.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using engine::Json;
using Table = std::shared_ptr<arrow::Table>;

constexpr std::int64_t max_memory_bytes = std::int64_t{16} << 30;
constexpr std::int64_t max_group_bytes = std::int64_t{4} << 30;
constexpr std::int64_t max_rows = std::int64_t{1} << 40;
constexpr int max_type_depth = 16;
constexpr std::size_t max_open_files = 16, max_loaded_groups = 2;

/// Turns Arrow's statuses and exceptions into InputErrors that name the file.
template <typename Read>
auto reading(const fs::path& path, Read read) {
    const auto refuse = [&](const std::string& what) -> InputError {
        const std::string line = what.substr(0, what.find('\n'));
        return {path.string(), "", "a file that Apache Arrow can read", "'" + engine::printable(line, 200) + "'"};
    };
    try {
        return read();
    } catch (const Error&) {
        throw;
    } catch (const std::exception& error) {
        throw refuse(error.what());
    }
}

template <typename Value>
Value valued(arrow::Result<Value> result) {
    if (!result.ok()) throw std::runtime_error(result.status().message());
    return std::move(result).ValueUnsafe();
}

void succeed(const arrow::Status& status) {
    if (!status.ok()) throw std::runtime_error(status.message());
}

arrow::MemoryPool* pool() {
    static arrow::CappedMemoryPool limited(arrow::default_memory_pool(), max_memory_bytes);
    return &limited;
}

std::string top_of(const std::string& column, const arrow::Schema& schema) {
    return schema.GetFieldIndex(column) >= 0 ? column : column.substr(0, column.find('.'));
}

// Files

/// One file: groups of rows that are read as a whole.
class TableFile {
  public:
    struct Group {
        std::int64_t rows = 0, bytes = 0;
    };
    virtual ~TableFile() = default;
    [[nodiscard]] virtual const arrow::Schema& schema() const = 0;
    [[nodiscard]] virtual std::vector<Group> groups(const std::set<std::string>& columns) = 0;
    /// The top-level `columns` that exist, of one group.
    virtual Table read(std::int64_t group, const std::set<std::string>& columns) = 0;
};

class ParquetFile : public TableFile {
  public:
    explicit ParquetFile(const fs::path& path) {
        parquet::ReaderProperties properties(pool());
        parquet::arrow::FileReaderBuilder builder;
        succeed(builder.Open(valued(arrow::io::ReadableFile::Open(path.string(), pool())), properties));
        builder.memory_pool(pool());
        succeed(builder.Build(&reader_));
        reader_->set_use_threads(false);
        succeed(reader_->GetSchema(&schema_));
    }

    const arrow::Schema& schema() const override { return *schema_; }

    std::vector<Group> groups(const std::set<std::string>& columns) override {
        const auto metadata = reader_->parquet_reader()->metadata();
        const std::vector<int> leaves = leaves_of(columns);
        std::vector<Group> groups;
        for (int g = 0; g < metadata->num_row_groups(); ++g) {
            const auto group = metadata->RowGroup(g);
            std::int64_t bytes = 0;
            for (const int leaf : leaves)
                bytes += std::clamp<std::int64_t>(group->ColumnChunk(leaf)->total_uncompressed_size(), 0, max_rows);
            groups.push_back({group->num_rows(), bytes});
        }
        return groups;
    }

    Table read(std::int64_t group, const std::set<std::string>& columns) override {
        Table table;
#if ARROW_VERSION_MAJOR >= 24
        table = valued(reader_->ReadRowGroup(static_cast<int>(group), leaves_of(columns)));
#else
        succeed(reader_->ReadRowGroup(static_cast<int>(group), leaves_of(columns), &table));
#endif
        succeed(table->Validate());
        return table;
    }

  private:
    [[nodiscard]] std::vector<int> leaves_of(const std::set<std::string>& columns) const {
        const parquet::SchemaDescriptor& schema = *reader_->parquet_reader()->metadata()->schema();
        std::vector<int> leaves;
        for (int leaf = 0; leaf < schema.num_columns(); ++leaf) {
            if (columns.contains(schema.GetColumnRoot(leaf)->name())) leaves.push_back(leaf);
        }
        return leaves;
    }

    std::unique_ptr<parquet::arrow::FileReader> reader_;
    std::shared_ptr<arrow::Schema> schema_;
};

/// An IPC stream: a message with the schema, then one per record batch.
class StreamFile : public TableFile {
  public:
    explicit StreamFile(const fs::path& path) : file_(valued(arrow::io::ReadableFile::Open(path.string(), pool()))) {
        options_.memory_pool = pool();
        options_.use_threads = false;
        if (valued(file_->ReadAt(0, 6))->ToString() == "ARROW1")
            throw InputError(path.string(), "", "an Arrow IPC stream", "an IPC file (Feather)", "save it as Parquet");
        succeed(file_->Seek(0));
        const auto first = next();
        if (first == nullptr) throw InputError(path.string(), "", "an Arrow IPC stream", "an empty file");
        schema_ = valued(arrow::ipc::ReadSchema(*first, &dictionaries_));
        if (dictionaries_.fields().num_fields() > 0)
            throw InputError(path.string(), "", "columns without dictionaries", "dictionaries", "save it as Parquet");
        scan();
    }

    const arrow::Schema& schema() const override { return *schema_; }

    std::vector<Group> groups(const std::set<std::string>&) override {
        std::vector<Group> groups;
        for (const Batch& batch : batches_) groups.push_back(batch.group);
        return groups;
    }

    Table read(std::int64_t group, const std::set<std::string>& columns) override {
        succeed(file_->Seek(batches_.at(group).offset));
        const auto message = next();
        if (message == nullptr) throw std::runtime_error("the file became shorter");
        const auto batch = valued(arrow::ipc::ReadRecordBatch(*message, schema_, &dictionaries_, options_));
        std::vector<int> indexes;
        for (int i = 0; i < schema_->num_fields(); ++i) {
            if (columns.contains(schema_->field(i)->name())) indexes.push_back(i);
        }
        const auto wanted = valued(batch->SelectColumns(indexes));
        succeed(wanted->ValidateFull());
        return valued(arrow::Table::FromRecordBatches({wanted}));
    }

  private:
    struct Batch {
        std::int64_t offset = 0;
        Group group;
    };

    std::unique_ptr<arrow::ipc::Message> next() { return valued(arrow::ipc::ReadMessage(file_.get(), pool())); }

    void scan() {
        for (;;) {
            const std::int64_t offset = valued(file_->Tell());
            const auto message = next();
            if (message == nullptr) return;
            const auto batch = valued(arrow::ipc::ReadRecordBatch(*message, schema_, &dictionaries_, options_));
            batches_.push_back({offset, {batch->num_rows(), message->body_length()}});
        }
    }

    std::shared_ptr<arrow::io::ReadableFile> file_;
    arrow::ipc::IpcReadOptions options_ = arrow::ipc::IpcReadOptions::Defaults();
    arrow::ipc::DictionaryMemo dictionaries_;
    std::shared_ptr<arrow::Schema> schema_;
    std::vector<Batch> batches_;
};

std::unique_ptr<TableFile> open_file(const fs::path& path) {
    const InputFile bytes(path);  // refuses folders, devices and what cannot be read
    if (engine::is_git_lfs_pointer(bytes.read(0, 200)))
        throw InputError(path.string(), "", "a table", "a Git LFS pointer", engine::git_lfs_hint);
    return reading(path, [&]() -> std::unique_ptr<TableFile> {
        if (path.extension() == ".arrow") return std::make_unique<StreamFile>(path);
        return std::make_unique<ParquetFile>(path);
    });
}

// Values

void check_type(const arrow::DataType& type, const std::string& where, const std::string& column, int depth) {
    switch (type.id()) {
        case arrow::Type::NA:
        case arrow::Type::BOOL:
        case arrow::Type::INT8:
        case arrow::Type::INT16:
        case arrow::Type::INT32:
        case arrow::Type::INT64:
        case arrow::Type::UINT8:
        case arrow::Type::UINT16:
        case arrow::Type::UINT32:
        case arrow::Type::FLOAT:
        case arrow::Type::DOUBLE:
        case arrow::Type::STRING:
        case arrow::Type::LARGE_STRING:
            return;
        case arrow::Type::DICTIONARY:
            return check_type(*static_cast<const arrow::DictionaryType&>(type).value_type(), where, column, depth + 1);
        case arrow::Type::LIST:
        case arrow::Type::LARGE_LIST:
        case arrow::Type::STRUCT:
            if (depth >= max_type_depth) break;
            for (const auto& field : type.fields()) check_type(*field->type(), where, column, depth + 1);
            return;
        default:
            break;
    }
    throw InputError(where, column, "text, numbers, or lists and structs of them",
                     engine::printable(type.ToString(), 100));
}

Json value_of(const arrow::Array& array, std::int64_t row, const std::string& where);

template <typename Array>
Json text_value(const arrow::Array& array, std::int64_t row, const std::string& where) {
    const std::string_view text = static_cast<const Array&>(array).GetView(row);
    check_text(text, where);
    return std::string(text);
}

template <typename Array>
Json list_value(const arrow::Array& array, std::int64_t row, const std::string& where) {
    const auto& lists = static_cast<const Array&>(array);
    Json json = Json::array();
    for (auto i = lists.value_offset(row); i < lists.value_offset(row + 1); ++i)
        json.push_back(value_of(*lists.values(), i, where));
    return json;
}

Json struct_value(const arrow::Array& array, std::int64_t row, const std::string& where) {
    const auto& structs = static_cast<const arrow::StructArray&>(array);
    Json json = Json::object();
    for (int i = 0; i < structs.num_fields(); ++i) {
        Json value = value_of(*structs.field(i), row, where);
        // Rows that lack a member have it as null in a table.
        if (!value.is_null()) json[structs.type()->field(i)->name()] = std::move(value);
    }
    return json;
}

template <typename Array>
Json number_value(const arrow::Array& array, std::int64_t row) {
    return static_cast<const Array&>(array).Value(row);
}

/// One value as JSON; check_type has accepted the type.
Json value_of(const arrow::Array& array, std::int64_t row, const std::string& where) {
    if (array.IsNull(row)) return nullptr;
    switch (array.type_id()) {
        case arrow::Type::BOOL:
            return number_value<arrow::BooleanArray>(array, row);
        case arrow::Type::INT8:
            return number_value<arrow::Int8Array>(array, row);
        case arrow::Type::INT16:
            return number_value<arrow::Int16Array>(array, row);
        case arrow::Type::INT32:
            return number_value<arrow::Int32Array>(array, row);
        case arrow::Type::INT64:
            return number_value<arrow::Int64Array>(array, row);
        case arrow::Type::UINT8:
            return number_value<arrow::UInt8Array>(array, row);
        case arrow::Type::UINT16:
            return number_value<arrow::UInt16Array>(array, row);
        case arrow::Type::UINT32:
            return number_value<arrow::UInt32Array>(array, row);
        case arrow::Type::FLOAT:
            return number_value<arrow::FloatArray>(array, row);
        case arrow::Type::DOUBLE:
            return number_value<arrow::DoubleArray>(array, row);
        case arrow::Type::STRING:
            return text_value<arrow::StringArray>(array, row, where);
        case arrow::Type::LARGE_STRING:
            return text_value<arrow::LargeStringArray>(array, row, where);
        case arrow::Type::DICTIONARY: {
            const auto& of = static_cast<const arrow::DictionaryArray&>(array);
            return value_of(*of.dictionary(), of.GetValueIndex(row), where);
        }
        case arrow::Type::LIST:
            return list_value<arrow::ListArray>(array, row, where);
        case arrow::Type::LARGE_LIST:
            return list_value<arrow::LargeListArray>(array, row, where);
        case arrow::Type::STRUCT:
            return struct_value(array, row, where);
        default:
            return nullptr;
    }
}

/// The index that begins `path` ("0", or "0.text") and what follows it; nullopt if that is no index.
std::optional<std::pair<std::int64_t, std::string>> index_in(const std::string& path) {
    std::int64_t index = 0;
    const auto [end, error] = std::from_chars(path.data(), path.data() + path.size(), index);
    const std::string rest(end, path.data() + path.size() - end);
    if (error != std::errc() || index < 0 || (!rest.empty() && rest.front() != '.')) return std::nullopt;
    return std::pair(index, rest.empty() ? rest : rest.substr(1));
}

/// Name of the struct's field that `path` begins with, and what follows it.
std::pair<std::string, std::string> field_in(const arrow::StructType& type, const std::string& path) {
    const std::size_t dot = type.GetFieldIndex(path) >= 0 ? path.npos : path.find('.');
    return {path.substr(0, dot), dot == path.npos ? "" : path.substr(dot + 1)};
}

/// Type of the elements at a path of fields and indices; nullptr if there are none.
std::shared_ptr<arrow::DataType> type_at(const std::shared_ptr<arrow::DataType>& type, const std::string& path) {
    if (path.empty()) return type;
    if (type->id() == arrow::Type::LIST || type->id() == arrow::Type::LARGE_LIST) {
        const auto index = index_in(path);
        return index ? type_at(type->field(0)->type(), index->second) : nullptr;
    }
    if (type->id() != arrow::Type::STRUCT) return nullptr;
    const auto& fields = static_cast<const arrow::StructType&>(*type);
    const auto [name, rest] = field_in(fields, path);
    const auto inner = fields.GetFieldByName(name);  // null also if the name is there twice
    return inner == nullptr ? nullptr : type_at(inner->type(), rest);
}

/// The type of a column such as "text", "translation.de" or "choices.0"; null if there is none.
std::shared_ptr<arrow::DataType> type_of_column(const arrow::Schema& schema, const std::string& column) {
    const std::string top = top_of(column, schema);
    const auto field = schema.GetFieldByName(top);
    if (field == nullptr) return nullptr;
    return type_at(field->type(), top == column ? "" : column.substr(top.size() + 1));
}

Json value_at(const arrow::Array& array, std::int64_t row, const std::string& path, const std::string& where);

template <typename Array>
Json element_at(const arrow::Array& array, std::int64_t row, const std::string& path, const std::string& where) {
    const auto& lists = static_cast<const Array&>(array);
    const auto index = index_in(path);
    if (!index || index->first >= lists.value_length(row)) return nullptr;
    return value_at(*lists.values(), lists.value_offset(row) + index->first, index->second, where);
}

/// The value at a path of fields and indices; null if there is none.
Json value_at(const arrow::Array& array, std::int64_t row, const std::string& path, const std::string& where) {
    if (path.empty()) return value_of(array, row, where);
    if (array.IsNull(row)) return nullptr;
    if (array.type_id() == arrow::Type::LIST) return element_at<arrow::ListArray>(array, row, path, where);
    if (array.type_id() == arrow::Type::LARGE_LIST) return element_at<arrow::LargeListArray>(array, row, path, where);
    if (array.type_id() != arrow::Type::STRUCT) return nullptr;
    const auto& fields = static_cast<const arrow::StructArray&>(array);
    const auto [name, rest] = field_in(*fields.struct_type(), path);
    const auto inner = fields.GetFieldByName(name);
    return inner == nullptr ? Json() : value_at(*inner, row, rest, where);
}

/// Adds the value of `column` in a row of `table` to `json`, if the table has the column.
void add_value(Json& json, const arrow::Table& table, std::int64_t row, const std::string& column,
               const std::string& where) {
    const std::string top = top_of(column, *table.schema());
    const auto chunks = table.GetColumnByName(top);
    if (chunks == nullptr) return;
    for (const auto& chunk : chunks->chunks()) {
        if (row >= chunk->length()) {
            row -= chunk->length();
            continue;
        }
        Json value = value_at(*chunk, row, top == column ? "" : column.substr(top.size() + 1), where);
        if (top == column || !value.is_null()) json[column] = std::move(value);
        return;
    }
}

// Rows

class ArrowRows : public RowSource {
  public:
    ArrowRows(std::vector<fs::path> files, TableColumns columns, std::int64_t limit)
        : files_(std::move(files)), columns_(std::move(columns)) {
        for (std::size_t number = 0; number < files_.size(); ++number) add_file(number, limit);
        if (num_rows_ == 0) throw InputError(files_.front().string(), "", "at least one row", "none");
        if (has_ids_) find_same_ids();
    }

    std::int64_t size() const override { return num_rows_; }
    std::int64_t num_bytes(std::int64_t index) const override {
        const Group& group = group_of(index);
        return group.bytes / group.rows;
    }

    std::string id(std::int64_t index) const override {
        if (!has_ids_) return std::to_string(index + 1);
        try {
            const Group& group = group_of(index);
            return id_of(*load(group), index - group.first, index);
        } catch (const InputError&) {
            return std::to_string(index + 1);
        }
    }

    std::string label(std::int64_t index) const override {
        const Group& group = group_of(index);
        return files_[group.file].string() + ":" + std::to_string(group.first_in_file + index - group.first + 1);
    }

    Json object(std::int64_t index) const override {
        const Group& group = group_of(index);
        const Table table = load(group);
        Json json = Json::object();
        for (const std::string& column : columns_.names)
            add_value(json, *table, index - group.first, column, label(index) + ": " + column);
        const Json* const id = has_ids_ ? engine::find_member(json, columns_.id, label(index)) : nullptr;
        if (id != nullptr && !id->is_string() && !id->is_number_integer())
            throw InputError(label(index), columns_.id, "a string or an integer", engine::describe(*id));
        if (const auto same = same_ids_.find(index); same != same_ids_.end()) {
            throw InputError(label(index), columns_.id, "every id once",
                             "'" + engine::printable(this->id(index)) + "' again",
                             "row " + std::to_string(same->second + 1) + " has it");
        }
        return json;
    }

    void add_to(engine::Hash& hash) const override {
        for (const fs::path& path : files_) {
            const InputFile file(path);
            hash.add(path.filename().string() + '\n' + std::to_string(file.num_bytes()) + '\n');
            file.add_to(hash);
        }
    }

    bool has_member(const std::string& name) const override { return there_.contains(name); }

  private:
    /// Rows that are decoded together.
    struct Group {
        std::size_t file = 0;
        std::int64_t number = 0;         ///< in the file
        std::int64_t first = 0;          ///< row of the data
        std::int64_t first_in_file = 0;  ///< row of the file
        std::int64_t rows = 0, bytes = 0;
    };

    void add_file(std::size_t number, std::int64_t limit) {
        const fs::path& path = files_[number];
        const std::unique_ptr<TableFile> file = open_file(path);
        check_columns(file->schema(), path.string());
        const auto groups = reading(path, [&] { return file->groups(tops_); });
        std::int64_t in_file = 0;
        for (std::size_t g = 0; g < groups.size(); ++g) {
            const std::string name = "row group " + std::to_string(g);
            if (groups[g].rows < 0 || groups[g].rows > max_rows || num_rows_ > max_rows)
                throw InputError(path.string(), name, "a number of rows", std::to_string(groups[g].rows));
            if (groups[g].bytes > max_group_bytes)
                throw InputError(path.string(), name, "at most " + size_text(max_group_bytes),
                                 size_text(groups[g].bytes), "write smaller row groups");
            const std::int64_t rows = limit > 0 ? std::min(groups[g].rows, limit - num_rows_) : groups[g].rows;
            if (rows <= 0) continue;
            groups_.push_back({number, static_cast<std::int64_t>(g), num_rows_, in_file, rows,
                               groups[g].bytes / groups[g].rows * rows});
            in_file += rows;
            num_rows_ += rows;
        }
    }

    void check_columns(const arrow::Schema& schema, const std::string& path) {
        std::set<std::string> there;
        for (const std::string& column : columns_.names) {
            const auto type = type_of_column(schema, column);
            if (type == nullptr) continue;
            check_type(*type, path, column, 0);
            there.insert(column);
            tops_.insert(top_of(column, schema));
        }
        for (const TableColumns::Group& group : columns_.needed) {
            const auto is_there = [&](const std::string& column) { return there.contains(column); };
            if (std::any_of(group.any_of.begin(), group.any_of.end(), is_there)) continue;
            std::vector<std::string> names;
            for (const auto& field : schema.fields()) names.push_back(field->name());
            throw InputError(path, list_words(group.any_of), "a column of this name",
                             names.empty() ? "none" : "the columns " + engine::printable(list_words(names), 300),
                             group.fix);
        }
        has_ids_ |= there.contains(columns_.id);
        there_.merge(there);
    }

    [[nodiscard]] const Group& group_of(std::int64_t index) const {
        if (index < 0 || index >= num_rows_) throw std::out_of_range("row of a table");
        return *std::prev(std::upper_bound(groups_.begin(), groups_.end(), index,
                                           [](std::int64_t row, const Group& group) { return row < group.first; }));
    }

    /// Id of row `row` of a table, which is row `index` of the data. Throws InputError.
    [[nodiscard]] std::string id_of(const arrow::Table& table, std::int64_t row, std::int64_t index) const {
        Json json = Json::object();
        add_value(json, table, row, columns_.id, label(index) + ": " + columns_.id);
        const Json& id = json[columns_.id];
        if (id.is_string()) return id.get<std::string>();
        return id.is_number_integer() ? id.dump() : std::to_string(index + 1);
    }

    /// The decoded rows of a group. Items are read in the order of the groups, by several threads.
    [[nodiscard]] Table load(const Group& group) const {
        const std::lock_guard lock(mutex_);
        for (const auto& [first, table] : loaded_) {
            if (first == group.first) return table;
        }
        const fs::path& path = files_[group.file];
        Table table = reading(path, [&] { return file(group.file).read(group.number, tops_); });
        if (table->num_rows() < group.rows)
            throw InputError(path.string(), "", "the file as it was at the start", "fewer rows");
        loaded_.emplace_back(group.first, table);
        if (loaded_.size() > max_loaded_groups) loaded_.pop_front();
        return table;
    }

    [[nodiscard]] TableFile& file(std::size_t number) const {
        if (open_.size() >= max_open_files && !open_.contains(number)) open_.clear();
        std::unique_ptr<TableFile>& file = open_[number];
        if (file == nullptr) file = open_file(files_[number]);
        return *file;
    }

    /// Notes every row whose id an earlier row has. Reads only the column of the ids.
    void find_same_ids() {
        std::vector<std::pair<std::uint64_t, std::int64_t>> ids;  // hash and row
        for (const Group& group : groups_) {
            TableFile& source = file(group.file);
            const std::set<std::string> column{top_of(columns_.id, source.schema())};
            const Table table = reading(files_[group.file], [&] { return source.read(group.number, column); });
            const std::int64_t rows = std::min(group.rows, table->num_rows());
            for (std::int64_t row = 0; row < rows; ++row) {
                const std::int64_t index = group.first + row;
                try {
                    ids.emplace_back(engine::hash_of(id_of(*table, row, index)), index);
                } catch (const InputError&) {  // the item fails when it is read
                }
            }
        }
        std::sort(ids.begin(), ids.end());
        for (std::size_t i = 1; i < ids.size(); ++i) {
            if (ids[i].first != ids[i - 1].first) continue;
            const auto earlier = same_ids_.find(ids[i - 1].second);
            same_ids_.emplace(ids[i].second, earlier == same_ids_.end() ? ids[i - 1].second : earlier->second);
        }
    }

    std::vector<fs::path> files_;
    TableColumns columns_;
    std::set<std::string> tops_;   ///< top-level columns that are read
    std::set<std::string> there_;  ///< columns of any file
    bool has_ids_ = false;
    std::vector<Group> groups_;
    std::int64_t num_rows_ = 0;
    std::unordered_map<std::int64_t, std::int64_t> same_ids_;
    mutable std::mutex mutex_;
    mutable std::map<std::size_t, std::unique_ptr<TableFile>> open_;
    mutable std::deque<std::pair<std::int64_t, Table>> loaded_;
};

}  // namespace

std::unique_ptr<RowSource> open_table(const std::vector<fs::path>& files, const TableColumns& columns,
                                      std::int64_t limit) {
    return std::make_unique<ArrowRows>(files, columns, limit);
}

}  // namespace longhaul::runner
