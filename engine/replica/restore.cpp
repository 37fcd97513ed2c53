// Restoring an item from checkpoints when it is admitted: keys and values, states of linear attention, the drafter.
#include <algorithm>
#include <functional>

#include "engine/checkpoint/store.hpp"
#include "engine/error.hpp"
#include "engine/replica/state.hpp"

namespace longhaul::engine {

namespace {

/// Reads rows of one of this rank's heads.
using HeadReader = std::function<void(const KvRows& rows, std::byte* to)>;

/// Reads this rank's KV heads of a group of layers for positions [first, end) into pages of `kv`.
void read_stretch(const HeadReader& read, const KvSequence& kv, std::size_t group, std::int64_t first,
                  std::int64_t end) {
    const kernels::KvLayout& layout = kv.layout(group);
    kernels::KvBox box{.num_heads = layout.num_kv_heads, .first = first, .count = end - first};
    std::vector<std::byte> buffer(box.bytes(layout));
    const std::size_t head_bytes = buffer.size() / static_cast<std::size_t>(layout.num_kv_heads);
    for (box.first_layer = 0; box.first_layer < layout.num_layers; ++box.first_layer) {
        for (const bool values : {false, true}) {
            box.values = values;
            for (std::int64_t head = 0; head < layout.num_kv_heads; ++head) {
                read({group, box.first_layer, head, values, first, box.count},
                     buffer.data() + static_cast<std::size_t>(head) * head_bytes);
            }
            kv.pool(group).device().kv_import_box(layout, kv.pages(group), box, buffer.data(), head_bytes);
        }
    }
}

/// The positions of a group that a sequence of `usable` positions has from its checkpoint: [first, usable).
std::int64_t first_restored(const RestoredItem& stored, const KvGroup& group, std::int64_t usable) {
    if (group.window == 0) return 0;
    std::int64_t begin = 0, end = 0;  // of the range that holds the last one
    for (std::size_t i = 0; end < usable; ++i) {
        begin = end;
        end = stored.kv_ends.at(i);
    }
    const std::int64_t in_range = group.first_stored(begin, end);
    return in_range > begin ? in_range : std::max<std::int64_t>(begin - group.window - KvGroup::margin, 0);
}

/// Positions that are read at a time, which bounds the buffer.
constexpr std::int64_t max_read = 4096;

}  // namespace

/// Takes over what the item's checkpoint or earlier result has besides its tokens.
void Replica::State::restore(Sequence& sequence, const Admission& admission) {
    if (admission.restored) {
        sequence.statistics = statistics_from_json(admission.statistics);
        ++sequence.statistics.resumes;
    }
    if (!admission.last_commit.empty()) {
        sequence.last_commit = admission.last_commit;
        sequence.saved_tokens = sequence.num_output();
        sequence.saved_once = true;
        if (admission.kv_tokens > 0) restore_kv(sequence);
    }
    const bool may_restore = is_coupled() || sequence.drafter->restores_exactly();
    if (!may_restore || !sequence.drafter->restore(admission.drafter, sequence.tokens)) {
        sequence.drafter = make_drafter_of(sequence);
        sequence.drafter->begin(sequence.tokens);
    }
    if (options.scoring) return;
    if (admission.restored) restore_layer_kv(sequence);
    // Hidden states that no checkpoint holds come from rows that the target recomputes. Where that means all rows,
    // since windows and states of linear attention reach back for none, drafts do without unless they decide the text.
    const std::int64_t last = sequence.num_tokens() - 1 - sequence.drafter->missing_states(sequence.tokens);
    const bool goes_back = last >= sequence.min_committed && !sequence.kv->has_state();
    if (sequence.kv->committed() > last && (goes_back || !is_coupled())) {
        sequence.kv->set_committed(goes_back ? last : 0);
        sequence.saved_kv = std::min(sequence.saved_kv, sequence.kv->committed());
    }
}

/// The most positions that all ranks can restore: 0 if their files differ in what windows they hold. Collective.
std::int64_t Replica::State::agreed_positions(const Sequence& sequence, const std::optional<RestoredItem>& stored) {
    const CheckpointIdentity& identity = options.checkpoint.identity;
    // An item that now ends earlier may be short again.
    const bool fits =
        stored && (stored->prompt_tokens + std::ssize(stored->tokens) > longest_short_text) == sequence.has_long_rope;
    const std::int64_t mine = fits ? stored->usable_positions(sequence.num_tokens() - 1, identity) : 0;
    const std::int64_t least = min_over_ranks(group, mine);
    const bool usable = least == mine || (fits && stored->usable_positions(least, identity) == least);
    return min_over_ranks(group, usable ? least : 0);
}

/// Restores the sequence's KV from its checkpoint, up to the position that every rank can read.
void Replica::State::restore_kv(Sequence& sequence) {
    const std::vector<KvGroup> groups = options.checkpoint.identity.kv_groups();
    const bool windows = std::any_of(groups.begin(), groups.end(), [](const KvGroup& one) { return one.window > 0; });
    std::optional<RestoredItem> stored;
    try {
        stored = hooks.store->restore(sequence.item.checkpoint_key, longest_short_text);
    } catch (const Error&) {
        // Nothing is read on any rank.
    }
    const std::int64_t wanted = agreed_positions(sequence, stored);
    std::int64_t usable = 0, min_committed = 0;
    try {
        for (std::size_t at = 0; at < groups.size() && wanted > 0; ++at) {
            const std::int64_t first = first_restored(*stored, groups[at], wanted);
            if (groups[at].window > 0)
                min_committed = std::max(min_committed, first > 0 ? first + groups[at].window : 0);
            usable = 0;
            restore_group(sequence, *stored, at, first, wanted, usable);
        }
    } catch (const Error&) {
        // A file that was intact when verified can no longer be read: keep the positions before it, recompute the rest.
    }
    if (usable == wanted && !restore_states(sequence, wanted)) usable = 0;
    usable = min_over_ranks(group, usable);
    if ((windows || sequence.kv->has_state()) && usable < wanted) usable = 0;
    sequence.min_committed = -min_over_ranks(group, -min_committed);
    sequence.kv->set_committed(usable);
    sequence.saved_kv = sequence.saved_states = usable;
}

/// Reads the states of linear attention behind so many positions; false if a file can no longer be read.
bool Replica::State::restore_states(Sequence& sequence, std::int64_t positions) {
    const kernels::KvLayout* const layout = state_layout(model.kv_layouts());
    if (layout == nullptr || positions == 0) return true;
    const kernels::DeltaShape& shape = layout->delta;
    const std::int64_t half = shape.head_floats() / 2, heads = shape.num_key_heads;
    std::vector<float> states(static_cast<std::size_t>(shape.sequence_floats(layout->num_layers)));
    try {
        for (std::int64_t i = 0; i < layout->num_layers * heads; ++i) {
            float* const head = states.data() + shape.head_offset(i / heads, i % heads);
            for (const bool second : {false, true})
                hooks.store->read_state(sequence.item.checkpoint_key,
                                        {.layer = i / heads,
                                         .kv_head = group.rank() * heads + i % heads,
                                         .values = second,
                                         .first = positions - 1,
                                         .count = 1},
                                        head + (second ? half : 0));
        }
    } catch (const Error&) {
        return false;
    }
    model.device().upload(sequence.kv->state_page(), states.data(), states.size() * sizeof(float));
    return true;
}

/// Reads positions [first, end) of a group of layers. `done`: the end of what is read, also if this throws.
void Replica::State::restore_group(Sequence& sequence, const RestoredItem& stored, std::size_t group,
                                   std::int64_t first, std::int64_t end, std::int64_t& done) {
    // A stretch is in the files of one round, so each file is opened once.
    const std::int64_t first_head = model.first_kv_head(group);
    const HeadReader read = [&](KvRows rows, std::byte* to) {
        rows.kv_head += first_head;
        hooks.store->read_kv(sequence.item.checkpoint_key, rows, to);
    };
    done = first;
    for (std::size_t i = 0; done < end; ++i) {
        const std::int64_t stretch_end = std::min(stored.kv_ends.at(i), end);
        while (done < stretch_end) {
            const std::int64_t piece_end = std::min(done + max_read, stretch_end);
            read_stretch(read, *sequence.kv, group, done, piece_end);
            done = piece_end;
            if (hooks.poke) hooks.poke();
        }
    }
}

/// Restores keys and values of the drafter's layer, of positions that the sequence itself has.
void Replica::State::restore_layer_kv(Sequence& sequence) {
    const std::optional<DraftLayerKvKind> kind = drafter->layer_kv_kind();
    if (!kind || sequence.kv->committed() == 0) return;
    const std::string& key = sequence.item.checkpoint_key;
    RestoredDraftKv stored;
    try {
        stored = hooks.store->restore_draft_kv(
            key, options.checkpoint.identity.of_drafter(kind->kind, kind->num_kv_heads, kind->head_dim),
            sequence.kv->committed(), longest_short_text);
    } catch (const Error&) {
        // Nothing is read on any rank.
    }
    if (group.is_first() && hooks.damaged) {
        for (const std::string& line : stored.damage) hooks.damaged(line);
    }
    const std::int64_t first = -min_over_ranks(group, -stored.first), end = min_over_ranks(group, stored.end);
    KvSequence* const kv = first < end ? sequence.drafter->restore_layer_kv(first, end) : nullptr;
    if (kv == nullptr) return;
    const HeadReader read = [&](KvRows rows, std::byte* to) {
        rows.kv_head += kind->first_kv_head;
        rows.first += first;
        hooks.store->read_draft_kv(key, rows, to);
    };
    std::int64_t done = 0;
    try {
        for (; done < end - first; done = std::min(done + max_read, end - first)) {
            read_stretch(read, *kv, 0, done, std::min(done + max_read, end - first));
            if (hooks.poke) hooks.poke();
        }
    } catch (const Error&) {
        // As in restore_kv.
    }
    kv->set_committed(min_over_ranks(group, done));
    sequence.saved_layer_kv = first + kv->committed();
}

}  // namespace longhaul::engine
