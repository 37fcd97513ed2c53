#include "engine/draft/ranked_kv.hpp"

#include <algorithm>
#include <new>

#include "engine/model/model.hpp"

namespace longhaul::engine {
namespace {

constexpr std::int64_t page_tokens = kernels::KvLayout::page_tokens;

/// The row that ranks: a token of the text, whose own keys and values are stored already.
ForwardRow ranking_row(std::int32_t token, std::int64_t position, std::int32_t sequence, std::int64_t in_pages) {
    ForwardRow row;
    row.token_id = token;
    row.position = position;
    row.sequence = sequence;
    row.in_pages = in_pages;
    return row;
}

}  // namespace

/// A selection to make.
struct KvRanker::Due {
    const Request* request;
    RankedSelection selection;
    std::span<std::byte* const> gathered;
};

KvRanker::KvRanker(const PartialCache& cache, std::int64_t tree_slots)
    : cache_(cache), tree_slots_(PagePool::pages_for(tree_slots) * page_tokens) {}

std::int64_t KvRanker::scratch_slots(const TextSize& text) const {
    return tree_slots_ + cache_.max_gathered(text);
}

std::span<std::byte* const> KvRanker::gathered_pages(const KvSequence& sequence, std::int64_t gathered) const {
    return sequence.scratch_pages().subspan(static_cast<std::size_t>(tree_slots_ / page_tokens),
                                            static_cast<std::size_t>(gathered / page_tokens));
}

void KvRanker::select(Model& model, std::span<const Request> requests) {
    std::vector<Due> due;
    for (const Request& request : requests) {
        KvSequence& sequence = *request.sequence;
        if (sequence.layout().window > 0) {
            *request.selected = {PartialKv::whole(sequence)};
            continue;
        }
        // A state cannot go back to the token that would rank.
        const auto selection =
            sequence.has_state() ? std::nullopt : cache_.selection({sequence.committed(), request.prompt_tokens});
        if (!selection) {
            *request.selected = {PartialKv::select(sequence, cache_, request.prompt_tokens)};
            continue;
        }
        if (!sequence.reserve_scratch(tree_slots_, selection->gathered)) throw std::bad_alloc();
        const auto gathered = gathered_pages(sequence, selection->gathered);
        if (request.selected->ranked_at != selection->ranked_at) due.push_back({&request, *selection, gathered});
        *request.selected = {PartialKv::join(sequence, gathered, selection->recent_from, sequence.committed()),
                             selection->ranked_at};
    }
    if (!due.empty()) rank(model, due);
}

void KvRanker::rank(Model& model, std::span<const Due> due) {
    kernels::Device& device = model.device();
    const kernels::KvLayout& layout = model.kv_layout();
    constexpr std::int64_t first_positions = RankedSelection::first_positions;
    std::vector<ForwardRow> rows;
    std::vector<PartialKv> read;
    std::vector<KvView> views;
    std::int64_t most = 0;
    for (const Due& one : due) {
        const std::int64_t at = one.selection.ranked_at;
        const KvSequence& sequence = *one.request->sequence;
        read.push_back(PartialKv::join(sequence, one.gathered, one.selection.ranked_before, at + 1));
        rows.push_back(ranking_row(one.request->context[static_cast<std::size_t>(at)], at,
                                   static_cast<std::int32_t>(rows.size()), read.back().num_slots));
        rows.back().text_length = std::ssize(one.request->context);
        for (std::int32_t slot = 0; slot < first_positions; ++slot)
            device.kv_move(layout, slot_in(sequence.pages(), slot), slot_in(one.gathered, slot));
        most = std::max(most, one.selection.gathered - first_positions);
    }
    for (std::size_t i = 0; i < due.size(); ++i)
        views.push_back({read[i].pages, {}, due[i].request->sequence->view().more_groups});
    const std::size_t bytes = static_cast<std::size_t>(layout.num_kv_heads * most) * sizeof(std::int32_t);
    if (positions_.num_bytes() < bytes) positions_ = kernels::Buffer(device, bytes);

    const auto gather = [&](const LayerQueries& queries) {
        if (queries.layer.group > 0) return;  // a window is read as it is
        for (std::size_t i = 0; i < due.size(); ++i) {
            const auto pages = due[i].request->sequence->pages();
            const std::int64_t count = due[i].selection.gathered - first_positions;
            auto* const positions = positions_.as<std::int32_t>();
            device.rank_positions(layout, queries.layer.index, queries.of_row(static_cast<std::int64_t>(i), layout),
                                  queries.q_heads, {pages, first_positions, due[i].selection.ranked_before, count},
                                  positions);
            device.gather_positions(layout, queries.layer.index, pages, positions, count, due[i].gathered,
                                    first_positions);
        }
    };
    static_cast<void>(model.forward({.rows = rows, .sequences = views, .before_attention = gather}));
}

}  // namespace longhaul::engine
