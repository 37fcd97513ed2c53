#include "engine/json.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "engine/descriptor.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

/// Length of the well-formed UTF-8 character at the start of `text` (1 to 4); 0 if there is none.
std::size_t utf8_length(std::string_view text) {
    const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(i < text.size() ? text[i] : 0); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return 1;
    const std::size_t length = lead >= 0xF0 ? 4 : lead >= 0xE0 ? 3 : 2;
    if (lead < 0xC2 || lead > 0xF4) return 0;
    for (std::size_t i = 1; i < length; ++i) {
        if ((byte(i) & 0xC0) != 0x80) return 0;
    }
    const bool overlong = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xF0 && byte(1) < 0x90);
    const bool surrogate = lead == 0xED && byte(1) >= 0xA0;
    const bool beyond = lead == 0xF4 && byte(1) >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

bool is_json_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/// Builds the document from the parser's SAX events. Rejects what the library would accept: deep nesting and duplicate
/// keys (the library would silently keep the last value). The parser itself uses no C++ stack per level; the depth
/// limit protects all code that later walks the document recursively.
class Builder {
  public:
    Builder(std::string_view file, int max_depth) : file_(file), max_depth_(static_cast<std::size_t>(max_depth)) {}

    Json take() { return std::move(root_); }

    // SAX events; the library prescribes the names.
    bool null() { return put(Json(nullptr)); }
    bool boolean(bool value) { return put(Json(value)); }
    bool number_integer(Json::number_integer_t value) { return put(Json(value)); }
    bool number_unsigned(Json::number_unsigned_t value) { return put(Json(value)); }
    bool number_float(Json::number_float_t value, const std::string&) { return put(Json(value)); }
    bool string(std::string& value) { return put(Json(std::move(value))); }
    bool binary(Json::binary_t&) { return false; }
    bool start_object(std::size_t) { return open(Json::object()); }
    bool start_array(std::size_t) { return open(Json::array()); }
    bool end_object() { return close(); }
    bool end_array() { return close(); }

    bool key(std::string& name) {
        Level& level = levels_.back();
        const auto [place, fresh] = level.container->get_ref<Json::object_t&>().try_emplace(std::move(name));
        level.key = &place->first;
        level.slot = &place->second;
        if (!fresh) throw InputError(file_, path(), "every key once", "this key twice");
        return true;
    }

    bool parse_error(std::size_t position, const std::string&, const nlohmann::detail::exception& error) {
        // `position` counts the bytes read so far; the last one is the offending byte.
        const std::string field = path() + "@" + std::to_string(position > 0 ? position - 1 : 0);
        std::string_view text = error.what();
        if (error.id == number_overflow_id) {
            throw InputError(file_, field, "a number within the range of double", quoted_number(text));
        }
        // "[json…] parse error at line 1, column 2: syntax error while parsing value - unexpected ','; expected ':'"
        skip_past(text, " - ");
        std::string_view expected = "JSON";
        if (const std::size_t at = text.rfind("; expected "); at != std::string_view::npos) {
            expected = text.substr(at + std::strlen("; expected "));
            text = text.substr(0, at);
        }
        if (text.substr(0, unexpected.size()) == unexpected) text.remove_prefix(unexpected.size());
        throw InputError(file_, field, expected, shortened(text));
    }

  private:
    struct Level {
        Json* container;
        const std::string* key;  ///< key of the member being read; objects only
        Json* slot;              ///< destination of its value; objects only
    };

    static constexpr int number_overflow_id = 406;
    static constexpr std::string_view unexpected = "unexpected ";

    static void skip_past(std::string_view& text, std::string_view mark) {
        if (const std::size_t at = text.find(mark); at != std::string_view::npos) text.remove_prefix(at + mark.size());
    }

