// Values of a template, with the semantics of the Python objects they stand for. Texts, lists, tuples and dicts are
// immutable (the sandbox of transformers refuses methods that change them), so they are shared by reference and can
// form no cycle.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace longhaul::engine::jinja {

enum class Kind : std::uint8_t {
    undefined,
    none,
    boolean,
    integer,
    real,
    text,
    list,
    tuple,
    dict,
    view,        ///< dict.keys(), .values(), .items()
    iterator,    ///< what filters such as map and select return: can be walked once
    range,       ///< range(n), its numbers written out
    name_space,  ///< namespace(): the only object that a template changes
    loop,        ///< `loop` in a for loop
    macro,
    function,  ///< a global function
    method,    ///< a method with its object: text.strip
};

/// Bytes in use by the values of one rendering.
struct Memory {
    std::size_t live_bytes = 0;
};

/// Base of what values share. Counts its bytes in `memory` while it lives; null: not counted (literals of a template
/// and the caller's variables).
struct Object {
    Object(Memory* where, std::size_t num_bytes);
    Object(const Object&) = delete;
    Object& operator=(const Object&) = delete;
    virtual ~Object();

  private:
    Memory* memory_;
    std::size_t bytes_;
};

struct Text;
struct Sequence;
struct Dict;

/// One value. Copies are cheap.
class Value {
  public:
    Value() = default;  ///< undefined, for no stated reason
    Value(Kind kind, std::shared_ptr<Object> object) : kind_(kind), object_(std::move(object)) {}

    static Value none() { return {Kind::none, nullptr}; }
    static Value boolean(bool value) { return {Kind::boolean, value ? 1 : 0}; }
    static Value integer(std::int64_t value) { return {Kind::integer, value}; }
    static Value real(double value);
    /// A global function, by its number.
    static Value function(std::int64_t number) { return {Kind::function, number}; }
    // The next ones are for the caller's variables: their bytes are not counted. See Runtime for the others.
    static Value text(std::string bytes);
    static Value list(std::vector<Value> items);
    static Value dict(std::vector<std::pair<Value, Value>> items);

    [[nodiscard]] Kind kind() const { return kind_; }
    [[nodiscard]] bool is(Kind kind) const { return kind_ == kind; }
    /// A bool counts as an integer, as in Python.
    [[nodiscard]] bool is_integer() const { return is(Kind::integer) || is(Kind::boolean); }
    [[nodiscard]] bool is_number() const { return is_integer() || is(Kind::real); }
    [[nodiscard]] bool is_sequence() const { return is(Kind::list) || is(Kind::tuple) || is(Kind::range); }

    [[nodiscard]] bool as_bool() const { return integer_ != 0; }        ///< boolean
    [[nodiscard]] std::int64_t as_integer() const { return integer_; }  ///< boolean, integer, function
    [[nodiscard]] double as_real() const;                               ///< any number
    [[nodiscard]] const Text& as_text() const;                          ///< text, undefined with a reason
    [[nodiscard]] const std::string& bytes() const;                     ///< text
    [[nodiscard]] const Sequence& as_sequence() const;                  ///< list, tuple, range, view, iterator
    [[nodiscard]] const Dict& as_dict() const;                          ///< dict, name_space
    [[nodiscard]] const std::shared_ptr<Object>& object() const { return object_; }

    /// Python's truth of a value.
    [[nodiscard]] bool truth() const;
    /// Levels of containers: 0 for a scalar, 1 for a list of scalars.
    [[nodiscard]] int depth() const;
    /// What the value is, for messages: "a list".
    [[nodiscard]] std::string_view kind_name() const;

  private:
    Value(Kind kind, std::int64_t integer) : kind_(kind), integer_(integer) {}

    Kind kind_ = Kind::undefined;
    std::int64_t integer_ = 0;  ///< boolean, integer, function; bits of a real
    std::shared_ptr<Object> object_;
};

/// A string. Python's strings are sequences of code points; these are the same in UTF-8.
struct Text : Object {
    Text(Memory* memory, std::string text, bool is_markup = false);

    const std::string bytes;  ///< valid UTF-8
    const bool ascii;         ///< positions in bytes are positions in code points
    const bool markup;        ///< made by filter safe or escape: `+` escapes what it is joined with
};

struct Sequence : Object {
    Sequence(Memory* memory, std::vector<Value> values, std::string_view text = {});

    const std::vector<Value> items;
    const std::string label;   ///< view: "dict_keys"; range: "range(0, 3)"
    int depth = 1;             ///< at least 1, see Value::depth
    std::size_t position = 0;  ///< iterator: number of items that were taken
};

/// Items in the order they were put in.
struct Dict : Object {
    explicit Dict(Memory* memory, std::vector<std::pair<Value, Value>> values = {});

    std::vector<std::pair<Value, Value>> items;
    int depth = 1;
};

/// Containers within containers beyond this are refused, so that code may walk values recursively.
inline constexpr int max_depth = 64;

/// The text of a real number as Python's repr() writes it: shortest digits that give the same bits.
std::string real_text(double value);

/// Reads JSON, with members of objects in the order of the text. Throws InputError (see engine/json.hpp) with `file` as
/// the name of the text.
Value value_of_json(std::string_view text, std::string_view file);

}  // namespace longhaul::engine::jinja
