// Reads what tokenizer_config.json, special_tokens_map.json and added_tokens.json add to a vocabulary: special tokens,
// begin-of-text, options. Used by the three tokenizer loaders.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "engine/tokenizer/added_tokens.hpp"
#include "engine/tokenizer/json_view.hpp"
#include "engine/tokenizer/pipeline.hpp"

namespace longhaul::engine {

struct TokenizerConfig {
    std::string file;  ///< path of tokenizer_config.json, for error messages
    std::optional<std::string> bos_token;
    std::optional<bool> add_bos_token;
    std::optional<bool> add_prefix_space;
    std::string tokenizer_class;  ///< empty if not given
    /// Tokens with their ids; -1 for tokens that the files only name (`eos_token`, ...).
    std::vector<AddedToken> added_tokens;

    /// Every file may be absent. Throws InputError for a malformed file.
    static TokenizerConfig load(const std::filesystem::path& model_folder);
};

/// Reads an object {content, lstrip, rstrip, single_word, normalized, special}; does not read `id`.
AddedToken added_token_of(const JsonView& json);

/// Sets bos_id and adds_bos of `parts` from the configuration, which overrides their current values. Throws InputError
/// if a begin-of-text token is to be added but is not in the vocabulary.
void apply_bos(const TokenizerConfig& config, TokenizerParts& parts);

/// Adds the configuration's tokens to `parts`, for vocabularies that have no added tokens of their own. Skips a token
/// that has no id and is not in the vocabulary. Throws InputError if an id conflicts with the vocabulary.
void apply_added_tokens(const TokenizerConfig& config, TokenizerParts& parts);

/// XXH3-64 over the bytes of `files`, the begin-of-text settings and the added tokens of `parts`.
std::uint64_t fingerprint_of(const std::vector<std::string>& files, const TokenizerParts& parts);

}  // namespace longhaul::engine
