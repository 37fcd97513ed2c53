// Stands in for arrow_rows.cpp in a build without Apache Arrow.
#include "engine/error.hpp"
#include "runner/data/table_rows.hpp"

namespace longhaul::runner {

std::unique_ptr<RowSource> open_table(const std::vector<std::filesystem::path>& files, const TableColumns& /*columns*/,
                                      std::int64_t /*limit*/) {
    throw InputError(files.front().string(), "", "a build with Apache Arrow, which reads tables", "one without",
                     "pip install pyarrow and build again (LONGHAUL_ARROW), or convert the data to JSONL");
}

}  // namespace longhaul::runner
