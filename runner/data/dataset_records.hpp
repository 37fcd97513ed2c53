// Items that are some named texts (fields of a prompt template) and what belongs to them: tasks wmt, xsum, dolly and
// prompts.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/json.hpp"
#include "engine/tokenizer/chat_template.hpp"
#include "runner/data/dataset_source.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

struct Record {
    std::vector<std::string> fields;            ///< texts of RecordSource::field_names; empty where there are messages
    std::vector<engine::ChatMessage> messages;  ///< prompts: instead of fields
    std::optional<std::string> reference;       ///< what the data says should come out
    std::shared_ptr<const Settings> settings;   ///< null: the job's
};

/// Items numbered from 0 in the order of the input. Const calls are thread-safe.
class RecordSource {
  public:
    virtual ~RecordSource() = default;
    [[nodiscard]] virtual const std::vector<std::string>& field_names() const = 0;  ///< at least one
    [[nodiscard]] virtual std::int64_t size() const = 0;
    [[nodiscard]] virtual std::int64_t num_bytes(std::int64_t index) const = 0;  ///< about
    [[nodiscard]] virtual std::string id(std::int64_t index) const = 0;
    [[nodiscard]] virtual std::string label(std::int64_t index) const = 0;
    /// Throws InputError for a bad item.
    [[nodiscard]] virtual Record read(std::int64_t index) const = 0;
    /// The bytes the prompts are made from; those of the references only with `references`. Throws InputError.
    virtual void add_to(ContentHash& hash, bool references) const = 0;
    [[nodiscard]] virtual bool takes_messages() const { return false; }  ///< items may be messages
    /// Whether there are some, whatever the limit. Reads everything. Throws InputError.
    [[nodiscard]] virtual bool has_messages() const { return false; }
};

/// The data of `settings`, whose task is none of books. Throws InputError.
std::unique_ptr<RecordSource> open_records(const Settings& settings);

/// A source file and the file of its references (empty: there is none). wmt, xsum: `data` and `reference`; where that
/// is not given, the file beside `data` whose name says so: X-src.L1.sgm and X-ref.L2.sgm, X.source and X.target, and
/// for wmt X.de and X.en. `data` may be a folder that holds exactly one such pair. Throws InputError.
struct ParallelFiles {
    std::filesystem::path source, reference;
};
ParallelFiles find_parallel_files(const Settings& settings);

/// Member `key` of `object` as text without NUL; throws InputError where it is absent or something else.
std::string text_member(const engine::Json& object, const std::string& key, const std::string& where);

/// The job's settings with what the object "options" of an item changes: keys of generation only. Throws InputError.
std::shared_ptr<const Settings> with_options(const engine::Json& options, const Settings& job,
                                             const std::string& where);

}  // namespace longhaul::runner
