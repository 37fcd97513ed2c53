// Decisions of a group's first rank, made before each step and sent to the other ranks in the StepHeader: memory,
// admission, tree sizes, checkpoint rounds.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/checkpoint/store.hpp"
#include "engine/replica/state.hpp"

namespace longhaul::engine {

/// To admit an item beside others, pages for this many output tokens must be free, so that it does not run out of pages
/// at once.
static constexpr std::int64_t reserved_output = 256;

/// Maximum depth of a tree. Under `coupled`, no node lies beyond the item's last token. Under the sampling rules drafts
/// influence the text, so the depth must not depend on the tokens left: only the model's context limits it, which is
/// the same for all jobs.
std::int64_t Replica::State::depth_limit(std::int64_t num_tokens, std::int64_t tokens_left) const {
    std::int64_t limit = is_coupled() ? tokens_left - 1 : model.config().max_positions - num_tokens;
    if (num_tokens <= longest_short_text) limit = std::min(limit, longest_short_text - num_tokens);
    return std::max<std::int64_t>(std::min(drafter->max_depth(), limit), 0);
}

/// Pages that a sequence of this size needs for its next step, scratch included; when scoring, pages of a window.
PageCounts Replica::State::pages_for_step(const TextSize& text, std::int64_t tokens_left) const {
    if (options.scoring) return pool.pages_for(std::min(text.tokens + tokens_left, options.scoring->window));
    const std::int64_t depth = depth_limit(text.tokens, tokens_left);
    if (depth == 0) return pool.pages_for(text.tokens + 1);
    return pool.pages_for(text.tokens + depth + 1, {.of_tree = tree_slots(), .all = drafter->scratch_slots(text)});
}

PageCounts Replica::State::pages_wanted(const Sequence& sequence) const {
    return pages_for_step({sequence.num_tokens(), sequence.prompt_size()}, sequence.tokens_left());
}

bool Replica::State::take_next() {
    if (next) return true;
    if (!work_left) return false;
    for (;;) {
        std::optional<WorkItem> item = hooks.next_work();
        if (!item) {
            work_left = false;
            return false;
        }
        next.emplace();
        next->item = std::move(*item);
        const std::string error = misfit(next->item);
        if (error.empty() && hooks.store != nullptr && !options.keeps_states) take_restored();
        take_earlier();
        if (error.empty()) return true;
        refuse_next(error);
    }
}

/// Why an item cannot be run; "" if it can.
std::string Replica::State::misfit(const WorkItem& item) const {
    if (!item.options) throw std::logic_error("a work item without options");
    if (options.scoring && item.continuation.empty()) return "continuation: expected tokens to score, got none";
    // With more entries the item's result line would exceed 4 GiB, which readers treat as damage.
    constexpr std::int64_t max_entries = 150'000'000;
    const std::int64_t entries = num_logprobs(item) > 0 ? (num_logprobs(item) + 1) * output_limit(item) : 0;
    if (entries > max_entries)
        return "logprobs: expected at most " + std::to_string(max_entries) +
               " entries per item (max-tokens x (logprobs + 1)), got " + std::to_string(entries);
    const auto vocab = model.config().vocab_size;
    const std::int64_t row_bytes =
        TextStates::row_bytes(model.config().hidden_size, std::min<std::int64_t>(max_top_tokens, vocab));
    if (options.keeps_states && output_limit(item) > max_state_bytes / row_bytes)
        return "hidden-states: expected at most " + std::to_string(max_state_bytes / row_bytes) +
               " tokens per item (2 GiB of states), got " + std::to_string(output_limit(item)) + "; lower max-tokens";
    const auto bad = std::find_if(item.continuation.begin(), item.continuation.end(),
                                  [&](std::int32_t token) { return token < 0 || token >= vocab; });
    if (bad == item.continuation.end()) return {};
    return "continuation: expected token ids below " + std::to_string(vocab) + ", got " + std::to_string(*bad);
}

/// Restores the next item's output from checkpoints, if it fits this item and its settings.
void Replica::State::take_restored() {
    std::optional<RestoredItem> restored = hooks.store->restore(next->item.checkpoint_key, longest_short_text);
    if (restored && hooks.damaged) {
        for (const std::string& line : restored->damage) hooks.damaged(line);
    }
    if (!restored || restored->prompt_tokens != static_cast<std::int64_t>(next->item.prompt.size())) return;
    if (!are_known(restored->tokens)) return;
    auto num_tokens = static_cast<std::int64_t>(restored->tokens.size());
    const std::int64_t row_words = logprob_words(num_logprobs(next->item));
    if (static_cast<std::int64_t>(restored->logprobs.size()) != num_tokens * row_words) return;
    const std::vector<std::int32_t>& given = next->item.continuation;
    if (!given.empty()) {
        // Loss sums cannot be split: they must cover exactly the restored tokens, or the item starts over.
        const auto loss = statistics_from_json(restored->statistics).loss;
        if (loss.covered_tokens != num_tokens || num_tokens >= output_limit(next->item) ||
            !std::equal(restored->tokens.begin(), restored->tokens.end(), given.begin()))
            return;
    }
    const std::int64_t max_tokens = next->item.options->max_tokens;
    if (num_tokens >= max_tokens) {  // from a run with a larger max_tokens
        if (!is_coupled()) return;   // step boundaries influence the text, and the cut may not be at one
        num_tokens = max_tokens - 1;
        restored->tokens.resize(num_tokens);
        restored->logprobs.resize(num_tokens * row_words);
        restored->drafter.clear();
    }
    next->restored = true;
    next->output = std::move(restored->tokens);
    next->logprobs = std::move(restored->logprobs);
    next->kv_tokens = options.scoring ? 0 : restored->kv_tokens;
    next->last_commit = restored->last_commit;
    next->statistics = restored->statistics;
    next->drafter = std::move(restored->drafter);
}

/// Takes the next item's earlier output, if it fits and checkpoints have no more: its keys and values are computed
/// again as after a damaged checkpoint. Under other rules step boundaries influence the text, and the end may not be at
/// one.
void Replica::State::take_earlier() {
    EarlierOutput earlier = std::exchange(next->item.earlier, {});
    const auto num_tokens = std::ssize(earlier.tokens);
    if (!is_coupled() || num_tokens <= std::ssize(next->output) || num_tokens >= output_limit(next->item)) return;
    if (!next->item.continuation.empty() || !are_known(earlier.tokens)) return;
    if (std::ssize(earlier.logprobs) != num_tokens * logprob_words(num_logprobs(next->item))) return;
    next->restored = true;
    next->output = std::move(earlier.tokens);
    next->logprobs = std::move(earlier.logprobs);
    next->statistics = std::move(earlier.statistics);
    next->kv_tokens = 0;
    next->last_commit.clear();
    next->drafter.clear();
}

/// Whether all are tokens of the model.
bool Replica::State::are_known(std::span<const std::int32_t> tokens) const {
    const std::int64_t vocab = model.config().vocab_size;
    return std::all_of(tokens.begin(), tokens.end(), [&](std::int32_t token) { return token >= 0 && token < vocab; });
}

/// Pages left once every sequence in flight has what its next step needs; negative if there are too few.
PageCounts Replica::State::free_pages() const {
    PageCounts free = pool.max_pages();
    free -= pool.pages_in_use();
    for (const auto& sequence : in_flight) {
        const PageCounts held = sequence->kv->pages_held();
        free += held;
        free -= held.max(pages_wanted(*sequence));
    }
    return free;
}

/// Preempts the sequences whose keys must be computed again.
void Replica::State::plan_rope(StepHeader& header) const {
    for (const auto& sequence : in_flight) {
        if (sequence->outgrew_keys(longest_short_text) && !options.scoring) header.preempt.push_back(sequence->number);
    }
    header.wait = !header.preempt.empty();
}

// Every sequence must have the pages for its next step. If pages are short: first give back those of a finished item's
// prompt; then wait for an active checkpoint round, which may hold pages of finished items; then preempt the youngest
// sequences. A sequence that does not fit even alone fails.
void Replica::State::plan_memory(StepHeader& header) {
    // Pages in host memory cost every step more time than a prompt is worth.
    header.release_prefix = finished_prefix.kv != nullptr && pool.host_pages_in_use() > 0;
    if (in_flight.empty() || header.wait) return;
    if (!pages_wanted(*in_flight[0]).fit_in(pool.max_pages())) {
        header.too_large.push_back(in_flight[0]->number);
        header.wait = true;
        return;
    }
    PageCounts free = free_pages();
    if (free.enough()) return;
    header.wait = true;
    header.release_prefix = finished_prefix.kv != nullptr;
    if (header.release_prefix) return;
    for (std::size_t i = in_flight.size(); !rounds.active() && !free.enough() && i-- > 1;) {
        free += in_flight[i]->kv->pages_held().max(pages_wanted(*in_flight[i]));
        header.preempt.push_back(in_flight[i]->number);
    }
}

void Replica::State::refuse_next(const std::string& error) {
    FinishedItem refused;
    refused.number = next->item.number;
    refused.sample = next->item.sample;
    refused.reason = FinishReason::error;
    refused.error = error;
    refused.prompt_tokens = static_cast<std::int64_t>(next->item.prompt.size());
    refused.max_tokens = next->item.options->max_tokens;
    // What the item has is reported with its error, as of an item that fails in flight.
    refused.tokens = std::move(next->output);
    if (!options.scoring) refused.text = output_text(tokenizer, next->item.prompt, refused.tokens);
    find_answer(next->item, refused);
    refused.logprobs = std::move(next->logprobs);
    refused.statistics = statistics_from_json(next->statistics);
    next.reset();
    hooks.finished(std::move(refused));
}

std::string Replica::State::memory_error(const WorkItem& item) const {
    // Results depend on job and seed alone, so the message states neither this launch's memory nor its progress.
    const std::int64_t max_tokens = static_cast<std::int64_t>(item.prompt.size()) + output_limit(item);
    return "memory: expected memory for keys and values of up to " +
           std::to_string(options.scoring ? std::min(max_tokens, options.scoring->window) : max_tokens) +
           " tokens, got less; raise memory, host-memory (on a GPU) or tensor-parallel and run again with retry-failed "
           "= true";
}

/// The size of an item that may be admitted: one that waits, or the next one.
struct Candidate {
    TextSize text;
    std::int64_t tokens_left;
};

static Candidate candidate_of(const Sequence& waiting) {
    return {{waiting.num_tokens(), waiting.prompt_size()}, waiting.tokens_left()};
}

static Candidate candidate_of(const Admission& next) {
    const auto num_prompt = std::ssize(next.item.prompt), num_output = std::ssize(next.output);
    return {{num_prompt + num_output, num_prompt}, output_limit(next.item) - num_output};
}

void Replica::State::plan_admissions(StepHeader& header) {
    if (header.wait) return;
    PageCounts free = free_pages();
    auto in_batch = static_cast<std::int64_t>(in_flight.size());
    std::size_t from_waiting = 0;
    while (in_batch < options.batch) {
        const bool is_waiting = from_waiting < waiting.size();
        if (!is_waiting && !take_next()) return;
        const Candidate candidate = is_waiting ? candidate_of(*waiting[from_waiting]) : candidate_of(*next);
        const PageCounts min_pages = pages_for_step(candidate.text, candidate.tokens_left);
        const bool fits_alone = min_pages.fit_in(pool.max_pages());
        if (is_waiting && !fits_alone) {  // it has grown beyond the whole pool
            if (!header.admissions.empty()) return;
            header.too_large.push_back(waiting[from_waiting]->number);
            header.wait = true;
            return;
        }
        if (!fits_alone) {
            refuse_next(memory_error(next->item));
            continue;
        }
        // Beside others an item also needs pages for `reserved_output`, and all its pages in device memory: a page in
        // host memory costs each step more time than the item gains. An item that runs alone starts with the pages
        // there are.
        PageCounts wanted = min_pages, limit = free;
        if (in_batch > 0) {
            wanted += pool.pages_for(candidate.text.tokens + reserved_output);
            wanted -= pool.pages_for(candidate.text.tokens);
            limit -= pool.max_host_pages();
        }
        if (!wanted.fit_in(limit)) {
            if (finished_prefix.kv) limit += finished_prefix.kv->pages_held();
            header.release_prefix = header.release_prefix || wanted.fit_in(limit);
            return;
        }
        free -= wanted;
        ++in_batch;
        if (is_waiting) {
            ++from_waiting;
            header.admissions.emplace_back().is_readmission = true;
        } else {
            header.admissions.push_back(std::move(*next));
            next.reset();
        }
    }
}

/// Only under `coupled`, where trees cannot change the text.
void Replica::State::plan_trees(StepHeader& header) {
    if (header.wait || !is_coupled()) return;
    if (options.draft.tree_limits) {
        header.trees = options.draft.tree_limits();
        header.feed_drafter = header.trees.depth > 0;
    } else if (chooser) {
        header.trees = chooser->choose(decoding_batch());
        header.feed_drafter = chooser->feeds();
    }
    if (!drafter->adapts() || options.draft.tree_limits) return;
    DraftEconomy& economy = economies.at(header.trees.method);
    if (chooser) economy.set_modelled_price(chooser->node_price());
    header.min_probability = economy.min_probability();
    header.prices = {.node = economy.min_node_probability(),
                     .level = economy.min_level_probability(),
                     .sure_ngram = economy.sure_probability()};
}

/// The sequences that decode in the next step.
TreeChooser::Batch Replica::State::decoding_batch() const {
    TreeChooser::Batch batch{.sequences = 0, .context = 0, .prompt = 0};
    for (const auto& sequence : in_flight) {
        if (sequence->prefilling() && (chooser->feeds() || sequence->kv->committed() < sequence->num_tokens() - 1))
            continue;
        ++batch.sequences;
        batch.context += sequence->num_tokens();
        batch.prompt += sequence->prompt_size();
    }
    batch.context /= std::max<std::int64_t>(batch.sequences, 1);
    batch.prompt /= std::max<std::int64_t>(batch.sequences, 1);
    return batch;
}

StepHeader Replica::State::plan() {
    StepHeader header;
    if (!rounds.error().empty()) {
        header.kind = StepHeader::Kind::finish;
        return header;
    }
    if (hooks.stop_requested && hooks.stop_requested()) {
        header.kind = StepHeader::Kind::stop;
        header.round = {.kv = rounds.next_contents().kv, .states = true};
        return header;
    }
    header.poll_round = rounds.active();
    plan_rope(header);
    plan_memory(header);
    plan_admissions(header);
    if (in_flight.empty() && header.admissions.empty()) {
        header.wait = true;
        if (waiting.empty() && !next && !work_left) header.kind = StepHeader::Kind::finish;
    }
    plan_trees(header);
    header.prefill_rows = pace.rows();
    header.begin_round = rounds.due();
    header.round = rounds.next_contents();
    // Bounds the step's time, too.
    header.max_copied = std::min(8 * options.prefill_chunk, rounds.room_for_positions(header.begin_round));
    return header;
}

}  // namespace longhaul::engine
