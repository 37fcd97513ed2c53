#include <algorithm>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "engine/error.hpp"
#include "engine/json.hpp"
#include "runner/dataset_source.hpp"
#include "runner/values.hpp"

namespace longhaul::runner {
namespace {

using engine::Json;

constexpr std::int64_t scan_block = 1 << 20;
constexpr std::int64_t most_line_bytes = std::int64_t{1} << 30;

/// What is kept of a line. 32 bytes: a data set of ten million prompts costs 320 MB of index a rank, no more.
struct Line {
    std::uint64_t offset = 0;
    std::uint64_t id_hash = 0;
    std::uint32_t num_bytes = 0;       ///< without the line end; the greatest value stands for "too long"
    std::uint32_t number = 0;          ///< in the file, from 1
    std::uint32_t same_id_number = 0;  ///< number of an earlier line with the same id, 0 = none
    std::uint32_t reserved = 0;
};
static_assert(sizeof(Line) == 32);

/// Finds the "id" of the outermost object and stops there: a line is not built up in memory to learn its id.
class IdFinder : public Json::json_sax_t {
  public:
    std::optional<std::string> id;
    bool wrong_type = false;

    bool null() override { return !at_id(); }  // null is as good as absent
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
        id_key_ = depth_ == 1 && name == "id";
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

    int depth_ = 0;
    bool id_key_ = false;
};

class LineSource : public ItemSource {
  public:
    LineSource(const std::filesystem::path& path, LineFormat format, std::int64_t limit)
        : path_(path.string()), file_(path), format_(format) {
        scan(limit);
        if (lines_.empty())
            throw InputError(path_, "", "at least one item", file_.num_bytes() == 0 ? "an empty file" : "blank lines");
        if (format_ != LineFormat::plain) find_same_ids();
    }

    std::int64_t size() const override { return static_cast<std::int64_t>(lines_.size()); }
    std::int64_t text_bytes(std::int64_t index) const override { return line(index).num_bytes; }
    std::string label(std::int64_t index) const override { return path_ + ":" + std::to_string(line(index).number); }

    std::string id(std::int64_t index) const override {
        std::string number = std::to_string(line(index).number);
        if (format_ == LineFormat::plain || too_long(line(index))) return number;
        try {
            return find_id(bytes_of(line(index))).id.value_or(number);
        } catch (const InputError&) {
            return number;
        }
    }

    ItemText read(std::int64_t index, std::int64_t max_bytes) const override {
        ItemText item;
        try {
            item.text = text_of(index);
        } catch (const InputError& error) {
            item.error = error.what();
        }
        const auto size = item.text.size();
        item.text.resize(whole_characters(item.text, static_cast<std::size_t>(max_bytes)).size());
        item.whole = item.text.size() == size;
        return item;
    }

    std::uint64_t fingerprint() const override {
        ContentHash hash;
        hash.add(file_);
        return hash.value();
    }

  private:
    const Line& line(std::int64_t index) const { return lines_.at(static_cast<std::size_t>(index)); }
    static bool too_long(const Line& line) { return line.num_bytes == std::numeric_limits<std::uint32_t>::max(); }

    std::string bytes_of(const Line& line) const {
        std::string bytes = file_.read(static_cast<std::int64_t>(line.offset), line.num_bytes);
        if (bytes.size() != line.num_bytes)
            throw InputError(path_, "", "the file as it was at the start", "a shorter one");
        return bytes;
    }

    static IdFinder find_id(const std::string& bytes) {
        IdFinder finder;
        Json::sax_parse(bytes, &finder, Json::input_format_t::json, false);
        return finder;
    }

    /// Lists the lines that are not blank.
    void scan(std::int64_t limit) {
        std::uint32_t number = 0;
        std::int64_t begin = file_.read(0, 3) == "\xEF\xBB\xBF" ? 3 : 0;
        while (begin < file_.num_bytes() && (limit == 0 || size() < limit)) {
            const std::int64_t end = find_line_end(begin);
            add_line(begin, end, ++number);
            begin = end + 1;
        }
        block_ = {};
    }

