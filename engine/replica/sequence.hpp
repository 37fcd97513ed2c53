// One item in flight: its tokens, keys and values, drafter, statistics, and what of it is in checkpoints.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/draft/drafter.hpp"
#include "engine/kv/kv_cache.hpp"
#include "engine/replica/work_item.hpp"
#include "engine/sampling/log_softmax.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::engine {

/// Text of an output as it grows, cut at the first stop string. Without a stop string it becomes what `output_text`
/// gives.
class StopText {
  public:
    /// `stops` must outlive it.
    StopText(const Tokenizer& tokenizer, const std::vector<std::string>& stops, std::span<const std::int32_t> prompt);

    /// Appends a token; true when a stop string is there, which may be in bytes that the detokenizer still holds back.
    bool push(std::int32_t token);

    /// The text, with what was held back; after the last push.
    std::string take();

  private:
    bool cut_at_stop(const std::string& text, std::size_t from);

    Detokenizer detokenizer_;
    const std::vector<std::string>& stops_;
    std::string text_;        // of the prompt's last token and the output
    std::size_t before_ = 0;  // bytes of it that belong to the prompt
    bool stopped_ = false;
};

/// Output tokens an item has at most.
inline std::int64_t output_limit(const WorkItem& item) {
    const auto given = static_cast<std::int64_t>(item.continuation.size());
    return given > 0 ? std::min(given, item.options->max_tokens) : item.options->max_tokens;
}

struct Sequence {
    WorkItem item;
    std::int64_t number = 0;           ///< order of admission in this launch: the greatest is the youngest
    std::vector<std::int32_t> tokens;  ///< prompt and output; the last one has no KV yet
    std::shared_ptr<KvSequence> kv;    ///< shared with a checkpoint that is being written
    std::unique_ptr<SequenceDrafter> drafter;
    bool has_decoded = false;   ///< since its keys and values are here: what its drafter reads again is no prefill
    bool feeds_drafter = true;  ///< it waits for what the drafter lacks (not where drafting pauses)
    std::uint64_t noise_key = 0;
    ItemStatistics statistics;
    std::int64_t num_logprobs = 0;       ///< best tokens a row, at most the vocabulary
    std::vector<std::int32_t> logprobs;  ///< rows of the output tokens; first rank
    std::int64_t window_begin = -1;  ///< scoring: position in the document of the window's first token; -1: none yet

    // What the last checkpoint round holds.
    std::string last_commit;
    std::int64_t saved_tokens = 0;  ///< output tokens
    std::int64_t saved_kv = 0;      ///< positions
    bool saved_once = false;

    std::unique_ptr<StopText> stop_text;  ///< only where stop strings have to be found

    [[nodiscard]] std::int64_t prompt_size() const { return static_cast<std::int64_t>(item.prompt.size()); }
    [[nodiscard]] std::int64_t num_tokens() const { return static_cast<std::int64_t>(tokens.size()); }
    [[nodiscard]] std::int64_t num_output() const { return num_tokens() - prompt_size(); }
    [[nodiscard]] std::int64_t tokens_left() const { return output_limit(item) - num_output(); }
    [[nodiscard]] bool is_forced() const { return !item.continuation.empty(); }
    /// Of a forced sequence: the token at a position of the document, emitted already or not.
    [[nodiscard]] std::int32_t document(std::int64_t position) const {
        return position < prompt_size() ? item.prompt[position] : item.continuation[position - prompt_size()];
    }
    [[nodiscard]] std::span<const std::int32_t> output() const { return std::span(tokens).subspan(item.prompt.size()); }
    /// Whether tokens wait for their keys and values (prompt, or what a resume has to compute again).
    [[nodiscard]] bool prefilling() const {
        return kv->committed() < num_tokens() - 1 || (feeds_drafter && drafter->lags(tokens));
    }
};

/// Text of an item's output: special tokens and a closing end-of-text token are left out. `prompt` decides whether the
/// first token's leading space stays (SentencePiece strips it at the beginning of a text only).
std::string output_text(const Tokenizer& tokenizer, std::span<const std::int32_t> prompt,
                        std::span<const std::int32_t> output);

}  // namespace longhaul::engine
