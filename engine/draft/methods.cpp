#include "engine/draft/methods.hpp"

#include "engine/draft/drafter.hpp"
#include "engine/draft/lm_drafter.hpp"
#include "engine/draft/tree_growth.hpp"
#include "engine/error.hpp"

namespace longhaul::engine {
namespace {

/// Of 5,400 drafts of the demo model's int4 copy with estimated chances around 0.55, 0.65, 0.75, 0.85 and 0.98, the
/// shares 0.52, 0.72, 0.85, 0.90 and 0.96 were accepted.
constexpr double copy_scatter = 0.3;

/// "" if `shape` has the form, else the form in words.
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
            return budget || (!branching && shape.width > 1) ? "children per node of each level, such as 2,2,1" : "";
        case TreeForm::beam:
            return branching || budget ? "width x depth, such as 4x3" : "";
        case TreeForm::budgeted:
            return branching ? "width x depth, such as 4x3 or 4x3:12" : "";
    }
    return "";
}

}  // namespace

// The registry. A new method needs a file in this folder, the declaration of its factory here, and a row.
std::unique_ptr<Drafter> make_alternatives_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_eagle_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_lyanna_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_medusa_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_ngram_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_replay_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_self_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_tokenswift_drafter(const DraftContext& context);
std::unique_ptr<Drafter> make_triforce_drafter(const DraftContext& context);

using Shape = const TreeShape&;

/// Row of a method that drafts with language models.
static DraftMethod by_models(const char* name, const char* summary, Draws draws, TreeForm form, const char* tree,
                             std::int64_t max_models, decltype(DraftMethod::make_trees) make_trees) {
    return {.name = name,
            .summary = summary,
            .draws = draws,
            .form = form,
            .default_tree = tree,
            .part = DraftPart::language_model,
            .min_folders = 1,
            .max_folders = max_models,
            .make_trees = make_trees,
            .make = make_lm_drafter};
}

const std::vector<DraftMethod>& draft_methods() {
    static const auto chains = [](Shape shape, std::int64_t models) {
        return make_chains(shape.width, shape.depth, models);
    };
    static const std::vector<DraftMethod> methods{
        {.name = automatic,
         .summary = "self, or what the model's folder has for it: mtp or tokenswift; self-or-sd with a draft model, "
                    "specinfer with several; with other rules than coupled ngram or sd",
         .default_tree = "",
         .make = make_plain_drafter},
        {.name = "ar", .summary = "nothing, plain decoding", .default_tree = "", .make = make_plain_drafter},
        {.name = "ngram",
         .summary = "what followed the same words before",
         .draws = Draws::certain,
         .form = TreeForm::budgeted,
         .default_tree = "4x8:16",
         .weighs_nodes = true,
         .has_ngrams = true,
         .make = make_ngram_drafter},
        by_models("sd", "a chain of a draft model", Draws::chain, TreeForm::chain, "4", 1, chains),
        by_models("spectr", "several chains of a draft model", Draws::independent, TreeForm::chains, "3x4", 1, chains),
        by_models("specinfer", "several chains of one or more draft models", Draws::independent, TreeForm::chains,
                  "3x4", 8, chains),
        by_models("rsd-c", "a tree of a draft model, drawn without replacement", Draws::without_replacement,
                  TreeForm::branching, "2,2,1", 1,
                  [](Shape shape, std::int64_t) { return make_rsd_c(shape.branching); }),
        by_models("rsd-s", "the best sequences of a draft model, drawn without replacement", Draws::without_replacement,
                  TreeForm::beam, "3x4", 1,
                  [](Shape shape, std::int64_t) { return make_rsd_s({.width = shape.width, .depth = shape.depth}); }),
        {.name = "self",
         .summary = "the model itself, with fewer bits per weight and a part of its own keys and values",
         .draws = Draws::without_replacement,
         .form = TreeForm::budgeted,
         .default_tree = "4",
         .has_ngrams = true,
         .copies_target = true,
         .make_trees =
             [](Shape shape, std::int64_t) {
                 return make_rsd_s({.width = shape.width,
                                    .depth = shape.depth,
                                    .max_nodes = shape.max_nodes(),
                                    .scatter = copy_scatter});
             },
         .make = make_self_drafter},
        {.name = "self-or-sd",
         .summary = "whichever of self and sd gives more tokens per second, measured while it runs",
         .draws = Draws::without_replacement,
         .form = TreeForm::budgeted,
         .default_tree = "auto",
         .part = DraftPart::language_model,
         .min_folders = 1,
         .max_folders = 1,
         .has_ngrams = true,
         .copies_target = true,
         .alternatives = {"self", "sd"},
         .make = make_alternatives_drafter},
        {.name = "medusa",
         .summary = "a tree of trained heads on the model's own hidden states",
         .draws = Draws::certain,
         .form = TreeForm::branching,
         .default_tree = "3,3,3",
         .part = DraftPart::heads,
         .max_folders = 1,
         .make = make_medusa_drafter},
        {.name = "tokenswift",
         .summary = "a tree of a pass over a part of the keys and values, trained heads and n-grams",
         .draws = Draws::certain,
         .form = TreeForm::branching,
         .default_tree = "1,3,3,3",
         .part = DraftPart::heads,
         .max_folders = 1,
         .has_ngrams = true,
         .chained_heads = true,
         .copies_target = true,
         .make = make_tokenswift_drafter},
        {.name = "mtp",
         .summary = "a tree of the model's own layer for multi-token prediction",
         .draws = Draws::certain,
         .form = TreeForm::budgeted,
         .default_tree = "4x3:8",
         .part = DraftPart::layer,
         .own_layer = true,
         .make = make_eagle_drafter},
        {.name = "eagle",
         .summary = "a tree of a trained draft layer, which continues the model's own hidden states",
         .draws = Draws::certain,
         .form = TreeForm::budgeted,
         .default_tree = "4x3:8",
         .part = DraftPart::layer,
         .min_folders = 1,
         .max_folders = 1,
         .make = make_eagle_drafter},
        {.name = "lyanna",
         .summary = "a tree of a trained draft layer, whose chain of hidden states outlives rejected tokens",
         .draws = Draws::certain,
         .form = TreeForm::budgeted,
         .default_tree = "4x3:12",
         .part = DraftPart::layer,
         .min_folders = 1,
         .max_folders = 1,
         .chains_states = true,
         .make = make_lyanna_drafter},
        {.name = "triforce",
         .summary = "a chain of a draft model, verified by passes of the model over a part of the keys and values",
         .draws = Draws::certain,
         .form = TreeForm::chain,
         .default_tree = "6",
         .part = DraftPart::language_model,
         .min_folders = 1,
         .max_folders = 1,
         .copies_target = true,
         .fixed_shape = true,
         .make = make_triforce_drafter},
        {.name = "replay",
         .summary = "an earlier run's tokens (for tests)",
         .draws = Draws::certain,
         .form = TreeForm::budgeted,
         .default_tree = "4",
         .needs_recording = true,
         .make = make_replay_drafter},
    };
    return methods;
}

