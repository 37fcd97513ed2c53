// What every operation of one rendering needs: its limits, the place in the template for messages, and the makers of
// values whose bytes are counted.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/tokenizer/jinja/template.hpp"
#include "engine/tokenizer/jinja/value.hpp"

namespace longhaul::engine::jinja {

using Values = std::vector<Value>;

/// Arguments of a call, filter or test.
struct Arguments {
    Values positional;
    std::vector<std::pair<std::string, Value>> keyword;
};

class Runtime {
  public:
    Runtime(std::string_view file, const RenderOptions& options, std::size_t input_bytes);

    /// Sets the place that messages name: a line of the template, and the operation: "filter", "join".
    void enter(int at_line, std::string_view kind, std::string_view name = {}) {
        line_ = at_line;
        kind_ = kind;
        name_ = name;
    }
    /// Throws InputError: "FILE:LINE: filter 'join': expected X, got Y".
    [[noreturn]] void fail(std::string_view expected, std::string_view got) const;
    /// Throws InputError: the operation needs `expected` and was given `value`.
    [[noreturn]] void refuse(std::string_view expected, const Value& value) const;
    /// Throws InputError if `value` is undefined, naming what was not defined.
    void require_defined(const Value& value) const;

    /// Counts one step of work, and more for an operation that walks over `num_bytes`. Throws InputError beyond the
    /// limit.
    void work(std::size_t num_bytes = 0);
    /// Throws InputError if a text of `num_bytes` would be too long. Called before it is made.
    void check_text_bytes(std::size_t num_bytes) const;

    Value text(std::string bytes, bool markup = false);
    Value list(Values items) { return sequence(Kind::list, std::move(items)); }
    Value tuple(Values items) { return sequence(Kind::tuple, std::move(items)); }
    Value iterator(Values items) { return sequence(Kind::iterator, std::move(items)); }
    Value sequence(Kind kind, Values items, std::string_view label = {});
    Value dict(std::vector<std::pair<Value, Value>> items);
    Value name_space(std::vector<std::pair<Value, Value>> fields);
    /// Undefined, because of `reason`: "variable 'tools', which is undefined".
    Value undefined(std::string_view reason);

    [[nodiscard]] const RenderOptions& options() const { return options_; }
    [[nodiscard]] std::size_t max_text_bytes() const { return max_text_bytes_; }
    [[nodiscard]] Memory* memory() { return &memory_; }

    /// Scope guard of one level of recursion. Throws InputError if there are too many.
    class Level {
      public:
        explicit Level(Runtime& runtime);
        ~Level() { --runtime_.levels_; }
        Level(const Level&) = delete;
        Level& operator=(const Level&) = delete;

      private:
        Runtime& runtime_;
    };

  private:
    /// Throws InputError if the values take too much memory.
    void check_memory() const;
    void check_depth(const Value& value) const;

    std::string_view file_;
    int line_ = 1;
    std::string_view kind_, name_;
    const RenderOptions& options_;
    std::size_t max_text_bytes_, max_live_bytes_;
    std::uint64_t max_work_, work_ = 0;
    int levels_ = 0;
    Memory memory_;
    /// Namespaces live as long as the rendering: one may hold itself, so references cannot be counted.
    std::vector<std::unique_ptr<Dict>> namespaces_;
};

/// Text that is being written: the output, or that of a macro or block. Its bytes are counted.
class Output {
  public:
    explicit Output(Runtime& runtime) : runtime_(runtime) {}
    ~Output() { runtime_.memory()->live_bytes -= text_.size(); }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    void append(std::string_view more);
    /// The text; this is empty afterwards.
    std::string take();

  private:
    Runtime& runtime_;
    std::string text_;
};

}  // namespace longhaul::engine::jinja