    /// Shortens "reason; last read: 'token'": keeps only the end of a long token, because the error is there.
    static std::string shortened(std::string_view text) {
        constexpr std::string_view mark = "; last read: '";
        constexpr std::size_t max_token_bytes = 40;
        const std::size_t at = text.find(mark);
        if (at == std::string_view::npos) return printable(text, 120);
        std::string_view token = text.substr(at + mark.size());
        const bool cut = token.size() > max_token_bytes;
        if (cut) token.remove_prefix(token.size() - max_token_bytes);
        return printable(text.substr(0, at), 120) + " at the end of '" + (cut ? "..." : "") + printable(token, 200);
    }

    static std::string quoted_number(std::string_view text) {
        skip_past(text, "number overflow parsing ");
        return printable(text);
    }

    Json* put_in_place(Json&& value) {
        if (levels_.empty()) {
            root_ = std::move(value);
            return &root_;
        }
        const Level& level = levels_.back();
        if (level.container->is_object()) {
            *level.slot = std::move(value);
            return level.slot;
        }
        auto& array = level.container->get_ref<Json::array_t&>();
        array.push_back(std::move(value));
        return &array.back();
    }

    bool put(Json&& value) {
        put_in_place(std::move(value));
        return true;
    }

    bool open(Json&& empty) {
        if (levels_.size() >= max_depth_) {
            throw InputError(file_, path(), "at most " + std::to_string(max_depth_) + " levels of nesting", "more");
        }
        Json* container = put_in_place(std::move(empty));
        levels_.push_back({container, nullptr, nullptr});
        return true;
    }

    bool close() {
        levels_.pop_back();
        return true;
    }

    /// Path of the parser's current location: "model.merges[17]".
    [[nodiscard]] std::string path() const {
        constexpr std::size_t max_bytes = 100;
        std::string result;
        for (const Level& level : levels_) {
            if (level.container->is_array()) {
                result.append("[").append(std::to_string(level.container->size())).append("]");
            } else if (level.key != nullptr) {
                if (!result.empty()) result += ".";
                result += printable(*level.key);
            }
            if (result.size() > max_bytes) return result + "...";
        }
        return result;
    }

    std::string_view file_;
    std::size_t max_depth_;
    Json root_;
    std::vector<Level> levels_;
};

std::string field_name(std::string_view within, std::string_view key) {
    return within.empty() ? std::string(key) : std::string(within) + "." + std::string(key);
}

std::string range_text(std::int64_t low, std::int64_t high) {
    return "an integer from " + std::to_string(low) + " to " + std::to_string(high);
}

std::int64_t checked_int(const Json& value, std::string_view key, std::int64_t low, std::int64_t high,
                         std::string_view file, std::string_view within) {
    const bool fits = value.is_number_unsigned() ? std::in_range<std::int64_t>(value.get<std::uint64_t>())
                                                 : value.is_number_integer();
    if (fits) {
        const auto number = value.get<std::int64_t>();
        if (number >= low && number <= high) return number;
    }
    throw InputError(file, field_name(within, key), range_text(low, high), describe(value));
}

}  // namespace

std::string printable(std::string_view text, std::size_t max_bytes) {
    constexpr std::string_view hex = "0123456789abcdef";
    std::string result;
    while (!text.empty()) {
        if (result.size() >= max_bytes) return result + "...";
        const auto byte = static_cast<unsigned char>(text.front());
        const std::size_t length = utf8_length(text);
        if (length == 0 || byte < 0x20 || byte == 0x7F) {
            result.append("\\x").append(1, hex[byte >> 4]).append(1, hex[byte & 15]);
            text.remove_prefix(1);
        } else {
            result.append(text.substr(0, length));
            text.remove_prefix(length);
        }
    }
    return result;
}

std::string describe(const Json& value) {
    switch (value.type()) {
        case Json::value_t::string:
            return '"' + printable(value.get_ref<const std::string&>()) + '"';
        case Json::value_t::object:
            return "an object of " + std::to_string(value.size());
        case Json::value_t::array:
            return "an array of " + std::to_string(value.size());
        default:
            return value.dump();
    }
}

