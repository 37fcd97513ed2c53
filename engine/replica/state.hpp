// The implementation of Replica: its state, and the parts of the loop, which are in
//   state.cpp    construction: memory for keys and values, the choice of trees
//   replica.cpp  the loop
//   plan.cpp     decisions of the first rank: memory, admission, trees, checkpoint rounds
//   items.cpp    items: admitting, preempting, finishing
//   restore.cpp  what an admitted item has in checkpoints
//   prefix.cpp   prefix caching: prompts that begin alike
//   step.cpp     the generation step: trees, the forward pass, verification
//   score.cpp    the scoring step: rows of given text, their loss
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/checkpoint/restored_item.hpp"
#include "engine/draft/draft_chooser.hpp"
#include "engine/draft/draft_economy.hpp"
#include "engine/draft/drafter.hpp"
#include "engine/kv/kept_states.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/model/model.hpp"
#include "engine/model/model_plan.hpp"
#include "engine/replica/checkpoint_rounds.hpp"
#include "engine/replica/dry_breakers.hpp"
#include "engine/replica/output_rules_cache.hpp"
#include "engine/replica/prefill_pace.hpp"
#include "engine/replica/replica.hpp"
#include "engine/replica/sequence.hpp"
#include "engine/replica/step_header.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "engine/verify/batch_verifier.hpp"

namespace longhaul::engine {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// One decoding sequence within a step: its tree and its rows of the forward pass.
struct DecodeSlice {
    Sequence* sequence = nullptr;
    TokenTree tree;
    std::int64_t model_passes = 0;       // that drafted the tree
    bool by_draft_models = false;        // its tree is that of draft models alone
    std::int64_t first_logits = 0;       // logits row of the root; node i has row first_logits + i
    std::int64_t num_new = 0;            // tokens that this step emitted
    std::vector<std::int32_t> accepted;  // accepted nodes of the tree
    std::int64_t rejected_level = 0;     // level of the tree whose nodes were all rejected; 0: none
    std::optional<FinishReason> reason;  // set when this step ended the item
};

/// The start of a step and the end of each of its parts.
struct StepTimes {
    std::chrono::steady_clock::time_point start, drafted, computed, verified;
};

/// Rows of one sequence's known tokens within a step: of a prompt, or of a text to be scored.
struct TextSlice {
    Sequence* sequence = nullptr;
    std::int64_t num_rows = 0;      // 0: only the drafter has to catch up
    bool keeps_state = false;       // other texts continue from the state behind its rows
    std::int64_t max_catch_up = 0;  // of Observation
    std::int64_t first_row = 0;
    std::int64_t first_logits = 0, num_logits = 0;  // when scoring: the first one scores the next token
};

/// The beginning of a text whose keys and values other items may copy.
struct Prefix {
    std::vector<std::int32_t> tokens{};          ///< all have keys and values
    std::shared_ptr<KvSequence> kv{};            ///< null: none
    std::unique_ptr<SequenceDrafter> drafter{};  ///< what others may copy of it; null: nothing
    std::int64_t min_committed = 0;              ///< Sequence::min_committed
    bool has_long_rope = false;                  ///< likewise
};

/// Where a sequence may copy so many tokens' keys and values from.
struct PrefixSource {
    const KvSequence* kv = nullptr;
    const SequenceDrafter* drafter = nullptr;  ///< null: it has nothing to copy
    std::int64_t num_tokens = 0;
    const KeptState* state = nullptr;  ///< of linear attention, behind these tokens; null: the model has none
};

struct Replica::State {
    /// Collective.
    State(Model& on_model, Group& of_group, const Tokenizer& with_tokenizer, ReplicaOptions with_options,
          ReplicaHooks with_hooks);

    Model& model;
    Group& group;
    const Tokenizer& tokenizer;
    ReplicaOptions options;
    ReplicaHooks hooks;
    std::unique_ptr<Drafter> drafter;
    BatchVerifier verifier;
    LogSoftmax log_softmax;
    BreakerMaker breakers;
    OutputRulesCache output_rules;
    KvPool pool;
    KeptStates kept_states;
    std::int64_t smallest_window;  // of a layer; 0: none has a sliding window
    std::int64_t longest_short_text = model.config().longest_short_text();
    CheckpointRounds rounds;
    PrefillPace pace;                     // the first rank's decides
    std::vector<DraftEconomy> economies;  // first rank only; one per TreeLimits::method
    std::optional<DraftChooser> chooser;  // with `draft-tree = auto`; the first rank's decides

    std::vector<std::unique_ptr<Sequence>> in_flight;  // in order of admission
    std::deque<std::unique_ptr<Sequence>> waiting;     // preempted because memory was short; the same on every rank
    std::optional<Admission> next;                     // first rank: taken from the counter but not admitted yet
    Prefix finished_prefix;                            // of the last item that finished; the same on every rank
    bool work_left = true;                             // first rank
    std::int64_t admitted = 0;
    ReplicaProgress progress;
    ReplicaOutcome outcome;

    std::vector<ForwardRow> rows;
    std::vector<KvSequence*> kv_sequences;
    std::vector<DecodeSlice> slices;
    std::vector<TextSlice> text_slices;

