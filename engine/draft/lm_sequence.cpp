#include "engine/draft/lm_sequence.hpp"

#include <algorithm>
#include <limits>
#include <new>

#include "engine/model/model.hpp"

namespace longhaul::engine {

std::unique_ptr<KvPool> make_draft_pool(const Model& model) {
    return std::make_unique<KvPool>(model.device(), model.kv_layouts(), std::numeric_limits<std::int64_t>::max());
}

LmSequence::LmSequence(std::vector<KvPool*> pools, std::vector<TextWindow> windows, std::int64_t patience)
    : pools_(std::move(pools)), windows_(std::move(windows)), patience_(patience) {
    LmSequence::release();
}

void LmSequence::accept(std::span<const std::int32_t> context, std::span<const std::int32_t> path) {
    for (DraftKv& draft : of_model_) {
        std::vector<std::int32_t> slots;
        for (const std::int32_t node : path) {
            if (!is_computed(draft, node)) break;
            slots.push_back(node - 1);
        }
        // An item may end within the accepted path.
        const std::int64_t max_slots = std::ssize(context) - draft.known();
        if (std::ssize(slots) > max_slots) slots.resize(max_slots);
        if (!slots.empty()) draft.kv->accept(slots);
        draft.computed.clear();
    }
}

bool LmSequence::lags(std::span<const std::int32_t> context) const {
    const std::int64_t size = std::ssize(context);
    for (std::size_t model = 0; model < of_model_.size(); ++model) {
        const DraftKv& draft = of_model_[model];
        const bool stays = windows_[model].holds(draft.origin, size);
        if ((stays ? draft.known() : windows_[model].origin_of(size)) + patience_ < size) return true;
    }
    return false;
}

void LmSequence::release() {
    of_model_.clear();
    for (KvPool* pool : pools_) of_model_.push_back({std::make_shared<KvSequence>(*pool), 0, {}});
}

void LmSequence::copy_prefix(const SequenceDrafter& source, std::span<const std::int32_t> context, std::int64_t count) {
    for (std::size_t model = 0; model < of_model_.size(); ++model) {
        const DraftKv& from = static_cast<const LmSequence&>(source).of_model_[model];
        DraftKv& to = of_model_[model];
        if (!has_beginning(from) || to.origin != 0 || !windows_[model].holds(0, std::ssize(context))) continue;
        const std::int64_t end = std::min(count, from.kv->committed());
        if (end <= to.kv->committed()) continue;
        if (!to.kv->reserve(end)) throw std::bad_alloc();
        to.kv->copy_positions(*from.kv, end, end);
        to.computed.clear();
    }
}

bool LmSequence::keep_prefix(std::int64_t count) {
    bool any = false;
    for (std::size_t model = 0; model < of_model_.size(); ++model) {
        if (!has_beginning(of_model_[model])) {
            begin(model, 0);
            continue;
        }
        of_model_[model].computed.clear();
        of_model_[model].kv->trim(count);
        any = true;
    }
    return any;
}

void LmSequence::begin(std::size_t model, std::int64_t origin) {
    of_model_[model] = {std::make_shared<KvSequence>(*pools_[model]), origin, {}};
}

void LmSequence::move_on(std::int64_t size) {
    for (std::size_t model = 0; model < of_model_.size(); ++model) {
        if (!windows_[model].holds(of_model_[model].origin, size)) begin(model, windows_[model].origin_of(size));
    }
}

void LmSequence::begin_anew_if_late(std::int64_t size) {
    for (std::size_t model = 0; model < of_model_.size(); ++model) {
        if (of_model_[model].known() + max_catching_up < size) begin(model, windows_[model].late_origin(size));
    }
}

std::int64_t LmSequence::depth(std::int64_t size) const {
    std::int64_t depth = std::numeric_limits<std::int64_t>::max();
    for (std::size_t model = 0; model < of_model_.size(); ++model)
        depth = std::min(depth, windows_[model].depth(of_model_[model].origin, size));
    return depth;
}

void LmSequence::begin_tree(std::int64_t size, std::int64_t depth, std::int64_t num_nodes) {
    for (DraftKv& draft : of_model_) {
        if (!draft.kv->reserve(size - draft.origin + depth) || !draft.kv->reserve_scratch(num_nodes))
            throw std::bad_alloc();
        draft.computed.clear();
    }
}

void LmSequence::add_rows(std::size_t model, std::span<const std::int32_t> context, const TokenTree& tree,
                          std::int32_t node, std::int32_t sequence, std::vector<ForwardRow>& rows) const {
    const DraftKv& draft = of_model_[model];
    const std::int64_t size = std::ssize(context);
    if (node == 0) {
        for (std::int64_t position = std::min(draft.known(), size - 1); position < size; ++position)
            rows.push_back(text_row(context[position], position - draft.origin, sequence));
    }
    for (const std::int32_t at : tree.path_to(node)) {
        if (at != node && is_computed(draft, at)) continue;
        const std::vector<std::int32_t> slots = TokenTree::slots_of(tree.path_to(at));
        rows.push_back(tree_row(tree.token[at], size - 1 - draft.origin, slots, sequence));
    }
    rows.back().wants_logits = true;
}

void LmSequence::computed(std::size_t model, std::span<const std::int32_t> context, const TokenTree& tree,
                          std::int32_t node) {
    DraftKv& draft = of_model_[model];
    if (node == 0) draft.kv->set_committed(std::ssize(context) - draft.origin);
    for (const std::int32_t at : tree.path_to(node)) {
        draft.computed.resize(std::max(draft.computed.size(), static_cast<std::size_t>(at) + 1), false);
        draft.computed[at] = true;
    }
}

void LmSequence::forget_from(std::int32_t node) {
    for (DraftKv& draft : of_model_)
        draft.computed.resize(std::min(draft.computed.size(), static_cast<std::size_t>(node)));
}

void LmSequence::catch_up(Model& model, std::size_t at, std::span<const std::int32_t> context, std::int64_t max_rows) {
    const DraftKv& draft = of_model_[at];
    const std::int64_t first = draft.known();
    const std::int64_t end = std::min(first + max_rows, std::ssize(context) - 1);
    if (first >= end) return;
    if (!draft.kv->reserve(end - draft.origin)) throw std::bad_alloc();
    std::vector<ForwardRow> rows;
    for (std::int64_t position = first; position < end; ++position)
        rows.push_back(text_row(context[position], position - draft.origin));
    const KvView view = draft.kv->view();
    model.forward({.rows = rows, .sequences = std::span(&view, 1)});
    draft.kv->set_committed(end - draft.origin);
}

}  // namespace longhaul::engine
