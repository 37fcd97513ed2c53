#include "runner/data/dataset_lines.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/error.hpp"
#include "engine/hash.hpp"
#include "runner/data/json_lines_check.hpp"
#include "runner/data/sgm.hpp"
#include "runner/job/value_text.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;

constexpr std::int64_t scan_block = 1 << 20;
constexpr std::int64_t max_line_bytes = std::int64_t{1} << 30;
constexpr std::uint32_t too_long = std::numeric_limits<std::uint32_t>::max();

/// SAX handler that finds the id of the outermost object and stops there. No JSON document is built in memory.
class IdFinder : public Json::json_sax_t {
  public:
    explicit IdFinder(std::string_view key) : key_(key) {}

    std::optional<std::string> id;
    bool wrong_type = false;

    bool null() override { return !at_id(); }  // null counts as absent
    bool boolean(bool) override { return other(); }
    bool number_integer(Json::number_integer_t value) override { return found(std::to_string(value)); }
    bool number_unsigned(Json::number_unsigned_t value) override { return found(std::to_string(value)); }
    bool number_float(Json::number_float_t, const std::string&) override { return other(); }
    bool string(std::string& value) override { return is_text(value) ? found(value) : other(); }
    bool binary(Json::binary_t&) override { return false; }
    bool start_object(std::size_t) override { return open(); }
    bool start_array(std::size_t) override { return open(); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(std::string& name) override {
        id_key_ = depth_ == 1 && name == key_;
        return true;
    }
    bool parse_error(std::size_t, const std::string&, const Json::exception&) override { return false; }

  private:
    [[nodiscard]] bool at_id() const { return depth_ == 1 && id_key_; }
    bool found(std::string value) {
        if (at_id()) id = std::move(value);
        return !at_id();
    }
    bool other() {
        if (at_id()) wrong_type = true;
        return !at_id();
    }
    bool open() {
        if (!other()) return false;
        ++depth_;
        return true;
    }
    bool close() {
        --depth_;
        return true;
    }

    std::string_view key_;
    int depth_ = 0;
    bool id_key_ = false;
};

IdFinder find_id(std::string_view bytes, std::string_view key) {
    IdFinder finder(key);
    Json::sax_parse(bytes, &finder, Json::input_format_t::json, false);
    return finder;
}

/// The JSON object `text` with every number in quotes.
std::string with_quoted_numbers(std::string_view text) {
    std::string quoted;
    bool in_string = false, in_number = false;
    for (std::size_t i = 0; i < text.size(); ++i) {
        const char c = text[i];
        const bool starts = c == '-' || (c >= '0' && c <= '9');
        const bool numeral =
            !in_string && (starts || (in_number && std::string_view("+.eE").find(c) != std::string::npos));
        if (numeral != in_number) quoted += '"';
        in_number = numeral;
        quoted += c;
        if (c == '"') in_string = !in_string;
        if (c == '\\' && i + 1 < text.size()) quoted += text[++i];
    }
    return quoted;
}

}  // namespace

LineSource::LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit, std::string shown,
                       std::string id_key)
    : shown_(std::move(shown)), id_key_(std::move(id_key)), file_(path), format_(format) {
    if (format == LineFormat::json) check_is_json_lines(file_, path, shown_);
    format == LineFormat::sgm ? scan_segments(limit) : scan_lines(limit);
    block_ = {};
    if (lines_.empty()) {
        const bool sgm = format == LineFormat::sgm;
        throw InputError(shown_, "", sgm ? "at least one <seg> element" : "at least one item",
                         file_.num_bytes() == 0 ? "an empty file"
                         : sgm                  ? "none"
                                                : "blank lines");
    }
    if (format_ == LineFormat::json || format_ == LineFormat::sgm) find_same_ids();
}

std::string LineSource::id(std::int64_t index) const {
    const Line& entry = line(index);
    const std::string number = std::to_string(entry.number);
    if (format_ == LineFormat::plain || format_ == LineFormat::parallel || entry.num_bytes == too_long) return number;
    try {
        return id_of(entry, bytes_of(entry));
    } catch (const InputError&) {
        return number;
    }
}

