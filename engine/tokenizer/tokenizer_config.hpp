// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside the vocabulary.
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
    std::string file;  ///< name of tokenizer_config.json, for messages
    std::optional<std::string> bos_token;
    std::optional<bool> add_bos_token;
    std::optional<bool> add_prefix_space;
    std::string tokenizer_class;  ///< empty: not said
    /// Tokens with the id the files give them, or -1 where they name them only (`eos_token`, ...).
    std::vector<AddedToken> added_tokens;

    /// All files may be absent. Throws InputError for malformed ones.
    static TokenizerConfig load(const std::filesystem::path& model_folder);
};

/// An object {content, lstrip, rstrip, single_word, normalized, special}; `id` is not read.
AddedToken added_token_of(const JsonView& json);

/// Sets bos_id and adds_bos of `parts` by what the configuration says; it wins over what they are.
void apply_bos(const TokenizerConfig& config, TokenizerParts& parts);

/// Adds the tokens of the configuration to `parts`: for the vocabularies that have none themselves. A token that is
/// only named and not in the vocabulary is left out.
void apply_added_tokens(const TokenizerConfig& config, TokenizerParts& parts);

/// XXH3-64 over the bytes of `files` and over the choices made in `parts`.
std::uint64_t fingerprint_of(const std::vector<std::string>& files, const TokenizerParts& parts);

}  // namespace longhaul::engine
