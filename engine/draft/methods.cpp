#include "engine/draft/methods.hpp"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t max_tree_nodes = 1024;

[[noreturn]] void refuse_tree(const std::string& text) {
    throw UsageError(
        "draft-tree: expected a chain '5', width x depth '4x3', with a node budget '4x3:12', or branching '2,2,1' (at "
        "most " +
        std::to_string(max_tree_nodes) + " nodes), got '" + text + "'");
}

std::int64_t take_number(std::string_view& rest, const std::string& text) {
    std::int64_t number = 0;
    const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
    if (error != std::errc() || number < 1 || number > max_tree_nodes) refuse_tree(text);
    rest.remove_prefix(static_cast<std::size_t>(end - rest.data()));
    return number;
}

bool take(std::string_view& rest, char sign) {
    if (!rest.starts_with(sign)) return false;
    rest.remove_prefix(1);
    return true;
}

/// What a form is called in words, "" where `shape` has it.
std::string wanted_form(TreeForm form, const TreeShape& shape) {
    const bool branching = !shape.branching.empty();
    const bool budget = !branching && shape.budget != shape.width * shape.depth;
    switch (form) {
        case TreeForm::none:
            return "";
        case TreeForm::chain:
            return branching || budget || shape.width > 1 ? "the length of a chain, such as 5" : "";
        case TreeForm::chains:
            return branching || budget ? "chains x length, such as 4x3" : "";
        case TreeForm::branching:
            return budget || (!branching && shape.width > 1) ? "children a node for each level, such as 2,2,1" : "";
        case TreeForm::beam:
            return branching || budget ? "width x depth, such as 4x3" : "";
        case TreeForm::budgeted:
            return branching ? "width x depth, such as 4x3 or 4x3:12" : "";
    }
    return "";
}

}  // namespace

// Where methods are named: a new one is a line here, one where it is made (drafter.cpp), and a file beside this one.
const std::vector<DraftMethod>& draft_methods() {
    static const std::vector<DraftMethod> methods{
        {.name = "ar", .draws = Draws::none, .form = TreeForm::none, .default_tree = ""},
        {.name = "ngram", .draws = Draws::certain, .form = TreeForm::budgeted, .default_tree = "4x8:16"},
        {.name = "sd",
         .draws = Draws::chain,
         .form = TreeForm::chain,
         .default_tree = "4",
         .least_models = 1,
         .most_models = 1},
        {.name = "spectr",
         .draws = Draws::independent,
         .form = TreeForm::chains,
         .default_tree = "3x4",
         .least_models = 1,
         .most_models = 1},
        {.name = "specinfer",
         .draws = Draws::independent,
         .form = TreeForm::chains,
         .default_tree = "3x4",
         .least_models = 1,
         .most_models = 8},
        {.name = "rsd-c",
         .draws = Draws::without_replacement,
         .form = TreeForm::branching,
         .default_tree = "2,2,1",
         .least_models = 1,
         .most_models = 1},
        {.name = "rsd-s",
         .draws = Draws::without_replacement,
         .form = TreeForm::beam,
         .default_tree = "3x4",
         .least_models = 1,
         .most_models = 1},
        {.name = "replay", .draws = Draws::certain, .form = TreeForm::budgeted, .default_tree = "4"},
    };
    return methods;
}

const DraftMethod& find_draft_method(const std::string& name) {
    std::string names;
    for (const DraftMethod& method : draft_methods()) {
        if (method.name == name) return method;
        if (!names.empty()) names += ", ";
        names += method.name;
    }
    throw UsageError("draft: '" + name + "' is not in this version; it has " + names);
}

std::int64_t TreeShape::num_nodes() const {
    if (branching.empty()) return budget;
    std::int64_t nodes = 0;
    std::int64_t level = 1;
    for (const std::int64_t children : branching) {
        level = std::min(level * children, 2 * max_tree_nodes);
        nodes = std::min(nodes + level, 2 * max_tree_nodes);
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
    if (!rest.empty() || shape.num_nodes() > max_tree_nodes) refuse_tree(text);
    return shape;
}

std::string own_tree(const DraftMethod& method, bool coupled) {
    return method.name == "ngram" && coupled ? "auto" : method.default_tree;
}

bool chooses_tree(const DraftMethod& method, const std::string& text) {
    return text == "auto" && method.form != TreeForm::none && method.name != "ngram";
}

TreeFamily tree_family(const DraftMethod& method, std::int64_t num_models) {
    TreeFamily family;
    family.widths =
        method.form == TreeForm::chain ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 2, 3, 4, 6, 8};
    family.branches = method.form == TreeForm::branching;
    family.num_models = num_models;
    return family;
}

/// What holds every tree of the family.
static TreeShape greatest_tree(const DraftMethod& method) {
    const TreeFamily family = tree_family(method, 0);
    TreeShape shape{
        .width = family.widths.back(), .depth = family.most_depth, .budget = family.most_nodes, .branching = {}};
    for (std::int64_t level = 0; family.branches && level < shape.depth; ++level)
        shape.branching.push_back(family.fan_out(level, shape.width));
    return shape;
}

TreeShape tree_of(const DraftMethod& method, const std::string& text, std::int64_t num_models) {
    if (method.form == TreeForm::none) return {.width = 0, .depth = 0, .budget = 0, .branching = {}};
    if (chooses_tree(method, text)) return greatest_tree(method);
    if (text == "auto") return parse_tree_shape(method.default_tree);
    TreeShape shape = parse_tree_shape(text.empty() ? method.default_tree : text);
    const std::string wanted = wanted_form(method.form, shape);
    if (!wanted.empty())
        throw UsageError("draft-tree: expected " + wanted + ", with draft = " + method.name + ", got '" + text + "'");
    if (method.form == TreeForm::chains && shape.width < num_models)
        throw UsageError("draft-tree: expected at least " + std::to_string(num_models) +
                         " chains, one of each draft-model, got '" + (text.empty() ? method.default_tree : text) + "'");
    if (method.form == TreeForm::branching && shape.branching.empty())
        shape.branching.assign(static_cast<std::size_t>(shape.depth), 1);
    return shape;
}

}  // namespace longhaul::engine
