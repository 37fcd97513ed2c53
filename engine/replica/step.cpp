// The generation step, called by the replica's loop: draft a tree for every decoding sequence, run all trees and rows
// of prompts in one forward pass, verify, and feed the drafter.
#include <algorithm>
#include <atomic>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "engine/replica/state.hpp"

namespace longhaul::engine {

static constexpr const char* format_error =
    "json-schema, regex, choice, grammar: expected a format that the model's tokens can spell, with few ways to read "
    "the beginning of a text, got another; let alternatives differ in their first characters";
static constexpr const char* limit_error =
    "max-reasoning-tokens: expected a reasoning-end of tokens that the model has and that end no item, got another; "
    "end "
    "reasoning with a text";

/// The noise that the drafter may use. Shared noise only where it decides the target's draw: a teacher-forced token is
/// not sampled, so it does not depend on the noise.
Noise Replica::State::noise_of(const Sequence& sequence) const {
    if (!is_coupled()) return {sequence.noise_key, Noise::Kind::own};
    const bool decides = !sequence.is_forced() && sequence.item.options->sampling.temperature > 0;
    return {sequence.noise_key, decides ? Noise::Kind::shared : Noise::Kind::silent};
}

/// Grows a tree for every decoding sequence.
void Replica::State::propose(const StepHeader& header) {
    std::vector<Proposal> proposals;
    std::vector<DecodeSlice*> of;
    for (DecodeSlice& slice : slices) {
        Sequence& sequence = *slice.sequence;
        slice.tree.reset(sequence.tokens.back());
        std::int64_t depth = depth_limit(sequence.num_tokens(), sequence.tokens_left());
        if (sequence.is_forced()) depth = std::min(depth, sequence.tokens_left() - 1);
        if (depth <= 0) continue;
        proposals.push_back({.sequence = sequence.drafter.get(),
                             .context = sequence.tokens,
                             .noise = noise_of(sequence),
                             .sampling = &sequence.sampling,
                             .kv = sequence.kv.get(),
                             .text_depth = depth,
                             .max_depth = std::min(depth, header.trees.depth),
                             .max_width = header.trees.width,
                             .method = header.trees.method,
                             .min_probability = header.min_probability,
                             .prices = header.prices,
                             .tree = &slice.tree});
        of.push_back(&slice);
    }
    drafter->propose(proposals);
    const DraftMethod& method = *options.draft.method;
    const bool by_draft_models =
        (method.chooses_method() ? find_draft_method(method.alternatives.at(header.trees.method)) : method)
            .only_draft_models();
    for (std::size_t i = 0; i < proposals.size(); ++i) {
        TokenTree& tree = of[i]->tree;
        const bool known = std::all_of(tree.token.begin(), tree.token.end(),
                                       [&](std::int32_t t) { return t >= 0 && t < model.config().vocab_size; });
        if (!known) tree.reset(proposals[i].context.back());  // a damaged n-gram table: drop the drafts
        of[i]->by_draft_models = by_draft_models;
        of[i]->model_passes = proposals[i].model_passes;
        // A draft made without a model is a call, too; what an earlier draft has left is none.
        const bool drafted = tree.num_nodes() > 1 && !tree.is_all_from(Origin::resampled);
        const std::int64_t calls = std::max<std::int64_t>(proposals[i].model_passes, drafted ? 1 : 0);
        ItemStatistics& statistics = of[i]->sequence->statistics;
        statistics.draft_calls += calls;
        if (by_draft_models) statistics.draft_model_calls += calls;
    }
}

void Replica::State::add_decode_rows(DecodeSlice& slice) {
    Sequence& sequence = *slice.sequence;
    const TokenTree& tree = slice.tree;
    const std::int64_t depth = depth_limit(sequence.num_tokens(), sequence.tokens_left());
    if (!sequence.kv->reserve(sequence.num_tokens() + depth + 1) ||
        !sequence.kv->reserve_scratch(tree.num_nodes() - 1)) {
        throw std::logic_error("pages were planned for every sequence and are not there");
    }
    wait_for_readers(sequence, sequence.num_tokens() + depth);
    const auto index = static_cast<std::int32_t>(kv_sequences.size());
    kv_sequences.push_back(sequence.kv.get());
    const std::int64_t root_position = sequence.kv->committed();
    for (std::int32_t node = 0; node < tree.num_nodes(); ++node) {
        rows.push_back(tree_row(tree.token[node], root_position, TokenTree::slots_of(tree.path_to(node)), index));
        rows.back().wants_logits = true;
    }
    sequence.statistics.steps += 1;
    sequence.statistics.target_calls += 1;
    sequence.statistics.drafted += tree.num_nodes() - 1;
    sequence.statistics.branched_trees += tree.branches() ? 1 : 0;
    outcome.calls_without_drafts += tree.num_nodes() == 1 ? 1 : 0;
}

/// Waits for a checkpoint writer that still reads positions whose pages this step would use for up to `position`.
void Replica::State::wait_for_readers(const Sequence& sequence, std::int64_t position) {
    const auto reads = [&] {
        return sequence.kv.use_count() > 1 && sequence.kv->overwrites(position, sequence.saved_kv, KvGroup::margin);
    };
    while (reads()) {
        if (hooks.poke) hooks.poke();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    std::atomic_thread_fence(std::memory_order_acquire);  // the writer has read what is written now
}

/// Rows of known tokens that a sequence lacks: those of its prompt first, since they may be computed in another way.
static std::int64_t num_lacking(const Sequence& sequence) {
    const std::int64_t committed = sequence.kv->committed(), end_of_prompt = sequence.prompt_size() - 1;
    return (committed < end_of_prompt ? end_of_prompt : sequence.num_tokens() - 1) - committed;
}

/// Chooses the prompts whose rows are computed in this step, at most `max_rows`, the oldest first. What a prompt has in
/// common with another text is copied, at most `max_copied` positions (with a state also the rest of one text), and a
/// prompt that has more in common with one of this step waits for the next.
void Replica::State::choose_prompts(std::int64_t max_rows, std::int64_t max_copied) {
    const bool copies = max_copied > 0;
    text_slices.clear();
    for (const auto& sequence : in_flight) {
        if (!sequence->prefilling()) continue;
        if (copies) {
            const PrefixSource source = best_prefix(*sequence);
            if (prefix_is_coming(*sequence, source)) continue;
            if (!copy_prefix(*sequence, source, max_copied) || !sequence->prefilling()) continue;
        }
        if (max_rows == 0) continue;
        TextSlice slice{.sequence = sequence.get(), .num_rows = std::min(num_lacking(*sequence), max_rows)};
        end_where_others_branch(slice);
        slice.max_catch_up = slice.num_rows > 0 ? slice.num_rows : max_rows;  // a drafter alone may take them all
        text_slices.push_back(slice);
        max_rows -= slice.max_catch_up;
    }
    if (!text_slices.empty()) text_slices.front().max_catch_up += max_rows;  // its drafter may lag behind its rows
    // A pass has its rows of prompts side by side.
    std::stable_partition(text_slices.begin(), text_slices.end(), [](const TextSlice& slice) {
        return slice.sequence->kv->committed() >= slice.sequence->prompt_size() - 1;
    });
}

/// Adds the rows of the chosen prompts, and returns their number.
std::int64_t Replica::State::add_prompt_rows() {
    std::int64_t num_rows = 0;
    for (TextSlice& slice : text_slices) {
        slice.first_row = std::ssize(rows);
        if (slice.num_rows == 0) continue;
        Sequence& sequence = *slice.sequence;
        const auto index = static_cast<std::int32_t>(kv_sequences.size());
        kv_sequences.push_back(sequence.kv.get());
        const std::int64_t first = sequence.kv->committed(), last = first + slice.num_rows;
        wait_for_readers(sequence, last);
        for (std::int64_t position = first; position < last; ++position) {
            rows.push_back(text_row(sequence.tokens[position], position, index));
            rows.back().text_length = sequence.num_tokens();
            // The prompt's last token is a tree's root, and output tokens are prefilled after a resume: neither counts.
            rows.back().of_prompt = position < sequence.prompt_size() - 1;
        }
        num_rows += slice.num_rows;
    }
    return num_rows;
}

/// Records loss and logprobs of a token from the logits row it was chosen by. Call before appending the token.
void Replica::State::record(Sequence& sequence, Logits& logits, std::int64_t row, std::int32_t token) {
    if (!group.is_first() || (sequence.num_logprobs == 0 && !sequence.is_forced())) return;
    log_softmax.set(logits.row(row));
    if (sequence.is_forced())
        sequence.statistics.loss.add(sequence.num_tokens(), log_softmax(token), log_softmax.is_best(token));
    if (sequence.num_logprobs == 0) return;
    append_logprobs(log_softmax, token, sequence.num_logprobs, sequence.logprobs);
    rounds.count_record_bytes(logprob_words(sequence.num_logprobs) * static_cast<std::int64_t>(sizeof(std::int32_t)));
}

/// Whether nothing could be chosen as the first token. Of the others this is known when the one before is appended.
static bool had_no_first_token(Sequence& sequence) {
    if (!sequence.constraint || sequence.num_output() != 1) return false;
    const AllowedTokens& first = sequence.constraint->allowed({}, {});
    return !first.end && !first.any_but(sequence.item.options->eos_ids);
}

/// How its format ends an item, if nothing can follow its output.
static std::optional<FinishReason> format_end(Sequence& sequence) {
    if (!sequence.constraint) return {};
    const std::vector<std::int32_t>& ends = sequence.item.options->eos_ids;
    const AllowedTokens& next = sequence.constraint->allowed(sequence.output(), {});
    if (next.any_but(ends)) return {};
    return next.end ? FinishReason::stop : FinishReason::error;
}

/// Appends one emitted token; false when it ends the item.
bool Replica::State::append(Sequence& sequence, std::int32_t token, std::optional<FinishReason>& reason) {
    sequence.tokens.push_back(token);
    ++sequence.statistics.decode_tokens;
    ++progress.emitted_tokens;
    const GenerationOptions& wanted = *sequence.item.options;
    if (sequence.is_forced()) {
        if (sequence.tokens_left() > 0) return true;
        reason = sequence.num_output() >= wanted.max_tokens ? FinishReason::length : FinishReason::stop;
        return false;
    }
    if (had_no_first_token(sequence)) {
        reason = FinishReason::error;
    } else if (wanted.is_end(token)) {
        reason = FinishReason::stop;
    }
    const bool may_stop = sequence.num_output() > wanted.sampling.min_tokens;
    if (sequence.stop_text && !reason && sequence.stop_text->push(token, may_stop)) reason = FinishReason::stop;
    if (!reason) reason = format_end(sequence);
    // Before the length: the item ends here with any max-tokens.
    if (sequence.loops && sequence.loops->push(token) && !reason) reason = FinishReason::repetition;
    if (!reason && sequence.num_output() >= wanted.max_tokens) reason = FinishReason::length;
    return !reason;
}

/// Verifies the trees of this step.
std::vector<Verdict> Replica::State::verify(Logits& logits) {
    std::vector<TreeToVerify> trees;
    for (DecodeSlice& slice : slices) {
        const Sequence& sequence = *slice.sequence;
        trees.push_back({.tree = &slice.tree,
                         .context = sequence.tokens,
                         .sampling = &sequence.sampling,
                         .noise_key = sequence.noise_key,
                         .first_row = slice.first_logits,
                         .forced = {}});
        if (sequence.is_forced())
            trees.back().forced = std::span(sequence.item.continuation).subspan(sequence.num_output());
    }
    return verifier.verify(trees, logits);
}

void Replica::State::accept(DecodeSlice& slice, const Verdict& verdict, Logits& logits) {
    Sequence& sequence = *slice.sequence;
    const TokenTree& tree = slice.tree;
    sequence.kv->set_committed(sequence.kv->committed() + 1);
    const std::int64_t before = sequence.num_tokens();
    std::optional<FinishReason> reason;
    bool goes_on = true;
    std::int32_t above = 0;  // the node whose logits row the next token was chosen by
    for (const std::int32_t node : verdict.nodes) {
        if (!goes_on) break;
        record(sequence, logits, slice.first_logits + above, tree.token[node]);
        above = node;
        goes_on = append(sequence, tree.token[node], reason);
        slice.accepted.push_back(node);
        ++sequence.statistics.accepted;
        sequence.statistics.accepted_ngram += tree.origin[node] == Origin::ngram ? 1 : 0;
        sequence.statistics.accepted_resampled += tree.origin[node] == Origin::resampled ? 1 : 0;
        sequence.statistics.accepted_draft_model += slice.by_draft_models ? 1 : 0;
    }
    if (goes_on) {
        record(sequence, logits, slice.first_logits + above, verdict.next_token);
        append(sequence, verdict.next_token, reason);
        if (std::find(tree.parent.begin(), tree.parent.end(), above) != tree.parent.end())
            slice.rejected_level = static_cast<std::int64_t>(slice.accepted.size()) + 1;
    }
    if (!slice.accepted.empty() && tree.by_ngram[slice.accepted.back()])
        sequence.statistics.accepted_ngram_path += std::ssize(slice.accepted);
    sequence.kv->accept(TokenTree::slots_of(slice.accepted));
    const std::int64_t num_new = sequence.num_tokens() - before;
    rounds.count_tokens(num_new);
    slice.num_new = num_new;

    progress.drafted += tree.num_nodes() - 1;
    progress.accepted += static_cast<std::int64_t>(slice.accepted.size());
    progress.decode_tokens += num_new;
    ++progress.target_calls;
    if (hooks.emitted && group.is_first())
        hooks.emitted(sequence.item.number, std::span(sequence.tokens).last(num_new), sequence.num_output());
    slice.reason = reason;
}

/// Passes times and acceptance of the step to DraftEconomy and DraftChooser.
void Replica::State::learn_from(TreeChooser::Step step, std::int64_t method) {
    if (!group.is_first()) return;
    DraftEconomy::Step costs{.rows = step.rows,
                             .sequences = step.sequences,
                             .seconds = step.forward_seconds + step.verify_seconds,
                             .draft_seconds = step.draft_seconds,
                             .tokens = step.tokens,
                             .ngrams = {},
                             .models = {}};
    for (const DecodeSlice& slice : slices) {
        const TokenTree& tree = slice.tree;
        const auto is_ngram = [&](std::int32_t node) { return tree.origin[node] == Origin::ngram; };
        const std::int64_t above = tree.ngram_chain();
        for (std::int32_t node = 1; node < tree.num_nodes(); ++node) {
            (is_ngram(node) ? costs.ngrams : costs.models).expected += static_cast<double>(tree.probability[node]);
            if (is_ngram(node)) ++step.ngram_rows;
        }
        costs.model_passes = std::max(costs.model_passes, slice.model_passes);  // each for all sequences
        for (const std::int32_t node : slice.accepted) (is_ngram(node) ? costs.ngrams : costs.models).accepted += 1;
        if (slice.model_passes > 0 && std::ssize(slice.accepted) >= above) {
            ++costs.first_drafts;
            const bool right = std::ssize(slice.accepted) > above && !is_ngram(slice.accepted[above]);
            costs.right_first_drafts += right ? 1 : 0;
        }
        if (chooser) chooser->verified(slice.tree, slice.accepted, slice.reason.has_value(), slice.model_passes);
    }
    step.ngram_tokens = static_cast<std::int64_t>(costs.ngrams.accepted);
    if (step.measured) economies.at(method).record(costs);
    if (chooser && !slices.empty()) chooser->record(step);
}

/// Whether some sequence in flight has not decoded yet.
bool Replica::State::prefills() const {
    return std::any_of(in_flight.begin(), in_flight.end(), [](const auto& s) { return !s->has_decoded; });
}

/// Accounts for the time of the finished step. An item's time is prefill until it decodes. The step's time is prefill,
/// decode or mixed.
void Replica::State::keep_time(const StepTimes& times, std::int64_t method) {
    const auto between = [](auto from, auto to) { return std::chrono::duration<double>(to - from).count(); };
    TreeChooser::Step taken{.sequences = static_cast<std::int64_t>(slices.size()),
                            .rows = static_cast<std::int64_t>(rows.size()),
                            .measured = slices.size() == in_flight.size()};
    for (const DecodeSlice& slice : slices) taken.tokens += slice.num_new;
    taken.draft_seconds = between(times.start, times.drafted) + seconds_since(times.verified);
    taken.forward_seconds = between(times.drafted, times.computed);
    taken.verify_seconds = between(times.computed, times.verified);
    outcome.draft_seconds += taken.draft_seconds;
    outcome.forward_seconds += taken.forward_seconds;
    outcome.verify_seconds += taken.verify_seconds;
    const double seconds = seconds_since(times.start);
    learn_from(taken, method);
    progress.mixed = prefills() && !slices.empty();
    if (progress.mixed) progress.mixed_tokens += taken.tokens;
    (progress.mixed ? outcome.mixed_seconds : prefills() ? outcome.prefill_seconds : outcome.decode_seconds) += seconds;
    for (const auto& sequence : in_flight) {
        sequence->statistics.seconds += seconds;
        if (!sequence->has_decoded) sequence->statistics.prefill_seconds += seconds;
        sequence->statistics.count_length(sequence->num_output());
    }
}

/// Passes the results of the pass to the drafter.
void Replica::State::observe(std::span<const HiddenStates> taps) {
    std::vector<Observation> seen;
    for (const DecodeSlice& slice : slices)
        seen.push_back({.sequence = slice.sequence->drafter.get(),
                        .context = slice.sequence->tokens,
                        .num_new = slice.num_new,
                        .path = slice.accepted,
                        .rejected_level = slice.rejected_level,
                        .first_row = slice.first_logits,  // decode rows come first, and all have logits
                        .num_rows = slice.tree.num_nodes()});
    for (const TextSlice& slice : text_slices)
        seen.push_back({.sequence = slice.sequence->drafter.get(),
                        .context = slice.sequence->tokens,
                        .path = {},
                        .first_row = slice.first_row,
                        .num_rows = slice.num_rows,
                        .first_position = slice.sequence->kv->committed() - slice.num_rows,
                        .max_catch_up = slice.sequence->feeds_drafter ? slice.max_catch_up : 0});
    drafter->observe(seen, taps);
}

/// The taps that the drafter needs, for all rows of the pass.
std::vector<Tap> Replica::State::taps() const {
    std::vector<Tap> wanted = drafter->taps();
    for (Tap& tap : wanted) {
        tap.rows.resize(rows.size());
        std::iota(tap.rows.begin(), tap.rows.end(), 0);
    }
    return wanted;
}

void Replica::State::step(const StepHeader& header) {
    StepTimes times;
    times.start = std::chrono::steady_clock::now();
    rows.clear();
    kv_sequences.clear();
    slices.clear();
    for (const auto& sequence : in_flight) sequence->feeds_drafter = sequence->feeds_drafter && header.feed_drafter;
    choose_prompts(header.prefill_rows, header.max_copied);
    for (const auto& sequence : in_flight) {
        if (sequence->prefilling()) continue;
        slices.emplace_back().sequence = sequence.get();
        sequence->has_decoded = true;
        // Trees of varying size may leave a draft model unused for some steps. A decoding sequence does not wait for it
        // to catch up: the next proposal computes what is missing.
        if (options.draft.tree.is_auto()) sequence->feeds_drafter = false;
    }
    propose(header);
    for (DecodeSlice& slice : slices) add_decode_rows(slice);
    std::int64_t logits_row = 0;
    for (DecodeSlice& slice : slices) {
        slice.first_logits = logits_row;
        logits_row += slice.tree.num_nodes();
    }
    const std::int64_t num_prefill = add_prompt_rows();
    times.drafted = std::chrono::steady_clock::now();
    const std::vector<Tap> wanted = taps();
    PassResult result = model.forward({.rows = rows, .sequences = views_of(kv_sequences), .taps = wanted});
    Logits& logits = result.logits;
    times.computed = std::chrono::steady_clock::now();
    for (const TextSlice& slice : text_slices) {
        slice.sequence->kv->set_committed(slice.sequence->kv->committed() + slice.num_rows);
        keep_state(slice);
    }
    progress.prefilled_tokens += num_prefill;
    rounds.count_tokens(num_prefill);
    const std::vector<Verdict> verdicts = verify(logits);
    for (std::size_t i = 0; i < slices.size(); ++i) accept(slices[i], verdicts[i], logits);
    times.verified = std::chrono::steady_clock::now();
    observe(result.taps);
    const double observing = seconds_since(times.verified);
    if (num_prefill > 0)
        pace.took(num_prefill, std::chrono::duration<double>(times.computed - times.start).count() + observing);
    keep_time(times, header.trees.method);
    const ReplicaPhase phase = prefills() && slices.empty() ? ReplicaPhase::prefill : ReplicaPhase::decode;
    for (const DecodeSlice& slice : slices) {
        if (!slice.reason) continue;
        finish(*slice.sequence, *slice.reason, error_of(slice));
        keep_prefix(*slice.sequence);
        std::erase_if(in_flight, [&](const auto& s) { return s.get() == slice.sequence; });
    }
    trim_prefix();
    report(phase);
}

/// "" unless the item's constraint fails it.
std::string Replica::State::error_of(const DecodeSlice& slice) {
    if (slice.reason != FinishReason::error) return "";
    return slice.sequence->constraint->is_at_limit() ? limit_error : format_error;
}

void Replica::State::report(ReplicaPhase phase) {
    if (!group.is_first() || !hooks.progress) return;
    progress.in_flight = static_cast<std::int64_t>(in_flight.size());
    progress.checkpoint_rounds = rounds.committed_rounds();
    progress.unfinished_tokens = 0;
    progress.oldest_share = 0;
    for (const auto& sequence : in_flight) {
        progress.unfinished_tokens += sequence->num_output();
        progress.oldest_share = std::max(progress.oldest_share, static_cast<double>(sequence->num_output()) /
                                                                    static_cast<double>(output_limit(sequence->item)));
    }
    progress.phase = phase;
    hooks.progress(progress);
}

}  // namespace longhaul::engine
