// Prefix caching: an item copies the keys and values of the tokens with which its prompt begins from an item in flight,
// or from the last one that finished, if that one's text begins with the same tokens. The copy has the bits that the
// item would compute: those of a prompt's row follow from the tokens up to it alone, in any pass and batch. So do those
// of a draft model, and of a draft layer, which are copied with them (SequenceDrafter::copy_prefix). A state of linear
// attention belongs to one position: a pass ends where another text branches off, the state there is kept (KeptStates),
// and copied with the keys and values up to there. Every rank has the same items in the same order, so all copy the
// same.
#include <algorithm>
#include <atomic>

#include "engine/replica/state.hpp"

namespace longhaul::engine {

namespace {

/// For fewer tokens (a begin-of-text token, a short instruction) nothing is copied and nothing waits.
constexpr std::int64_t min_copied = 16;

std::int64_t num_common(std::span<const std::int32_t> a, std::span<const std::int32_t> b) {
    return std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin();
}

/// Whether `kv` still has what windows need that end after `count` positions.
bool reaches_back(const KvSequence& kv, std::int64_t min_committed, std::int64_t count) {
    const bool was_there = min_committed == 0 || count >= min_committed + KvGroup::margin;
    return was_there && !kv.overwrites(kv.committed() - 1, count, KvGroup::margin);
}

}  // namespace

bool Replica::State::caches_prefixes() const {
    const bool one_rope = !options.scoring || options.scoring->window <= longest_short_text;
    const bool has_memory = !model.config().has_linear_attention() || kept_states.can_keep();
    return options.prefix_caching && one_rope && has_memory;
}

/// The tokens whose keys and values others may have: of a prompt those that are computed as a prompt's. `computed`: how
/// many positions have keys and values.
std::span<const std::int32_t> Replica::State::prefix_of(const Sequence& sequence, std::int64_t computed) const {
    if (options.scoring && sequence.window_begin != 0) return {};
    const std::int64_t limit = options.scoring ? sequence.num_tokens() : sequence.prompt_size() - 1;
    return std::span(sequence.tokens).first(static_cast<std::size_t>(std::min(computed, limit)));
}

/// The tokens of its prompt that a sequence may copy. Others are computed for their logits, or for the hidden states
/// that its drafter needs.
std::span<const std::int32_t> Replica::State::may_be_copied(const Sequence& sequence) const {
    if (!caches_prefixes() || (options.scoring && sequence.window_begin != 0)) return {};
    const std::int64_t limit = std::min(sequence.prompt_size() - 1, sequence.drafter->max_copied(sequence.tokens));
    return std::span(sequence.tokens).first(static_cast<std::size_t>(std::max<std::int64_t>(limit, 0)));
}

/// The longest beginning of the sequence's prompt that another text has, in flight or finished, if that is more than
/// the sequence has.
PrefixSource Replica::State::best_prefix(const Sequence& sequence) const {
    const std::span<const std::int32_t> wanted = may_be_copied(sequence);
    PrefixSource best{.num_tokens = std::max(sequence.kv->committed(), min_copied - 1)};
    if (std::ssize(wanted) <= best.num_tokens) return {};
    const std::vector<const KeptState*> states = kept_states.behind(wanted, sequence.has_long_rope);
    const auto offer = [&](std::span<const std::int32_t> tokens, const KvSequence& kv,
                           const SequenceDrafter* drafter_of, std::int64_t min_committed, bool has_long_rope) {
        std::int64_t count = num_common(tokens, wanted);
        if (drafter_of != nullptr) count = drafter_of->prefix_for_others(count);
        count = std::min(count, kv.committed());
        if (count <= best.num_tokens || has_long_rope != sequence.has_long_rope) return;
        const KeptState* state = nullptr;
        if (sequence.kv->has_state()) {
            const auto at = std::find_if(states.begin(), states.end(),
                                         [&](const KeptState* kept) { return std::ssize(kept->tokens) <= count; });
            if (at == states.end() || std::ssize((*at)->tokens) <= best.num_tokens) return;
            state = *at;
            count = std::ssize(state->tokens);
        }
        if (reaches_back(kv, min_committed, count)) best = {&kv, drafter_of, count, state};
    };
    for (const auto& other : in_flight) {
        if (other.get() == &sequence) continue;
        offer(prefix_of(*other, other->num_tokens()), *other->kv, other->drafter.get(), other->min_committed,
              other->has_long_rope);
    }
    if (const Prefix& last = finished_prefix; last.kv)
        offer(last.tokens, *last.kv, last.drafter.get(), last.min_committed, last.has_long_rope);
    return best.kv != nullptr ? best : PrefixSource{};
}

/// Whether the pass that is being made computes more of the sequence's prompt, for another text, than `source` has:
/// then it waits for the next pass. For a state it waits for all passes up to where the two branch, if the other text
/// is not behind.
bool Replica::State::prefix_is_coming(const Sequence& sequence, const PrefixSource& source) const {
    const std::span<const std::int32_t> wanted = may_be_copied(sequence);
    const std::int64_t committed = sequence.kv->committed(), has = std::max(source.num_tokens, committed);
    const bool has_state = sequence.kv->has_state();
    const std::int64_t enough = has_state ? has + min_copied : std::max(source.num_tokens + 1, committed + min_copied);
    return std::any_of(text_slices.begin(), text_slices.end(), [&](const TextSlice& slice) {
        const Sequence& other = *slice.sequence;
        const std::int64_t computed = has_state ? other.num_tokens() : other.kv->committed() + slice.num_rows;
        const std::int64_t common = num_common(prefix_of(other, computed), wanted) - unlike_of_drafts();
        if (has_state && (other.kv->committed() >= common || other.kv->committed() < has)) return false;
        return other.has_long_rope == sequence.has_long_rope && common >= enough;
    });
}

/// Of the tokens with which two texts begin, how many a draft layer computes otherwise: the last one's pair has a token
/// that follows.
std::int64_t Replica::State::unlike_of_drafts() const {
    return drafter->layer_kv_kind() ? 1 : 0;
}

/// With states of linear attention: the slice's rows, which begin at committed(), end at the first position where
/// another text branches off, and the state there is kept. Not a few tokens behind a state that is.
void Replica::State::end_where_others_branch(TextSlice& slice) const {
    const Sequence& sequence = *slice.sequence;
    if (!caches_prefixes() || !sequence.kv->has_state()) return;
    const std::int64_t first = sequence.kv->committed();
    const auto branches = [&](std::span<const std::int32_t> own, std::span<const std::int32_t> tokens,
                              bool has_long_rope) {
        const std::int64_t count = num_common(own, tokens) - unlike_of_drafts();
        if (has_long_rope != sequence.has_long_rope || count <= first || count > first + slice.num_rows) return;
        const auto kept = kept_states.behind(own.first(static_cast<std::size_t>(count)), has_long_rope);
        if (count < min_copied + (kept.empty() ? 0 : std::ssize(kept.front()->tokens))) return;
        slice.num_rows = count - first;
        slice.keeps_state = true;
    };
    for (const auto& other : in_flight) {
        if (other.get() == &sequence) continue;
        branches(prefix_of(sequence, sequence.num_tokens()), may_be_copied(*other), other->has_long_rope);
    }
    // Where this one would have continued from the last one that finished, the next one will.
    if (finished_prefix.kv) branches(may_be_copied(sequence), finished_prefix.tokens, finished_prefix.has_long_rope);
}

/// Call when the slice's rows are committed.
void Replica::State::keep_state(const TextSlice& slice) {
    const Sequence& sequence = *slice.sequence;
    if (slice.keeps_state)
        kept_states.keep(prefix_of(sequence, sequence.kv->committed()), sequence.has_long_rope,
                         sequence.kv->state_page());
}

/// Copies what `source` has, at most `max_positions`, which is reduced by their number. False if the next step has to
/// copy the rest: with a state, all.
bool Replica::State::copy_prefix(Sequence& sequence, const PrefixSource& source, std::int64_t& max_positions) {
    if (source.kv == nullptr) return true;
    const std::int64_t before = sequence.kv->committed();
    std::int64_t end = std::min(source.num_tokens, before + max_positions);
    if (source.state != nullptr) {
        if (max_positions == 0) return false;
        end = source.num_tokens;
        kept_states.use(*source.state);
    }
    wait_for_readers(sequence, end);
    sequence.kv->copy_positions(*source.kv, end, KvGroup::margin,
                                source.state != nullptr ? source.state->state.data() : nullptr);
    if (source.drafter != nullptr) sequence.drafter->copy_prefix(*source.drafter, sequence.tokens, end);
    if (smallest_window > 0 && end > smallest_window + KvGroup::margin)
        sequence.min_committed = std::max(sequence.min_committed, end - KvGroup::margin);
    max_positions = std::max<std::int64_t>(max_positions - (end - before), 0);
    std::int64_t& cached = sequence.statistics.cached_tokens;
    cached = std::min(cached + end - before, sequence.prompt_size());  // also of an item that begins again
    if (sequence.rows_count_again) sequence.statistics.recomputed_rows -= end - before;
    rounds.count_tokens(end - before);
    return end == source.num_tokens;
}

/// Keeps the prompt of an item that has finished, in place of the last one's. Memory that is needed takes it away.
void Replica::State::keep_prefix(Sequence& finished) {
    if (!caches_prefixes()) return;
    const std::span<const std::int32_t> tokens = prefix_of(finished, finished.kv->committed());
    if (std::ssize(tokens) < min_copied) return;
    const bool keeps_drafts = finished.drafter->keep_prefix(std::ssize(tokens));
    if (drafter->layer_kv_kind() && !keeps_drafts) return;
    finished_prefix = {.tokens = {tokens.begin(), tokens.end()},
                       .kv = finished.kv,
                       .drafter = keeps_drafts ? std::move(finished.drafter) : nullptr,
                       .min_committed = finished.min_committed,
                       .has_long_rope = finished.has_long_rope};
}

/// Gives back the pages behind the prompt that is kept, as soon as no checkpoint writer reads them.
void Replica::State::trim_prefix() {
    if (finished_prefix.kv.use_count() != 1) return;
    std::atomic_thread_fence(std::memory_order_acquire);  // as in wait_for_readers
    const std::int64_t count = std::ssize(finished_prefix.tokens);
    finished_prefix.kv->trim(count);
    if (finished_prefix.drafter) finished_prefix.drafter->keep_prefix(count);
}

}  // namespace longhaul::engine
