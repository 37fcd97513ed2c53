#include "runner/data/draft_corpus.hpp"

#include <system_error>
#include <utility>

#include "engine/error.hpp"
#include "runner/data/dataset_source.hpp"

namespace longhaul::runner {
namespace {

/// The results of a run folder; every other path as it is.
std::filesystem::path texts_of(const std::filesystem::path& path) {
    std::error_code absent;
    const std::filesystem::path results = path / "results.jsonl";
    return std::filesystem::exists(results, absent) ? results : path;
}

/// Bytes of a text that are read at most: no tokenizer's tokens are longer on average.
constexpr std::int64_t max_bytes_per_token = 16;

}  // namespace

engine::DraftCorpus read_draft_corpus(const std::filesystem::path& path, const engine::Tokenizer& tokenizer,
                                      std::int64_t max_tokens) {
    const std::unique_ptr<BookSource> source = open_books(texts_of(path), 0);
    engine::DraftCorpus corpus;
    std::int64_t left = max_tokens;
    for (std::int64_t i = 0; i < source->size() && left > 0; ++i) {
        const ItemText item = source->read(i, left * max_bytes_per_token);
        if (!item.error.empty()) throw Error(item.error);
        std::vector<std::int32_t> tokens = tokenizer.encode(item.text);
        if (std::ssize(tokens) > left) tokens.resize(static_cast<std::size_t>(left));
        left -= std::ssize(tokens);
        if (!tokens.empty()) corpus.push_back(std::move(tokens));
    }
    if (corpus.empty()) throw InputError(path.string(), "", "texts for draft-corpus", "none");
    return corpus;
}

}  // namespace longhaul::runner