Json parse_json(std::string_view text, std::string_view file, int max_depth) {
    // The library treats a NUL as the end of the text and would ignore the rest.
    if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos) {
        throw InputError(file, "@" + std::to_string(nul), "JSON", "a NUL byte");
    }
    Builder builder(file, max_depth);
    if (!Json::sax_parse(text.begin(), text.end(), &builder)) throw InputError(file, "", "JSON", "something else");
    return builder.take();
}

static void check_sizes(const Json& json, std::string_view file) {
    constexpr std::size_t max_members = 1024;
    if (json.is_object() && json.size() > max_members)
        throw InputError(file, "", "objects of at most " + std::to_string(max_members) + " members", describe(json));
    if (json.is_structured()) {
        for (const Json& one : json) check_sizes(one, file);
    }
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, std::string_view file) {
    check_sizes(parse_json(text, file), file);  // refuses more than the library does
    return nlohmann::ordered_json::parse(text);
}

/// Offset behind the value that begins at `at`; JSON is known to be valid.
static std::size_t behind_value(std::string_view json, std::size_t at) {
    int depth = 0;
    for (bool in_string = false; at < json.size(); ++at) {
        const char c = json[at];
        if (in_string) {
            if (c == '\\') ++at;
            in_string = c != '"';
            if (!in_string && depth == 0) return at + 1;
            continue;
        }
        const bool closes = c == ']' || c == '}';
        if (depth == 0 && (c == ',' || closes || is_json_blank(c))) return at;
        in_string = c == '"';
        depth += c == '[' || c == '{' ? 1 : closes ? -1 : 0;
        if (closes && depth == 0) return at + 1;
    }
    return at;
}

std::string member_text(std::string_view json, std::span<const std::string> path) {
    const auto skip_blanks = [&](std::size_t at) {
        while (at < json.size() && is_json_blank(json[at])) ++at;
        return at;
    };
    std::size_t at = skip_blanks(0);
    for (const std::string& name : path) {
        if (at >= json.size() || json[at] != '{') return "";
        const std::string wanted = json_text(Json(name));
        bool found = false;
        for (at = skip_blanks(at + 1); at < json.size() && json[at] == '"' && !found;) {
            const std::size_t end = behind_value(json, at);
            const std::string_view key = json.substr(at, end - at);
            found = key == wanted || (key.find('\\') != std::string_view::npos && Json::parse(key) == Json(name));
            at = skip_blanks(skip_blanks(end) + 1);  // behind the colon
            if (found) break;
            at = skip_blanks(behind_value(json, at));
            if (at < json.size() && json[at] == ',') at = skip_blanks(at + 1);
        }
        if (!found) return "";
    }
    return std::string(json.substr(at, behind_value(json, at) - at));
}

Json try_parse_json(std::string_view text) {
    return Json::parse(text, nullptr, false);
}

