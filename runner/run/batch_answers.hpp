// The answers of task openai-batch in the form of OpenAI's batch API, one line per request: what batch_output.jsonl and
// `longhaul results RUN --form=openai` hold. Everything in a line follows from the job: "created" is 0, and ids are
// hashes of the request's place and custom_id.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "runner/job/settings.hpp"
#include "runner/run/results.hpp"

namespace longhaul::runner {

/// Calls `visit` with the answer of each request whose samples are all in `results`, in input order. Reads the requests
/// again from `data`, and the tokenizer if one of them wants log-probabilities. Throws InputError if the data is not
/// there or has changed.
void each_batch_answer(const ResultIndex& results, const Settings& settings,
                       const std::function<void(const std::string& line)>& visit);

/// Writes TO/batch_output.jsonl durably. `tag`: for the name of the temporary. Throws InputError and StorageError.
void write_batch_answers(const std::filesystem::path& to, const std::string& tag, const ResultIndex& results,
                         const Settings& settings);

}  // namespace longhaul::runner
