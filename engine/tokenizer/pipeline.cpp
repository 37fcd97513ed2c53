#include "engine/tokenizer/pipeline.hpp"

#include <stdexcept>

#include "engine/tokenizer/unicode.hpp"

namespace longhaul::engine {

namespace {

constexpr std::size_t max_text_bytes = std::size_t{1} << 30;  // Bpe uses 32-bit positions

std::vector<AddedToken> found_in_original(const TokenizerParts& parts) {
    std::vector<AddedToken> tokens;
    for (const AddedToken& token : parts.added_tokens)
        if (!token.normalized) tokens.push_back(token);
    return tokens;
}

std::vector<AddedToken> found_in_normalized(const TokenizerParts& parts) {
    std::vector<AddedToken> tokens = parts.verbatim_tokens;
    for (const AddedToken& token : parts.added_tokens) {
        if (!token.normalized) continue;
        tokens.push_back(token);
        tokens.back().content = parts.normalizer.apply(token.content);
    }
    return tokens;
}

}  // namespace

PipelineTokenizer::PipelineTokenizer(TokenizerParts parts)
    : parts_(std::move(parts)),
      bpe_(parts_.vocabulary, parts_.merges, parts_.bpe, parts_.extra_chars),
      original_matcher_(found_in_original(parts_)),
      normalized_matcher_(found_in_normalized(parts_)),
      is_special_(static_cast<std::size_t>(vocab_size())),
      token_bytes_(static_cast<std::size_t>(vocab_size())) {
    parts_.merges = {};
    for (const std::int32_t id : parts_.special_ids) is_special_[id] = true;
    for (const AddedToken& token : parts_.added_tokens)
        if (token.special) is_special_[token.id] = true;
    for (std::int32_t id = 0; id < vocab_size(); ++id) {
        if (!parts_.vocabulary.contains(id)) continue;
        const std::string& text = parts_.vocabulary.text(id);
        token_bytes_[id] = is_special(id) ? text : parts_.decoder.token_bytes(text);
    }
}

std::vector<std::int32_t> PipelineTokenizer::encode(std::string_view text) const {
    if (!unicode::is_utf8(text)) throw std::invalid_argument("text is not UTF-8");
    if (text.size() > max_text_bytes) throw std::invalid_argument("text is longer than 1 GiB");
    PieceList pieces(text);
    original_matcher_.split(pieces);
    parts_.normalizer.apply(pieces);
    normalized_matcher_.split(pieces);
    parts_.pre_tokenizer.apply(pieces);

    std::vector<std::int32_t> token_ids;
    token_ids.reserve(text.size() / 3);
    Bpe::Session session(bpe_);
    for (const Piece& piece : pieces.pieces()) {
        if (piece.token_id >= 0) {
            token_ids.push_back(piece.token_id);
        } else {
            session.encode(piece.text, token_ids);
        }
    }
    return token_ids;
}

const std::string& PipelineTokenizer::token_bytes(std::int32_t token_id) const {
    static const std::string none;
    return token_id >= 0 && token_id < vocab_size() ? token_bytes_[token_id] : none;
}

bool PipelineTokenizer::is_special(std::int32_t token_id) const {
    return token_id >= 0 && token_id < vocab_size() && is_special_[token_id];
}

std::string PipelineTokenizer::decode(std::span<const std::int32_t> token_ids, bool skip_special) const {
    DecodeState state;
    std::string text;
    for (const std::int32_t id : token_ids)
        if (!skip_special || !is_special(id)) decode_next(state, id, text);
    decode_rest(state, text);
    return text;
}

void PipelineTokenizer::decode_next(DecodeState& state, std::int32_t token_id, std::string& text) const {
    if (parts_.vocabulary.contains(token_id)) parts_.decoder.push(state, parts_.vocabulary.text(token_id), text);
}

void PipelineTokenizer::decode_rest(DecodeState& state, std::string& text) const {
    parts_.decoder.finish(state, text);
}

}  // namespace longhaul::engine
