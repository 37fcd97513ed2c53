// Reading JSON written by strangers: size and nesting limits, duplicate keys, and errors that name file and field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace longhaul::engine {

using Json = nlohmann::json;

/// Parses `text`; `file` is the name in error messages. Throws InputError for bad UTF-8 (lone surrogates too), nesting
/// beyond `max_depth`, a duplicate key in an object, numbers outside double, NUL and trailing bytes. The message names
/// the place as a path of keys and, for syntax, a byte: "tokenizer.json: model.vocab@1234: expected ':', got ','".
Json parse_json(std::string_view text, std::string_view file, int max_depth = 64);

/// The same without an error, for files of our own that may be half written: `is_discarded()` where it is not JSON.
Json try_parse_json(std::string_view text);

/// The JSON text; bytes that are not UTF-8 become U+FFFD. indent -1: one line.
/// Parsing and writing are compiled in json.cpp alone: the library's templates are most of a file's compile time.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// Reads and parses a whole file of at most `max_bytes`. Throws InputError.
Json read_json(const std::filesystem::path& path, std::int64_t max_bytes = std::int64_t{1} << 28, int max_depth = 64);

/// True for the small text file that stands in for a large one where a repository was cloned without Git LFS.
bool is_git_lfs_pointer(std::string_view bytes);
inline constexpr std::string_view git_lfs_hint = "fetch the file itself: git lfs pull";

/// Whole file as bytes; throws InputError when it cannot be read, is no regular file or larger than `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes);

/// `object[key]` as an integer in [low, high]; throws InputError naming file and key, also when it is absent.
/// `within` is the path of `object` in its file, for messages: key "factor" within "rope_scaling".
std::int64_t get_int(const Json& object, std::string_view key, std::int64_t low, std::int64_t high,
                     std::string_view file, std::string_view within = {});
/// The same, `fallback` where the key is absent or null.
std::int64_t get_int_or(const Json& object, std::string_view key, std::int64_t fallback, std::int64_t low,
                        std::int64_t high, std::string_view file, std::string_view within = {});
double get_double_or(const Json& object, std::string_view key, double fallback, std::string_view file,
                     std::string_view within = {});
bool get_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view file,
                 std::string_view within = {});
std::string get_string_or(const Json& object, std::string_view key, std::string_view fallback, std::string_view file,
                          std::string_view within = {});

/// The member `key` of `object`, or nullptr where it is absent or null; throws InputError when `object` is no object.
const Json* find_member(const Json& object, std::string_view key, std::string_view file, std::string_view within = {});

/// A value in the words of an error message, short whatever its size: `-3`, `"abc"`, `an array of 7`.
std::string describe(const Json& value);

/// Text of unknown origin made fit for one line of a message: control characters and bytes that are not UTF-8 as \xNN,
/// cut with "..." after `max_bytes`.
std::string printable(std::string_view text, std::size_t max_bytes = 60);

}  // namespace longhaul::engine
