// Texts whose n-grams are known from the start of a job (`draft-corpus`): templates, an earlier run's results.
#pragma once

#include <cstdint>
#include <filesystem>

#include "engine/draft/draft_options.hpp"
#include "engine/tokenizer/tokenizer.hpp"

namespace longhaul::runner {

/// Reads up to `max_tokens` tokens, from the first text on: of a folder of .txt files, a run folder, one text file, or
/// the lines {"text"} of a .jsonl file. Throws InputError if a text cannot be read, or if there is none.
engine::DraftCorpus read_draft_corpus(const std::filesystem::path& path, const engine::Tokenizer& tokenizer,
                                      std::int64_t max_tokens = engine::max_corpus_tokens);

}  // namespace longhaul::runner