std::string LineSource::label(std::int64_t index) const {
    return shown_ + ":" + (format_ == LineFormat::sgm ? id(index) : std::to_string(line(index).number));
}

std::string LineSource::text(std::int64_t index) const {
    std::string bytes = whole_line(index);
    if (format_ != LineFormat::sgm) {
        check_text(bytes, label(index));
        return bytes;
    }
    refuse_same_id(index);
    bytes = segment_text(bytes);
    check_text(bytes, label(index));
    return bytes;
}

engine::Json LineSource::object(std::int64_t index) const {
    const std::string bytes = whole_line(index);
    const std::string where = label(index);
    Json json = engine::parse_json(bytes, where);
    if (!json.is_object()) throw InputError(where, "", "an object", engine::describe(json));
    if (find_id(bytes, id_key_).wrong_type)
        throw InputError(where, id_key_, "a string or an integer", engine::describe(json[id_key_]));
    refuse_same_id(index);
    return json;
}

engine::Json LineSource::spelled(std::int64_t index) const {
    return engine::parse_json(with_quoted_numbers(whole_line(index)), label(index));
}

std::string LineSource::text_of(std::int64_t index, std::span<const std::string> path) const {
    return engine::member_text(whole_line(index), path);
}

bool LineSource::has_member(const std::string& name) const {
    const std::string bytes = '"' + name + '"';
    std::string window;  // a block and the end of the previous one, since `bytes` may span both
    for (std::int64_t at = 0; at < file_.num_bytes(); at += scan_block) {
        window.erase(0, window.size() - std::min(window.size(), bytes.size() - 1));
        window += file_.read(at, scan_block);
        if (window.find(bytes) != std::string::npos) return true;
    }
    return false;
}

void LineSource::refuse_same_id(std::int64_t index) const {
    const Line& entry = line(index);
    if (entry.same_id_number == 0) return;
    const std::string earlier = std::to_string(entry.same_id_number);
    throw InputError(label(index), format_ == LineFormat::sgm ? "id" : id_key_, "every id once",
                     "'" + engine::printable(id(index)) + "' again",
                     (format_ == LineFormat::sgm ? "<seg> element " : "line ") + earlier + " has it");
}

std::string LineSource::bytes_of(const Line& line) const {
    std::string bytes = file_.read(line.offset, line.num_bytes);
    if (bytes.size() != line.num_bytes)
        throw InputError(shown_, "", "the file as it was at the start", "a shorter one");
    return bytes;
}

std::string LineSource::whole_line(std::int64_t index) const {
    const Line& entry = line(index);
    if (entry.num_bytes == too_long) throw InputError(label(index), "", "a line of at most 1 GiB", "a longer one");
    std::string bytes = bytes_of(entry);
    if (bytes.ends_with('\r')) bytes.pop_back();
    return bytes;
}

std::string LineSource::id_of(const Line& line, std::string_view bytes) const {
    if (format_ == LineFormat::json) return find_id(bytes, id_key_).id.value_or(std::to_string(line.number));
    return engine::printable(documents_.at(line.document) + ":" + sgm_attribute(bytes, "id"), 255);
}

// Indexing

