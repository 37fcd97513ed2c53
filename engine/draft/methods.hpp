// Draft methods by name: what job files may ask for, before any model is loaded.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

namespace longhaul::engine {

/// How the drafts of one node come about: decides which verification rules may see them.
enum class Draws : std::uint8_t {
    none,                 ///< no drafts at all
    certain,              ///< not sampled: each is one-hot
    chain,                ///< one sampled draft
    independent,          ///< several, each sampled as if alone
    without_replacement,  ///< several, each sampled without those before it
};

/// How `draft-tree` is written for a method.
enum class TreeForm : std::uint8_t { none, chain, chains, branching, beam, budgeted };

/// How large trees may grow at a step: the first rank's choice under `draft-tree = auto`. Depth 0: nothing is drafted.
struct TreeLimits {
    static constexpr std::int64_t none = std::int64_t{1} << 30;
    std::int64_t depth = none, width = none;
    bool operator==(const TreeLimits&) const = default;
};

/// Tokens that a draft model reads at most to draft again after a pause that lasted longer: it then begins anew, as if
/// the text began there. All of a long text would cost more than a few drafts can bring.
constexpr std::int64_t most_catching_up = 128;

struct DraftMethod {
    std::string name;
    Draws draws = Draws::none;
    TreeForm form = TreeForm::none;
    std::string default_tree;
    std::int64_t least_models = 0, most_models = 0;  ///< `draft-model` folders
};

/// All of this version.
const std::vector<DraftMethod>& draft_methods();
/// Throws UsageError naming the methods there are.
const DraftMethod& find_draft_method(const std::string& name);

/// `draft-tree` as users write it: chain "5", K chains or width x depth "4x3", with a node budget "4x3:12", branching
/// "2,2,1".
struct TreeShape {
    std::int64_t width = 1, depth = 1, budget = 1;
    std::vector<std::int64_t> branching;  ///< children a node, a level; only where it was written so

    [[nodiscard]] std::int64_t num_nodes() const;
};
/// Throws UsageError.
TreeShape parse_tree_shape(const std::string& text);

/// The tree of a method: `text`, its default where that is empty, the greatest to choose from where it is "auto".
/// Throws UsageError where the method has no such trees, or fewer chains than `num_models`, each of which draws one.
TreeShape tree_of(const DraftMethod& method, const std::string& text, std::int64_t num_models = 1);

/// The tree of a job that names none. n-grams' follow their worth, where measured time cannot change the text
/// (`coupled`).
std::string own_tree(const DraftMethod& method, bool coupled);

/// Whether a tree's size is chosen by measured costs and acceptance (TreeChooser). n-grams have their own measure of a
/// node's worth (DraftEconomy).
bool chooses_tree(const DraftMethod& method, const std::string& text);

/// The trees that `draft-tree = auto` chooses from: a width and a depth. What a width means is the method's: nodes a
/// level or chains, and where trees branch, children of the root, half as many a level further down.
struct TreeFamily {
    std::vector<std::int64_t> widths;  ///< ascending, 1 first
    std::int64_t most_depth = 16, most_nodes = 48;
    bool branches = false;
    std::int64_t num_models = 0;  ///< that draft; chains take turns with them

    /// Children that a node of `level` has (the root's is 0) in trees that branch; else nodes of the level below it.
    [[nodiscard]] std::int64_t fan_out(std::int64_t level, std::int64_t width) const {
        return branches ? std::max<std::int64_t>(1, level < 30 ? width >> level : 0) : width;
    }
};
TreeFamily tree_family(const DraftMethod& method, std::int64_t num_models);

}  // namespace longhaul::engine
