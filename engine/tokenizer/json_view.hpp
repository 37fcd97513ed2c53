// A place in a JSON file that knows its name, so that every complaint names file and field.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

#include "engine/error.hpp"
#include "engine/json.hpp"

namespace longhaul::engine {

/// More steps than any file has, in a normalizer, a pre-tokenizer or a decoder: keeps a text from costing without
/// bound.
inline constexpr std::size_t max_steps = 64;

/// Refers to a value inside a parsed file; the file's Json and name must outlive it. A missing member is a null view.
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

    /// A member of this object; null when it is absent. Throws when this is no object.
    [[nodiscard]] JsonView member(std::string_view key) const;
    /// This as a list, or an object; throws otherwise.
    [[nodiscard]] const Json& list() const;
    [[nodiscard]] const Json& object() const;
    [[nodiscard]] JsonView item(std::size_t index) const;

    [[nodiscard]] const std::string& string() const;
    [[nodiscard]] std::int64_t integer(std::int64_t low, std::int64_t high) const;
    [[nodiscard]] bool boolean_or(bool fallback) const;
    /// `type` of this object, which every part of a tokenizer.json has.
    [[nodiscard]] const std::string& type() const { return member("type").string(); }

    /// Throws InputError: this value is not what was expected.
    [[noreturn]] void fail(std::string_view expected) const;
    [[noreturn]] void fail(std::string_view expected, std::string_view got) const;

  private:
    const Json* value_;
    std::string_view file_;
    std::string path_;
};

/// Text in quotes for an error message, on one line and shortened.
std::string in_quotes(std::string_view text);

}  // namespace longhaul::engine
