// The state of a replica before its first step: how much memory its keys and values may take, and what chooses the
// trees of its drafts.
#include "engine/replica/state.hpp"

#include <algorithm>
#include <limits>
#include <stdexcept>
#include <utility>

namespace longhaul::engine {

static std::int64_t smallest_window_of(std::span<const kernels::KvLayout> layouts) {
    std::int64_t smallest = 0;
    for (const kernels::KvLayout& layout : layouts) {
        if (layout.window > 0 && (smallest == 0 || layout.window < smallest)) smallest = layout.window;
    }
    return smallest;
}

Replica::State::State(Model& on_model, Group& of_group, const Tokenizer& with_tokenizer, ReplicaOptions with_options,
                      ReplicaHooks with_hooks)
    : model(on_model),
      group(of_group),
      tokenizer(with_tokenizer),
      options(prepared(std::move(with_options), group)),
      hooks(std::move(with_hooks)),
      drafter(make_drafter({options.draft, &model})),
      // Without drafts the coupled rule replaces every other rule, so that plain decoding gives the same text under all
      // of them.
      verifier(drafter->max_nodes() > 0 ? options.verify : VerifyRule(VerifyRule::coupled), model.device(),
               model.config().vocab_size),
      log_softmax(model.config().vocab_size),
      breakers(tokenizer),
      output_rules(tokenizer, model.config().vocab_size),
      pool(model.device(), model.kv_layouts(), memory_limit(), window_use()),
      kept_states(make_kept_states()),
      smallest_window(smallest_window_of(model.kv_layouts())),
      rounds(options.checkpoint, model, *drafter, group),
      pace(2.0 * static_cast<double>(num_active_parameters(model.config())) / group.size(), options.prefill_chunk),
      economies(std::max<std::size_t>(options.draft.method->alternatives.size(), 1)),
      chooser(make_chooser()) {}

/// Collective.
ReplicaOptions Replica::State::prepared(ReplicaOptions options, Group& group) {
    options.prefill_chunk = min_over_ranks(group, options.prefill_chunk);  // decides how far windows reach back
    if (options.scoring) options.draft.method = "ar";
    options.draft.decides_text = options.verify != VerifyRule::coupled;
    return options;
}

/// Limits of this rank's page pool. The first rank plans memory for all, with the minimum over the ranks. The other
/// ranks follow its plan and may free a page slightly later, so their limit is open-ended. Collective.
KvMemory Replica::State::memory_limit() {
    constexpr std::int64_t unlimited = std::numeric_limits<std::int64_t>::max();
    const bool has_host = model.device().can_use_host_memory();
    options.kv_memory_bytes = min_over_ranks(group, options.kv_memory_bytes);
    options.kv_host_bytes = min_over_ranks(group, has_host ? options.kv_host_bytes : 0);
    // A drafter caches at most as many tokens as the target. Its share comes from device memory alone.
    // Beyond its windows a text takes memory in the other layers only.
    std::int64_t unwindowed = 0;
    for (const kernels::KvLayout& layout : model.kv_layouts())
        unwindowed += layout.window == 0 ? layout.position_bytes() : 0;
    const auto target = static_cast<double>(unwindowed > 0 ? unwindowed : position_bytes(model.kv_layouts()));
    const auto drafts = static_cast<double>(drafter->bytes_per_token());
    const double share = target / (target + drafts);
    const std::int64_t fixed = options.batch * drafter->bytes_per_sequence();
    double device = share * static_cast<double>(std::max<std::int64_t>(options.kv_memory_bytes - fixed, 0));
    auto host = static_cast<double>(options.kv_host_bytes);
    if (drafts > 0) host = std::min(host, device * target / (share * drafts));
    device -= host * (1 - share);
    if (group.is_first()) return {static_cast<std::int64_t>(device), static_cast<std::int64_t>(host)};
    return options.kv_host_bytes > 0 ? KvMemory{static_cast<std::int64_t>(device), unlimited} : KvMemory{unlimited, 0};
}

WindowUse Replica::State::window_use() const {
    // One more sequence than the batch has: the prompt that is kept of a finished one, or a checkpoint that is being
    // written, may hold its pages.
    return {.sequences = options.batch + 1,
            .ahead = window_ahead(options.prefill_chunk),
            .scratch_slots = tree_slots(),
            .kept_states = options.prefix_caching ? 8 + options.batch / 2 : 0,
            .limited = group.is_first()};
}

/// Collective.
KeptStates Replica::State::make_kept_states() const {
    const kernels::KvLayout* const layout = state_layout(model.kv_layouts());
    return {model.device(), layout != nullptr ? state_bytes(*layout) : 0,
            min_over_ranks(group, pool.max_kept_states())};
}

/// Measures the cost of passes and makes the DraftChooser, if `draft-tree = auto` needs one. Collective.
std::optional<DraftChooser> Replica::State::make_chooser() {
    if (!options.draft.chooses_tree()) return {};
    if (!is_coupled()) throw std::logic_error("trees that decide the text are chosen by measured time");
    if (options.draft.tree_limits) return {};
    const CostModel target = CostModel::measure(model);
    const double budget_seconds = 0.3 / std::max(static_cast<double>(options.draft.models.size()), 1.0);
    std::vector<TreeChooser> methods;
    if (!options.draft.method->chooses_method()) methods.push_back(tree_chooser(options.draft, target, budget_seconds));
    for (std::size_t i = 0; i < options.draft.method->alternatives.size(); ++i)
        methods.push_back(tree_chooser(options.draft.alternative(i), target, budget_seconds));
    return DraftChooser(std::move(methods));
}

/// The TreeChooser of one method. `budget_seconds`: for timing each of its models. Collective.
TreeChooser Replica::State::tree_chooser(const DraftOptions& draft, const CostModel& target,
                                         double budget_seconds) const {
    std::vector<CostModel> drafts;
    for (Model* of_draft : draft.models) drafts.push_back(CostModel::measure(*of_draft, budget_seconds));
    // About a draft layer's cost: one more layer of the target's shape, and its head. Measured times correct it.
    if (draft.layer != nullptr) drafts.emplace_back(1, target.points());
    TreeFamily family = tree_family(*draft.method, static_cast<std::int64_t>(drafts.size()));
    if (draft.method->copies_target)
        family.draft_context = [cache = draft.partial_cache](std::int64_t n, std::int64_t prompt) {
            return cache.positions_of({n, prompt});
        };
    family.follows_text = !draft.method->copies_target;
    family.passes = draft.passes;
    family.max_depth = std::min(family.max_depth, drafter->max_depth());
    return {family, target, drafts};
}

}  // namespace longhaul::engine
