// Texts whose n-grams are known from the start of a job (`draft-corpus`): templates, an earlier run's results.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/draft/draft_options.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::runner {

/// Reads up to `max_tokens` tokens, from the first text on: of a folder of .txt files, one text file, the lines
/// {"text"} of a .jsonl file, or the results that a run folder has so far. Throws InputError if a text cannot be read,
/// or if there is none.
engine::DraftCorpus read_draft_corpus(const std::filesystem::path& path, const engine::Tokenizer& tokenizer,
                                      std::int64_t max_tokens = engine::max_corpus_tokens);

}  // namespace longhaul::runner
