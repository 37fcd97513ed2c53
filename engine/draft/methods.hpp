// The registry of draft methods: the values of the job file's `draft` key, and the properties of each method that are
// known before any part of it is loaded. Job checks, loading, the memory plan and the cost model read these rows and
// never compare method names.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/draft/tree_spec.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {

class Drafter;
class TreeMethod;
struct DraftContext;

/// How the drafts of one node are drawn. Decides which verification rules may be used (ALGORITHMS.md section 3).
enum class Draws : std::uint8_t {
    none,                 ///< no drafts at all
    certain,              ///< not sampled: each draft has a one-hot distribution
    chain,                ///< one sampled draft
    independent,          ///< several, sampled independently
    without_replacement,  ///< several, sampled without replacement
};

/// The additional weights that a method drafts with.
enum class DraftPart : std::uint8_t {
    none,
    language_model,  ///< complete models with the target's vocabulary, in `draft-model` folders
    layer,           ///< a trained draft layer on the target's hidden states, in a `draft-model` folder, or its own
    heads,           ///< trained heads on the target's hidden states, in a `draft-model` folder or the target's folder
};

/// Maximum depth and width of the trees of a step, chosen by the first rank under `draft-tree = auto`. Depth 0: nothing
/// is drafted.
struct TreeLimits {
    static constexpr std::int64_t none = std::int64_t{1} << 30;
    std::int64_t depth = none, width = none;
    std::int64_t method = 0;  ///< the method that drafts: an index of DraftMethod::alternatives
    bool operator==(const TreeLimits&) const = default;
};

/// Acceptance estimates that the drafts of a model need to pay (DraftEconomy).
struct TreePrices {
    double node = 0;        ///< of a node, to be in the tree
    double level = 0;       ///< of a node, to be worth a pass of the model for the level below it
    double sure_ngram = 1;  ///< of an n-gram, to be taken instead of a pass of the model
};

/// After a pause in drafting, a draft model that is more than this many tokens behind restarts: it reads only the end
/// of the text, at most this many tokens, as if the text began there. Reading all of a long text would cost more than a
/// few drafts can gain.
constexpr std::int64_t max_catching_up = 128;

/// Tokens that the small model of `triforce` drafts at most before each pass of the middle stage.
constexpr std::int64_t small_drafts_per_pass = 3;
/// Tokens at the end of the text that it reads at most.
constexpr std::int64_t small_text_window = 1024;

/// What the remaining levels of a chain make after a rejection: a tree together with the next regular one, a tree with
/// a target pass of its own, or nothing.
enum class Resample : std::uint8_t { fused, separate, off };

/// Shape of that tree.
constexpr const char* default_resample_tree = "4x2:4";

/// A row of the registry.
struct DraftMethod {
    std::string name;
    std::string summary;  ///< what it proposes, in a few words, for --help
    Draws draws = Draws::none;
    TreeForm form = TreeForm::none;
    std::string default_tree;
    DraftPart part = DraftPart::none;
    std::int64_t min_folders = 0, max_folders = 0;  ///< number of `draft-model` folders
    /// The method estimates a probability for each node and leaves out nodes that do not pay (DraftEconomy). For other
    /// methods TreeChooser handles `draft-tree = auto`.
    bool weighs_nodes = false;
    bool has_ngrams = false;     ///< drafts from n-gram counts, alone or beside its own drafts
    bool chained_heads = false;  ///< each of its heads was trained on the one before
    /// Its draft passes run the target's own weights, often at a lower precision (`draft-precision`), over a part of
    /// the target's own keys and values (`partial-cache`).
    bool copies_target = false;
    bool chains_states = false;  ///< its draft layer continues hidden states without the tokens between them
    bool own_layer = false;      ///< its draft layer is the target's for multi-token prediction, in the target's folder
    bool fixed_shape = false;    ///< `draft-tree = auto` does not apply to it
    bool needs_recording = false;  ///< needs an earlier run's output (benchmarks and tests)
    /// Names of two methods: each step drafts with the one that gives more tokens per second (DraftChooser), so only
    /// `coupled` may verify it. Checkpoints hold the state of the first. Empty: this is a method of its own.
    std::vector<const char*> alternatives{};
    /// Makes the TreeMethod of a method over draft language models.
    std::unique_ptr<TreeMethod> (*make_trees)(const TreeShape& shape, std::int64_t num_models) = nullptr;
    std::unique_ptr<Drafter> (*make)(const DraftContext& context) = nullptr;

