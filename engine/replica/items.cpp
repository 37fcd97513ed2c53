// The items of a replica: admit, preempt, finish. Every rank applies the first rank's decisions (StepHeader) here,
// before each step.
#include <algorithm>

#include "engine/replica/state.hpp"

namespace longhaul::engine {

namespace {

std::int64_t text_bytes(const std::string& text) {
    return static_cast<std::int64_t>(text.size());
}

}  // namespace

std::int64_t Replica::State::num_logprobs(const WorkItem& item) const {
    return options.scoring ? 0 : std::min<std::int64_t>(item.options->logprobs, model.config().vocab_size);
}

void Replica::State::admit(Admission& admission) {
    if (admission.is_readmission) return readmit();
    std::unique_ptr<Sequence> sequence = make_sequence(admission);
    if (!options.scoring) sequence->kv->reserve(sequence->num_tokens());
    progress.kept_tokens += sequence->num_output();
    restore(*sequence, admission);
    sequence->statistics.recomputed_tokens +=
        std::max<std::int64_t>(sequence->item.known_tokens - sequence->num_output(), 0);
    sequence->rows_count_again = admission.restored && sequence->num_output() > 0 && !options.scoring;
    if (sequence->rows_count_again)
        sequence->statistics.recomputed_rows += sequence->num_tokens() - 1 - sequence->kv->committed();
    in_flight.push_back(std::move(sequence));
}

/// Puts the first sequence that waits in flight again.
void Replica::State::readmit() {
    std::unique_ptr<Sequence> sequence = std::move(waiting.front());
    waiting.pop_front();
    sequence->number = admitted++;
    if (sequence->outgrew_keys(longest_short_text)) sequence->saved_kv = sequence->saved_layer_kv = 0;
    sequence->has_long_rope = sequence->num_tokens() > longest_short_text;
    if (!options.scoring) sequence->kv->reserve(sequence->num_tokens());
    in_flight.push_back(std::move(sequence));
}

/// The sequence of an item, with the output that it has, no keys and values, and a drafter that has seen nothing.
std::unique_ptr<Sequence> Replica::State::make_sequence(Admission& admission) {
    auto sequence = std::make_unique<Sequence>();
    sequence->item = std::move(admission.item);
    const GenerationOptions& wanted = *sequence->item.options;
    sequence->number = admitted++;
    sequence->tokens = sequence->item.prompt;
    sequence->tokens.insert(sequence->tokens.end(), admission.output.begin(), admission.output.end());
    sequence->has_long_rope = sequence->num_tokens() > longest_short_text;
    sequence->noise_key = noise_key(wanted.seed, sequence->item.id, sequence->item.sample);
    sequence->sampling = wanted.sampling;
    sequence->sampling.prompt_tokens = sequence->prompt_size();
    sequence->sampling.ends = wanted.eos_ids;
    sequence->sampling.biases = wanted.logit_bias;
    if (wanted.sampling.dry.is_on()) sequence->dry_breakers = breakers.of(wanted.dry_breakers);
    sequence->sampling.dry_breakers = sequence->dry_breakers.get();
    if (const auto rules = sequence->is_forced() ? nullptr : output_rules.of(wanted))
        sequence->constraint = std::make_unique<OutputConstraint>(rules, sequence->item.prompt);
    sequence->sampling.constraint = sequence->constraint.get();
    sequence->kv = std::make_shared<KvSequence>(pool);
    sequence->drafter = make_drafter_of(*sequence);
    sequence->num_logprobs = num_logprobs(sequence->item);
    if (options.keeps_states && group.is_first()) sequence->states = make_states(*sequence);
    sequence->logprobs = std::move(admission.logprobs);
    if (!sequence->is_forced()) watch_for_ends(*sequence);
    return sequence;
}

std::unique_ptr<SequenceDrafter> Replica::State::make_drafter_of(const Sequence& sequence) {
    return drafter->make_sequence(
        {.id = sequence.item.id, .sample = sequence.item.sample, .prompt_tokens = sequence.prompt_size()});
}

/// Looks for stop strings and loops, in the output that the sequence has and in what it gains.
void Replica::State::watch_for_ends(Sequence& sequence) const {
    const GenerationOptions& wanted = *sequence.item.options;
    if (!wanted.stop.empty()) {
        sequence.stop_text = std::make_unique<StopText>(tokenizer, wanted.stop, sequence.item.prompt);
        std::int64_t count = 0;
        for (const std::int32_t token : sequence.output())
            sequence.stop_text->push(token, ++count > wanted.sampling.min_tokens);
    }
    if (wanted.stop_loops > 0) {
        sequence.loops.emplace(wanted.stop_loops);
        for (const std::int32_t token : sequence.output()) sequence.loops->push(token);
    }
}

void Replica::State::preempt(std::int64_t number) {
    const auto at =
        std::find_if(in_flight.begin(), in_flight.end(), [&](const auto& s) { return s->number == number; });
    (*at)->kv = std::make_shared<KvSequence>(pool);  // recomputed from the tokens
    (*at)->min_committed = 0;
    (*at)->rows_count_again = false;
    (*at)->statistics.cached_tokens = 0;
    (*at)->drafter->release();
    (*at)->feeds_drafter = true;
    (*at)->has_decoded = false;
    waiting.push_front(std::move(*at));
    in_flight.erase(at);
}

/// Moves KV pages from host memory into device memory that finished items have freed: a page then crosses the link once
/// instead of in every pass. Only a few pages per step, to keep steps short. Skips sequences whose pages a checkpoint
/// writer is reading.
void Replica::State::move_to_device() {
    constexpr std::int64_t pages_per_step = 8;
    if (pool.host_pages_in_use() == 0) return;
    std::int64_t left = pages_per_step;
    for (const auto& sequence : in_flight) {
        if (sequence->kv.use_count() == 1) left -= sequence->kv->move_to_device(left);
    }
}

void Replica::State::apply(StepHeader& header) {
    if (header.poll_round || (group.size() == 1 && rounds.enabled())) {
        const auto start = std::chrono::steady_clock::now();
        rounds.progress();
        outcome.checkpoint_stall_seconds += seconds_since(start);
    }
    if (header.release_prefix) finished_prefix = {};
    trim_prefix();
    for (const std::int64_t number : header.too_large) {
        const auto fail_in = [&](auto& sequences) {
            const auto at =
                std::find_if(sequences.begin(), sequences.end(), [&](const auto& s) { return s->number == number; });
            if (at == sequences.end()) return;
            finish(**at, FinishReason::error, memory_error((*at)->item));
            sequences.erase(at);
        };
        fail_in(in_flight);
        fail_in(waiting);
    }
    for (const std::int64_t number : header.preempt) preempt(number);
    move_to_device();
    for (Admission& admission : header.admissions) admit(admission);
    if (header.begin_round) begin_round(header.round);
}

void Replica::State::begin_round(RoundContents contents) {
    if (!rounds.enabled()) return;
    const auto start = std::chrono::steady_clock::now();
    std::vector<Sequence*> all;
    for (const auto& sequence : in_flight) all.push_back(sequence.get());
    for (const auto& sequence : waiting) all.push_back(sequence.get());
    if (options.scoring) contents.kv = false;  // a window is cheaper to recompute than to store
    rounds.begin(all, contents);
    const double stall = seconds_since(start);
    outcome.checkpoint_stall_seconds += stall;
    for (Sequence* sequence : all) sequence->statistics.checkpoint_stall_seconds += stall;
}

/// Bytes of the given tokens that begin a window: they have no context and are not scored.
std::int64_t Replica::State::unscored_bytes(const Sequence& sequence) const {
    std::int64_t bytes = 0;
    for (std::int64_t at = sequence.prompt_size(); at < sequence.num_tokens(); ++at) {
        const std::int32_t token = sequence.tokens[at];
        if (options.scoring->begin_of(at) == at && !tokenizer.is_special(token))
            bytes += static_cast<std::int64_t>(tokenizer.token_bytes(token).size());
    }
    return bytes;
}

/// Of an item with its tokens and text.
void Replica::State::find_answer(const WorkItem& item, FinishedItem& done) const {
    done.has_reasoning = item.options->has_reasoning() && item.continuation.empty() && !options.scoring;
    if (done.has_reasoning)
        done.answer = answer_in(done.text, item.options->reasoning.end, tokenizer, item.prompt, done.tokens);
}

void Replica::State::finish(Sequence& sequence, FinishReason reason, const std::string& error) {
    if (!group.is_first()) return;
    FinishedItem done;
    done.number = sequence.item.number;
    done.sample = sequence.item.sample;
    done.tokens.assign(sequence.output().begin(), sequence.output().end());
    if (options.scoring) {
        done.scored_bytes =
            text_bytes(output_text(tokenizer, sequence.item.prompt, sequence.output())) - unscored_bytes(sequence);
    } else if (sequence.stop_text) {
        done.text = sequence.stop_text->take();
    } else {
        std::span<const std::int32_t> shown = sequence.output();
        const bool has_end = reason == FinishReason::stop && !sequence.is_forced() && !shown.empty() &&
                             sequence.item.options->is_end(shown.back());
        done.text = output_text(tokenizer, sequence.item.prompt, has_end ? shown.first(shown.size() - 1) : shown);
    }
    if (sequence.is_forced() && !options.scoring) done.scored_bytes = text_bytes(done.text);
    find_answer(sequence.item, done);
    done.logprobs = std::move(sequence.logprobs);
    if (error.empty()) done.states = std::move(sequence.states);
    done.reason = reason;
    done.error = error;
    done.prompt_tokens = sequence.prompt_size();
    done.max_tokens = sequence.item.options->max_tokens;
    done.statistics = sequence.statistics;
    hooks.finished(std::move(done));
}

}  // namespace longhaul::engine