void LineSource::scan_lines(std::int64_t limit) {
    const bool counts_all = format_ == LineFormat::parallel;
    std::uint32_t number = 0;
    std::int64_t begin = file_.read(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
    while (begin < file_.num_bytes() && (counts_all || limit == 0 || size() < limit)) {
        const std::int64_t end = find('\n', begin);
        add({.offset = static_cast<std::uint64_t>(begin), .number = ++number}, end, limit);
        begin = end + 1;
    }
}

/// Indexes the <seg> elements and the documents that contain them.
void LineSource::scan_segments(std::int64_t limit) {
    constexpr std::int64_t max_tag_bytes = 1 << 16;
    std::int64_t segment = -1;  // offset of the open <seg>; -1: none
    std::string buffer;
    for (std::int64_t at = find('<', 0); at < file_.num_bytes(); at = find('<', at + 1)) {
        const std::string name = sgm_tag_name(bytes_between(at, std::min(at + 8, file_.num_bytes()), buffer));
        if (name == "doc") {
            const std::int64_t tag_end = std::min(at + max_tag_bytes, file_.num_bytes());
            const std::string_view tag = bytes_between(at, tag_end, buffer);
            documents_.push_back(sgm_attribute(tag.substr(0, tag.find_first_of("<>", 1)), "docid"));
        } else if (name == "seg") {
            segment = at;
        } else if (name == "/seg" && segment >= 0) {
            if (documents_.empty()) documents_.emplace_back();
            add({.offset = static_cast<std::uint64_t>(segment),
                 .number = static_cast<std::uint32_t>(num_in_file_ + 1),
                 .document = static_cast<std::uint32_t>(documents_.size() - 1)},
                at, limit);
            segment = -1;
        }
    }
}

/// Offset of the next `byte` at or after `from`; the size of the file if there is none. Each block is read once and
/// kept.
std::int64_t LineSource::find(char byte, std::int64_t from) {
    for (std::int64_t at = from; at < file_.num_bytes();) {
        const std::int64_t block_end = block_begin_ + block_.size();
        if (at < block_begin_ || at >= block_end) {
            block_ = file_.read(at, scan_block);
            block_begin_ = at;
            if (block_.empty()) break;
            continue;
        }
        const std::size_t found = block_.find(byte, at - block_begin_);
        if (found != std::string::npos) return block_begin_ + found;
        at = block_end;
    }
    return file_.num_bytes();
}

/// Bytes [begin, end) of the file: from the current block if it contains them, otherwise read into `buffer`.
std::string_view LineSource::bytes_between(std::int64_t begin, std::int64_t end, std::string& buffer) const {
    const std::int64_t block_end = block_begin_ + block_.size();
    if (begin >= block_begin_ && end <= block_end)
        return std::string_view(block_).substr(begin - block_begin_, end - begin);
    buffer = file_.read(begin, end - begin);
    return buffer;
}

/// Adds the line from its offset to `end` to the index, if it is an item and within the limit.
void LineSource::add(Line line, std::int64_t end, std::int64_t limit) {
    ++num_in_file_;
    if (limit > 0 && size() >= limit) return;
    const std::int64_t begin = line.offset;
    if (end - begin > max_line_bytes) {
        line.num_bytes = too_long;
    } else {
        line.num_bytes = static_cast<std::uint32_t>(end - begin);
        std::string buffer;
        const std::string_view bytes = bytes_between(begin, end, buffer);
        if (bytes.size() != line.num_bytes)
            throw InputError(shown_, "", "a file that does not change", "a shorter one");
        const bool keeps_blank = format_ == LineFormat::parallel || format_ == LineFormat::sgm;
        if (!keeps_blank && bytes.find_first_not_of(" \t\r") == std::string_view::npos) return;
        if (format_ == LineFormat::json || format_ == LineFormat::sgm)
            line.id_hash = engine::hash_of(id_of(line, bytes));
    }
    lines_.push_back(line);
}

/// Marks every line whose id an earlier line has.
void LineSource::find_same_ids() {
    std::vector<std::uint32_t> order(lines_.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::uint32_t>(i);
    std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
        return lines_[a].id_hash != lines_[b].id_hash ? lines_[a].id_hash < lines_[b].id_hash : a < b;
    });
    for (std::size_t i = 1; i < order.size(); ++i) {
        Line& earlier = lines_[order[i - 1]];
        Line& later = lines_[order[i]];
        if (earlier.id_hash != later.id_hash || id(order[i - 1]) != id(order[i])) continue;
        later.same_id_number = earlier.same_id_number != 0 ? earlier.same_id_number : earlier.number;
    }
}

}  // namespace longhaul::runner
