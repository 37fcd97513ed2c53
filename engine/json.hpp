// Reads untrusted JSON (model folders, job files, data): limits size and nesting, rejects duplicate keys, and throws
// errors that name the file and the field.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>

namespace longhaul::engine {

using Json = nlohmann::json;

/// Parses `text`; `file` is the name in error messages. Throws InputError for invalid UTF-8 (including lone
/// surrogates), nesting beyond `max_depth`, a duplicate key in an object, numbers outside the range of double, NUL
/// bytes and trailing bytes. The message gives the location as a path of keys and, for syntax errors, a byte offset:
/// "tokenizer.json: model.vocab@1234: expected ':', got ','".
Json parse_json(std::string_view text, std::string_view file, int max_depth = 64);

/// The same with the members of objects in their order; Json sorts them. Objects have at most 1024 members: each is
/// looked for among all.
nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view file);

/// The text of the member that `path` leads to, as it stands in `json`, which must be valid; "" if there is none.
std::string member_text(std::string_view json, std::span<const std::string> path);

/// Like parse_json but does not throw; for our own files that may be half written. `is_discarded()` is true if `text`
/// is not JSON.
Json try_parse_json(std::string_view text);

/// Serializes to JSON text; invalid UTF-8 bytes become U+FFFD. indent -1: one line. Parsing and writing are compiled
/// only in json.cpp, because the library's templates dominate a file's compile time.
std::string json_text(const Json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);

/// Reads and parses a whole file of at most `max_bytes`. Throws InputError. NaN, Infinity and -Infinity, which are no
/// JSON but which Python writes, are read as transformers 5 writes them: {"__float__": "Infinity"}; up to 64 of them.
Json read_json(const std::filesystem::path& path, std::int64_t max_bytes = std::int64_t{1} << 28, int max_depth = 64);

/// True for a Git LFS pointer: the small text file that replaces a large one in a repository cloned without Git LFS.
bool is_git_lfs_pointer(std::string_view bytes);
inline constexpr std::string_view git_lfs_hint = "fetch the file itself: git lfs pull";

/// Returns the whole file as bytes. Throws InputError if it cannot be read, is not a regular file, or is larger than
/// `max_bytes`.
std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes);

/// Returns `object[key]` as an integer in [low, high]. Throws InputError naming file and key if it is absent, not an
/// integer or out of range. `within` is the path of `object` in its file, for messages: key "factor" within
/// "rope_scaling".
std::int64_t get_int(const Json& object, std::string_view key, std::int64_t low, std::int64_t high,
                     std::string_view file, std::string_view within = {});
/// The same, but `fallback` if the key is absent or null.
std::int64_t get_int_or(const Json& object, std::string_view key, std::int64_t fallback, std::int64_t low,
                        std::int64_t high, std::string_view file, std::string_view within = {});
double get_double_or(const Json& object, std::string_view key, double fallback, std::string_view file,
                     std::string_view within = {});
bool get_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view file,
                 std::string_view within = {});
std::string get_string_or(const Json& object, std::string_view key, std::string_view fallback, std::string_view file,
                          std::string_view within = {});

/// Returns the member `key` of `object`, or nullptr if it is absent or null. Throws InputError if `object` is not an
/// object.
const Json* find_member(const Json& object, std::string_view key, std::string_view file, std::string_view within = {});

/// Describes a value for an error message, always briefly: `-3`, `"abc"`, `an array of 7`.
std::string describe(const Json& value);

/// Makes untrusted text fit for one line of a message: control characters and invalid UTF-8 bytes become \xNN, and text
/// beyond `max_bytes` is cut with "...".
std::string printable(std::string_view text, std::size_t max_bytes = 60);

}  // namespace longhaul::engine