std::string json_text(const Json& value, int indent) {
    return value.dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& value, int indent) {
    return value.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

/// See read_json. Only so many of these numbers: each is much longer as an object.
static std::string with_python_numbers(const std::string& text) {
    constexpr int max_numbers = 64;
    if (text.find("NaN") == std::string::npos && text.find("Infinity") == std::string::npos) return text;
    std::string json;
    bool in_string = false;
    int count = 0;
    for (std::size_t at = 0; at < text.size();) {
        const std::string_view rest = std::string_view(text).substr(at);
        const std::string_view names[] = {"NaN", "Infinity", "-Infinity"};
        const auto* const name = std::find_if(std::begin(names), std::end(names), [&](std::string_view one) {
            return !in_string && count < max_numbers && rest.starts_with(one);
        });
        if (name != std::end(names)) {
            json += R"({"__float__":")" + std::string(*name) + R"("})";
            at += name->size();
            ++count;
            continue;
        }
        const std::size_t length = in_string && rest.front() == '\\' && rest.size() > 1 ? 2 : 1;
        if (rest.front() == '"') in_string = !in_string;
        json += rest.substr(0, length);
        at += length;
    }
    return json;
}

Json read_json(const std::filesystem::path& path, std::int64_t max_bytes, int max_depth) {
    const std::string text = read_file(path, max_bytes);
    if (is_git_lfs_pointer(text)) throw InputError(path.string(), "", "JSON", "a Git-LFS pointer", git_lfs_hint);
    return parse_json(with_python_numbers(text), path.string(), max_depth);
}

bool is_git_lfs_pointer(std::string_view bytes) {
    constexpr std::string_view mark = "version https://git-lfs.github.com/spec/";
    return bytes.substr(0, mark.size()) == mark;
}

std::string read_file(const std::filesystem::path& path, std::int64_t max_bytes) {
    const std::string name = path.string();
    // Without O_NONBLOCK, opening a named pipe that has no writer would block forever.
    const Descriptor file(::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
    struct stat info {};
    if (file.get() < 0 || ::fstat(file.get(), &info) != 0) {
        throw InputError(name, "", "a readable file", std::strerror(errno));
    }
    if (S_ISDIR(info.st_mode)) throw InputError(name, "", "a file", "a folder");
    if (!S_ISREG(info.st_mode)) throw InputError(name, "", "a regular file", "a device, pipe or socket");
    if (info.st_size > max_bytes) {
        throw InputError(name, "size", "at most " + std::to_string(max_bytes) + " bytes", std::to_string(info.st_size));
    }
    std::string bytes(static_cast<std::size_t>(info.st_size), '\0');
    std::size_t have = 0;
    while (have < bytes.size()) {
        const ssize_t got = ::read(file.get(), bytes.data() + have, bytes.size() - have);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) throw InputError(name, "@" + std::to_string(have), "readable bytes", std::strerror(errno));
        if (got == 0) break;  // the file shrank while we read it: the caller checks what is left
        have += static_cast<std::size_t>(got);
    }
    bytes.resize(have);
    return bytes;
}

const Json* find_member(const Json& object, std::string_view key, std::string_view file, std::string_view within) {
    if (!object.is_object()) throw InputError(file, within, "an object", describe(object));
    const auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::int64_t get_int(const Json& object, std::string_view key, std::int64_t low, std::int64_t high,
                     std::string_view file, std::string_view within) {
    const Json* value = find_member(object, key, file, within);
    if (value == nullptr) {
        const bool present = object.contains(key);
        throw InputError(file, field_name(within, key), range_text(low, high), present ? "null" : "nothing");
    }
    return checked_int(*value, key, low, high, file, within);
}

std::int64_t get_int_or(const Json& object, std::string_view key, std::int64_t fallback, std::int64_t low,
                        std::int64_t high, std::string_view file, std::string_view within) {
    const Json* value = find_member(object, key, file, within);
    return value == nullptr ? fallback : checked_int(*value, key, low, high, file, within);
}

double get_double_or(const Json& object, std::string_view key, double fallback, std::string_view file,
                     std::string_view within) {
    const Json* value = find_member(object, key, file, within);
    if (value == nullptr) return fallback;
    if (!value->is_number()) throw InputError(file, field_name(within, key), "a number", describe(*value));
    return value->get<double>();
}

bool get_bool_or(const Json& object, std::string_view key, bool fallback, std::string_view file,
                 std::string_view within) {
    const Json* value = find_member(object, key, file, within);
    if (value == nullptr) return fallback;
    if (!value->is_boolean()) throw InputError(file, field_name(within, key), "true or false", describe(*value));
    return value->get<bool>();
}

std::string get_string_or(const Json& object, std::string_view key, std::string_view fallback, std::string_view file,
                          std::string_view within) {
    const Json* value = find_member(object, key, file, within);
    if (value == nullptr) return std::string(fallback);
    if (!value->is_string()) throw InputError(file, field_name(within, key), "a string", describe(*value));
    return value->get<std::string>();
}

}  // namespace longhaul::engine
