// The job key `draft-tree`: the shape of draft trees as users write it, and its parser.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::engine {

/// Chain "5", K chains or width x depth "4x3", with a node budget "4x3:12", branching "2,2,1".
struct TreeShape {
    std::int64_t width = 1, depth = 1, budget = 1;
    std::vector<std::int64_t> branching;  ///< children per node, by level; empty unless given in this form

    /// Whether no node can have two children.
    [[nodiscard]] bool is_chain() const { return branching.empty() && width == 1; }
    [[nodiscard]] std::int64_t num_nodes() const;
    /// Maximum number of nodes of a tree, root excluded.
    [[nodiscard]] std::int64_t max_nodes() const { return std::min(num_nodes(), budget); }
};
/// Throws UsageError.
TreeShape parse_tree_shape(const std::string& text);

/// The forms of `draft-tree`; each method takes one.
enum class TreeForm : std::uint8_t { none, chain, chains, branching, beam, budgeted };

/// A value of `draft-tree`: not given (the method's default), `auto`, or a shape.
class TreeSpec {
  public:
    TreeSpec() = default;
    // Implicit, so that a spec can be given as text. Throws UsageError.
    TreeSpec(std::string text);
    TreeSpec(const char* text) : TreeSpec(std::string(text)) {}

    [[nodiscard]] bool is_given() const { return !text_.empty(); }
    [[nodiscard]] bool is_auto() const { return auto_; }
    /// Only valid if it is given and not `auto`.
    [[nodiscard]] const TreeShape& shape() const { return shape_; }
    [[nodiscard]] const std::string& text() const { return text_; }
    bool operator==(const TreeSpec& other) const { return text_ == other.text_; }

  private:
    std::string text_;
    bool auto_ = false;
    TreeShape shape_;
};

}  // namespace longhaul::engine
