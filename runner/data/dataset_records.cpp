#include "runner/data/dataset_records.hpp"

#include <utility>

#include "engine/error.hpp"
#include "runner/data/batch_requests.hpp"
#include "runner/data/json_records.hpp"
#include "runner/data/table_rows.hpp"
#include "runner/job/settings.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

namespace fs = std::filesystem;
using engine::Json;

/// {"id"?, "source", "reference"?}, or {"translation": {"de", "en"}} as Hugging Face's datasets of WMT have it
class WmtRecords : public JsonRecords {
  public:
    explicit WmtRecords(const Settings& settings)
        : JsonRecords(settings, {"source"},
                      {.names = {"source", "reference"},
                       .needed = {{"source"}},
                       .other_names = {{"source", "translation.de"}, {"reference", "translation.en"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "source", where)};
        record.reference = optional_text(object, "reference", where);
        return record;
    }
};

/// {"id"?, "document", "summary"}
class XsumRecords : public JsonRecords {
  public:
    explicit XsumRecords(const Settings& settings)
        : JsonRecords(settings, {"document"},
                      {.names = {"document", "summary"}, .needed = {{"document"}, {"summary"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "document", where)};
        record.reference = needed_text(object, "summary", where);
        return record;
    }
};

/// {"id"?, "instruction", "context"?, "response", "category"?}
class DollyRecords : public JsonRecords {
  public:
    explicit DollyRecords(const Settings& settings)
        : JsonRecords(settings, {"instruction", "context", "category"},
                      {.names = {"instruction", "context", "response", "category"},
                       .needed = {{"instruction"}, {"response"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        Record record;
        record.fields = {needed_text(object, "instruction", where),
                         optional_text(object, "context", where).value_or(""),
                         optional_text(object, "category", where).value_or("")};
        record.reference = needed_text(object, "response", where);
        return record;
    }
};

/// {"id"?, "prompt", "length", "type"?}
class LongWriterRecords : public JsonRecords {
  public:
    explicit LongWriterRecords(const Settings& settings)
        : JsonRecords(settings, {"prompt", "length", "type"},
                      {.names = {"prompt", "length", "type"}, .needed = {{"prompt"}, {"length"}}}) {}

  private:
    Record record_of(const Json& object, const std::string& where) const override {
        constexpr std::int64_t max_words = 10'000'000;
        Record record;
        record.required_words = engine::get_int(object, "length", 1, max_words, where);
        record.fields = {needed_text(object, "prompt", where), std::to_string(*record.required_words),
                         optional_text(object, "type", where).value_or("")};
        return record;
    }
};

bool is_json(const fs::path& path) {
    return path.extension() == ".jsonl" || path.extension() == ".json";
}

}  // namespace

std::string text_member(const Json& object, const std::string& key, const std::string& where) {
    const Json* value = engine::find_member(object, key, where);
    if (value == nullptr || !value->is_string())
        throw InputError(where, key, "a string", value == nullptr ? "nothing" : engine::describe(*value));
    std::string text = value->get<std::string>();
    if (!is_text(text)) throw InputError(where, key, "text", "a NUL character");
    return text;
}

std::optional<std::string> optional_text(const Json& object, const std::string& key, const std::string& where) {
    if (engine::find_member(object, key, where) == nullptr) return std::nullopt;
    return text_member(object, key, where);
}

/// Throws UsageError for keys that only objects or tables have, and InputError for a table with a file of references.
static void check_data_keys(const Settings& settings, bool table, bool objects) {
    const auto refuse = [&](const char* key, const std::string& with, const std::string& got) {
        throw UsageError(InputError::format(settings.origins.of(key), key, "none with data of " + with, got, ""));
    };
    if (!objects && !settings.column.empty()) refuse("column", "lines of text", shown(settings.column.front()));
    if (!table && !settings.split.empty()) refuse("split", "one file or of lines", shown(settings.split));
    if (objects && !settings.reference.empty())
        refuse("reference", table ? "a table" : "JSON objects, which have theirs", shown(settings.reference.string()));
}

std::unique_ptr<RecordSource> open_records(const Settings& settings) {
    std::error_code error;
    const std::string& task = settings.task;
    const bool table = is_table(settings.data);
    const bool folder = !table && fs::is_directory(settings.data, error);
    const bool lines = ((task == "wmt" || task == "xsum") && (folder || !is_json(settings.data))) ||
                       (task == "prompts" && settings.data.extension() == ".txt");
    check_data_keys(settings, table, table || !lines);
    if (task == "openai-batch" && (table || folder))
        throw InputError(settings.data.string(), "", "a .jsonl file of requests", table ? "a table" : "a folder");
    if (task == "openai-batch") return open_batch(settings);
    if (!table && lines && task != "prompts") return open_parallel(settings, task == "wmt" ? "source" : "document");
    if (!table && lines) {
        return open_prompts_of_lines(settings);
    }
    if (folder) {
        const char* const content = task == "dolly"        ? "instructions"
                                    : task == "longwriter" ? "prompts and lengths"
                                                           : "prompts";
        const char* const kinds =
            task == "prompts" ? "a .jsonl, .txt or .parquet file with " : "a .jsonl or .parquet file with ";
        throw InputError(settings.data.string(), "", std::string(kinds) + content, "a folder without tables");
    }
    if (task == "wmt") return std::make_unique<WmtRecords>(settings);
    if (task == "xsum") return std::make_unique<XsumRecords>(settings);
    if (task == "dolly") return std::make_unique<DollyRecords>(settings);
    if (task == "longwriter") return std::make_unique<LongWriterRecords>(settings);
    return open_prompts(settings);
}

}  // namespace longhaul::runner
