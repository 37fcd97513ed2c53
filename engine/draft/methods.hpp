// The registry of draft methods: what job files may ask for, and what every method says of itself before any part of it
// is loaded. Job checks, loading, the memory plan and the cost model read these rows; none of them knows a name.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/draft/tree_spec.hpp"

namespace longhaul::engine {

class Drafter;
class TreeMethod;
struct DraftContext;

/// How the drafts of one node come about: decides which verification rules may see them.
enum class Draws : std::uint8_t {
    none,                 ///< no drafts at all
    certain,              ///< not sampled: each is one-hot
    chain,                ///< one sampled draft
    independent,          ///< several, each sampled as if alone
    without_replacement,  ///< several, each sampled without those before it
};

/// What a method drafts with, beside the target.
enum class DraftPart : std::uint8_t {
    none,
    language_model,  ///< `draft-model` folders of whole models with the target's vocabulary
    heads,           ///< trained heads on the target's hidden states: a `draft-model` folder, or in the target's own
};

/// How large trees may grow at a step: the first rank's choice under `draft-tree = auto`. Depth 0: nothing is drafted.
struct TreeLimits {
    static constexpr std::int64_t none = std::int64_t{1} << 30;
    std::int64_t depth = none, width = none;
    bool operator==(const TreeLimits&) const = default;
};

/// Tokens that a draft model reads at most to draft again after a pause that lasted longer: it then begins anew, as if
/// the text began there. All of a long text would cost more than a few drafts can bring.
constexpr std::int64_t max_catching_up = 128;

/// A row of the registry.
struct DraftMethod {
    std::string name;
    std::string summary;  ///< what it proposes, in a few words: for --help
    Draws draws = Draws::none;
    TreeForm form = TreeForm::none;
    std::string default_tree;
    DraftPart part = DraftPart::none;
    std::int64_t min_folders = 0, max_folders = 0;  ///< of `draft-model`
    /// It knows a chance for each node and leaves out those that do not pay (DraftEconomy); else `draft-tree = auto` is
    /// the business of TreeChooser.
    bool weighs_nodes = false;
    bool chained_heads = false;    ///< its heads were trained each on the one before
    bool needs_recording = false;  ///< an earlier run's output: for benchmarks and tests
    /// The trees that draft language models fill.
    std::unique_ptr<TreeMethod> (*make_trees)(const TreeShape& shape, std::int64_t num_models) = nullptr;
    std::unique_ptr<Drafter> (*make)(const DraftContext& context) = nullptr;

    [[nodiscard]] bool drafts() const { return draws != Draws::none; }
};

/// All of this version.
const std::vector<DraftMethod>& draft_methods();
/// Throws UsageError naming the methods there are.
const DraftMethod& find_draft_method(std::string_view name);

/// A row of the registry, found once by its name.
class DraftMethodRef {
  public:
    // Implicit, so that a method can be written as its name wherever one is set. Throws UsageError.
    DraftMethodRef(std::string_view name) : row_(&find_draft_method(name)) {}
    DraftMethodRef(const char* name) : DraftMethodRef(std::string_view(name)) {}
    DraftMethodRef(const std::string& name) : DraftMethodRef(std::string_view(name)) {}
    DraftMethodRef(const DraftMethod& row) : row_(&row) {}

    [[nodiscard]] const DraftMethod* operator->() const { return row_; }
    [[nodiscard]] const DraftMethod& operator*() const { return *row_; }
    bool operator==(const DraftMethodRef&) const = default;

  private:
    const DraftMethod* row_;
};

/// The trees of a method: those of `spec`, its default where nothing is given, the greatest to choose from where it is
/// `auto`. Throws UsageError where the method has no such trees, or fewer chains than `num_models`, each of which draws
/// one.
TreeShape tree_of(const DraftMethod& method, const TreeSpec& spec, std::int64_t num_models = 1);

/// The trees of a job that names none: `auto` for a method that weighs its nodes, where measured time cannot change the
/// text (`coupled`).
TreeSpec own_tree(const DraftMethod& method, bool coupled);

/// Whether a tree's size is chosen by measured costs and acceptance (TreeChooser).
bool chooses_tree(const DraftMethod& method, const TreeSpec& spec);

/// The trees that `draft-tree = auto` chooses from: a width and a depth. What a width means is the method's: nodes per
/// level or chains, and where trees branch, children of the root, half as many a level further down.
struct TreeFamily {
    std::vector<std::int64_t> widths;  ///< ascending, 1 first
    std::int64_t max_depth = 16, max_nodes = 48;
    bool branches = false;
    std::int64_t num_models = 0;  ///< that draft; chains take turns with them
    bool by_heads = false;        ///< a level costs a row of the target's output head

    /// Children that a node of `level` has (the root's is 0) in trees that branch; else nodes of the level below it.
    [[nodiscard]] std::int64_t fan_out(std::int64_t level, std::int64_t width) const {
        return branches ? std::max<std::int64_t>(1, level < 30 ? width >> level : 0) : width;
    }
};
TreeFamily tree_family(const DraftMethod& method, std::int64_t num_models);

}  // namespace longhaul::engine
