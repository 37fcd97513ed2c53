// One item in flight: its tokens, KV cache, drafter, statistics, and how much of it is in checkpoints. Owned by the
// replica.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/drafter.hpp"
#include "engine/grammar/output_rules.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/replica/loop_detector.hpp"
#include "engine/replica/work_item.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// The text of a growing output, cut at the first stop string. If no stop string occurs, it equals `output_text`.
class StopText {
  public:
    /// `stops` must outlive the object.
    StopText(const Tokenizer& tokenizer, const std::vector<std::string>& stops, std::span<const std::int32_t> prompt);

    /// Appends a token. True if the text now contains a stop string, possibly in bytes that the detokenizer still holds
    /// back. `may_stop`: false if a stop string that the text ends with does not count.
    bool push(std::int32_t token, bool may_stop = true);

    /// The text including held-back bytes. Call after the last push.
    std::string take();

  private:
    bool cut_at_stop(const std::string& text, std::size_t from);

    Detokenizer detokenizer_;
    const std::vector<std::string>& stops_;
    std::string text_;        // the prompt's last token and the output
    std::size_t before_ = 0;  // bytes of text_ that belong to the prompt
    bool stopped_ = false;
};

/// Maximum number of output tokens of an item.
inline std::int64_t output_limit(const WorkItem& item) {
    const auto given = static_cast<std::int64_t>(item.continuation.size());
    return given > 0 ? std::min(given, item.options->max_tokens) : item.options->max_tokens;
}

struct Sequence {
    WorkItem item;
    SamplingParams sampling{};                          ///< the item's, with its breakers
    std::shared_ptr<const DryBreakers> dry_breakers{};  ///< null without DRY
    std::unique_ptr<OutputConstraint> constraint{};     ///< null for any text
    std::int64_t number = 0;           ///< order of admission in this launch: the youngest has the largest
    std::vector<std::int32_t> tokens;  ///< prompt and output; the last token has no KV yet
    std::shared_ptr<KvSequence> kv;    ///< shared with a checkpoint that is being written
    std::unique_ptr<SequenceDrafter> drafter;
    bool has_decoded = false;   ///< has decoded since its KV was computed: drafter catch-up is then not prefill time
    bool feeds_drafter = true;  ///< waits for the drafter to catch up (false while drafting pauses)
    bool rows_count_again = false;  ///< rows that lack KV are counted in ItemStatistics::recomputed_rows
    bool has_long_rope = false;     ///< its keys are those of a text beyond ModelConfig::longest_short_text
    std::uint64_t noise_key = 0;
    ItemStatistics statistics;
    std::int64_t num_logprobs = 0;       ///< best tokens per row, at most the vocabulary
    std::vector<std::int32_t> logprobs;  ///< rows of the output tokens; first rank only
    std::shared_ptr<TextStates> states;  ///< first rank only; nullptr: not kept
    std::int64_t window_begin = -1;      ///< scoring: document position of the window's first token; -1: none yet

    // What checkpoint rounds have saved.
    std::string last_commit;
    std::int64_t saved_tokens = 0;  ///< output tokens
    std::int64_t saved_kv = 0;      ///< positions
    std::int64_t saved_states = 0;  ///< positions behind which a round has stored the states of linear attention
    std::int64_t saved_layer_kv =
        0;  ///< positions of the drafter's layer: those before it are saved, as far as it had them
    /// Sliding windows that were restored or copied reach back for so many committed positions, or none.
    std::int64_t min_committed = 0;
    bool saved_once = false;

    std::unique_ptr<StopText> stop_text;  ///< null if there are no stop strings
    std::optional<LoopDetector> loops;    ///< of the output tokens, if a loop ends the item

    [[nodiscard]] std::int64_t prompt_size() const { return static_cast<std::int64_t>(item.prompt.size()); }
    [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::int64_t num_output() const { return num_tokens() - prompt_size(); }
    [[nodiscard]] std::int64_t tokens_left() const { return output_limit(item) - num_output(); }
    [[nodiscard]] bool is_forced() const { return !item.continuation.empty(); }
    /// Forced sequences: the token at a position of the document, whether emitted already or not.
    [[nodiscard]] std::int32_t document(std::int64_t position) const {
        return position < prompt_size() ? item.prompt[position] : item.continuation[position - prompt_size()];
    }
    [[nodiscard]] std::span<const std::int32_t> output() const { return std::span(tokens).subspan(item.prompt.size()); }
    /// Whether the text has outgrown its keys: they must be computed again.
    [[nodiscard]] bool outgrew_keys(std::int64_t longest_short_text) const {
        return !has_long_rope && num_tokens() > longest_short_text;
    }
    /// Whether tokens still lack KV (prompt, or tokens that a resume has to recompute), or the drafter has to catch up.
    [[nodiscard]] bool prefilling() const {
        return kv->committed() < num_tokens() - 1 || (feeds_drafter && drafter->lags(tokens));
    }
};

/// Text of an item's output, without special tokens. `prompt` decides whether the first token keeps its leading space
/// (SentencePiece strips it only at the beginning of a text).
std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> output);

/// The part of `text`, which is that of `output`, behind the text that ends the reasoning (Reasoning::end), without
/// white space before it. nullopt if the reasoning does not end.
std::optional<std::string> answer_in(const std::string& text, const std::string& end, const Tokenizer& tokenizer,
                                     std::span<const std::int32_t> prompt, std::span<const std::int32_t> output);

}  // namespace longhaul::engine
