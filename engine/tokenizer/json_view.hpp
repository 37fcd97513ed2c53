// A value in a JSON file together with its path, so that every error names file and field. The tokenizer loaders use
// it.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {

/// Maximum number of steps in a normalizer, pre-tokenizer or decoder. It is more than any real file has and bounds the
/// cost per text.
inline constexpr std::size_t max_steps = 64;

/// Refers to a value inside a parsed file; the file's Json and name must outlive the view. A missing member is a null
/// view.
class JsonView {
  public:
    JsonView(const Json& value, std::string_view file, std::string path = {})
        : value_(&value), file_(file), path_(std::move(path)) {}

    [[nodiscard]] const Json& value() const { return *value_; }
    [[nodiscard]] std::string_view file() const { return file_; }
    [[nodiscard]] const std::string& path() const { return path_; }
    [[nodiscard]] bool is_null() const { return value_->is_null(); }
    [[nodiscard]] bool is_string() const { return value_->is_string(); }
    [[nodiscard]] bool is_object() const { return value_->is_object(); }

    /// A member of this object; null if absent. Throws InputError if this is not an object.
    [[nodiscard]] JsonView member(std::string_view key) const;
    /// This value as a list or as an object. Each throws InputError if it is something else.
    [[nodiscard]] const Json& list() const;
    [[nodiscard]] const Json& object() const;
    [[nodiscard]] JsonView item(std::size_t index) const;

    [[nodiscard]] const std::string& string() const;
    [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;
    [[nodiscard]] bool boolean_or(bool fallback) const;
    /// Member `type` of this object. Every part of a tokenizer.json has one.
    [[nodiscard]] const std::string& type() const { return member("type").string(); }

    /// Throws InputError: this value is not `expected`.
    [[noreturn]] void fail(std::string_view expected) const;
    [[noreturn]] void fail(std::string_view expected, std::string_view got) const;

  private:
    const Json* value_;
    std::string_view file_;
    std::string path_;
};

/// `text` in double quotes, on one line and shortened, for error messages.
std::string in_quotes(std::string_view text);

}  // namespace longhaul::engine