    /// Offset of the next line feed, or the end of the file. Blocks are read once: the current one is kept.
    std::int64_t find_line_end(std::int64_t from) {
        for (std::int64_t at = from; at < file_.num_bytes();) {
            const auto block_end = block_begin_ + static_cast<std::int64_t>(block_.size());
            if (at < block_begin_ || at >= block_end) {
                block_ = file_.read(at, scan_block);
                block_begin_ = at;
                if (block_.empty()) break;
                continue;
            }
            const std::size_t found = block_.find('\n', static_cast<std::size_t>(at - block_begin_));
            if (found != std::string::npos) return block_begin_ + static_cast<std::int64_t>(found);
            at = block_end;
        }
        return file_.num_bytes();
    }

    void add_line(std::int64_t begin, std::int64_t end, std::uint32_t number) {
        Line line{.offset = static_cast<std::uint64_t>(begin), .number = number};
        const std::int64_t bytes = end - begin;
        if (bytes > most_line_bytes) {
            line.num_bytes = std::numeric_limits<std::uint32_t>::max();
        } else {
            line.num_bytes = static_cast<std::uint32_t>(bytes);
            const std::string start = bytes_of(line);
            if (start.find_first_not_of(" \t\r") == std::string::npos) return;
            const std::string id =
                format_ == LineFormat::plain ? "" : find_id(start).id.value_or(std::to_string(number));
            line.id_hash = hash_of(id);
        }
        lines_.push_back(line);
    }

    /// Marks every line whose id an earlier line has.
    void find_same_ids() {
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

    std::string text_of(std::int64_t index) const {
        const Line& entry = line(index);
        if (too_long(entry)) throw InputError(label(index), "", "a line of at most 1 GiB", "a longer one");
        std::string bytes = bytes_of(entry);
        if (bytes.ends_with('\r')) bytes.pop_back();
        return format_ == LineFormat::plain ? plain_text(std::move(bytes), label(index))
                                            : json_field(bytes, entry, label(index));
    }

    static std::string plain_text(std::string bytes, const std::string& where) {
        const std::size_t bad = first_bad_byte(bytes);
        if (bad == std::string::npos) return bytes;
        const std::string got = bytes[bad] == '\0' ? "a NUL byte" : "byte " + engine::printable(bytes.substr(bad, 1));
        throw InputError(where, "@" + std::to_string(bad), "UTF-8 text", got);
    }

    std::string json_field(const std::string& bytes, const Line& entry, const std::string& where) const {
        const Json json = engine::parse_json(bytes, where);
        const std::string field = format_ == LineFormat::json_text ? "text" : "prompt";
        const Json* value = engine::find_member(json, field, where);
        if (value == nullptr && json.contains("messages")) {
            throw InputError(where, "messages", "a \"prompt\"", "messages", "chat templates are not in this version");
        }
        if (value == nullptr) throw InputError(where, field, "a string", "nothing");
        if (!value->is_string()) throw InputError(where, field, "a string", engine::describe(*value));
        const IdFinder finder = find_id(bytes);
        if (finder.wrong_type) throw InputError(where, "id", "a string or an integer", engine::describe(json["id"]));
        if (entry.same_id_number != 0) {
            throw InputError(where, "id", "every id once",
                             "'" + engine::printable(finder.id.value_or(std::to_string(entry.number))) + "' again",
                             "line " + std::to_string(entry.same_id_number) + " has it");
        }
        std::string text = value->get<std::string>();
        if (!is_text(text)) throw InputError(where, field, "text", "a NUL character");
        return text;
    }

    std::string path_;
    InputFile file_;
    LineFormat format_;
    std::vector<Line> lines_;
    std::string block_;  ///< of the scan
    std::int64_t block_begin_ = 0;
};

}  // namespace

std::unique_ptr<ItemSource> open_lines(const std::filesystem::path& path, LineFormat format, std::int64_t limit) {
    return std::make_unique<LineSource>(path, format, limit);
}

}  // namespace longhaul::runner
