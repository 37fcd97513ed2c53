// The scoring step, which replaces the generation step: one pass over rows of the given texts, as many as the logits'
// memory allows, and the loss of the token after each row. The KV cache of a window starts at position 0, so a token's
// loss depends on its window alone, not on passes, batch or earlier launches.
#include <algorithm>
#include <limits>
#include <stdexcept>

#include "engine/replica/state.hpp"
#include "kernels/convert.hpp"

namespace longhaul::engine {

std::int64_t max_logits_rows(std::int64_t vocab_size, bool own_memory) {
    const std::int64_t bytes = std::int64_t{own_memory ? 256 : 64} << 20;
    return std::max<std::int64_t>(bytes / (vocab_size * static_cast<std::int64_t>(sizeof(float))), 16);
}

/// End of a sequence's window: a document position.
static std::int64_t end_of_window(const Sequence& sequence, const ScoringWindows& windows) {
    return std::min(sequence.window_begin + windows.window, sequence.prompt_size() + output_limit(sequence.item));
}

/// Goes on to the window of the token that is scored next, if that is another one.
void Replica::State::begin_window(Sequence& sequence) const {
    const std::int64_t next = sequence.num_tokens();
    const std::int64_t begin = options.scoring->begin_of(next);
    if (sequence.window_begin != begin) sequence.kv->set_committed(0);
    sequence.window_begin = begin;
    if (begin < next && !sequence.kv->reserve(end_of_window(sequence, *options.scoring) - begin))
        throw std::logic_error("pages were planned for every window");
}

void Replica::State::add_score_rows(Sequence& sequence, std::int64_t& rows_left, std::int64_t& logits_row) {
    const std::int64_t next = sequence.num_tokens();  // position of the token to be scored next
    const std::int64_t begin = sequence.window_begin, end = end_of_window(sequence, *options.scoring);
    const PrefixSource source = best_prefix(sequence);
    if (prefix_is_coming(sequence, source)) return;
    std::int64_t unlimited = std::numeric_limits<std::int64_t>::max() / 2;  // nothing of it is stored
    copy_prefix(sequence, source, unlimited);
    TextSlice& slice = text_slices.emplace_back();
    slice.sequence = &sequence;
    slice.first_logits = logits_row;
    if (begin == next) return;  // the first token of a disjoint window has no context
    const auto index = static_cast<std::int32_t>(kv_sequences.size());
    kv_sequences.push_back(sequence.kv.get());
    const std::int64_t first = sequence.kv->committed();
    slice.num_rows = std::min(rows_left, end - 1 - begin - first);
    end_where_others_branch(slice);
    for (std::int64_t position = first; position < first + slice.num_rows; ++position) {
        ForwardRow& row = rows.emplace_back(text_row(sequence.document(begin + position), position, index));
        row.wants_logits = begin + position + 1 >= next;
        row.of_prompt = true;  // the whole text is given
        row.text_length = end - begin;
        slice.num_logits += row.wants_logits ? 1 : 0;
    }
    rows_left -= slice.num_rows;
    logits_row += slice.num_logits;
}

/// The hidden states to keep: of the rows with logits, in their order.
std::vector<Tap> Replica::State::scored_rows() const {
    if (!options.keeps_states) return {};
    Tap tap{.at = Tap::At::last_hidden, .rows = {}};
    for (std::size_t row = 0; row < rows.size(); ++row) {
        if (rows[row].wants_logits) tap.rows.push_back(static_cast<std::int32_t>(row));
    }
    return {tap};
}

/// No rows yet; the first one is that of the prompt's last token.
std::shared_ptr<TextStates> Replica::State::make_states(const Sequence& sequence) const {
    auto states = std::make_shared<TextStates>();
    states->hidden_size = model.config().hidden_size;
    states->num_top = std::min<std::int64_t>(max_top_tokens, model.config().vocab_size);
    states->tokens.push_back(sequence.tokens.back());
    return states;
}

void Replica::State::keep_states(const TextSlice& slice, const HiddenStates& hidden) {
    std::vector<float> values(static_cast<std::size_t>(slice.num_logits * hidden.width()));
    if (values.empty()) return;
    model.device().download(values.data(),
                            reinterpret_cast<const std::byte*>(hidden.data() + slice.first_logits * hidden.width()),
                            values.size() * sizeof(float));
    for (const float value : values) slice.sequence->states->hidden.push_back(kernels::f32_to_bf16(value));
}

/// The most probable tokens of the row that `log_softmax` holds.
void Replica::State::keep_top_tokens(TextStates& states) {
    for (const std::int32_t token : log_softmax.best(states.num_top)) {
        states.top_ids.push_back(token);
        states.top_logprobs.push_back(static_cast<float>(log_softmax(token)));
    }
}

void Replica::State::take_scores(const TextSlice& slice, PassResult& result) {
    Logits& logits = result.logits;
    Sequence& sequence = *slice.sequence;
    TextStates* const states = sequence.states.get();
    if (states != nullptr) keep_states(slice, result.taps.front());
    const std::int64_t before = sequence.num_tokens();
    std::optional<FinishReason> reason;
    if (slice.num_rows == 0) {
        if (options.keeps_states) throw std::logic_error("states of windows that do not overlap have gaps");
        ++sequence.statistics.loss.covered_tokens;
        append(sequence, sequence.document(before), reason);
    }
    for (std::int64_t i = 0; i < slice.num_logits; ++i) {
        const std::int32_t token = sequence.document(sequence.num_tokens());
        record(sequence, logits, slice.first_logits + i, token);
        if (states != nullptr) {
            keep_top_tokens(*states);
            states->tokens.push_back(token);
        }
        append(sequence, token, reason);
    }
    sequence.kv->set_committed(sequence.kv->committed() + slice.num_rows);
    keep_state(slice);
    sequence.statistics.steps += 1;
    rounds.count_tokens(slice.num_rows);
    const std::int64_t num_new = sequence.num_tokens() - before;
    progress.prefilled_tokens += slice.num_rows - slice.num_logits;
    progress.decode_tokens += num_new;
    if (hooks.emitted && group.is_first() && num_new > 0) {
        hooks.emitted(sequence.item.number, std::span(sequence.tokens).last(num_new), sequence.num_output());
    }
    if (!reason) return;
    finish(sequence, *reason);
    keep_prefix(sequence);
    std::erase_if(in_flight, [&](const auto& s) { return s.get() == &sequence; });
}

void Replica::State::score_step(const StepHeader& header) {
    const auto start = std::chrono::steady_clock::now();
    rows.clear();
    kv_sequences.clear();
    text_slices.clear();
    std::int64_t rows_left = std::min(
        header.prefill_rows, max_logits_rows(model.config().vocab_size, model.device().own_memory().has_value()));
    std::int64_t logits_row = 0;
    for (const auto& sequence : in_flight) begin_window(*sequence);
    for (const auto& sequence : in_flight) {
        if (rows_left > 0) add_score_rows(*sequence, rows_left, logits_row);
    }
    const std::vector<Tap> wanted = scored_rows();
    PassResult result = model.forward({.rows = rows, .sequences = views_of(kv_sequences), .taps = wanted});
    const double forward_seconds = seconds_since(start);
    pace.took(static_cast<std::int64_t>(rows.size()), forward_seconds);
    for (const auto& sequence : in_flight) sequence->statistics.seconds += forward_seconds;
    for (const TextSlice& slice : text_slices) take_scores(slice, result);
    outcome.forward_seconds += forward_seconds;
    outcome.verify_seconds += seconds_since(start) - forward_seconds;
    outcome.decode_seconds += seconds_since(start);
    trim_prefix();
    report(ReplicaPhase::decode);
}

}  // namespace longhaul::engine
