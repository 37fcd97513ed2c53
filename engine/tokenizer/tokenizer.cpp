#include "engine/tokenizer/tokenizer.hpp"

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
