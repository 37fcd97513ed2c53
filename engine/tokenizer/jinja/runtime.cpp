#include "engine/tokenizer/jinja/runtime.hpp"

#include <utility>

#include "engine/error.hpp"

namespace longhaul::engine::jinja {
namespace {

// Limits of one rendering. They grow with the input, so that long messages are not refused. For a chat of 1,000
// messages published templates take 40 thousand to 10 million steps (70 were measured), at about 10 ns each; of two of
// them the number grows with the square of the messages.
constexpr std::uint64_t base_work = 50'000'000;
constexpr std::uint64_t steps_per_input_byte = 16;
constexpr std::size_t base_text_bytes = std::size_t{64} << 20;
constexpr std::size_t base_live_bytes = std::size_t{256} << 20;
constexpr std::size_t text_bytes_per_input_byte = 8;
constexpr std::size_t live_bytes_per_input_byte = 32;
constexpr std::size_t bytes_per_step = 128;  // copying so many bytes takes about as long as one step
constexpr int max_levels = 1000;

}  // namespace

Runtime::Runtime(std::string_view file, const RenderOptions& options, std::size_t input_bytes)
    : file_(file),
      options_(options),
      max_text_bytes_(base_text_bytes + text_bytes_per_input_byte * input_bytes),
      max_live_bytes_(base_live_bytes + live_bytes_per_input_byte * input_bytes),
      max_work_(base_work + steps_per_input_byte * input_bytes) {}

void Runtime::fail(std::string_view expected, std::string_view got) const {
    std::string construct(kind_);
    if (!name_.empty()) construct.append(" '").append(name_).append("'");
    throw InputError(std::string(file_) + ":" + std::to_string(line_), construct, expected, got);
}

void Runtime::refuse(std::string_view expected, const Value& value) const {
    require_defined(value);
    fail(expected, value.kind_name());
}

void Runtime::require_defined(const Value& value) const {
    if (value.is(Kind::undefined)) fail("a defined value", value.object() ? value.bytes() : value.kind_name());
}

void Runtime::work(std::size_t num_bytes) {
    work_ += 1 + num_bytes / bytes_per_step;
    if (work_ > max_work_) fail("a template that ends", "more than " + std::to_string(max_work_) + " steps");
}

void Runtime::check_text_bytes(std::size_t num_bytes) const {
    if (num_bytes > max_text_bytes_)
        fail("a text of at most " + std::to_string(max_text_bytes_) + " bytes", std::to_string(num_bytes));
}

void Runtime::check_memory() const {
    if (memory_.live_bytes > max_live_bytes_)
        fail("values of at most " + std::to_string(max_live_bytes_) + " bytes", "more");
}

void Runtime::check_depth(const Value& value) const {
    if (value.depth() > max_depth) fail("at most " + std::to_string(max_depth) + " levels of lists and dicts", "more");
}

Value Runtime::text(std::string bytes, bool markup) {
    check_text_bytes(bytes.size());
    work(bytes.size());
    Value value(Kind::text, std::make_shared<Text>(&memory_, std::move(bytes), markup));
    check_memory();
    return value;
}

Value Runtime::sequence(Kind kind, Values items, std::string_view label) {
    work(items.size() * sizeof(Value));
    Value value(kind, std::make_shared<Sequence>(&memory_, std::move(items), label));
    check_memory();
    check_depth(value);
    return value;
}

Value Runtime::dict(std::vector<std::pair<Value, Value>> items) {
    work(items.size() * sizeof(items[0]));
    Value value(Kind::dict, std::make_shared<Dict>(&memory_, std::move(items)));
    check_memory();
    check_depth(value);
    return value;
}

Value Runtime::name_space(std::vector<std::pair<Value, Value>> fields) {
    namespaces_.push_back(std::make_unique<Dict>(&memory_, std::move(fields)));
    check_memory();
    return {Kind::name_space, std::shared_ptr<Object>(std::shared_ptr<Object>(), namespaces_.back().get())};
}

Value Runtime::undefined(std::string_view reason) {
    return {Kind::undefined, std::make_shared<Text>(&memory_, std::string(reason))};
}

Runtime::Level::Level(Runtime& runtime) : runtime_(runtime) {
    if (runtime_.levels_ >= max_levels)
        runtime_.fail("at most " + std::to_string(max_levels) + " levels of nested evaluation", "more");
    ++runtime_.levels_;
}

void Output::append(std::string_view more) {
    runtime_.check_text_bytes(text_.size() + more.size());
    runtime_.work(more.size());
    text_ += more;
    runtime_.memory()->live_bytes += more.size();
}

std::string Output::take() {
    runtime_.memory()->live_bytes -= text_.size();
    return std::exchange(text_, {});
}

}  // namespace longhaul::engine::jinja
