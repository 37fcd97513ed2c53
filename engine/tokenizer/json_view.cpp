#include "engine/tokenizer/json_view.hpp"

namespace longhaul::engine {

namespace {

const Json null_value;

}  // namespace

std::string in_quotes(std::string_view text) {
    return std::string("\"").append(printable(text)).append("\"");
}

JsonView JsonView::member(std::string_view key) const {
    const Json& members = object();
    const auto found = members.find(std::string(key));
    std::string path = (path_.empty() ? "" : path_ + ".") + printable(key);
    return {found == members.end() ? null_value : *found, file_, std::move(path)};
}

JsonView JsonView::item(std::size_t index) const {
    return {list().at(index), file_, path_ + "[" + std::to_string(index) + "]"};
}

const Json& JsonView::list() const {
    if (!value_->is_array()) fail("a list");
    return *value_;
}

const Json& JsonView::object() const {
    if (!value_->is_object()) fail("an object");
    return *value_;
}

const std::string& JsonView::string() const {
    if (!value_->is_string()) fail("a string");
    return value_->get_ref<const std::string&>();
}

std::int64_t JsonView::integer(std::int64_t low, std::int64_t high) const {
    const auto refuse = [&] { fail("an integer from " + std::to_string(low) + " to " + std::to_string(high)); };
    if (!value_->is_number_integer()) refuse();
    const bool too_large =
        value_->is_number_unsigned() &&
        value_->get<std::uint64_t>() > static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max());
    if (too_large || value_->get<std::int64_t>() < low || value_->get<std::int64_t>() > high) refuse();
    return value_->get<std::int64_t>();
}

bool JsonView::boolean_or(bool fallback) const {
    if (value_->is_null()) return fallback;
    if (!value_->is_boolean()) fail("true or false");
    return value_->get<bool>();
}

void JsonView::fail(std::string_view expected) const {
    fail(expected, describe(*value_));
}

void JsonView::fail(std::string_view expected, std::string_view got) const {
    throw InputError(file_, path_.empty() ? "top level" : path_, expected, got);
}

}  // namespace longhaul::engine
