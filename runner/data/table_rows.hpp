// Rows of Parquet files and of datasets that Hugging Face's `datasets` saved (Arrow IPC streams), read by Apache Arrow
// where the build found it (LONGHAUL_ARROW). Used by dataset_records.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "runner/data/row_source.hpp"

namespace longhaul::runner {

/// Whether `path` is a .parquet or .arrow file, or a folder that holds such files in a way that table_files knows.
bool is_table(const std::filesystem::path& path);

/// The files of a table in the order of their rows: `path` itself, or of a folder, its "data" folder or the folder
/// named `split` in one of them: what state.json lists (datasets' save_to_disk), else the files *.parquet, else
/// *.arrow, by name. Files SPLIT-00000-of-00004.parquet of other splits than `split` are left out. Throws InputError if
/// there are none, several splits and no `split`, or if a file of such a series is missing.
std::vector<std::filesystem::path> table_files(const std::filesystem::path& path, const std::string& split);

/// Members of the objects that open_table makes.
struct TableColumns {
    /// "text", "translation.de" (a field of a struct) or "choices.0" (an element of a list). A column "id" is the id if
    /// it is among these.
    std::vector<std::string> names;
    /// Columns that must be there: at least one of each group. `fix` is a hint for the message.
    struct Group {
        std::vector<std::string> any_of;
        std::string fix;
    };
    std::vector<Group> needed;
    std::string id;  ///< column of the id, if it exists; otherwise the number of the row, from 1
};

/// Opens the first `limit` rows (0 = all) of the files. Row groups are decoded when one of their rows is read; the last
/// ones stay in memory. Throws InputError if a file cannot be read, a needed column is absent, or this build has no
/// Arrow.
std::unique_ptr<RowSource> open_table(const std::vector<std::filesystem::path>& files, const TableColumns& columns,
                                      std::int64_t limit);

}  // namespace longhaul::runner
