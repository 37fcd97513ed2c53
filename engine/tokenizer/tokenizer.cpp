#include "engine/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <utility>

#include "engine/error.hpp"
#include "engine/tokenizer/pipeline.hpp"

namespace longhaul::engine {

namespace fs = std::filesystem;

std::unique_ptr<Tokenizer> Tokenizer::load(const fs::path& model_folder) {
    const auto has = [&](const char* name) {
        std::error_code ignored;
        return fs::exists(model_folder / name, ignored);
    };
    if (has("tokenizer.json")) return std::make_unique<PipelineTokenizer>(load_tokenizer_json(model_folder));
    if (has("vocab.json") && has("merges.txt"))
        return std::make_unique<PipelineTokenizer>(load_vocab_and_merges(model_folder));
    if (has("tokenizer.model")) return std::make_unique<PipelineTokenizer>(load_sentencepiece(model_folder));
    throw InputError(model_folder.string(), "tokenizer",
                     "tokenizer.json, vocab.json with merges.txt, or tokenizer.model",
                     has("tekken.json") ? "tekken.json alone" : "none of them",
                     has("tekken.json") ? "take tokenizer.json from another folder with this tokenizer" : "");
}

/// Places where the end of a long text may begin: at a blank and behind it, since some tokenizers put one before the
/// first word, and at any character.
static std::vector<std::size_t> beginnings_of_end(std::string_view text) {
    constexpr std::size_t end_bytes = 256, max_bytes = 4 * end_bytes;
    if (text.size() <= max_bytes) return {};
    std::size_t any = text.size() - end_bytes;
    while ((static_cast<unsigned char>(text[any]) & 0xC0) == 0x80) --any;
    const std::size_t blank = text.rfind(' ', any);
    if (blank == std::string_view::npos || text.size() - blank > max_bytes) return {any};
    return {blank, blank + 1, any};
}

EncodedText::EncodedText(const Tokenizer& tokenizer, std::string text)
    : tokenizer_(tokenizer), text_(std::move(text)), ids_(tokenizer.encode(text_)) {
    for (const std::size_t begin : beginnings_of_end(text_)) {
        std::string end = text_.substr(begin);
        std::vector<std::int32_t> ids = tokenizer.encode(end);
        if (ids.size() > ids_.size() || !std::equal(ids.rbegin(), ids.rend(), ids_.rbegin())) continue;
        end_ = std::move(end);
        end_ids_ = std::move(ids);
        return;
    }
}

std::vector<std::int32_t> EncodedText::encode_behind(const std::string& more) const {
    // The end of a text that has the same tokens by itself decides what follows.
    for (const bool whole : {false, true}) {
        const std::vector<std::int32_t>& ids = whole ? ids_ : end_ids_;
        if (!whole && end_.empty()) continue;
        std::vector<std::int32_t> all = tokenizer_.encode((whole ? text_ : end_) + more);
        if (all.size() <= ids.size() || !std::equal(ids.begin(), ids.end(), all.begin())) continue;
        all.erase(all.begin(), all.begin() + std::ssize(ids));
        return all;
    }
    return tokenizer_.encode(more);
}

std::string Detokenizer::push(std::int32_t token_id) {
    std::string text;
    if (!skip_special_ || !tokenizer_->is_special(token_id)) tokenizer_->decode_next(state_, token_id, text);
    return text;
}

std::string Detokenizer::finish() {
    std::string text;
    tokenizer_->decode_rest(state_, text);
    return text;
}

}  // namespace longhaul::engine
