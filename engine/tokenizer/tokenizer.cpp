#include "engine/tokenizer/tokenizer.hpp"

#include <algorithm>
#include <optional>

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

/// The tokens behind `ids` in the encoding of `text`; nullopt if it does not begin with them, or ends with them.
static std::optional<std::vector<std::int32_t>> encoded_behind(const Tokenizer& tokenizer, const std::string& text,
                                                               std::span<const std::int32_t> ids) {
    std::vector<std::int32_t> all = tokenizer.encode(text);
    if (all.size() <= ids.size() || !std::equal(ids.begin(), ids.end(), all.begin())) return std::nullopt;
    all.erase(all.begin(), all.begin() + std::ssize(ids));
    return all;
}

std::vector<std::int32_t> encode_behind(const Tokenizer& tokenizer, std::string_view text,
                                        std::span<const std::int32_t> ids, std::string_view more) {
    // A long text has tokens that do not depend on what follows: the end of it does if its tokens alone are those that
    // it has within the text. Some tokenizers put a blank before the first word, so it is tried with and without.
    constexpr std::size_t end_bytes = 256;
    const std::size_t blank = text.size() > 4 * end_bytes ? text.rfind(' ', text.size() - end_bytes) : text.npos;
    for (std::size_t begin = blank; blank != text.npos && begin <= blank + 1; ++begin) {
        const std::string end(text.substr(begin));
        const std::vector<std::int32_t> end_ids = tokenizer.encode(end);
        if (end_ids.size() > ids.size() || !std::equal(end_ids.rbegin(), end_ids.rend(), ids.rbegin())) continue;
        if (auto behind = encoded_behind(tokenizer, end + std::string(more), end_ids)) return *std::move(behind);
    }
    auto behind = encoded_behind(tokenizer, std::string(text) + std::string(more), ids);
    return behind ? *std::move(behind) : tokenizer.encode(more);
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
