#include "runner/data/json_lines_check.hpp"

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::runner {
namespace {

constexpr const char* expected = "JSONL, one object per line";
constexpr std::string_view blanks = " \t\r";

/// What a file is that is not text, and how to get JSONL from it.
struct Kind {
    std::string_view sign;  ///< first bytes, or extension
    const char* name;
    const char* fix;
};

constexpr const char* unpack_gzip = "unpack it: gunzip -k FILE";
constexpr const char* unpack_zstd = "unpack it: zstd -d FILE";
constexpr const char* convert_csv =
    "convert it: pandas.read_csv(FILE).to_json('data.jsonl', orient='records', lines=True)";
constexpr const char* convert_excel =
    "convert it: pandas.read_excel(FILE).to_json('data.jsonl', orient='records', lines=True)";

constexpr Kind first_bytes[] = {
    {"\x1f\x8b", "a gzip file", unpack_gzip},
    {"\x28\xb5\x2f\xfd", "a zstd file", unpack_zstd},
    {"\xfd"
     "7zXZ",
     "an xz file", "unpack it: xz -dk FILE"},
    {"BZh", "a bzip2 file", "unpack it: bunzip2 -k FILE"},
    {"PK\x03\x04", "a zip file", "unpack it; a sheet of Excel: pandas.read_excel(FILE).to_json(…, lines=True)"},
    {"PAR1", "a Parquet file", "its name must end in .parquet"},
    {"\xff\xfe", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"},
    {"\xfe\xff", "UTF-16 text", "convert it: iconv -f UTF-16 -t UTF-8 FILE"},
};

/// Read only where the first line is no object: a name alone decides nothing.
constexpr Kind extensions[] = {
    {".csv", "a table of .csv", convert_csv},     {".tsv", "a table of .tsv", convert_csv},
    {".xlsx", "a sheet of Excel", convert_excel}, {".xls", "a sheet of Excel", convert_excel},
    {".gz", "a file .gz", unpack_gzip},           {".zst", "a file .zst", unpack_zstd},
};

/// The lines at the beginning of a file that are not blank, without white space around them.
struct FirstLines {
    std::vector<std::string_view> lines;
    bool last_is_cut = false;
};

FirstLines first_lines(std::string_view text, bool whole) {
    FirstLines first;
    while (!text.empty()) {
        const std::size_t end = std::min(text.find('\n'), text.size());
        std::string_view line = text.substr(0, end);
        const bool cut = end == text.size() && !whole;
        text.remove_prefix(std::min(end + 1, text.size()));
        const std::size_t begin = line.find_first_not_of(blanks);
        if (begin == std::string_view::npos) continue;
        line = line.substr(begin, line.find_last_not_of(blanks) + 1 - begin);
        first.lines.push_back(line);
        first.last_is_cut = cut;
    }
    return first;
}

bool is_object(std::string_view line) {
    return line.starts_with('{') && engine::try_parse_json(line).is_object();
}

/// Whether `first` opens an array of which the file consists. One on a line of its own is a bad item, if others follow.
bool is_whole_array(const FirstLines& first) {
    if (!first.lines.front().starts_with('[')) return false;
    return first.lines.size() == 1 || engine::try_parse_json(first.lines.front()).is_discarded();
}

/// `{` alone, and then a key.
bool is_on_several_lines(const FirstLines& first) {
    return first.lines.size() > 1 && first.lines[0] == "{" && first.lines[1].starts_with('"');
}

bool is_binary(const FirstLines& first) {
    if (first.lines.front().find('\0') == std::string_view::npos) return false;
    return std::none_of(first.lines.begin(), first.lines.end(), is_object);
}

}  // namespace

void check_is_json_lines(const InputFile& file, const std::filesystem::path& path, const std::string& shown) {
    constexpr std::int64_t max_bytes = 1 << 16;
    const std::string bytes = file.read(0, max_bytes);
    std::string_view text = bytes;
    const auto refuse = [&](const char* got, const char* fix) { throw InputError(shown, "", expected, got, fix); };
    for (const Kind& kind : first_bytes) {
        if (text.starts_with(kind.sign)) refuse(kind.name, kind.fix);
    }
    if (text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    const FirstLines first = first_lines(text, file.num_bytes() <= max_bytes);
    if (first.lines.empty()) return;
    if (is_binary(first)) refuse("a binary file", "");
    if (is_whole_array(first)) refuse("a JSON array", "write its elements as lines: jq -c '.[]' FILE");
    if (is_on_several_lines(first)) refuse("an object on several lines", "write each on one line: jq -c . FILE");
    if (first.lines.front().starts_with('{')) return;
    for (const Kind& kind : extensions) {
        if (path.extension() == kind.sign) refuse(kind.name, kind.fix);
    }
}

}  // namespace longhaul::runner
