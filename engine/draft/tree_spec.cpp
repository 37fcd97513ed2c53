#include "engine/draft/tree_spec.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t max_spec_nodes = 1024;

[[noreturn]] void refuse_tree(const std::string& text) {
    throw UsageError(
        "draft-tree: expected a chain '5', width x depth '4x3', with a node budget '4x3:12', or branching '2,2,1' (at "
        "most " +
        std::to_string(max_spec_nodes) + " nodes), got '" + text + "'");
}

std::int64_t take_number(std::string_view& rest, const std::string& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || number < 1 || number > max_spec_nodes) refuse_tree(text);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return number;
}

bool take(std::string_view& rest, char sign) {
    if (!rest.starts_with(sign)) return false;
    rest.remove_prefix(1);
    return true;
}

}  // namespace

std::int64_t TreeShape::num_nodes() const {
    if (branching.empty()) return budget;
    std::int64_t nodes = 0;
    std::int64_t level = 1;
    for (const std::int64_t children : branching) {
        level = std::min(level * children, 2 * max_spec_nodes);
        nodes = std::min(nodes + level, 2 * max_spec_nodes);
    }
    return nodes;
}

TreeShape parse_tree_shape(const std::string& text) {
    std::string_view rest = text;
    TreeShape shape;
    shape.depth = take_number(rest, text);
    if (rest.starts_with(',')) {
        shape.branching.push_back(shape.depth);
        while (take(rest, ',')) shape.branching.push_back(take_number(rest, text));
        shape.depth = static_cast<std::int64_t>(shape.branching.size());
        shape.budget = shape.num_nodes();
    } else {
        if (take(rest, 'x')) {
            shape.width = shape.depth;
            shape.depth = take_number(rest, text);
        }
        shape.budget = shape.width * shape.depth;
        if (take(rest, ':')) shape.budget = take_number(rest, text);
    }
    if (!rest.empty() || shape.num_nodes() > max_spec_nodes) refuse_tree(text);
    return shape;
}

TreeSpec::TreeSpec(std::string text) : text_(std::move(text)), auto_(text_ == "auto") {
    if (is_given() && !auto_) shape_ = parse_tree_shape(text_);
}

}  // namespace longhaul::engine