    [[nodiscard]] bool drafts() const { return draws != Draws::none; }
    [[nodiscard]] bool samples() const { return draws > Draws::certain; }
    [[nodiscard]] bool chooses_method() const { return !alternatives.empty(); }
    /// A small model drafts for the target's passes over a part of its keys and values.
    [[nodiscard]] bool has_two_stages() const {
        return copies_target && part == DraftPart::language_model && !chooses_method();
    }
    /// Draft models alone draft.
    [[nodiscard]] bool only_draft_models() const { return part == DraftPart::language_model && !copies_target; }
};

/// Name of the row that stands for the method of a job that names none. The runner replaces it before anything is
/// loaded.
constexpr const char* automatic = "auto";

/// All draft methods of this version.
const std::vector<DraftMethod>& draft_methods();

/// A setting that does not fit the draft method, which the message names ("with draft = sd").
class DraftMethodError : public UsageError {
  public:
    using UsageError::UsageError;
};

/// Throws UsageError that lists the methods if `name` is none of them.
const DraftMethod& find_draft_method(std::string_view name);

/// Reference to a row of the registry. The name is looked up once, at construction.
class DraftMethodRef {
  public:
    // Implicit, so that a method can be given by its name. Throws UsageError.
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

/// The tree shape of a method: the shape of `spec`; the method's default if none is given; if chooses_tree(), the
/// largest shape to choose from. Throws UsageError if the shape does not fit the method, or has fewer chains than
/// `num_models` (each model draws at least one).
TreeShape tree_of(const DraftMethod& method, const TreeSpec& spec, std::int64_t num_models = 1);

/// The tree spec of a job that gives none: `auto` for a method that weighs its nodes, copies the target or has a draft
/// layer, if measured time cannot change the text (`coupled`), else the method's default.
TreeSpec own_tree(const DraftMethod& method, bool coupled);

/// Whether TreeChooser chooses the tree size from measured costs and acceptance.
bool chooses_tree(const DraftMethod& method, const TreeSpec& spec);

/// The trees that `draft-tree = auto` chooses from, by width and depth. The width is the number of nodes per level or
/// of chains; in trees that branch it is the number of the root's children, halved at each further level.
struct TreeFamily {
    std::vector<std::int64_t> widths;  ///< ascending, 1 first
    std::int64_t max_depth = 16, max_nodes = 48;
    bool branches = false;
    std::int64_t num_models = 0;  ///< draft models; chains alternate between them
    bool one_row = false;         ///< a level costs one row of the draft, whatever its width
    bool by_heads = false;        ///< a level costs one row of the target's output head
    std::int64_t passes = 1;      ///< with heads and a drafting model: first levels that cost a pass each, a chain
    /// Maximum number of positions that a row of a draft pass reads, given the lengths of text and prompt; {}: all.
    std::function<std::int64_t(std::int64_t context, std::int64_t prompt)> draft_context{};
    bool follows_text = true;  ///< after a pause, draft models first read the tokens since the last draft

    /// In trees that branch: children of a node at `level` (root: 0). Otherwise: nodes of the level below it.
    [[nodiscard]] std::int64_t fan_out(std::int64_t level, std::int64_t width) const {
        if (!branches) return width;
        const std::int64_t below = std::max<std::int64_t>(level - (passes - 1), 0);
        return level < passes - 1 ? 1 : std::max<std::int64_t>(1, below < 30 ? width >> below : 0);
    }
};
TreeFamily tree_family(const DraftMethod& method, std::int64_t num_models);

}  // namespace longhaul::engine
