// Chat templates in Jinja, rendered as transformers renders them (ImmutableSandboxedEnvironment of jinja2 3.1.6 with
// trim_blocks, lstrip_blocks, loop controls and the tag `generation`). Used by ChatTemplate.
//
// Not supported, and refused by name: include, import, extends, block, autoescape, recursive loops, and the filters,
// functions and methods that are listed with the error. Integers have 64 bits; an overflow is an error.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/tokenizer/jinja/value.hpp"

namespace longhaul::engine::jinja {

/// Date that strftime_now formats; the time is 00:00:00.
struct Date {
    int year = 2024, month = 7, day = 26;
    bool operator==(const Date&) const = default;
};

/// Variables of a template: name and value.
using Variables = std::vector<std::pair<std::string, Value>>;

struct RenderOptions {
    Date today{};
};

/// The template called raise_exception: what() is its message, on one line.
class Raised : public std::runtime_error {
  public:
    using std::runtime_error::runtime_error;
};

struct Body;  // statements of a template

/// A parsed template. Const members are thread-safe.
class Template {
  public:
    /// `file` is the name in messages. Throws InputError, with file and line, for what Jinja or this implementation
    /// does not accept.
    static Template parse(std::string_view source, std::string file);

    /// Returns the rendered text. Throws Raised, and InputError with file and line if an operation fails or a limit is
    /// exceeded: steps, length of texts, memory, recursion.
    [[nodiscard]] std::string render(const Variables& variables, const RenderOptions& options = {}) const;

  private:
    Template(std::string file, std::shared_ptr<const Body> body) : file_(std::move(file)), body_(std::move(body)) {}

    std::string file_;
    std::shared_ptr<const Body> body_;
};

}  // namespace longhaul::engine::jinja