const DraftMethod& find_draft_method(std::string_view name) {
    std::string names;
    for (const DraftMethod& method : draft_methods()) {
        if (method.name == name) return method;
        if (!names.empty()) names += ", ";
        names += method.name;
    }
    throw UsageError("draft: '" + std::string(name) + "' is not in this version; it has " + names);
}

TreeSpec own_tree(const DraftMethod& method, bool coupled) {
    const bool sizes =
        (method.weighs_nodes || method.copies_target || method.part == DraftPart::layer) && !method.fixed_shape;
    return sizes && coupled ? "auto" : method.default_tree;
}

bool chooses_tree(const DraftMethod& method, const TreeSpec& spec) {
    return spec.is_auto() && method.form != TreeForm::none && !method.weighs_nodes;
}

TreeFamily tree_family(const DraftMethod& method, std::int64_t num_models) {
    TreeFamily family;
    family.widths =
        method.form == TreeForm::chain ? std::vector<std::int64_t>{1} : std::vector<std::int64_t>{1, 2, 3, 4, 6, 8};
    family.branches = method.form == TreeForm::branching;
    family.num_models = num_models;
    family.by_heads = method.part == DraftPart::heads;
    family.one_row = method.chains_states;
    return family;
}

/// A shape that contains every tree of the method's family.
static TreeShape greatest_tree(const DraftMethod& method) {
    const TreeFamily family = tree_family(method, 0);
    TreeShape shape{
        .width = family.widths.back(), .depth = family.max_depth, .budget = family.max_nodes, .branching = {}};
    for (std::int64_t level = 0; family.branches && level < shape.depth; ++level)
        shape.branching.push_back(family.fan_out(level, shape.width));
    return shape;
}

TreeShape tree_of(const DraftMethod& method, const TreeSpec& spec, std::int64_t num_models) {
    if (method.form == TreeForm::none) return {.width = 0, .depth = 0, .budget = 0, .branching = {}};
    if (method.chooses_method() && !spec.is_auto())
        throw DraftMethodError("draft-tree: expected auto with draft = " + method.name + ", got '" + spec.text() + "'");
    if (method.fixed_shape && spec.is_auto())
        throw DraftMethodError("draft-tree: expected a shape, such as " + method.default_tree +
                               ", with draft = " + method.name + ", got 'auto'");
    if (chooses_tree(method, spec)) return greatest_tree(method);
    const bool own = !spec.is_given() || spec.is_auto();
    TreeShape shape = own ? parse_tree_shape(method.default_tree) : spec.shape();
    const std::string wanted = wanted_form(method.form, shape);
    if (!wanted.empty())
        throw DraftMethodError("draft-tree: expected " + wanted + ", with draft = " + method.name + ", got '" +
                               spec.text() + "'");
    if (method.form == TreeForm::chains && shape.width < num_models)
        throw UsageError("draft-tree: expected at least " + std::to_string(num_models) +
                         " chains, at least one per draft-model, got '" + (own ? method.default_tree : spec.text()) +
                         "'");
    if (method.form == TreeForm::branching && shape.branching.empty())
        shape.branching.assign(static_cast<std::size_t>(shape.depth), 1);
    return shape;
}

}  // namespace longhaul::engine
