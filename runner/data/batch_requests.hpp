// Task openai-batch: the requests of a batch file as OpenAI's batch API and `vllm run-batch` read it, one per line:
// {"custom_id", "method": "POST", "url": "/v1/chat/completions" or "/v1/completions", "body": {…}}. Used by
// dataset_records.cpp, and by runner/run to write the answers in the same form.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/chat_template.hpp"
#include "runner/data/dataset_lines.hpp"
#include "runner/data/dataset_records.hpp"
#include "runner/data/request_tools.hpp"
#include "runner/job/settings.hpp"

namespace longhaul::runner {

struct BatchRequest {
    std::string custom_id;
    bool chat = false;                          ///< /v1/chat/completions, else /v1/completions
    std::string model;                          ///< as the request names it; "" if it does not. The job's model answers
    std::vector<engine::ChatMessage> messages;  ///< chat
    std::string prompt;                         ///< completions
    std::vector<std::int32_t> prompt_tokens;    ///< completions: instead of `prompt`; none is negative
    /// Log-probabilities wanted beside the chosen token's; nullopt: none at all.
    std::optional<std::int64_t> top_logprobs;
    RequestTools tools;                        ///< chat
    std::shared_ptr<const Settings> settings;  ///< the job's, changed by the request
};

class BatchRequests {
  public:
    /// Indexes `data` of the settings. Throws InputError if it is unreadable or has no line.
    explicit BatchRequests(const Settings& settings);

    [[nodiscard]] const LineSource& lines() const { return lines_; }
    /// Fields of the body set the generation keys of this request. A field that this program does not have may be null
    /// or have its neutral value ("n": 1, "best_of": 1); a field that cannot change the answer ("user") is
    /// ignored. Throws InputError, naming line and field, for anything else.
    [[nodiscard]] BatchRequest read(std::int64_t index) const;

  private:
    LineSource lines_;
    Settings settings_;
};

/// The requests as records. Throws InputError.
std::unique_ptr<RecordSource> open_batch(const Settings& settings);

}  // namespace longhaul::runner
