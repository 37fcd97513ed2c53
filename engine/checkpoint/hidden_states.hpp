// Hidden states of scored texts, on which PyTorch trains draft layers and heads (key `hidden-states`, jobs/train): one
// HDF5 file per text, complete or absent.
//
//   tokens        int32 [n + 1]      the text
//   hidden        uint16 [n, hidden] row i: the residual stream behind the last layer, before the final norm, after
//                                    tokens 0 … i. The bits of bf16
//   top_ids       int32 [n, k]       the most probable next tokens, most probable first
//   top_logprobs  float32 [n, k]     their log-probabilities
// Attributes: format "longhaul hidden states", format_version 1, the fingerprints `model` and `tokenizer`, and `id`.
// Datasets are chunked, with the Fletcher32 filter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/checkpoint/identity.hpp"

namespace longhaul::engine {

struct TextStates {
    std::int64_t hidden_size = 0, num_top = 0;
    std::vector<std::int32_t> tokens;   ///< one more than there are rows
    std::vector<std::uint16_t> hidden;  ///< [rows, hidden_size]
    std::vector<std::int32_t> top_ids;  ///< [rows, num_top]
    std::vector<float> top_logprobs;

    [[nodiscard]] std::int64_t num_rows() const { return static_cast<std::int64_t>(tokens.size()) - 1; }
    /// Bytes of a row in memory.
    static constexpr std::int64_t row_bytes(std::int64_t hidden_size, std::int64_t num_top) {
        return 4 + 2 * hidden_size + 8 * num_top;
    }
};

/// Most states of a text. They are kept in memory until the text is done.
inline constexpr std::int64_t max_state_bytes = std::int64_t{2} << 30;
/// Tokens of top_ids, if the vocabulary has so many.
inline constexpr std::int64_t max_top_tokens = 64;

/// Writes the file `folder`/`name`, in place of one of an earlier launch. Throws StorageError.
void write_text_states(const std::filesystem::path& folder, const std::string& name, const CheckpointIdentity& identity,
                       const std::string& id, const TextStates& states);

}  // namespace longhaul::engine
