// Refuses files that cannot be JSONL before a job runs: otherwise each of their lines would be an item that fails.
// Used by LineSource (dataset_lines.cpp).
#pragma once

#include <filesystem>
#include <string>

#include "runner/data/dataset_source.hpp"

namespace longhaul::runner {

/// Throws InputError if the file is a table or compressed by its name or its first bytes, binary, a JSON array, or JSON
/// on several lines. One bad line among good ones is no reason: it fails as one item. `shown` is the file's name.
void check_is_json_lines(const InputFile& file, const std::filesystem::path& path, const std::string& shown);

}  // namespace longhaul::runner