    // --- Construction ---
    static ReplicaOptions prepared(ReplicaOptions options, Group& group);
    KvMemory memory_limit();
    [[nodiscard]] WindowUse window_use() const;
    [[nodiscard]] KeptStates make_kept_states() const;
    [[nodiscard]] std::int64_t tree_slots() const { return drafter->max_nodes() > 0 ? drafter->max_nodes() + 1 : 0; }
    std::optional<DraftChooser> make_chooser();
    [[nodiscard]] TreeChooser tree_chooser(const DraftOptions& draft, const CostModel& target,
                                           double budget_seconds) const;

    // --- Decisions of the first rank ---
    StepHeader plan();
    void plan_memory(StepHeader& header);
    void plan_rope(StepHeader& header) const;
    void plan_admissions(StepHeader& header);
    void plan_trees(StepHeader& header);
    [[nodiscard]] TreeChooser::Batch decoding_batch() const;
    [[nodiscard]] PageCounts pages_for_step(const TextSize& text, std::int64_t tokens_left) const;
    [[nodiscard]] std::string misfit(const WorkItem& item) const;
    void take_restored();
    void take_earlier();
    [[nodiscard]] bool are_known(std::span<const std::int32_t> tokens) const;
    [[nodiscard]] PageCounts pages_wanted(const Sequence& sequence) const;
    [[nodiscard]] PageCounts free_pages() const;
    void refuse_next(const std::string& error);
    void find_answer(const WorkItem& item, FinishedItem& done) const;
    [[nodiscard]] static std::string error_of(const DecodeSlice& slice);
    [[nodiscard]] std::string memory_error(const WorkItem& item) const;
    bool take_next();

    // --- Executed on every rank ---
    void apply(StepHeader& header);
    void admit(Admission& admission);
    void readmit();
    std::unique_ptr<Sequence> make_sequence(Admission& admission);
    std::unique_ptr<SequenceDrafter> make_drafter_of(const Sequence& sequence);
    void watch_for_ends(Sequence& sequence) const;
    void restore(Sequence& sequence, const Admission& admission);
    void restore_kv(Sequence& sequence);
    std::int64_t agreed_positions(const Sequence& sequence, const std::optional<RestoredItem>& stored);
    void restore_layer_kv(Sequence& sequence);
    bool restore_states(Sequence& sequence, std::int64_t positions);
    void restore_group(Sequence& sequence, const RestoredItem& stored, std::size_t group, std::int64_t first,
                       std::int64_t end, std::int64_t& done);
    void wait_for_readers(const Sequence& sequence, std::int64_t position);
    void preempt(std::int64_t number);
    [[nodiscard]] bool caches_prefixes() const;
    [[nodiscard]] std::span<const std::int32_t> prefix_of(const Sequence& sequence, std::int64_t computed) const;
    [[nodiscard]] std::span<const std::int32_t> may_be_copied(const Sequence& sequence) const;
    [[nodiscard]] PrefixSource best_prefix(const Sequence& sequence) const;
    [[nodiscard]] bool prefix_is_coming(const Sequence& sequence, const PrefixSource& source) const;
    [[nodiscard]] std::int64_t unlike_of_drafts() const;
    void end_where_others_branch(TextSlice& slice) const;
    void keep_state(const TextSlice& slice);
    bool copy_prefix(Sequence& sequence, const PrefixSource& source, std::int64_t& max_positions);
    void keep_prefix(Sequence& finished);
    void trim_prefix();
    void move_to_device();
    void step(const StepHeader& header);
    [[nodiscard]] bool prefills() const;
    void keep_time(const StepTimes& times, std::int64_t method);
    void learn_from(TreeChooser::Step step, std::int64_t method);
    void propose(const StepHeader& header);
    void add_decode_rows(DecodeSlice& slice);
    void choose_prompts(std::int64_t max_rows, std::int64_t max_copied);
    std::int64_t add_prompt_rows();
    void observe(std::span<const HiddenStates> taps);
    [[nodiscard]] std::vector<Tap> taps() const;
    std::vector<Verdict> verify(Logits& logits);
    void accept(DecodeSlice& slice, const Verdict& verdict, Logits& logits);
    bool append(Sequence& sequence, std::int32_t token, std::optional<FinishReason>& reason);
    void record(Sequence& sequence, Logits& logits, std::int64_t row, std::int32_t token);
    [[nodiscard]] std::int64_t num_logprobs(const WorkItem& item) const;
    void score_step(const StepHeader& header);
    void begin_window(Sequence& sequence) const;
    void add_score_rows(Sequence& sequence, std::int64_t& rows_left, std::int64_t& logits_row);
    void take_scores(const TextSlice& slice, PassResult& result);
    [[nodiscard]] std::vector<Tap> scored_rows() const;
    [[nodiscard]] std::shared_ptr<TextStates> make_states(const Sequence& sequence) const;
    void keep_states(const TextSlice& slice, const HiddenStates& hidden);
    void keep_top_tokens(TextStates& states);
    [[nodiscard]] std::int64_t unscored_bytes(const Sequence& sequence) const;
    void finish(Sequence& sequence, FinishReason reason, const std::string& error = {});
    void begin_round(RoundContents contents);
    void report(ReplicaPhase phase);
    [[nodiscard]] std::int64_t depth_limit(std::int64_t num_tokens, std::int64_t tokens_left) const;
    [[nodiscard]] bool is_coupled() const { return options.verify == VerifyRule::coupled; }
    [[nodiscard]] Noise noise_of(const Sequence& sequence) const;
};

}  // namespace longhaul::engine
